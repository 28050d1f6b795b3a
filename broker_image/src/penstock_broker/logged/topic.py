"""An internal topic: its properties, and its creation by the controller on first use."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol

from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import admin_pb2
from penstock.rpc.errors import error_from_wire
from penstock_broker.metadata.image import ClusterView

_CONFIGS: Final = MappingProxyType(
    {
        "cleanup.policy": "compact",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "max.message.bytes": str(16 * 1024 * 1024),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopic:
    """What a kind of machine needs for its log.

    `replication`: this many replicas, or as many as there are live brokers when the topic is
    created. `keeps`: one of the things stored in a partition ("group"); `find_call`: the call that
    finds it; `what_waits`: what clients wait for while nothing can be appended. `check_key` raises
    ClusterError(INVALID_REQUEST) for invalid names; `place(key, partitions)` is the partition that
    holds the key.
    """

    name: str
    partitions: int
    replication: int
    keeps: str
    find_call: str
    what_waits: str
    check_key: Callable[[str], None]
    place: Callable[[str, int], int]


class Session(Protocol):
    """Calls of the controller (`metadata.session.ControllerSession`)."""

    def connection(self) -> Any: ...
    async def call(self, what: str, answer: Awaitable[Any]) -> Any: ...


async def create_topic(
    topic: InternalTopic, session: Session, view: ClusterView, *, settled: bool
) -> None:
    """Has the controller create it. Raises PenstockError; an existing topic is fine.

    `settled` False: the cluster may be starting. Then, while there are fewer brokers than its
    default.replication.factor requires, this raises ClusterError(LEADER_NOT_AVAILABLE), which is
    retriable: otherwise the topic would keep the few replicas that were possible in the first
    second. The controller decides how many replicas are possible; `view` may not have every broker
    yet.
    """
    alive = sum(info.alive for info in view.brokers.values())
    if alive < topic.replication and not settled:
        try:
            await _create(topic, session, view, 0, validate_only=True)
        except PenstockError as error:
            if error.code is not ErrorCode.INVALID_REPLICATION_FACTOR:
                raise
            raise ClusterError(
                f"{topic.name} waits for more brokers, {alive} are alive: {error}; try again",
                ErrorCode.LEADER_NOT_AVAILABLE,
            ) from error
    for factor in range(topic.replication, 0, -1):
        try:
            await _create(topic, session, view, factor, validate_only=False)
        except PenstockError as error:
            if error.code is not ErrorCode.INVALID_REPLICATION_FACTOR or factor == 1:
                raise
        else:
            return


async def _create(
    topic: InternalTopic, session: Session, view: ClusterView, factor: int, *, validate_only: bool
) -> None:
    """`factor` 0: the cluster's default."""
    new = admin_pb2.NewTopic(
        topic=topic.name,
        partitions=topic.partitions,
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
