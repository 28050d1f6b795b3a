"""The admin's calls about topics and their configs; the broker asked passes them on.

A change without an answer is repeated, and counts as done if the repetition is refused ("already
exists") while things are as was asked for. Brokers learn of changes a moment after the controller
made them: a call returns when the broker that is asked has learned of it, so that a client reads
its own writes.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Final, TypeVar

from penstock.client.admin.asking import Asking, checked, or_own_doing
from penstock.client.cluster.connections import Connection
from penstock.client.cluster.wire import topic_from_wire
from penstock.client.model import (
    ConfigEntry,
    TopicDescription,
)
from penstock.core.topic import is_internal
from penstock.core.types import NO_LEADER
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import admin_pb2 as pb
from penstock.proto.v1 import broker_pb2

SETTLE_S: Final = 2.0
"""How long to wait until a broker has learned of a change that is already made."""

Result = TypeVar("Result")


async def create_topic(
    asking: Asking,
    topic: str,
    partitions: int = 0,
    replication_factor: int = 0,
    configs: Mapping[str, str] | None = None,
    *,
    assignment: Sequence[Sequence[int]] | None = None,
    validate_only: bool = False,
) -> TopicDescription:
    """See `AsyncAdmin.create_topic`."""
    request = pb.CreateTopicsRequest(
        cluster_id=await asking.cluster_id(),
        validate_only=validate_only,
        topics=[
            pb.NewTopic(
                topic=topic,
                partitions=partitions,
                replication_factor=replication_factor,
                configs=dict(configs or {}),
                assignment=[pb.ReplicaList(broker_ids=replicas) for replicas in assignment or ()],
            )
        ],
    )
    metadata = await asking.operator()

    async def attempt(connection: Connection, timeout_s: float) -> str:
        method = connection.admin.CreateTopics
        answer = await connection.call(method, request, timeout_s, metadata)
        return checked(_only(answer.results)).topic_id

    def is_ours(seen: TopicDescription | None) -> bool:
        return seen is not None and _is_as_asked(seen, request.topics[0])

    own = or_own_doing(attempt, ErrorCode.TOPIC_ALREADY_EXISTS, validate_only=validate_only)
    made = await asking.ask(own)
    if isinstance(made, PenstockError):
        if not await _wait_until(asking, topic, is_ours, SETTLE_S):
            raise made
        made = asking.cluster.view.topics[topic].topic_id
    if validate_only:
        return TopicDescription(topic, made, (), dict(configs or {}))
    return await _wait_for_leaders(asking, topic, made)


def _is_as_asked(seen: TopicDescription, new: pb.NewTopic) -> bool:
    """Whether this may be what was made of the request, and not somebody else's; 0 = any number."""
    replicas = [list(one.replicas) for one in seen.partitions]
    own = {name: value for name, value in seen.configs.items() if name not in seen.inherited}
    if new.assignment:
        placed = replicas == [list(one.broker_ids) for one in new.assignment]
    else:
        placed = new.partitions in {0, len(replicas)} and all(
            new.replication_factor in {0, len(one)} for one in replicas
        )
    return placed and own == dict(new.configs)


async def create_partitions(
    asking: Asking, topic: str, partitions: int, *, validate_only: bool = False
) -> None:
    """See `AsyncAdmin.create_partitions`."""
    request = pb.CreatePartitionsRequest(
        cluster_id=await asking.cluster_id(),
        topic=topic,
        partitions=partitions,
        validate_only=validate_only,
    )
    metadata = await asking.operator()

    async def attempt(connection: Connection, timeout_s: float) -> None:
        method = connection.admin.CreatePartitions
        checked(await connection.call(method, request, timeout_s, metadata))

    def has_them(seen: TopicDescription | None) -> bool:
        return seen is not None and len(seen.partitions) == partitions

    own = or_own_doing(attempt, ErrorCode.INVALID_PARTITIONS, validate_only=validate_only)
    refused = await asking.ask(own)
    if refused is not None and not await _wait_until(asking, topic, has_them, SETTLE_S):
        raise refused
    if not validate_only:
        await _wait_for_leaders(asking, topic, "", partitions)


async def delete_topic(
    asking: Asking, topic: str, *, topic_id: str = "", validate_only: bool = False
) -> None:
    """See `AsyncAdmin.delete_topic`."""
    request = pb.DeleteTopicsRequest(
        cluster_id=await asking.cluster_id(),
        topics=[pb.TopicName(topic=topic, topic_id=topic_id)],
        validate_only=validate_only,
    )
    metadata = await asking.operator()

    async def attempt(connection: Connection, timeout_s: float) -> None:
        method = connection.admin.DeleteTopics
        answer = await connection.call(method, request, timeout_s, metadata)
        checked(_only(answer.results))

    await asking.ask(or_own_doing(attempt, ErrorCode.UNKNOWN_TOPIC, validate_only=validate_only))
    if not validate_only:
        await _wait_until(asking, topic, lambda seen: seen is None, SETTLE_S)


async def list_topics(asking: Asking, *, include_internal: bool = False) -> list[str]:
    """See `AsyncAdmin.list_topics`."""
    topics = await describe_topics(asking)
    return sorted(
        name
        for name, topic in topics.items()
        if include_internal or not (topic.internal or is_internal(name))
    )


async def describe_topics(
    asking: Asking, topics: Iterable[str] | None = None
) -> dict[str, TopicDescription]:
    """See `AsyncAdmin.describe_topics`."""
    if topics is not None:
        names = list(topics)
        for name in names:
            await asking.cluster.topic(name)
        if names:
            await _refresh_told(asking)
        return {name: await asking.cluster.topic(name) for name in names}
    request = broker_pb2.MetadataRequest(cluster_id=await asking.cluster_id())

    async def attempt(connection: Connection, timeout_s: float) -> broker_pb2.MetadataResponse:
        found = await connection.call(connection.broker.Metadata, request, timeout_s)
        asking.told.check_not_behind(found.controller_epoch, found.metadata_version)
        return found

    answer = await asking.ask(attempt)
    return {
        info.topic: topic_from_wire(info) for info in answer.topics if not info.HasField("error")
    }


async def _refresh_told(asking: Asking) -> None:
    """The view, until it is not older than what the controller has told."""
    deadline = monotonic() + asking.timeout_s
    while True:
        view = await asking.cluster.refresh()
        try:
            asking.told.check_not_behind(view.controller_epoch, view.metadata_version)
        except ClusterError:
            if monotonic() >= deadline:
                raise
            await asyncio.sleep(asking.cluster.config.retry_backoff_ms / 1000)
        else:
            return


async def alter_configs(
    asking: Asking,
    topic: str,
    changes: Mapping[str, str] | None = None,
    *,
    unset: Iterable[str] = (),
    validate_only: bool = False,
) -> None:
    """See `AsyncAdmin.alter_configs`."""
    request = pb.AlterConfigsRequest(
        cluster_id=await asking.cluster_id(),
        topic=topic,
        set=dict(changes or {}),
        unset=list(unset),
        validate_only=validate_only,
    )
    await asking.change(lambda connection: connection.admin.AlterConfigs, request)
    if validate_only:
        return

    def changed(seen: TopicDescription | None) -> bool:
        known = {} if seen is None else seen.configs
        own = set() if seen is None else known.keys() - seen.inherited
        return all(known.get(name) == value for name, value in request.set.items()) and not (
            own & set(request.unset)
        )

    await _wait_until(asking, topic, changed, SETTLE_S)


async def describe_configs(asking: Asking, topic: str) -> list[ConfigEntry]:
    """See `AsyncAdmin.describe_configs`."""
    request = pb.DescribeConfigsRequest(topic=topic)
    answer = await asking.read(lambda connection: connection.admin.DescribeConfigs, request)
    return [
        ConfigEntry(entry.name, entry.value, entry.is_default, entry.documentation)
        for entry in answer.configs
    ]


async def _wait_for_leaders(
    asking: Asking, topic: str, topic_id: str, partitions: int = 0
) -> TopicDescription:
    def led(seen: TopicDescription | None) -> bool:
        return (
            seen is not None
            and topic_id in ("", seen.topic_id)
            and len(seen.partitions) >= partitions
            and all(entry.leader != NO_LEADER for entry in seen.partitions)
        )

    if not await _wait_until(asking, topic, led, asking.timeout_s):
        raise ClusterError(
            f"topic {topic!r} exists, but some of its partitions have no leader after "
            f"{asking.timeout_s:g} s; are enough brokers alive?",
            ErrorCode.LEADER_NOT_AVAILABLE,
        )
    return asking.cluster.view.topics[topic]


async def _wait_until(
    asking: Asking,
    topic: str,
    condition: Callable[[TopicDescription | None], bool],
    timeout_s: float,
) -> bool:
    """Waits until the broker shows the topic as wanted; False if it never does."""
    deadline = monotonic() + timeout_s
    while not condition((await asking.cluster.refresh(topics=(topic,))).topics.get(topic)):
        if monotonic() >= deadline:
            return False
        await asyncio.sleep(asking.cluster.config.retry_backoff_ms / 1000)
    return True


def _only(results: Sequence[Result]) -> Result:
    if len(results) != 1:
        raise ClusterError(f"{len(results)} results for one topic", ErrorCode.INTERNAL)
    return results[0]
