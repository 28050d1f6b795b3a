"""What a broker keeps for controllers, over real gRPC: durable, and refused when outdated."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from threading import Event

import pytest
from support.journal_servers import FILE, JOURNAL, Servers, asking, keep, promise
from support.waiting import wait_until_async

from penstock.core.control.journal.contract import AskKeep, AskPromises, Journal, Kept, Promises
from penstock.core.types import BrokerId, ControllerEpoch
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.durable_files import DurableFile


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    async with AsyncExitStack() as stack:
        yield Servers(tmp_path, stack)


async def test_a_journal_survives_the_process_and_is_told_to_who_takes_over(
    servers: Servers, tmp_path: Path
) -> None:
    await servers.add()
    assert await keep(servers.holders(), JOURNAL) == Kept(1)
    again = servers.service(DurableFile(tmp_path / "b0" / FILE))
    assert again._holder.journal == JOURNAL
    assert await promise(servers.holders(), 3) == Promises({BrokerId(0): JOURNAL})
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
    await servers.add_server(None)
    assert await keep(servers.holders(), JOURNAL) == Kept(1)
    found = await promise(servers.holders(), 3)
    assert sorted(journal.number for journal in found.journals.values()) == [(0, 0), (2, 3)]


async def test_a_disk_that_takes_nothing_does_not_count(servers: Servers, tmp_path: Path) -> None:
    service = await servers.add()
    (tmp_path / "b0").rmdir()
    assert await keep(servers.holders(), JOURNAL) == Kept(0)
    assert service._holder.journal != JOURNAL
    (tmp_path / "b0").mkdir()
    assert await keep(servers.holders(), JOURNAL) == Kept(1)


async def test_what_no_controller_sends_is_not_kept(servers: Servers, tmp_path: Path) -> None:
    """Attacks 4 and 6, by whoever got so far: the journal is as it was, also on the disk."""
    service = await servers.add()
    assert await keep(servers.holders(), JOURNAL) == Kept(1)
    before, stored = service._holder, (tmp_path / "b0" / FILE).read_bytes()
    assert await promise(servers.holders(), 2**62) == Promises({})
    forged = Journal(ControllerEpoch(2), 2**60, {"topic/t": '{"metadata_version": 99}'})
    assert await keep(servers.holders(), forged) == Kept(0)
    assert await keep(servers.holders(), Journal(ControllerEpoch(2**62), 1)) == Kept(0)
    assert (service._holder, (tmp_path / "b0" / FILE).read_bytes()) == (before, stored)
    assert not (await promise(servers.holders(), 3)).refused, "the real one still gets its promise"


async def test_another_clusters_controller_gets_nothing(servers: Servers) -> None:
    await servers.add()
    assert await keep(servers.holders("another"), JOURNAL) == Kept(0)


async def test_a_damaged_file_is_named(servers: Servers, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"promised": ')
    with pytest.raises(ClusterError, match=r"journal\.json is damaged") as caught:
        servers.service(DurableFile(tmp_path / FILE))
    assert caught.value.code is ErrorCode.DATA_CORRUPTED


class SlowFile:
    """A file on a disk that takes its time: writes wait at a gate."""

    path = Path("slow") / FILE

    def __init__(self) -> None:
        self.content: bytes | None = None
        self.writing = 0
        self.gate = Event()

    def read(self) -> bytes | None:
        return self.content

    def replace(self, content: bytes) -> None:
        self.writing += 1
        self.gate.wait(600.0)
        self.content = content


async def test_what_was_begun_is_finished_when_the_controller_is_gone(servers: Servers) -> None:
    """Else what comes next would begin from what was there before, or write the file beside it."""
    file = SlowFile()
    service = servers.service(file)
    await servers.add_server(service)
    older = Journal(ControllerEpoch(2), 1)
    try:
        async with asyncio.TaskGroup() as tasks:
            async with asking() as calls:
                gone = tasks.create_task(calls.keep(AskKeep(servers.holders(), JOURNAL)))
                await wait_until_async(lambda: file.writing, what="the broker writes")
                gone.cancel()
            await wait_until_async(lambda: servers.cancelled, what="nobody waits any more")
            keeps = tasks.create_task(keep(servers.holders(), older))
            await wait_until_async(lambda: len(servers.peers) > 1, what="the next call arrives")
            assert file.writing == 1
            file.gate.set()
        assert keeps.result() == Kept(1)
        assert service._holder.journal == JOURNAL
        assert servers.service(file)._holder == service._holder
    finally:
        file.gate.set()


async def test_a_promise_ends_the_older_session_though_its_caller_is_gone(servers: Servers) -> None:
    """Else this broker would follow neither: it refuses the older controller from then on."""
    file = SlowFile()
    service = servers.service(file)
    await servers.add_server(service)
    try:
        async with asyncio.TaskGroup() as tasks:
            async with asking() as calls:
                asks = AskPromises(servers.holders(), ControllerEpoch(2))
                gone = tasks.create_task(calls.promise(asks))
                await wait_until_async(lambda: file.writing, what="the broker writes")
                gone.cancel()
            await wait_until_async(lambda: servers.cancelled, what="nobody waits any more")
            assert not servers.told
            file.gate.set()
            await wait_until_async(lambda: servers.told == [2], what="the session is told")
        assert service.promised == 2
    finally:
        file.gate.set()
