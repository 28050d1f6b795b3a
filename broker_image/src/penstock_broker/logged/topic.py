"""An internal topic: what it is like, and having it made by the controller on first use."""

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

    `replication`: or as many brokers as are alive when it is created. `keeps`: one of the things
    that a partition keeps ("group"); `find_call`: the call that says where; `what_waits`: what
    clients wait for while nothing can be appended. `check_key` raises ClusterError(INVALID_REQUEST)
    for names that are none; `place(key, partitions)` is the partition that keeps it.
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
    """Has the controller create it. Raises PenstockError; that it exists already is fine.

    `settled` False: the cluster may be starting. Then, while fewer brokers are there than its
    default.replication.factor asks for, this raises ClusterError(LEADER_NOT_AVAILABLE), which is
    retriable: the topic would keep the few replicas that were possible in its first second.
    How many replicas are possible the controller says; `view` may not have every broker yet.
    """
    alive = sum(info.alive for info in view.brokers.values())
    if alive < topic.replication and not settled:
        try:
            await _create(topic, session, view, 0, validate_only=True)
        except PenstockError as error:
            if error.code is not ErrorCode.INVALID_REPLICATION_FACTOR:
                raise
            raise ClusterError(
                f"{topic.name} waits for more brokers, {alive} are there: {error}; try again",
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
