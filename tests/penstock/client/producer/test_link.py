"""A link: requests out in order, answers in, and the next request without being asked to look."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from support.stream_ports import other_server, stream_server
from support.waiting import wait_until_async

from penstock.client.cluster import streams
from penstock.client.cluster.connections import Connection
from penstock.client.producer.link import ProduceLink, Request
from penstock.errors import ClusterError, ErrorCode, OverloadedError, PenstockError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1 import streams_pb2
from penstock.proto.v1.broker_pb2_grpc import (
    BrokerServiceServicer,
    add_BrokerServiceServicer_to_server,
)
from penstock.rpc.streams.contract import MessageStream


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is opened slowly is used all the same, and gRPC in place of none."""
    monkeypatch.setattr(streams, "CONNECT_S", 1_200.0)


class Echo(BrokerServiceServicer):
    """Answers every request."""

    async def ProduceStream(self, requests: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        async for request in requests:
            await context.write(pb.ProduceResponse(correlation_id=request.correlation_id))


class MessageEcho:
    """The same over message streams. `enders`: per stream, what ends it at its first request."""

    def __init__(self) -> None:
        self.enders: list[PenstockError | None] = []
        self.opened = self.requests = self.open = 0

    async def serve(self, stream: MessageStream) -> None:
        hello = streams_pb2.StreamHello.FromString(bytes(await stream.receive() or b""))
        assert hello.method == streams_pb2.STREAM_METHOD_PRODUCE
        self.opened += 1
        self.open += 1
        try:
            while (message := await stream.receive()) is not None:
                self.requests += 1
                if self.enders:
                    error = self.enders.pop(0)
                    if error is None:
                        return
                    raise error
                request = pb.ProduceRequest.FromString(bytes(message))
                answer = pb.ProduceResponse(correlation_id=request.correlation_id)
                await stream.send(answer.SerializeToString())
        finally:
            self.open -= 1


class Source:
    """Has a request when the test says so, or when the one before is answered."""

    def __init__(self, *, after_answers: int = 0) -> None:
        self.ready = 0
        self.taken = 0
        self.answers = 0
        self.problems: list[PenstockError] = []
        self.broken_requests = 0
        self._after_answers = after_answers

    def next_request(self, address: str) -> Request | None:
        if not self.ready:
            return None
        self.ready -= 1
        self.taken += 1
        return Request(pb.ProduceRequest(), [])

    def answered(self, request: Request, answer: pb.ProduceResponse) -> None:
        self.answers += 1
        if self._after_answers:
            self._after_answers -= 1
            self.ready += 1

    def broken(self, requests: Sequence[Request], error: PenstockError, *, refused: bool) -> None:
        self.problems.append(error)
        self.broken_requests += len(requests)

    def unreachable(self, address: str, error: PenstockError) -> None:
        self.problems.append(error)


@asynccontextmanager
async def linked(source: Source, streams_at: str = "") -> AsyncIterator[ProduceLink]:
    """`streams_at`: the broker's port for message streams; empty: it has none."""
    server = grpc.aio.server()
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    echo = Echo()  # type: ignore[abstract]  # other calls are unimplemented
    add_BrokerServiceServicer_to_server(echo, server)
    await server.start()
    connection = Connection(address, address)
    connection.streams.address = streams_at
    link = ProduceLink(connection, source)
    try:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(link.run())
            yield link
            running.cancel()
    finally:
        await connection.aclose()
        await server.stop(None)


@asynccontextmanager
async def over(carrier: str, source: Source) -> AsyncIterator[ProduceLink]:
    """Linked over gRPC, or over a message stream and nothing else."""
    if carrier == "grpc":
        async with linked(source) as link:
            yield link
        return
    echo = MessageEcho()
    async with stream_server(echo.serve) as address, linked(source, address) as link:
        yield link
        assert (echo.opened, echo.requests) == (1, source.taken)


both = pytest.mark.parametrize("carrier", ["grpc", "messages"])


@both
async def test_what_there_is_to_send_after_an_answer_is_sent_without_a_wake(carrier: str) -> None:
    source = Source(after_answers=5)
    async with over(carrier, source) as link:
        source.ready = 1
        link.wake()
        await wait_until_async(lambda: source.answers == 6, what="all are answered")
    assert (source.taken, source.problems) == (6, [])


@both
async def test_what_there_is_to_send_later_is_sent_when_the_link_is_woken(carrier: str) -> None:
    source = Source()
    async with over(carrier, source) as link:
        for count in (1, 3):
            source.ready = count
            link.wake()
            await wait_until_async(lambda: not source.ready, what="all are taken")
            await wait_until_async(lambda: source.answers == source.taken, what="the answers")
    assert (source.taken, source.answers, source.problems) == (4, 4, [])


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        (ClusterError("the server is stopping", ErrorCode.SHUTTING_DOWN), ErrorCode.SHUTTING_DOWN),
        (ClusterError("wrong", ErrorCode.INVALID_REQUEST), ErrorCode.INVALID_REQUEST),
        (None, ErrorCode.UNREACHABLE),
    ],
    ids=["stopping", "refused", "ended"],
)
async def test_a_stream_that_ends_leaves_its_requests_unknown_and_the_next_one_is_used(
    ends: PenstockError | None, code: ErrorCode
) -> None:
    source, echo = Source(), MessageEcho()
    echo.enders.append(ends)
    async with stream_server(echo.serve) as address, linked(source, address) as link:
        source.ready = 1
        link.wake()
        await wait_until_async(lambda: source.problems, what="it is told")
        assert [error.code for error in source.problems] == [code]
        assert (source.broken_requests, link.pending) == (1, ())
        source.ready = 1
        link.wake()
        await wait_until_async(lambda: source.answers == 1, what="the next one is answered")
        assert (echo.opened, echo.requests) == (2, 2)


async def test_a_link_whose_stream_broke_does_not_count_as_being_cancelled() -> None:
    """Otherwise its next timeout would end it (CPython 3.11.2): the producer would go silent."""
    source, echo = Source(), MessageEcho()
    echo.enders.append(None)
    async with stream_server(echo.serve) as address:
        connection = Connection("127.0.0.1:1", "127.0.0.1:1")
        connection.streams.address = address
        link = ProduceLink(connection, source)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(link.run())
            source.ready = 1
            link.wake()
            await wait_until_async(lambda: source.problems, what="it breaks")
            assert running.cancelling() == 0
            running.cancel()
        await connection.aclose()


async def test_a_link_that_is_stopped_while_its_stream_breaks_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise whoever closes the producer waits for it for ever."""
    source, echo = Source(), MessageEcho()
    echo.enders.append(ClusterError("it stops", ErrorCode.SHUTTING_DOWN))
    async with stream_server(echo.serve) as address:
        connection = Connection("127.0.0.1:1", "127.0.0.1:1")
        connection.streams.address = address
        link = ProduceLink(connection, source)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(link.run())
            loop = asyncio.get_running_loop()
            stop_then = lambda _: loop.call_soon(running.cancel)  # noqa: E731
            monkeypatch.setattr(connection.streams, "ended", stop_then)
            source.ready = 1
            link.wake()
            try:
                await wait_until_async(running.done, what="it ends")
            finally:
                running.cancel()
        assert running.cancelled()
        assert [one.code for one in source.problems] == [ErrorCode.SHUTTING_DOWN]
        await connection.aclose()


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_behind_a_port_of_something_else_grpc_is_used(
    monkeypatch: pytest.MonkeyPatch, greeting: bytes
) -> None:
    monkeypatch.setattr(streams, "CONNECT_S", 0.2)
    source = Source(after_answers=3)
    async with other_server(greeting) as other, linked(source, other.address) as link:
        source.ready = 1
        link.wake()
        await wait_until_async(lambda: source.answers == 4, what="all are answered")
        assert other.accepted == 1
    assert source.problems == []


async def test_a_broker_with_too_many_streams_is_asked_over_grpc() -> None:
    source, echo = Source(), MessageEcho()
    echo.enders.append(OverloadedError("1000 streams are open here, the maximum"))
    async with stream_server(echo.serve) as address, linked(source, address) as link:
        source.ready = 1
        link.wake()
        await wait_until_async(lambda: source.problems, what="it is refused")
        source.ready = 2
        link.wake()
        await wait_until_async(lambda: source.answers == 2, what="both are answered")
        assert (echo.opened, echo.requests) == (1, 1)


async def test_a_link_that_ends_closes_its_stream() -> None:
    source, echo = Source(), MessageEcho()
    async with stream_server(echo.serve) as address:
        async with linked(source, address) as link:
            source.ready = 1
            link.wake()
            await wait_until_async(lambda: source.answers == 1, what="an answer")
            assert echo.open == 1
        await wait_until_async(lambda: not echo.open, what="the broker knows")


@pytest.mark.parametrize("turns", range(10))
async def test_a_link_that_ends_while_it_opens_a_stream_leaves_no_connection(turns: int) -> None:
    """In whichever turn of the loop it comes."""
    source, echo = Source(), MessageEcho()
    async with stream_server(echo.serve) as address:
        async with linked(source, address) as link:
            link.wake()
            for _ in range(turns):
                await asyncio.sleep(0)  # polls nothing: a turn of the loop
        await wait_until_async(lambda: not echo.open, what="the broker knows")
