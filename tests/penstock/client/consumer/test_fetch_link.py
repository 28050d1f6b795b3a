"""Fetches over a stream of a played broker: answers by their ids, errors, and streams that end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from support.stream_ports import stream_server
from support.waiting import wait_until_async

from penstock.client.cluster import streams
from penstock.client.cluster.connections import Connection
from penstock.client.consumer.fetch_link import Fetched, FetchLink
from penstock.client.tasks import BackgroundTasks
from penstock.errors import (
    ClusterError,
    ErrorCode,
    NotLeaderError,
    OffsetOutOfRangeError,
    OffsetRange,
    PenstockError,
)
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1 import streams_pb2
from penstock.proto.v1.broker_pb2_grpc import (
    BrokerServiceServicer,
    add_BrokerServiceServicer_to_server,
)
from penstock.rpc.errors import error_to_wire
from penstock.rpc.splice import stream_fetch_answer, stream_fetch_asked, stream_fetch_failure
from penstock.rpc.streams.contract import MessageStream

FOR_EVER_S = 1_200.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is opened slowly is used all the same, and gRPC in place of none."""
    monkeypatch.setattr(streams, "CONNECT_S", FOR_EVER_S)


class Broker(BrokerServiceServicer):
    """Keeps streams open until the test ends them. `asked`: a stream, an id and the fetch."""

    def __init__(self) -> None:
        self.asked: list[tuple[MessageStream, int, pb.FetchRequest]] = []
        self.over_grpc = 0
        self.opened = self.open = 0

    async def serve(self, stream: MessageStream) -> None:
        hello = streams_pb2.StreamHello.FromString(bytes(await stream.receive() or b""))
        assert hello.method == streams_pb2.STREAM_METHOD_FETCH
        self.opened += 1
        self.open += 1
        try:
            while (message := await stream.receive()) is not None:
                number, body = stream_fetch_asked(message)
                self.asked.append((stream, number, pb.FetchRequest.FromString(bytes(body))))
        finally:
            self.open -= 1

    async def Fetch(self, request: Any, context: Any) -> pb.FetchResponse:  # noqa: N802
        self.over_grpc += 1
        return pb.FetchResponse(throttle_ms=request.max_bytes)

    async def asked_in_all(self, count: int) -> None:
        await wait_until_async(lambda: len(self.asked) >= count, what=f"{count} fetches")

    async def answer(self, index: int) -> None:
        """With what was asked for, so that answers can be told apart."""
        stream, number, request = self.asked[index]
        result = pb.FetchResult(high_watermark=request.max_bytes)
        await stream.send(stream_fetch_answer(number, [(result, [])]))


class Link(FetchLink):
    """Its tasks end with the test; `crashes`: none are expected."""

    crashes: list[BaseException]
    tasks: BackgroundTasks
    broker: Broker

    async def ask(self, number: int, timeout_s: float = FOR_EVER_S) -> int:
        """The number that comes back."""
        fetched: Fetched = await self.fetch(pb.FetchRequest(max_bytes=number), timeout_s)
        return fetched.response.results[0].high_watermark


@asynccontextmanager
async def linked(*, streams: bool = True) -> AsyncIterator[Link]:
    broker = Broker()  # type: ignore[abstract]  # other calls are unimplemented
    server = grpc.aio.server()
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    add_BrokerServiceServicer_to_server(broker, server)
    await server.start()
    crashes: list[BaseException] = []
    tasks = BackgroundTasks("test", crashes.append)
    await tasks.start()
    connection = Connection(address, address)
    link = Link(connection, tasks)
    link.broker, link.tasks = broker, tasks
    try:
        async with stream_server(broker.serve) as port:
            connection.streams.address = port if streams else ""
            yield link
            await tasks.aclose()
    finally:
        await tasks.aclose()
        await connection.aclose()
        await server.stop(None)
    assert crashes == []


async def error_of(waited: Awaitable[object]) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        await waited
    return caught.value


async def test_answers_find_those_who_asked_in_any_order() -> None:
    async with linked() as link, asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(link.ask(number)) for number in range(10, 14)]
        await link.broker.asked_in_all(4)
        for index in (2, 0, 3, 1):
            await link.broker.answer(index)
        numbers = [await each for each in asking]
        assert numbers == [10, 11, 12, 13]
        assert (link.broker.opened, link.broker.over_grpc) == (1, 0), "one stream for all"


async def test_a_fetch_that_failed_raises_its_error_and_the_others_wait_on() -> None:
    refusal = OffsetOutOfRangeError("offset 7 is out of range", OffsetRange(8, 9))
    async with linked() as link, asyncio.TaskGroup() as tasks:
        failing = tasks.create_task(error_of(link.ask(1)))
        await link.broker.asked_in_all(1)
        other = tasks.create_task(link.ask(2))
        await link.broker.asked_in_all(2)
        stream, number, _ = link.broker.asked[0]
        await stream.send(stream_fetch_failure(number, error_to_wire(refusal)))
        error = await failing
        assert isinstance(error, OffsetOutOfRangeError)
        assert str(error) == str(refusal)
        await link.broker.answer(1)
        assert await other == 2


@pytest.mark.parametrize("how", ["refused", "ended", "cut", "garbage"])
async def test_when_the_stream_ends_all_who_wait_hear_it_and_the_next_one_opens_another(
    how: str,
) -> None:
    async with linked() as link, asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(error_of(link.ask(number))) for number in range(3)]
        await link.broker.asked_in_all(3)
        stream, _, _ = link.broker.asked[0]
        match how:
            case "refused":
                await stream.close(NotLeaderError("broker 7 leads", ErrorCode.NOT_LEADER))
            case "ended":
                await stream.close()
            case "cut":
                stream.cut()  # type: ignore[attr-defined]
            case "garbage":
                await stream.send(b"\xff\xff\xff\xff\xff")
        codes = {(await each).code for each in waiting}
        assert codes == {
            {
                "refused": ErrorCode.NOT_LEADER,
                "garbage": ErrorCode.INVALID_REQUEST,
            }.get(how, ErrorCode.UNREACHABLE)
        }
        again = tasks.create_task(link.ask(5))
        await link.broker.asked_in_all(4)
        await link.broker.answer(3)
        assert await again == 5
        assert link.broker.opened == 2


async def test_nobody_waits_longer_than_asked_and_an_answer_that_comes_late_is_dropped() -> None:
    async with linked() as link, asyncio.TaskGroup() as tasks:
        error = await error_of(link.ask(1, 0.05))
        assert isinstance(error, ClusterError)
        assert error.code is ErrorCode.REQUEST_TIMED_OUT
        assert "no answer to a fetch within 0.05 s" in str(error)
        await link.broker.asked_in_all(1)
        await link.broker.answer(0)
        second = tasks.create_task(link.ask(2))
        await link.broker.asked_in_all(2)
        await link.broker.answer(1)
        assert await second == 2
        assert link.broker.opened == 1


async def test_without_a_port_for_streams_fetches_are_calls() -> None:
    async with linked(streams=False) as link:
        fetched = await link.fetch(pb.FetchRequest(max_bytes=7), FOR_EVER_S)
        assert (fetched.response.throttle_ms, fetched.payloads) == (7, None)
        assert (link.broker.over_grpc, link.broker.opened) == (1, 0)


async def test_closing_ends_the_stream() -> None:
    async with linked() as link, asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(error_of(link.ask(1)))
        await link.broker.asked_in_all(1)
        await link.tasks.aclose()
        assert (await waiting).code is ErrorCode.UNREACHABLE
        await wait_until_async(lambda: not link.broker.open, what="the broker knows")


@pytest.mark.parametrize("turns", range(12))
async def test_closing_while_a_stream_is_opened_leaves_no_connection(turns: int) -> None:
    """In whichever turn of the loop it comes."""
    async with linked() as link:
        link.tasks.spawn(ask_and_ignore(link), "asking")
        for _ in range(turns):
            await asyncio.sleep(0)  # polls nothing: a turn of the loop
        await link.tasks.aclose()
        await wait_until_async(lambda: not link.broker.open, what="the broker knows")


async def ask_and_ignore(link: Link) -> None:
    with pytest.raises(PenstockError):
        await link.ask(1)
