"""Calls that must go to the leader of each partition: grouped, repeated until all are answered.

{partition: what} ──group by leader──▶ one call per broker ──▶ {partition: answer}
                      ▲                     │ some partitions failed for now,
                      └── refresh, pause ◀──┘ or others lead them before the answer came

A leader that does not answer has all the time there is while nobody takes its place: asking it
again would only begin its work again. Once others lead, it is left.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Final, TypeVar

from penstock.client.cluster.cluster import Cluster, is_silence
from penstock.client.cluster.connections import Connection
from penstock.client.cluster.view import Leader
from penstock.client.cluster.wire import isolation_to_wire
from penstock.client.model import ListedOffset, OffsetSpec, TopicDescription
from penstock.core.types import TopicPartition
from penstock.errors import (
    ClusterError,
    ErrorCode,
    MisuseError,
    NotLeaderError,
    PenstockError,
    UnreachableError,
)
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.errors import error_from_wire

PATIENCE_S: Final = 2.0
"""How often a caller without an answer looks who leads by now. A frozen leader is replaced within
that time."""

What = TypeVar("What")
Answer = TypeVar("Answer")
Answers = Mapping[TopicPartition, Answer | PenstockError]
LeaderCall = Callable[
    [Connection, Mapping[TopicPartition, What], float], Awaitable[Answers[Answer]]
]
"""(connection, what is asked there, timeout in s) -> an answer or an error per partition."""


async def known_partition(cluster: Cluster, where: TopicPartition) -> TopicDescription:
    """The partition's topic. Raises UNKNOWN_TOPIC, or MisuseError(UNKNOWN_PARTITION).

    What is known may be minutes old, and somebody may have added partitions: the cluster is asked
    once before one is refused.
    """
    topic = await cluster.topic(where.topic)
    if where.partition >= len(topic.partitions):
        await cluster.refresh()
        topic = await cluster.topic(where.topic)
    if not 0 <= where.partition < len(topic.partitions):
        raise MisuseError(
            f"topic {where.topic!r} has partitions 0 to {len(topic.partitions) - 1}, "
            f"not {where.partition}",
            ErrorCode.UNKNOWN_PARTITION,
        )
    return topic


async def ask_leaders(
    cluster: Cluster,
    asked: Mapping[TopicPartition, What],
    call: "LeaderCall[What, Answer]",
    timeout_s: float,
    *,
    patient: bool = False,
) -> dict[TopicPartition, Answer]:
    """An answer for every partition.

    `patient`: see `ask_once`. Raises the first error that a retry cannot cure, or one of the last
    errors after `timeout_s`; a leader's silence with the partition that waits for it.
    """
    deadline = monotonic() + timeout_s
    answers: dict[TopicPartition, Answer] = {}
    pause_s = cluster.config.retry_backoff_ms / 1000
    for where in asked:
        await known_partition(cluster, where)
    while True:
        left = {where: what for where, what in asked.items() if where not in answers}
        troubles: dict[TopicPartition, PenstockError] = {}
        found = await ask_once(cluster, left, call, deadline - monotonic(), patient=patient)
        for where, answer in found.items():
            if isinstance(answer, PenstockError):
                troubles[where] = answer
            else:
                answers[where] = answer
        if not troubles:
            return answers
        final = [error for error in troubles.values() if not error.retriable]
        if final:
            raise final[0]
        if monotonic() + pause_s >= deadline:
            raise _last_trouble(troubles, timeout_s)
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, cluster.config.retry_backoff_max_ms / 1000)
        await cluster.refresh(topics={where.topic for where in left})


def _last_trouble(
    troubles: Mapping[TopicPartition, PenstockError], timeout_s: float
) -> PenstockError:
    """One of these; of a leader that is silent, with its partition, and the same code: it may have
    done what it was asked for."""
    where, error = next(iter(troubles.items()))
    if not is_silence(error):
        return error
    said = (
        f"the leader of {where} does not answer: {error.message} (tried for {timeout_s:g} s); look "
        "at that broker, or try again: another one leads once the controller has noticed"
    )
    if isinstance(error, UnreachableError):
        return UnreachableError(said)
    return ClusterError(said, error.code)


async def ask_once(
    cluster: Cluster,
    asked: Mapping[TopicPartition, What],
    call: "LeaderCall[What, Answer]",
    timeout_s: float,
    *,
    patient: bool = False,
) -> dict[TopicPartition, Answer | PenstockError]:
    """Asks every leader once; an answer or an error for every partition.

    REQUEST_TIMED_OUT before `timeout_s`: another broker leads one of the partitions that were asked
    for with this one. `patient`: waits for those who led at first, whoever leads by now, because a
    repetition would answer something else.
    """
    by_leader: dict[str, dict[TopicPartition, Leader]] = {}
    answers: dict[TopicPartition, Answer | PenstockError] = {}
    for where in asked:
        leader = cluster.view.leader(where)
        if leader is None:
            text = f"{where} has no leader at the moment"
            answers[where] = ClusterError(text, ErrorCode.LEADER_NOT_AVAILABLE)
        else:
            by_leader.setdefault(leader.address, {})[where] = leader

    async def ask(address: str, part: Mapping[TopicPartition, What]) -> None:
        missing = ClusterError(f"{address}: a partition has no answer", ErrorCode.INTERNAL)
        left = ClusterError(f"{address}: no answer, others lead", ErrorCode.REQUEST_TIMED_OUT)
        answers.update(dict.fromkeys(part, left))
        try:
            found = await call(cluster.connections.to(address), part, max(timeout_s, 0.1))
            answers.update(dict.fromkeys(part, missing) | dict(found))
        except PenstockError as error:
            answers.update(dict.fromkeys(part, error))

    async with asyncio.TaskGroup() as group:
        asking = {
            group.create_task(ask(address, {where: asked[where] for where in led})): led
            for address, led in by_leader.items()
        }
        if not patient:
            await _leave_former_leaders(cluster, asking, timeout_s)
    for where, answer in answers.items():
        if isinstance(answer, NotLeaderError) and answer.leader is not None:
            cluster.learn_leader(where, answer.leader)
    return answers


async def _leave_former_leaders(
    cluster: Cluster,
    asking: Mapping["asyncio.Task[None]", Mapping[TopicPartition, Leader]],
    timeout_s: float,
) -> None:
    """Returns when every call has ended; cancels those that others would answer by now."""
    deadline = monotonic() + timeout_s
    waiting = set(asking)
    while waiting:
        _, waiting = await asyncio.wait(waiting, timeout=PATIENCE_S)
        if waiting:
            with suppress(PenstockError):  # nobody says who leads: the calls have their timeout
                await cluster.refresh(min(PATIENCE_S, deadline - monotonic()))
        for task in waiting:
            if any(cluster.view.leader(where) != led for where, led in asking[task].items()):
                task.cancel()


async def list_offsets(
    cluster: Cluster, asked: Mapping[TopicPartition, OffsetSpec | int], timeout_s: float
) -> dict[TopicPartition, ListedOffset]:
    """Where each partition begins, ends, or reaches a time (ms since 1970)."""
    return await ask_leaders(cluster, asked, offsets_call(cluster), timeout_s)


def offsets_call(cluster: Cluster) -> LeaderCall[OffsetSpec | int, ListedOffset]:
    """The ListOffsets call, for `ask_leaders` and `ask_once`."""

    async def call(
        connection: Connection, part: Mapping[TopicPartition, OffsetSpec | int], timeout_s: float
    ) -> Answers[ListedOffset]:
        request = pb.ListOffsetsRequest(
            cluster_id=cluster.view.cluster_id,
            isolation_level=isolation_to_wire(cluster.config),
            partitions=[_spec_to_wire(where, spec) for where, spec in part.items()],
        )
        answer = await connection.call(connection.broker.ListOffsets, request, timeout_s)
        return {
            TopicPartition(result.topic, result.partition): (
                error_from_wire(result.error)
                if result.HasField("error")
                else ListedOffset(
                    result.offset, result.timestamp_ms, result.leader_epoch, result.topic_id
                )
            )
            for result in answer.results
        }

    return call


def _spec_to_wire(where: TopicPartition, spec: OffsetSpec | int) -> pb.ListOffsetsPartition:
    message = pb.ListOffsetsPartition(topic=where.topic, partition=where.partition)
    if spec is OffsetSpec.EARLIEST:
        message.earliest.SetInParent()
    elif spec is OffsetSpec.LATEST:
        message.latest.SetInParent()
    elif isinstance(spec, int) and -(2**63) <= spec < 2**63:
        message.timestamp_ms = spec
    else:
        raise MisuseError(
            f"{where}: {spec!r} is not a valid offset; use EARLIEST, LATEST or a time in ms "
            "since 1970, -2^63 to 2^63 - 1"
        )
    return message
