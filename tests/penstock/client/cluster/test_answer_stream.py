"""Commits on a stream, against a gRPC server that follows a script: late, refused, cut, closed."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from support.waiting import wait_until_async

from penstock.client.cluster.answer_stream import AnswerStream
from penstock.client.cluster.connections import Connection
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import group_pb2 as pb
from penstock.proto.v1.group_pb2_grpc import (
    GroupServiceServicer,
    add_GroupServiceServicer_to_server,
)
from penstock.rpc.errors import abort


class Double(GroupServiceServicer):
    """Answers a commit of offset n with a result for partition n; offsets in `script` otherwise."""

    def __init__(self) -> None:
        self.script: dict[int, str] = {}
        self.streams = 0
        self.ended = 0
        self.released = asyncio.Event()

    async def CommitOffsetsStream(self, requests: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        self.streams += 1
        try:
            async for request in requests:
                offset = request.partitions[0].offset
                order = self.script.get(offset)
                if order == "refuse":
                    await abort(context, ClusterError("no", ErrorCode.STALE_MEMBER_EPOCH))
                if order == "end":
                    return
                if order == "cut":
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
                if order == "late":
                    await self.released.wait()
                result = pb.CommitResult(topic="t", partition=offset)
                await context.write(pb.CommitOffsetsResponse(results=[result]))
                if order == "answer, then end":
                    return
        finally:
            self.ended += 1


@pytest.fixture
async def double() -> Double:
    return Double()  # type: ignore[abstract]  # other calls are unimplemented


@pytest.fixture
async def connection(double: Double) -> AsyncIterator[Connection]:
    server = grpc.aio.server()
    add_GroupServiceServicer_to_server(double, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    connection = Connection(address, address)
    yield connection
    await connection.aclose()
    await server.stop(None)


Commits = AnswerStream[pb.CommitOffsetsRequest, pb.CommitOffsetsResponse]


def commits() -> Commits:
    return AnswerStream(lambda connection: connection.group.CommitOffsetsStream, "a commit")


async def commit(
    stream: Commits, connection: Connection, offset: int, timeout_s: float = 20.0
) -> int:
    """The partition that the answer is about."""
    request = pb.CommitOffsetsRequest(partitions=[pb.CommitPartition(topic="t", offset=offset)])
    answer = await stream.ask(connection, request, timeout_s)
    return answer.results[0].partition


async def test_commits_share_one_stream_until_it_is_closed(
    double: Double, connection: Connection
) -> None:
    stream = commits()
    assert [await commit(stream, connection, n) for n in range(50)] == list(range(50))
    assert double.streams == 1
    stream.close()
    stream.close()
    await wait_until_async(lambda: double.ended == 1, what="the server hears of it")


@pytest.mark.parametrize(
    ("order", "code"),
    [
        ("refuse", ErrorCode.STALE_MEMBER_EPOCH),
        ("end", ErrorCode.UNREACHABLE),
        ("cut", ErrorCode.UNREACHABLE),
    ],
)
async def test_after_an_error_the_next_commit_opens_another_stream(
    double: Double, connection: Connection, order: str, code: ErrorCode
) -> None:
    stream = commits()
    double.script[2] = order
    assert await commit(stream, connection, 1) == 1
    with pytest.raises(PenstockError) as caught:
        await commit(stream, connection, 2)
    assert caught.value.code is code
    assert connection.address in str(caught.value) or order == "refuse"
    assert await commit(stream, connection, 3) == 3
    assert double.streams == 2


async def test_an_answer_that_comes_late_is_never_taken_for_the_next_ones(
    double: Double, connection: Connection
) -> None:
    stream = commits()
    double.script[2] = "late"
    assert await commit(stream, connection, 1) == 1
    with pytest.raises(ClusterError, match=r"no answer to a commit within 0\.2 s") as caught:
        await commit(stream, connection, 2, timeout_s=0.2)
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    double.released.set()
    assert await commit(stream, connection, 3) == 3


async def test_a_cancelled_commit_leaves_nothing_for_the_next_one(
    double: Double, connection: Connection
) -> None:
    stream = commits()
    double.script[1] = "late"
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(commit(stream, connection, 1))
        await wait_until_async(lambda: double.streams == 1, what="the first one is on its way")
        first.cancel()
    assert first.cancelled()
    double.released.set()
    assert await commit(stream, connection, 2) == 2


async def test_a_stream_that_ended_between_two_commits_costs_nothing(
    double: Double, connection: Connection
) -> None:
    stream = commits()
    double.script[1] = "answer, then end"
    assert await commit(stream, connection, 1) == 1
    await wait_until_async(stream._call.done, what="the end is heard of")
    assert await commit(stream, connection, 2) == 2
    assert double.streams == 2


async def test_a_connection_closed_by_another_task_is_an_error_of_the_commit(
    double: Double, connection: Connection
) -> None:
    stream = commits()
    double.script[1] = "late"
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(_code(commit(stream, connection, 1)))
        await wait_until_async(lambda: double.streams == 1, what="the first one is on its way")
        await connection.aclose()
    assert first.result() in {ErrorCode.UNREACHABLE, ErrorCode.REQUEST_TIMED_OUT}


async def _code(call: Any) -> ErrorCode:
    with pytest.raises(PenstockError) as caught:
        await call
    return caught.value.code
