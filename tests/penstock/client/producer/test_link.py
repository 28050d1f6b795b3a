"""A link: requests out in order, answers in, and the next request without being asked to look."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
from support.waiting import wait_until_async

from penstock.client.cluster.connections import Connection
from penstock.client.producer.link import ProduceLink, Request
from penstock.errors import PenstockError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.broker_pb2_grpc import (
    BrokerServiceServicer,
    add_BrokerServiceServicer_to_server,
)


class Echo(BrokerServiceServicer):
    """Answers every request."""

    async def ProduceStream(self, requests: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        async for request in requests:
            await context.write(pb.ProduceResponse(correlation_id=request.correlation_id))


class Source:
    """Has a request when the test says so, or when the one before is answered."""

    def __init__(self, *, after_answers: int = 0) -> None:
        self.ready = 0
        self.taken = 0
        self.answers = 0
        self.problems: list[PenstockError] = []
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

    def broken(self, requests: Sequence[Request], error: PenstockError) -> None:
        self.problems.append(error)

    def unreachable(self, address: str, error: PenstockError) -> None:
        self.problems.append(error)


@asynccontextmanager
async def linked(source: Source) -> AsyncIterator[ProduceLink]:
    server = grpc.aio.server()
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    echo = Echo()  # type: ignore[abstract]  # other calls are unimplemented
    add_BrokerServiceServicer_to_server(echo, server)
    await server.start()
    connection = Connection(address, address)
    link = ProduceLink(connection, source)
    try:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(link.run())
            yield link
            running.cancel()
    finally:
        await connection.aclose()
        await server.stop(None)


async def test_what_there_is_to_send_after_an_answer_is_sent_without_a_wake() -> None:
    source = Source(after_answers=5)
    async with linked(source) as link:
        source.ready = 1
        link.wake()
        await wait_until_async(lambda: source.answers == 6, what="all are answered")
    assert (source.taken, source.problems) == (6, [])


async def test_what_there_is_to_send_later_is_sent_when_the_link_is_woken() -> None:
    source = Source()
    async with linked(source) as link:
        for count in (1, 3):
            source.ready = count
            link.wake()
            await wait_until_async(lambda: source.answers == source.taken, what="the answers")
            await wait_until_async(lambda: not source.ready, what="all are taken")
    assert (source.taken, source.answers, source.problems) == (4, 4, [])
