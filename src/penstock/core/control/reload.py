"""How a controller adopts the documents it reads: at take-over, and after an unknown write.

Take-over raises the controller epoch by compare-and-swap before anything else: no controller can
write with the old version of the cluster document any more. A topic write of the old controller
that is still in flight may succeed later; it is a legal successor of what was read here, and the
next write of that topic meets a conflict, reads again and decides again. Nothing is decided on a
state that is not stored.

After an unknown write, a stored document with a newer metadata version is right and memory is
wrong. A document that is missing without a tombstone, or differs without being newer, was changed
by hand (deleted, edited, an older one applied). It is written again: epochs never decrease (I1),
and no topic disappears without having been deleted (guarantees §3, I26).
"""

from dataclasses import replace

from penstock.core.control.config import ControlConfig
from penstock.core.control.contract import Loaded, Severity
from penstock.core.control.documents import FORMAT_NEWEST, ClusterDocument, TopicDocument
from penstock.core.control.draft import Draft, Stored
from penstock.core.types import ControllerEpoch


def begin_takeover(event: Loaded, config: ControlConfig) -> Draft:
    """A draft that raises the epoch and finishes interrupted deletions."""
    cluster = ClusterDocument(
        cluster_id=event.new_cluster_id,
        controller_epoch=ControllerEpoch(0),
        metadata_version=0,
        format=FORMAT_NEWEST,
    )
    if event.cluster is not None:
        cluster = event.cluster[0]
    base = _base(event, cluster, 0)
    draft = Draft(base, config)
    epoch = ControllerEpoch(cluster.controller_epoch + 1)
    draft.put_cluster(replace(cluster, controller_epoch=epoch))
    _finish_deletions(draft)
    draft.decide(
        Severity.INFO,
        "controller took over",
        cluster_id=cluster.cluster_id,
        controller_epoch=epoch,
        new_cluster=event.cluster is None,
        topics=len(base.topics),
        brokers=sorted(cluster.brokers),
        metadata_version=base.metadata_version + 1,
    )
    return draft


def adopt_loaded(event: Loaded, memory: Stored, config: ControlConfig) -> Draft | None:
    """A draft on what is stored now, with the repairs it needs; None: it was deposed."""
    cluster = memory.cluster
    if event.cluster is not None:
        if event.cluster[0].controller_epoch > cluster.controller_epoch:
            return None
        if event.cluster[0].metadata_version > cluster.metadata_version:
            cluster = event.cluster[0]
    draft = Draft(_base(event, cluster, memory.metadata_version), config)
    if event.cluster is None or event.cluster[0] != memory.cluster:
        draft.put_cluster(cluster)
    _finish_deletions(draft)
    deleted = {tombstone.topic_id for tombstone in cluster.tombstones}
    for name, topic in draft.base.topics.items():
        known = memory.topics.get(name)
        if topic.topic_id in deleted or topic == known:
            continue
        if known is None or topic.metadata_version > known.metadata_version:
            draft.put_topic(topic)  # brokers may not have it: it gets a new metadata version
        else:
            _put_back(draft, known, "was changed by hand or restored from an older state")
    for name, topic in memory.topics.items():
        found = draft.base.topics.get(name)
        if topic.topic_id in deleted or (found is not None and found.topic_id not in deleted):
            continue
        _put_back(draft, topic, "vanished" if found is None else "was replaced by a former topic")
    return draft


def _put_back(draft: Draft, topic: TopicDocument, why: str) -> None:
    draft.put_topic(topic)
    draft.decide(
        Severity.ERROR,
        "putting a topic document back",
        topic=topic.name,
        topic_id=topic.topic_id,
        why=why,
    )


def _base(event: Loaded, cluster: ClusterDocument, floor: int) -> Stored:
    topics: dict[str, TopicDocument] = {topic.name: topic for topic, _ in event.topics}
    newest = max((topic.metadata_version for topic in topics.values()), default=0)
    return Stored(
        cluster,
        None if event.cluster is None else event.cluster[1],
        topics,
        {topic.name: version for topic, version in event.topics},
        max(floor, cluster.metadata_version, newest),
        {topic.topic_id: name for name, topic in topics.items()},
        frozenset(name for name, topic in topics.items() if topic.moving),
    )


def _finish_deletions(draft: Draft) -> None:
    deleted = {tombstone.topic_id for tombstone in draft.cluster.tombstones}
    for topic in draft.base.topics.values():
        if topic.topic_id in deleted:
            draft.drop_document(topic.name)
            draft.decide(Severity.WARNING, "finishing the deletion of a topic", topic=topic.name)
