"""The internal topic as the broker makes and knows it, and the topics that groups may read."""

from penstock.core.groups.config import (
    OFFSETS_PARTITIONS,
    OFFSETS_REPLICATION,
    OFFSETS_TOPIC,
)
from penstock.core.groups.contract import Catalog, CatalogTopic
from penstock.core.topic import is_internal
from penstock.core.types import BrokerId
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import admin_pb2
from penstock.rpc.errors import error_from_wire
from penstock_broker.metadata.image import ClusterView, Topic
from penstock_broker.metadata.session import ControllerSession

_CONFIGS = {
    "cleanup.policy": "compact",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(16 * 1024 * 1024),
}


async def create_offsets_topic(
    session: ControllerSession, view: ClusterView, *, settled: bool
) -> None:
    """Has the controller create it. Raises PenstockError; that it exists already is fine.

    `settled` False: the cluster may be starting. Then, while fewer brokers are there than its
    default.replication.factor asks for, this raises ClusterError(LEADER_NOT_AVAILABLE), which is
    retriable: the topic would keep the few replicas that were possible in its first second.
    """
    alive = sum(info.alive for info in view.brokers.values())
    if alive < OFFSETS_REPLICATION and not settled:
        try:
            await _create(session, view, 0, validate_only=True)
        except PenstockError as error:
            if error.code is not ErrorCode.INVALID_REPLICATION_FACTOR:
                raise
            raise ClusterError(
                f"{OFFSETS_TOPIC} waits for more brokers, {alive} are there: {error}; try again",
                ErrorCode.LEADER_NOT_AVAILABLE,
            ) from error
    await _create(session, view, min(OFFSETS_REPLICATION, max(alive, 1)), validate_only=False)


async def _create(
    session: ControllerSession, view: ClusterView, factor: int, *, validate_only: bool
) -> None:
    """`factor` 0: the cluster's default."""
    new = admin_pb2.NewTopic(
        topic=OFFSETS_TOPIC,
        partitions=OFFSETS_PARTITIONS,
        replication_factor=factor,
        configs=_CONFIGS,
    )
    request = admin_pb2.CreateTopicsRequest(
        cluster_id=view.cluster_id, topics=[new], validate_only=validate_only
    )
    answer = await session.call("CreateTopics", session.connection().admin.CreateTopics(request))
    for result in answer.results:
        if result.HasField("error"):
            error: PenstockError = error_from_wire(result.error)
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise error


def catalog_of(view: ClusterView) -> Catalog:
    """All topics of users, with the racks of their replicas where racks are known."""
    racks = {broker_id: info.rack for broker_id, info in view.brokers.items() if info.rack}
    return Catalog.of(
        *(_topic(topic, racks) for topic in view.topics.values() if not is_internal(topic.name))
    )


def _topic(topic: Topic, racks: dict[BrokerId, str]) -> CatalogTopic:
    found: tuple[frozenset[str], ...] = ()
    if racks:
        found = tuple(
            frozenset(racks[broker] for broker in state.replicas if broker in racks)
            for state in topic.partitions
        )
    return CatalogTopic(topic.name, topic.topic_id, len(topic.partitions), found)


def is_same(known: Catalog, view: ClusterView) -> bool:
    """No topic came, went or grew since: racks alone move nothing."""
    seen = {
        topic_id: (topic.name, len(topic.partitions))
        for topic_id, topic in view.topics.items()
        if not is_internal(topic.name)
    }
    return seen == {t: (topic.name, topic.partitions) for t, topic in known.topics.items()}
