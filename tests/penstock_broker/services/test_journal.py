"""What a broker keeps for controllers, over real gRPC: durable, and refused when outdated."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.core.control.documents import BrokerRegistration
from penstock.core.control.journal.contract import (
    AskKeep,
    AskPromises,
    Holders,
    Journal,
    Kept,
    Promises,
)
from penstock.core.types import BrokerId, ControllerEpoch
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1.journal_pb2_grpc import add_JournalServiceServicer_to_server
from penstock_broker.controller.metadata_store.journal_holders import GrpcJournalHolders
from penstock_broker.services.journal import FILE, JournalService
from penstock_broker.serving.edge import Edge

JOURNAL = Journal(ControllerEpoch(2), 3, {"topic/t": "ä text"}, {"topic/gone": 7})


class Servers:
    """Brokers' servers on loopback, with or without the service."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self.told: list[int] = []
        self.peers: set[str] = set()
        """Connections that calls came on."""
        self.ports: list[int] = []

    async def add(self, *, knows_journals: bool = True) -> JournalService:
        """One more broker."""
        folder = self._folder / f"b{len(self.ports)}"
        folder.mkdir(exist_ok=True)
        service = JournalService(folder, self.told.append)
        edge = Edge(lambda: "c", lambda _method, _s: None)
        server = grpc.aio.server(interceptors=[edge, _Peers(self.peers)])
        if knows_journals:
            add_JournalServiceServicer_to_server(service, server)
        self.ports.append(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        self._stack.push_async_callback(server.stop, None)
        return service

    def holders(self, cluster_id: str = "c", away: int = 0) -> Holders:
        """All of them, and `away` more at which nobody listens."""
        ports = [*self.ports, *([1] * away)]
        return Holders(
            cluster_id,
            tuple(
                BrokerRegistration(
                    broker_id=BrokerId(n),
                    host="127.0.0.1",
                    port=port,
                    rack="",
                    directory_id="",
                    incarnation="",
                    alive=True,
                )
                for n, port in enumerate(ports)
            ),
        )


class _Peers(grpc.aio.ServerInterceptor):
    """Notes who calls."""

    def __init__(self, peers: set[str]) -> None:
        self._peers = peers

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = await continuation(details)

        async def noted(request: Any, context: Any) -> Any:
            self._peers.add(context.peer())
            return await handler.unary_unary(request, context)

        return handler and handler._replace(unary_unary=noted)


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    async with AsyncExitStack() as stack:
        yield Servers(tmp_path, stack)


async def keep(holders: Holders, journal: Journal) -> Kept:
    calls = GrpcJournalHolders()
    try:
        return await asyncio.to_thread(calls.keep, AskKeep(holders, journal))
    finally:
        calls.close()


async def promise(holders: Holders, epoch: int) -> Promises:
    calls = GrpcJournalHolders()
    try:
        return await asyncio.to_thread(calls.promise, AskPromises(holders, ControllerEpoch(epoch)))
    finally:
        calls.close()


async def test_a_journal_survives_the_process_and_is_told_to_who_takes_over(
    servers: Servers, tmp_path: Path
) -> None:
    await servers.add()
    assert await keep(servers.holders(), JOURNAL) == Kept(1)
    again = JournalService(tmp_path / "b0", servers.told.append)
    assert again._holder.journal == JOURNAL
    assert await promise(servers.holders(), 3) == Promises([JOURNAL])
    assert servers.told == [2, 3]


async def test_an_outdated_controller_is_refused_and_not_registered_with(servers: Servers) -> None:
    service = await servers.add()
    await promise(servers.holders(), 5)
    assert await keep(servers.holders(), JOURNAL) == Kept(0, refused=True)
    assert (await promise(servers.holders(), 4)).refused
    service.check_follows(5)
    with pytest.raises(ClusterError, match="promised to follow") as caught:
        service.check_follows(4)
    assert caught.value.code is ErrorCode.STALE_CONTROLLER_EPOCH


async def test_brokers_that_are_away_do_not_count_and_older_ones_promise_nothing_kept(
    servers: Servers,
) -> None:
    await servers.add()
    assert await keep(servers.holders(away=2), JOURNAL) == Kept(1)
    await servers.add(knows_journals=False)
    assert await keep(servers.holders(), JOURNAL) == Kept(1)
    found = await promise(servers.holders(), 3)
    assert sorted(journal.number for journal in found.journals) == [(0, 0), (2, 3)]


async def test_a_disk_that_takes_nothing_does_not_count(servers: Servers, tmp_path: Path) -> None:
    service = await servers.add()
    (tmp_path / "b0").rmdir()
    assert await keep(servers.holders(), JOURNAL) == Kept(0)
    assert service._holder.journal != JOURNAL
    (tmp_path / "b0").mkdir()
    assert await keep(servers.holders(), JOURNAL) == Kept(1)


async def test_another_clusters_controller_gets_nothing(servers: Servers) -> None:
    await servers.add()
    assert await keep(servers.holders("another"), JOURNAL) == Kept(0)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"promised": ')
    with pytest.raises(ClusterError, match=r"journal\.json is damaged") as caught:
        JournalService(tmp_path, lambda _epoch: None)
    assert caught.value.code is ErrorCode.DATA_CORRUPTED


async def test_a_broker_that_has_registered_anew_is_looked_up_anew(servers: Servers) -> None:
    """Its name may stand for another address, which a channel that was idle finds out late."""
    await servers.add()
    first = servers.holders()
    again = replace(first, brokers=tuple(replace(one, incarnation="2") for one in first.brokers))
    calls = GrpcJournalHolders()
    try:
        for holders in (first, first, again, again):
            ask = AskKeep(holders, JOURNAL)
            assert await asyncio.to_thread(calls.keep, ask) == Kept(1)
    finally:
        calls.close()
    assert len(servers.peers) == 2, servers.peers
