"""What brokers report of their own replicas, decided on a draft: dropped, damaged, missing, sound.

What it changes in a partition: `moves`, and `election` for a seat that is lost. A broker repeats
what is not stored yet.
"""

from penstock.core.control.contract import Severity
from penstock.core.control.documents import FORMAT_MOVES, TopicDocument
from penstock.core.control.draft import Draft, election_settings
from penstock.core.control.election import Liveness, forget, move_leader
from penstock.core.control.move_contract import ReplicasReported, ReportReplicas
from penstock.core.control.moves import dropped, found_damaged, found_sound
from penstock.core.control.partition import PartitionDocument
from penstock.core.control.requests import check_cluster_id, check_session
from penstock.core.control.sessions import Sessions
from penstock.core.types import BrokerId, ReplicaKey, TopicId


def decide_report(
    draft: Draft, report: ReportReplicas, sessions: Sessions, liveness: Liveness
) -> ReplicasReported:
    """What a broker says of its own replicas. What is not so, by what is stored, is ignored.

    In a journal nothing counts as dropped: the broker will say it again. Before FORMAT_MOVES it
    cannot be stored that a replica is damaged, and it only loses its seat.
    """
    check_cluster_id(draft, report.cluster_id)
    check_session(sessions, report.broker_id, report.broker_session)
    for one in () if draft.journaling else report.dropped:
        found = _reported(draft, one.topic_id, one.partition)
        if found is not None and found[1].state.version == one.version:
            topic, document = found
            after = dropped(document, report.broker_id)
            if after is not document:
                draft.put_partition(topic.name, one.partition, after)
                draft.stored_only = True
                draft.detail(
                    "replica dropped",
                    topic=topic.name,
                    partition=one.partition,
                    broker=report.broker_id,
                )
    for keys, decide in ((report.damaged, _damaged), (report.missing, _missing)):
        for key in keys:
            found = _reported(draft, key.topic_id, key.partition)
            if found is not None:
                decide(draft, found[0], key.partition, report.broker_id, liveness)
    for key in report.sound:
        found = _reported(draft, key.topic_id, key.partition)
        if found is not None:
            _sound(draft, found[0], key.partition, report.broker_id, liveness)
    seated = tuple(
        key for key in (*report.damaged, *report.missing) if _has_seat(draft, key, report.broker_id)
    )
    return ReplicasReported(stored=not draft.journaling, seated=seated)


def _has_seat(draft: Draft, key: ReplicaKey, broker_id: BrokerId) -> bool:
    found = _reported(draft, key.topic_id, key.partition)
    return found is not None and broker_id in {*found[1].state.isr, *found[1].elr}


def _sound(
    draft: Draft, topic: TopicDocument, partition: int, broker_id: BrokerId, liveness: Liveness
) -> None:
    """It has all its data again. A member of ISR or ELR takes the lead from a damaged one (I33)."""
    before = topic.partitions[partition]
    known = found_sound(before, broker_id)
    if known is before:
        return
    draft.detail("replica sound again", topic=topic.name, partition=partition, broker=broker_id)
    _settle(draft, topic, partition, known, liveness)


def _settle(
    draft: Draft,
    topic: TopicDocument,
    partition: int,
    before: PartitionDocument,
    liveness: Liveness,
) -> PartitionDocument:
    """Who leads now that `before` is so; in the draft, and logged."""
    settings = election_settings(draft.topic_config(topic), len(before.state.replicas))
    after, kind = draft.settled(before, liveness, settings)
    if kind is not None:
        draft.note_election(topic.name, partition, kind, before, after)
    draft.put_partition(topic.name, partition, after)
    return after


def _missing(
    draft: Draft, topic: TopicDocument, partition: int, broker_id: BrokerId, liveness: Liveness
) -> None:
    """Who may lead has nothing of the log: lost, or its broker ended before it stored any of it.

    Without anybody else there is nothing to wait for: it leads in the next epoch, which it is
    given when it has opened its logs, or now. But beside members that are all damaged, or replicas
    that only lost unsynced records, it gives its seat to them: they may have some of the log. If
    theirs are missing as well, only one of them stays, and leads. Else it is damaged; once somebody
    sound has its seat, it may catch up, like a broker with a new disk.
    """
    before = topic.partitions[partition]
    members = {*before.state.isr, *before.elr}
    may_lead = members | {*before.lossy}
    if broker_id not in may_lead:
        if broker_id in before.state.damaged:
            draft.put_partition(topic.name, partition, found_sound(before, broker_id))
        return
    if may_lead == {broker_id}:
        after = found_sound(before, broker_id)
        if before.state.leader == broker_id:
            after = move_leader(after, broker_id)
        if after is not before:
            draft.put_partition(topic.name, partition, after)
        draft.decide(
            Severity.ERROR,
            "log missing, and nobody else has it",
            topic=topic.name,
            partition=partition,
            broker=broker_id,
            leader_epoch=after.state.leader_epoch,
        )
        return
    if broker_id not in members or members - {broker_id} <= {*before.state.damaged}:
        left = forget(before, broker_id, same_directory=False)
        after = _settle(draft, topic, partition, left, liveness)
        draft.decide(
            Severity.ERROR,
            "log missing: its seat goes to who may have some of it",
            topic=topic.name,
            partition=partition,
            broker=broker_id,
            isr=after.state.isr,
            elr=after.elr,
            lossy=after.lossy,
            leader=after.state.leader,
            leader_epoch=after.state.leader_epoch,
        )
        return
    _damaged(draft, topic, partition, broker_id, liveness)
    found = _reported(draft, topic.topic_id, partition)
    assert found is not None
    after = found[1]
    if broker_id not in {*after.state.isr, *after.elr}:
        draft.put_partition(topic.name, partition, found_sound(after, broker_id))


def _damaged(
    draft: Draft, topic: TopicDocument, partition: int, broker_id: BrokerId, liveness: Liveness
) -> None:
    before = topic.partitions[partition]
    copies = broker_id in before.state.adding
    if copies and draft.journaling:
        return  # as for every step of a move; the broker will say it again
    marked = found_damaged(before, broker_id)
    if marked is before:
        return
    if copies:
        draft.put_partition(topic.name, partition, marked)
        draft.stored_only = True
        draft.decide(
            Severity.WARNING,
            "copy damaged: it is deleted, and begins again",
            topic=topic.name,
            partition=partition,
            broker=broker_id,
        )
        return
    settings = election_settings(draft.topic_config(topic), len(before.state.replicas))
    after, _ = draft.settled(marked, liveness, settings)
    unseated = broker_id not in after.state.isr
    if draft.format < FORMAT_MOVES:
        after = found_sound(after, broker_id)
        if (after.state.isr, after.elr) == (before.state.isr, before.elr):
            after = before
    if after is not before:
        draft.put_partition(topic.name, partition, after)
    draft.decide(
        Severity.WARNING if unseated else Severity.ERROR,
        "replica damaged" if unseated else "replica damaged, and nobody else can take its place",
        topic=topic.name,
        partition=partition,
        broker=broker_id,
        isr=after.state.isr,
        elr=after.elr,
        leader=after.state.leader,
        leader_epoch=after.state.leader_epoch,
    )


def _reported(
    draft: Draft, topic_id: TopicId, partition: int
) -> tuple[TopicDocument, PartitionDocument] | None:
    topic = draft.topic_by_id(topic_id)
    if topic is None or not 0 <= partition < len(topic.partitions):
        return None
    return topic, topic.partitions[partition]
