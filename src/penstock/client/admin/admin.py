"""The async admin: topics, configs and the cluster, asked of any broker.

Changes are passed on to the controller by the broker that is asked; those that concern one
partition's data go to its leader. Every operation is tried again, at other brokers too, until
it succeeds, is refused, or `request_timeout_ms` has passed. A change whose answer was lost is
repeated, and "exists already" then means that the first attempt had worked.

Brokers hear of changes a moment after the controller made them. One admin client goes on asking
the same broker and waits until that has heard, so that it reads what it wrote.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, Final, Protocol, Self, TypeVar, Unpack

from penstock.client.admin.groups import GroupAdministration
from penstock.client.admin.transactions import TransactionAdministration
from penstock.client.cluster.cluster import Cluster, is_silence
from penstock.client.cluster.connections import Connection
from penstock.client.cluster.leaders import Answers, ask_leaders, known_partition, list_offsets
from penstock.client.cluster.wire import broker_from_wire, logs_from_wire, topic_from_wire
from penstock.client.config import ClientConfig, ClientOptions, parse_bootstrap
from penstock.client.model import (
    ClusterDescription,
    ConfigEntry,
    ListedOffset,
    LogDescription,
    OffsetSpec,
    TopicDescription,
)
from penstock.client.process import ProcessGuard
from penstock.core.topic import is_internal
from penstock.core.types import NO_LEADER, TopicPartition
from penstock.errors import ClusterError, ErrorCode, MisuseError, PenstockError
from penstock.proto.v1 import admin_pb2 as pb
from penstock.proto.v1 import broker_pb2, errors_pb2
from penstock.rpc.errors import error_from_wire

PATIENCE_S: Final = 5.0
"""How long one broker may take for a change before another is asked."""
SETTLE_S: Final = 2.0
"""How long to wait for a broker to hear of a change that is made already."""
# Retriable elsewhere because a broker may be behind; the controller is not.
_FINAL: Final = frozenset({ErrorCode.UNKNOWN_TOPIC, ErrorCode.UNKNOWN_PARTITION})

Answer = TypeVar("Answer")


class _HasError(Protocol):
    """Any message with an `error` field."""

    @property
    def error(self) -> errors_pb2.Error: ...

    def HasField(self, field_name: Any) -> bool: ...  # noqa: N802 - protobuf's name


class AsyncAdmin(GroupAdministration, TransactionAdministration):
    """Creates, changes and describes topics, groups and transactions; describes the cluster."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        config: ClientConfig | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        """Connects on first use. Raises MisuseError for settings that make no sense."""
        if config is not None and options:
            raise MisuseError("give a config or keyword options, not both")
        self.config = config or ClientConfig(**options)
        self._timeout_s = self.config.request_timeout_ms / 1000
        self._cluster = Cluster(parse_bootstrap(bootstrap), self.config, sticky=True)
        self._guard = ProcessGuard("admin client")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def create_topic(
        self,
        topic: str,
        partitions: int = 0,
        replication_factor: int = 0,
        configs: Mapping[str, str] | None = None,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> TopicDescription:
        """Creates a topic and waits until it is visible and every partition has a leader.

        Args:
            topic: 1 to 249 characters out of a-z, A-Z, 0-9, '.', '_', '-'.
            partitions: 0 = the cluster's default; also with an `assignment`.
            replication_factor: Likewise.
            configs: Kafka's names, e.g. {"retention.ms": "3600000"}.
            assignment: Broker ids per partition, the preferred leader first.
            validate_only: Check everything, change nothing; the description is then empty.

        Raises ClusterError: TOPIC_ALREADY_EXISTS, INVALID_…, or LEADER_NOT_AVAILABLE if the
        topic exists but has no leaders within `request_timeout_ms`.
        """
        request = pb.CreateTopicsRequest(
            cluster_id=await self._cluster_id(),
            validate_only=validate_only,
            topics=[
                pb.NewTopic(
                    topic=topic,
                    partitions=partitions,
                    replication_factor=replication_factor,
                    configs=dict(configs or {}),
                    assignment=[
                        pb.ReplicaList(broker_ids=replicas) for replicas in assignment or ()
                    ],
                )
            ],
        )
        answer_lost = False

        async def attempt(connection: Connection, timeout_s: float) -> str:
            nonlocal answer_lost
            try:
                answer = await connection.call(connection.admin.CreateTopics, request, timeout_s)
                return _checked(_only(answer.results)).topic_id
            except PenstockError as error:
                if answer_lost and error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                    return ""
                answer_lost = answer_lost or is_silence(error)
                raise

        topic_id = await self._ask(attempt)
        if validate_only:
            return TopicDescription(topic, topic_id, (), dict(configs or {}))
        return await self._wait_for_leaders(topic, topic_id)

    async def create_partitions(
        self, topic: str, partitions: int, *, validate_only: bool = False
    ) -> None:
        """Grows a topic to `partitions` in total, and waits until the new ones have leaders.

        Keys move to other partitions by this. Raises ClusterError(INVALID_PARTITIONS) for fewer.
        """
        request = pb.CreatePartitionsRequest(
            cluster_id=await self._cluster_id(),
            topic=topic,
            partitions=partitions,
            validate_only=validate_only,
        )
        await self._change(lambda connection: connection.admin.CreatePartitions, request)
        if not validate_only:
            await self._wait_for_leaders(topic, "", partitions)

    async def delete_topic(
        self, topic: str, *, topic_id: str = "", validate_only: bool = False
    ) -> None:
        """Deletes a topic and its data. `topic_id` guards against a topic created again since.

        Raises ClusterError UNKNOWN_TOPIC, TOPIC_ID_MISMATCH.
        """
        request = pb.DeleteTopicsRequest(
            cluster_id=await self._cluster_id(),
            topics=[pb.TopicName(topic=topic, topic_id=topic_id)],
            validate_only=validate_only,
        )
        answer_lost = False

        async def attempt(connection: Connection, timeout_s: float) -> None:
            nonlocal answer_lost
            try:
                answer = await connection.call(connection.admin.DeleteTopics, request, timeout_s)
                _checked(_only(answer.results))
            except PenstockError as error:
                if answer_lost and error.code is ErrorCode.UNKNOWN_TOPIC:
                    return
                answer_lost = answer_lost or is_silence(error)
                raise

        await self._ask(attempt)
        if not validate_only:
            await self._wait_until(topic, lambda seen: seen is None, SETTLE_S)
            self._cluster.forget_topic(topic)

    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """Names of all topics, sorted."""
        topics = await self.describe_topics()
        return sorted(
            name
            for name, topic in topics.items()
            if include_internal or not (topic.internal or is_internal(name))
        )

    async def describe_topics(
        self, topics: Iterable[str] | None = None
    ) -> dict[str, TopicDescription]:
        """Topics by name; None = all. Raises ClusterError(UNKNOWN_TOPIC) for a missing one."""
        if topics is not None:
            names = list(topics)
            for name in names:
                await self._cluster.topic(name)
            if names:
                await self._cluster.refresh()
            return {name: await self._cluster.topic(name) for name in names}
        request = broker_pb2.MetadataRequest(cluster_id=await self._cluster_id())
        answer = await self._ask(
            lambda connection, timeout_s: connection.call(
                connection.broker.Metadata, request, timeout_s
            )
        )
        return {
            info.topic: topic_from_wire(info)
            for info in answer.topics
            if not info.HasField("error")
        }

    async def alter_configs(
        self,
        topic: str,
        changes: Mapping[str, str] | None = None,
        *,
        unset: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Sets some configs of a topic and returns others to their defaults (`unset`).

        Raises ClusterError INVALID_CONFIG, UNKNOWN_TOPIC; then nothing was changed.
        """
        request = pb.AlterConfigsRequest(
            cluster_id=await self._cluster_id(),
            topic=topic,
            set=dict(changes or {}),
            unset=list(unset),
            validate_only=validate_only,
        )
        await self._change(lambda connection: connection.admin.AlterConfigs, request)
        if validate_only:
            return

        def changed(seen: TopicDescription | None) -> bool:
            known = {} if seen is None else seen.configs
            own = set() if seen is None else known.keys() - seen.inherited
            return all(known.get(name) == value for name, value in request.set.items()) and not (
                own & set(request.unset)
            )

        await self._wait_until(topic, changed, SETTLE_S)

    async def describe_configs(self, topic: str) -> list[ConfigEntry]:
        """Every config of a topic, set or default, with its documentation."""
        request = pb.DescribeConfigsRequest(topic=topic)
        answer = await self._change(lambda connection: connection.admin.DescribeConfigs, request)
        return [
            ConfigEntry(entry.name, entry.value, entry.is_default, entry.documentation)
            for entry in answer.configs
        ]

    async def describe_cluster(self) -> ClusterDescription:
        """Brokers, and how many topics and partitions are in which state."""
        answer = await self._ask(
            lambda connection, timeout_s: connection.call(
                connection.admin.DescribeCluster, pb.DescribeClusterRequest(), timeout_s
            )
        )
        return ClusterDescription(
            cluster_id=answer.cluster_id,
            controller_epoch=answer.controller_epoch,
            metadata_version=answer.metadata_version,
            controller_reachable=answer.controller_reachable,
            brokers=tuple(broker_from_wire(info) for info in answer.brokers),
            topics=answer.topics,
            partitions=answer.partitions,
            offline_partitions=answer.offline_partitions,
            under_replicated_partitions=answer.under_replicated_partitions,
            under_min_isr_partitions=answer.under_min_isr_partitions,
        )

    async def list_offsets(
        self, offsets: Mapping[TopicPartition, OffsetSpec | int]
    ) -> dict[TopicPartition, ListedOffset]:
        """Where each partition begins (EARLIEST), ends (LATEST) or reaches a time (ms)."""
        self._guard.check()
        return await list_offsets(self._cluster, offsets, self._timeout_s)

    async def delete_records(
        self, before_offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Deletes records before an offset; -1 = all that are committed.

        Returns the log starts reached. Raises OffsetOutOfRangeError past the high watermark.
        """
        cluster_id = await self._cluster_id()

        async def call(
            connection: Connection, part: Mapping[TopicPartition, int], timeout_s: float
        ) -> Answers[int]:
            answers: dict[TopicPartition, int | PenstockError] = {}
            for where, before_offset in part.items():
                request = pb.DeleteRecordsRequest(
                    cluster_id=cluster_id,
                    topic=where.topic,
                    partition=where.partition,
                    before_offset=before_offset,
                )
                answer = await connection.call(connection.admin.DeleteRecords, request, timeout_s)
                answers[where] = (
                    error_from_wire(answer.error)
                    if answer.HasField("error")
                    else answer.log_start_offset
                )
            return answers

        return await ask_leaders(self._cluster, before_offsets, call, self._timeout_s)

    async def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        away_from_broker: int | None = None,
    ) -> int:
        """Gives partitions (None = all) back to their preferred leaders.

        Args:
            partitions: Which; ignored with `away_from_broker`.
            away_from_broker: Instead, move all leadership away from this broker.

        Returns how many partitions moved.
        """
        named = list(partitions or ())
        for where in named:
            await known_partition(self._cluster, where)
        request = pb.ElectLeadersRequest(
            cluster_id=await self._cluster_id(),
            partitions=[
                broker_pb2.PartitionName(topic=where.topic, partition=where.partition)
                for where in named
            ],
            away_from_broker=-1 if away_from_broker is None else away_from_broker,
            away=away_from_broker is not None,
        )
        answer = await self._change(lambda connection: connection.admin.ElectLeaders, request)
        return int(answer.moved)

    async def unregister_broker(self, broker_id: int) -> None:
        """Forgets a broker that is gone for good; nothing happens if it is not known.

        Raises ClusterError(INVALID_REQUEST) while it is alive or holds a replica.
        """
        request = pb.UnregisterBrokerRequest(
            cluster_id=await self._cluster_id(), broker_id=broker_id
        )
        await self._change(lambda connection: connection.admin.UnregisterBroker, request)

    async def describe_logs(
        self, topics: Iterable[str] | None = None, *, broker_ids: Iterable[int] | None = None
    ) -> list[LogDescription]:
        """What each broker holds; None = every broker that is alive.

        Raises UnreachableError if one of them does not answer.
        """
        await self._cluster_id()
        view = await self._cluster.refresh()
        wanted = None if broker_ids is None else set(broker_ids)
        unknown = (wanted or set()) - set(view.brokers)
        if unknown:
            raise MisuseError(
                f"no such brokers: {sorted(unknown)}; the cluster has {sorted(view.brokers)}"
            )
        request = pb.DescribeLogsRequest(topics=list(topics or ()))
        descriptions = []
        for broker in sorted(view.brokers.values(), key=lambda broker: broker.broker_id):
            if broker.alive if wanted is None else broker.broker_id in wanted:
                connection = self._cluster.connections.to(broker.address)
                answer = await connection.call(
                    connection.admin.DescribeLogs, request, self._timeout_s
                )
                descriptions.append(logs_from_wire(answer))
        return descriptions

    async def close(self) -> None:
        """Closes the connections; may be called again."""
        await self._cluster.aclose()

    async def _cluster_id(self) -> str:
        self._guard.check()
        if not self._cluster.view.cluster_id:
            await self._cluster.refresh(self._timeout_s)
        return self._cluster.view.cluster_id

    async def _ask(self, attempt: Callable[[Connection, float], Awaitable[Answer]]) -> Answer:
        self._guard.check()
        return await self._cluster.ask(
            attempt, self._timeout_s, patience_s=PATIENCE_S, final=_FINAL
        )

    async def _change(self, method: Callable[[Connection], Any], request: object) -> Any:
        """A call whose answer has one `error` field, safe to repeat."""

        async def attempt(connection: Connection, timeout_s: float) -> Any:
            return _checked(await connection.call(method(connection), request, timeout_s))

        return await self._ask(attempt)

    async def _wait_for_leaders(
        self, topic: str, topic_id: str, partitions: int = 0
    ) -> TopicDescription:
        def led(seen: TopicDescription | None) -> bool:
            return (
                seen is not None
                and topic_id in ("", seen.topic_id)
                and len(seen.partitions) >= partitions
                and all(entry.leader != NO_LEADER for entry in seen.partitions)
            )

        if not await self._wait_until(topic, led, self._timeout_s):
            raise ClusterError(
                f"topic {topic!r} exists, but not all of its partitions have a leader after "
                f"{self._timeout_s:g} s; are enough brokers alive?",
                ErrorCode.LEADER_NOT_AVAILABLE,
            )
        return self._cluster.view.topics[topic]

    async def _wait_until(
        self,
        topic: str,
        condition: Callable[[TopicDescription | None], bool],
        timeout_s: float,
    ) -> bool:
        """Until the broker asked shows the topic as wanted; False if it never does."""
        deadline = monotonic() + timeout_s
        self._cluster.watch_topic(topic)
        while not condition((await self._cluster.refresh()).topics.get(topic)):
            if monotonic() >= deadline:
                return False
            await asyncio.sleep(self.config.retry_backoff_ms / 1000)
        return True


Result = TypeVar("Result", bound=_HasError)


def _checked(result: Result) -> Result:
    if result.HasField("error"):
        raise error_from_wire(result.error)
    return result


def _only(results: Sequence[Result]) -> Result:
    if len(results) != 1:
        raise ClusterError(f"{len(results)} results for one topic", ErrorCode.INTERNAL)
    return results[0]
