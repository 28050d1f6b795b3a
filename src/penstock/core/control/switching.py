"""The switch of a partition to its target, on a draft; the rules: `moves.lacks`, `moves.switch`.

A leader's ISR change asks for it (`isr`), or it comes at once: a target without new brokers is
reached when somebody asks (`move_requests`) or, if it had to wait, in a tick (`copies`).
"""

from penstock.core.control.documents import TopicDocument
from penstock.core.control.draft import Draft, election_settings
from penstock.core.control.election import Liveness
from penstock.core.control.moves import lacks, switch
from penstock.core.control.partition import PartitionDocument
from penstock.core.types import BrokerId


def switched_if_ready(
    draft: Draft, topic: TopicDocument, document: PartitionDocument, liveness: Liveness
) -> PartitionDocument:
    """A target without new brokers, reached at once; the same object if that must wait."""
    settings = election_settings(draft.topic_config(topic), len(document.target))
    isr = document.state.isr
    if draft.cluster.hibernating or lacks(document, isr, liveness, settings):
        return document
    return switched(draft, topic, document, isr, liveness)


def switched(
    draft: Draft,
    topic: TopicDocument,
    document: PartitionDocument,
    isr: tuple[BrokerId, ...],
    liveness: Liveness,
) -> PartitionDocument:
    """The partition after its switch; nothing was lacking. A damaged member leaves (I33)."""
    after = switch(document, isr, liveness)
    if after.state.damaged:
        settings = election_settings(draft.topic_config(topic), len(document.target))
        after, _ = draft.settled(after, liveness, settings)
    return after


def note_switch(
    draft: Draft,
    topic: str,
    partition: int,
    before: PartitionDocument,
    after: PartitionDocument,
) -> None:
    """The draft has a switch, which must reach the store itself."""
    draft.stored_only = True
    draft.detail(
        "replicas switched",
        topic=topic,
        partition=partition,
        replicas_before=before.state.replicas,
        replicas=after.state.replicas,
        isr=after.state.isr,
        leader=after.state.leader,
        leader_epoch=after.state.leader_epoch,
        version=after.state.version,
    )
