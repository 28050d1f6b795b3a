"""Attack 11: what refusals that are held back cost others, over real gRPC."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.clocks import StandingClock
from support.tokens import Issuer, write_issuers
from support.waiting import wait_until_async

from penstock.errors import ErrorCode
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.rpc.errors import error_from_rpc
from penstock_broker.serving import edge as edge_module
from penstock_broker.serving.edge import Edge
from penstock_broker.serving.tokens import login as login_module
from penstock_broker.serving.tokens.file import IssuersFile
from penstock_broker.serving.tokens.login import FAILURES_BURST, TokenLogin

OURS = Issuer()
CALLS_MAX = 40
MIB = 2**20


PARSED: list[int] = []
"""Sizes of the requests that were parsed, in bytes."""


async def _metadata(_request: pb.MetadataRequest, _context: Any) -> pb.MetadataResponse:
    return pb.MetadataResponse()


def _parse(body: bytes) -> pb.MetadataRequest:
    PARSED.append(len(body))
    return pb.MetadataRequest.FromString(body)


METADATA = grpc.method_handlers_generic_handler(
    "penstock.proto.v1.BrokerService",
    {
        "Metadata": grpc.unary_unary_rpc_method_handler(
            _metadata,
            request_deserializer=_parse,
            response_serializer=pb.MetadataResponse.SerializeToString,
        )
    },
)


class Gate:
    """Holds everything back until it is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.waiting = 0

    async def pause(self, _seconds: float) -> None:
        self.waiting += 1
        await self.opened.wait()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    """Of servers and of logins: no host is forgiven anything, and no call takes any time."""
    made = StandingClock()
    for module in (edge_module, login_module):
        monkeypatch.setattr(module, "monotonic", made)
    return made


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


@asynccontextmanager
async def serving(login: TokenLogin, seconds: list[float]) -> AsyncIterator[Any]:
    """A server that takes `CALLS_MAX` calls at one time; its stub."""
    edge = Edge(lambda: "", lambda _method, took: seconds.append(took), identify=login.of_call)
    server = grpc.aio.server(interceptors=[edge], maximum_concurrent_rpcs=CALLS_MAX)
    server.add_generic_rpc_handlers((METADATA,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield BrokerServiceStub(channel)
    finally:
        await server.stop(0)


async def code_of(stub: Any, token: str, *topics: str) -> ErrorCode:
    request = pb.MetadataRequest(topics=topics)
    try:
        await stub.Metadata(request, metadata=(("authorization", f"Bearer {token}"),))
    except grpc.aio.AioRpcError as error:
        return error_from_rpc(error).code
    return ErrorCode.UNSPECIFIED


async def spend_burst(stub: Any) -> None:
    """The first refusals of a host are told at once."""
    for number in range(FAILURES_BURST):
        assert await code_of(stub, f"bad-{number}") is not ErrorCode.UNSPECIFIED


async def test_a_refusal_that_is_held_back_does_not_make_the_broker_seem_slow(
    tmp_path: Path, executor: ThreadPoolExecutor, clock: StandingClock
) -> None:
    gate, seconds = Gate(), list[float]()
    login = TokenLogin(
        IssuersFile(write_issuers(tmp_path / "issuers.json", OURS)), executor, pause=gate.pause
    )
    async with serving(login, seconds) as stub, asyncio.TaskGroup() as tasks:
        await spend_burst(stub)
        held = [tasks.create_task(code_of(stub, "worse")) for _ in range(10)]
        await wait_until_async(lambda: gate.waiting == 10, what="refusals are held back")
        clock.now_s += 5.0
        gate.opened.set()
        await asyncio.wait(held)
        every = FAILURES_BURST + len(held)
        await wait_until_async(lambda: len(seconds) == every, what="all calls are timed")
    assert set(seconds) == {0.0}


async def test_refusals_that_are_held_back_leave_room_for_calls(
    tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    gate = Gate()
    login = TokenLogin(
        IssuersFile(write_issuers(tmp_path / "issuers.json", OURS)),
        executor,
        pause=gate.pause,
        calls_max=CALLS_MAX,
    )
    async with serving(login, []) as stub, asyncio.TaskGroup() as tasks:
        assert await code_of(stub, OURS.token()) is ErrorCode.UNSPECIFIED
        honest = OURS.token("etl/honest")
        assert await code_of(stub, honest) is ErrorCode.UNSPECIFIED
        flood = [tasks.create_task(code_of(stub, f"bad-{n}")) for n in range(4 * CALLS_MAX)]
        await wait_until_async(
            lambda: sum(call.done() for call in flood) + gate.waiting == len(flood),
            what="all are told or held back",
        )
        assert gate.waiting
        assert await code_of(stub, honest) is ErrorCode.UNSPECIFIED
        gate.opened.set()


@pytest.mark.usefixtures("clock")
async def test_the_request_of_a_stranger_is_neither_parsed_nor_received(
    tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    """gRPC itself would refuse to receive 5 MiB here."""
    gate = Gate()
    login = TokenLogin(
        IssuersFile(write_issuers(tmp_path / "issuers.json", OURS)), executor, pause=gate.pause
    )
    async with serving(login, []) as stub, asyncio.TaskGroup() as tasks:
        honest = OURS.token()
        assert await code_of(stub, honest, *["x"] * 150_001) is ErrorCode.INVALID_REQUEST
        PARSED.clear()
        await spend_burst(stub)
        held = [tasks.create_task(code_of(stub, "worse", "x" * 5 * MIB)) for _ in range(10)]
        await wait_until_async(lambda: gate.waiting == 10, what="refusals are held back")
        gate.opened.set()
        await asyncio.wait(held)
        assert {call.result() for call in held} == {ErrorCode.THROTTLED}
        assert PARSED == []
        assert await code_of(stub, honest) is ErrorCode.UNSPECIFIED
        assert len(PARSED) == 1


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("metadata", [(), (("authorization", "Basic YTpi"),)])
async def test_who_shows_no_token_is_held_back_as_well(
    tmp_path: Path, executor: ThreadPoolExecutor, metadata: tuple[tuple[str, str], ...]
) -> None:
    gate = Gate()
    login = TokenLogin(
        IssuersFile(write_issuers(tmp_path / "issuers.json", OURS)), executor, pause=gate.pause
    )

    async def code() -> ErrorCode:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Metadata(pb.MetadataRequest(), metadata=metadata)
        return error_from_rpc(caught.value).code

    async with serving(login, []) as stub, asyncio.TaskGroup() as tasks:
        flood = [tasks.create_task(code()) for _ in range(FAILURES_BURST + 10)]
        await wait_until_async(
            lambda: sum(call.done() for call in flood) + gate.waiting == len(flood),
            what="all are told or held back",
        )
        held_back = gate.waiting
        gate.opened.set()
    assert held_back == 10
    assert {call.result() for call in flood} == {ErrorCode.UNAUTHENTICATED}
