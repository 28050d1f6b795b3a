"""Brokers find the active controller: by fixed addresses, and by a name whose addresses change."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from support.jumping_clock import DAY_MS, JumpingClock
from support.processes import ReservedPort
from support.sessions import Broker, running
from support.waiting import wait_until_async

from penstock.core.control import ControlConfig
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import controller_pb2 as pb
from penstock.proto.v1.controller_pb2_grpc import (
    ControllerServiceServicer,
    add_ControllerServiceServicer_to_server,
)
from penstock.rpc.errors import error_to_wire
from penstock_broker.controller.metadata_store.memory import MemoryMetadataStore, SharedDocuments

if TYPE_CHECKING:
    from .conftest import Run

Reserve = Callable[[], ReservedPort]
CONFIG = ControlConfig(heartbeat_interval_ms=50, session_timeout_ms=60_000)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Addresses by name, to be changed by the test."""
    names: dict[str, list[str]] = {}
    real = socket.getaddrinfo

    def look_up(host: str, port: Any, *args: Any, **kwargs: Any) -> list[Any]:
        if host not in names:
            return real(host, port, *args, **kwargs)
        if not names[host]:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        found: list[Any] = []
        for ip in names[host]:
            found += real(ip, port, *args, **kwargs)
        return found

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return names


@contextmanager
def black_hole(ip: str, port: int) -> Iterator[None]:
    """Takes connections and never says a word, as a frozen process does."""
    with socket.create_server((ip, port)):
        yield


async def test_brokers_move_over_when_the_active_controller_is_gone(
    documents: SharedDocuments, run: "Run", reserve: Reserve
) -> None:
    ports = [reserve().port, reserve().port]
    controllers = [f"127.0.0.1:{port}" for port in ports]
    brokers = [Broker(0, controllers), Broker(1, controllers)]
    first = run(MemoryMetadataStore(documents), CONFIG, wait=True, port=ports[0])
    await first.__aenter__()
    async with (
        run(MemoryMetadataStore(documents), CONFIG, wait=False, port=ports[1]) as second,
        running(*brokers),
    ):
        await wait_until_async(
            lambda: all(broker.serves(1) for broker in brokers), what="sessions with the first"
        )
        await wait_until_async(lambda: second.runtime.usable, what="the second stands by")
        began = len(brokers[0].alive_seen)
        await first.__aexit__(None, None, None)
        await wait_until_async(
            lambda: all(broker.serves(2) for broker in brokers), what="sessions with the second"
        )
        await wait_until_async(lambda: len(brokers[0].alive_seen) > began, what="an image")
    for alive in brokers[0].alive_seen[began:]:
        assert alive == {0: True, 1: True}, "a live broker was taken for dead"


class Slow(Broker):
    """Takes its time over images, as one that fsyncs."""

    def __init__(self, broker_id: int, controllers: list[str]) -> None:
        super().__init__(broker_id, controllers)
        self.may_apply = asyncio.Event()

    async def apply(self, image: pb.ClusterImage) -> None:
        await self.may_apply.wait()
        await super().apply(image)


async def test_a_session_is_informed_once_an_image_of_its_own_is_applied(
    documents: SharedDocuments, run: "Run", reserve: Reserve
) -> None:
    """Before, the broker knows nothing yet, or how things were before it lost the last one."""
    port = reserve().port
    broker = Slow(0, [f"127.0.0.1:{port}"])
    session = broker.session
    async with running(broker):
        for epoch in (1, 2):
            broker.may_apply.clear()
            async with run(MemoryMetadataStore(documents), CONFIG, wait=True, port=port):
                await wait_until_async(lambda: broker.serves(epoch), what="a session")  # noqa: B023
                assert not session.is_informed
                broker.may_apply.set()
                await wait_until_async(lambda: session.is_informed, what="an image")
            await wait_until_async(lambda: not session.connected, what="the session ends")
            assert not session.is_informed


async def test_a_name_is_looked_up_in_every_round(
    documents: SharedDocuments, run: "Run", resolver: dict[str, list[str]], reserve: Reserve
) -> None:
    port = reserve().port
    resolver["controllers.test"] = []
    broker = Broker(0, [f"controllers.test:{port}"])
    async with running(broker):
        async with run(
            MemoryMetadataStore(documents), CONFIG, host="127.0.0.2", port=port, wait=True
        ):
            assert not broker.session.connected
            resolver["controllers.test"] = ["127.0.0.2"]
            await wait_until_async(lambda: broker.serves(1), what="the name is found")
        resolver["controllers.test"] = ["127.0.0.3"]
        async with run(
            MemoryMetadataStore(documents), CONFIG, host="127.0.0.3", port=port, wait=True
        ):
            await wait_until_async(lambda: broker.serves(2), what="the new address is followed")


async def test_addresses_that_swallow_connections_delay_nobody(
    documents: SharedDocuments,
    run: "Run",
    resolver: dict[str, list[str]],
    reserve: Reserve,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new controller takes who is late by a session timeout, 1.8 s as shipped, for dead."""
    # One silent address before the good one would be more than this test waits.
    monkeypatch.setattr("penstock_broker.metadata.discovery._CONNECT_S", 60.0)
    port = reserve().port
    silent = [f"127.0.0.{number}" for number in range(10, 16)]
    resolver["controllers.test"] = [*silent, "127.0.0.2"]
    brokers = [Broker(broker_id, [f"controllers.test:{port}"]) for broker_id in range(4)]
    async with run(MemoryMetadataStore(documents), CONFIG, host="127.0.0.2", port=port, wait=True):
        with ExitStack() as holes:
            for ip in silent:
                holes.enter_context(black_hole(ip, port))
            async with running(*brokers):
                await wait_until_async(
                    lambda: all(broker.serves(1) for broker in brokers), what="sessions"
                )


async def test_an_answer_after_another_controller_was_promised_to_be_followed_says_nothing(
    documents: SharedDocuments, run: "Run", reserve: Reserve
) -> None:
    """That controller may have read before what is answered here was stored."""
    port = reserve().port
    broker = Broker(0, [f"127.0.0.1:{port}"])
    async with (
        run(MemoryMetadataStore(documents), CONFIG, wait=True, port=port),
        running(broker),
    ):
        await wait_until_async(lambda: broker.serves(1), what="a session")
        connection = broker.session.connection()
        broker.session.check_follows(connection)
        broker.session.leave_older_than(connection.controller_epoch + 1)
        with pytest.raises(ClusterError, match="the outcome is unknown") as caught:
            broker.session.check_follows(connection)
        assert caught.value.code is ErrorCode.CONTROLLER_UNAVAILABLE


async def test_a_session_that_is_being_left_may_be_left_again(
    documents: SharedDocuments, run: "Run", reserve: Reserve
) -> None:
    """Two controllers ask for a promise at the same time."""
    port = reserve().port
    broker = Broker(0, [f"127.0.0.1:{port}"])

    async def leave(controller_epoch: int) -> None:
        broker.session.leave_older_than(controller_epoch)

    async with (
        run(MemoryMetadataStore(documents), CONFIG, wait=True, port=port),
        running(broker),
    ):
        await wait_until_async(lambda: broker.serves(1), what="a session")
        epoch = broker.session.connection().controller_epoch
        async with asyncio.TaskGroup() as tasks:
            await leave(epoch + 1)
            tasks.create_task(leave(epoch + 2))
        await wait_until_async(lambda: not broker.session.connected, what="the session's end")


class Listener(ControllerServiceServicer):
    """A controller that hears who wants to register, and refuses."""

    def __init__(self) -> None:
        self.heard: list[pb.Register] = []

    async def Session(  # noqa: N802 - as the service names it
        self, requests: Any, context: Any
    ) -> AsyncIterator[pb.SessionResponse]:
        request = await anext(requests)
        self.heard.append(request.register)
        yield pb.SessionResponse(error=error_to_wire(ClusterError("no", ErrorCode.NOT_CONTROLLER)))


async def test_the_next_controller_is_told_of_what_an_answer_has_told() -> None:
    listener = Listener()  # type: ignore[abstract]  # other calls are unimplemented
    server = grpc.aio.server()
    add_ControllerServiceServicer_to_server(listener, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    broker = Broker(0, [f"127.0.0.1:{port}"])
    broker.session.saw(7)
    broker.session.saw(5)
    try:
        async with running(broker):
            await wait_until_async(lambda: listener.heard, what="it registers")
    finally:
        await server.stop(None)
    assert listener.heard[0].metadata_version == 7


async def test_a_broker_whose_clock_differs_from_the_controllers_does_not_trust_it(
    documents: SharedDocuments, run: "Run", reserve: Reserve
) -> None:
    port = reserve().port
    right, wrong = JumpingClock(), JumpingClock()
    wrong.ahead_ms = 8 * DAY_MS
    brokers = [
        Broker(number, [f"127.0.0.1:{port}"], clock) for number, clock in enumerate((right, wrong))
    ]
    async with (
        run(MemoryMetadataStore(documents), CONFIG, wait=True, port=port),
        running(*brokers),
    ):
        await wait_until_async(
            lambda: all(broker.serves(1) for broker in brokers), what="both have a session"
        )
        assert right.wall.look().is_trusted
        seen = wrong.wall.look()
        assert not seen.is_trusted
        assert abs(seen.ms - right.wall.look().ms) < 60_000
        wrong.ahead_ms = 0
        assert wrong.wall.look().is_trusted


class TellingTime(ControllerServiceServicer):
    """A controller that answers a registration, and sends what the test gives it."""

    def __init__(self) -> None:
        self.registered = pb.Registered(
            controller_epoch=1,
            broker_session=1,
            heartbeat_interval_ms=60_000,
            session_timeout_ms=600_000,
        )
        self.acks: asyncio.Queue[pb.HeartbeatAck] = asyncio.Queue()

    async def Session(  # noqa: N802 - as the service names it
        self, requests: Any, context: Any
    ) -> AsyncIterator[pb.SessionResponse]:
        yield pb.SessionResponse(registered=self.registered)
        while True:
            yield pb.SessionResponse(heartbeat_ack=await self.acks.get())


async def test_a_controllers_time_comes_with_the_registration_and_every_heartbeat() -> None:
    clock, controller = JumpingClock(), TellingTime()  # type: ignore[abstract]  # as above
    clock.wall.look()
    controller.registered.wall_ms = clock.wall_ms() + 8 * DAY_MS
    server = grpc.aio.server()
    add_ControllerServiceServicer_to_server(controller, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with running(Broker(0, [f"127.0.0.1:{port}"], clock)):
            await wait_until_async(
                lambda: not clock.wall.look().is_trusted, what="the clocks differ"
            )
            controller.acks.put_nowait(pb.HeartbeatAck())  # of an older release
            controller.acks.put_nowait(pb.HeartbeatAck(wall_ms=clock.wall_ms()))
            await wait_until_async(lambda: clock.wall.look().is_trusted, what="they agree")
    finally:
        await server.stop(None)
