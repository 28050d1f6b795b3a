"""Attack 11: what refusals that are held back cost others, over real gRPC."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import grpc
import pytest
from support.tokens import Issuer, write_issuers
from support.waiting import wait_until_async

from penstock.errors import ErrorCode
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.broker_pb2_grpc import (
    BrokerServiceServicer,
    BrokerServiceStub,
    add_BrokerServiceServicer_to_server,
)
from penstock.rpc.errors import error_from_rpc
from penstock_broker.serving.edge import Edge
from penstock_broker.serving.tokens.file import IssuersFile
from penstock_broker.serving.tokens.login import FAILURES_BURST, TokenLogin

OURS = Issuer()
CALLS_MAX = 40


class _Answering(BrokerServiceServicer):
    async def Metadata(  # type: ignore[override]  # noqa: N802
        self, _request: pb.MetadataRequest, _context: Any
    ) -> pb.MetadataResponse:
        return pb.MetadataResponse()


class Gate:
    """Holds everything back until it is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.waiting = 0

    async def pause(self, _seconds: float) -> None:
        self.waiting += 1
        await self.opened.wait()


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


@asynccontextmanager
async def serving(login: TokenLogin, seconds: list[float]) -> AsyncIterator[Any]:
    """A server that takes `CALLS_MAX` calls at one time; its stub."""
    edge = Edge(lambda: "", lambda _method, took: seconds.append(took), identify=login.of_call)
    server = grpc.aio.server(interceptors=[edge], maximum_concurrent_rpcs=CALLS_MAX)
    add_BrokerServiceServicer_to_server(_Answering(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield BrokerServiceStub(channel)
    finally:
        await server.stop(0)


async def code_of(stub: Any, token: str) -> ErrorCode:
    try:
        await stub.Metadata(pb.MetadataRequest(), metadata=(("authorization", f"Bearer {token}"),))
    except grpc.aio.AioRpcError as error:
        return error_from_rpc(error).code
    return ErrorCode.UNSPECIFIED


async def spend_burst(stub: Any) -> None:
    """The first refusals of a host are told at once."""
    for number in range(FAILURES_BURST):
        assert await code_of(stub, f"bad-{number}") is not ErrorCode.UNSPECIFIED


async def test_a_refusal_that_is_held_back_does_not_make_the_broker_seem_slow(
    tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    gate, seconds = Gate(), list[float]()
    login = TokenLogin(
        IssuersFile(write_issuers(tmp_path / "issuers.json", OURS)), executor, pause=gate.pause
    )
    async with serving(login, seconds) as stub, asyncio.TaskGroup() as tasks:
        await spend_burst(stub)
        seconds.clear()
        while not gate.waiting:  # the bucket fills meanwhile
            held = tasks.create_task(code_of(stub, "worse"))
            await wait_until_async(
                lambda held=held: held.done() or bool(gate.waiting),  # type: ignore[misc]
                what="the refusal is held back, or told",
            )
        until_s = monotonic() + 1.0
        await wait_until_async(lambda: monotonic() > until_s, what="a second passes")
        gate.opened.set()
        await held
    assert seconds[-1] < 0.9
