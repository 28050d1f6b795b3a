"""Group commit: order, one write for many, full disks, lost disks."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

import pytest
from support.transport_handlers import one_turn
from support.waiting import wait_until_async
from support.wire import make_batch

from penstock.core.batch import Batch
from penstock.core.compaction.plan import Cleaned, CleanPoint
from penstock.core.replication.contract import Checkpoint, ProducerEntry, RecoveredLog
from penstock.core.types import LeaderEpoch, Offset, ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_broker.clock import SystemClock
from penstock_broker.replication.pace import SMALL_BYTES
from penstock_broker.replication.ticks import TickFacts
from penstock_broker.replication.writer import LogWriter
from penstock_broker.store.interface import DamagedLogError, PartitionWrite, Rewrite, Slot
from penstock_broker.store.memory import MemoryLogStore

DAMAGE = ClusterError("the index is damaged", ErrorCode.DATA_CORRUPTED)


class StoreClock(SystemClock):
    """Passes in the store alone."""

    ms = 0

    def now_ms(self) -> int:
        return self.ms


class SlowStore(MemoryLogStore):
    """Writes wait for `gate` and take `takes_ms`; the next one raises `failure` instead.

    Logs in `stuck` cannot have anything removed or rewritten, those in `dead` cannot be written.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clock = StoreClock()
        self.takes_ms = 0
        self.threads: list[int] = []
        """Of all writes."""
        self.asks_to_wait = False
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.stuck: set[Slot] = set()
        self.dead: set[Slot] = set()
        self.writes: list[tuple[list[PartitionWrite], bool]] = []

    def write(self, writes: Sequence[PartitionWrite], *, sync: bool) -> None:
        assert self.gate.wait(120)
        self.clock.ms += self.takes_ms
        self.threads.append(threading.get_ident())
        self.writes.append((list(writes), sync))
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        for write in writes:
            removes = bool(write.rewrites) or write.log_start_offset is not None
            if write.slot in self.dead or (removes and write.slot in self.stuck):
                raise DamagedLogError(write.slot, DAMAGE)
        super().write(writes, sync=sync)

    def recover(self, slot: Slot) -> RecoveredLog:
        if slot in self.stuck:
            raise DAMAGE
        return super().recover(slot)

    def try_write(self, writes: Sequence[PartitionWrite]) -> bool:
        return not self.asks_to_wait and self.gate.is_set() and super().try_write(writes)


class Owner:
    """Stands for a replica: notes what it hears."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.heard: list[object] = []

    def extras(
        self, *, written_bytes: int, now: bool
    ) -> tuple[Checkpoint | None, Sequence[ProducerEntry] | None]:
        return None, [] if now else None

    def persisted(self, persist_id: int, *, synced: bool) -> None:
        self.heard.append(("persisted", persist_id, synced))

    def persist_failed(self, persist_id: int, error: PenstockError) -> None:
        self.heard.append(("failed", persist_id, error.code))

    def removal_refused(self) -> None:
        self.heard.append("removal refused")

    def truncated(self, log: RecoveredLog) -> None:
        self.heard.append(("truncated", log.log_end_offset))

    def damaged(self, error: ClusterError, *, written: bool) -> None:
        self.heard.append(("damaged", error.code, written))


class Rig:
    def __init__(self, store: SlowStore, writer: LogWriter, clock: "StoreClock") -> None:
        self.store = store
        self.writer = writer
        self.clock = clock

    def owner(self, partition: int) -> Owner:
        return Owner(self.store.open_slot(ReplicaKey(TopicId("t"), partition)))


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    store = SlowStore()
    with ThreadPoolExecutor(1) as executor:
        ticks: list[TickFacts] = []
        clock = StoreClock()
        made = Rig(store, LogWriter(store, executor, clock, ticks.append), clock)
        store.clock = clock
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(made.writer.run())
            try:
                yield made
            finally:
                store.gate.set()
                running.cancel()


def batch_at(offset: int, size_bytes: int = 1) -> Batch:
    return make_batch([b"x" * size_bytes], timestamps_ms=1).stamped(
        Offset(offset), LeaderEpoch(1), 0
    )


async def hears(owner: Owner, *expected: object) -> None:
    await wait_until_async(lambda: len(owner.heard) >= len(expected), what=f"hears {expected}")
    assert owner.heard == list(expected)


async def test_what_comes_while_a_write_runs_is_one_write_with_one_fsync() -> None:
    async with rig() as r:
        first, second = r.owner(0), r.owner(1)
        r.store.gate.clear()
        r.writer.append(first, 1, [batch_at(0)], None, sync=False)
        await wait_until_async(lambda: not r.writer._pending, what="it runs")
        for number in range(1, 50):
            r.writer.append(first, number + 1, [batch_at(number)], None, sync=number == 7)
            r.writer.append(second, number, [batch_at(number - 1)], None, sync=False)
        r.store.gate.set()
        await hears(first, ("persisted", 1, False), ("persisted", 50, True))
        await hears(second, ("persisted", 49, True))
        assert [(len(writes), sync) for writes, sync in r.store.writes] == [(1, False), (2, True)]
        assert r.store.recover(first.slot).log_end_offset == 50


@pytest.mark.parametrize(("told", "kept"), [((0, None), 0), ((None, 4, 0), 4), ((None,), None)])
async def test_what_is_told_of_compaction_is_in_the_tick_with_what_follows(
    told: tuple[int | None, ...], kept: int | None
) -> None:
    async with rig() as r:
        owner = r.owner(0)
        r.store.gate.clear()
        r.writer.append(owner, 1, [batch_at(0)], None, sync=False)
        await wait_until_async(lambda: not r.writer._pending, what="it runs")
        for number, end in enumerate(told, 1):
            compacted_end = None if end is None else Offset(end)
            batches = [batch_at(number)]
            r.writer.append(
                owner, number + 1, batches, None, sync=False, compacted_end=compacted_end
            )
        r.store.gate.set()
        await hears(owner, ("persisted", 1, False), ("persisted", len(told) + 1, False))
        (write,) = r.store.writes[-1][0]
        assert write.compacted_end == kept


async def test_a_truncation_is_followed_by_what_is_left() -> None:
    async with rig() as r:
        owner = r.owner(0)
        r.writer.append(owner, 1, [batch_at(0), batch_at(1), batch_at(2)], None, sync=False)
        await hears(owner, ("persisted", 1, False))
        r.writer.truncate(owner, Offset(1), None)
        r.writer.append(owner, 2, [], None, sync=False)
        await hears(owner, ("persisted", 1, False), ("truncated", 1), ("persisted", 2, False))


async def test_a_rewrite_rides_along_and_is_left_out_when_the_log_is_cut_or_goes() -> None:
    async with rig() as r:
        owner = r.owner(0)
        r.writer.append(owner, 1, [batch_at(0), batch_at(1), batch_at(2)], None, sync=False)
        smaller = Rewrite([batch_at(1, size_bytes=0)])
        assert await r.writer.rewrite(owner, smaller, None)
        assert r.store.read(owner.slot, Offset(1), 1, Offset(3)) == smaller.batches
        cleaned = Cleaned((CleanPoint(Offset(3), 1),))
        assert await r.writer.rewrite(owner, None, cleaned)
        assert r.store.compaction_facts(owner.slot, Offset(3)).cleaned == cleaned
        r.store.gate.clear()
        r.writer.save(owner)
        await wait_until_async(lambda: not r.writer._pending, what="it runs")
        cut = r.writer.rewrite(owner, Rewrite([batch_at(2)]), None)
        r.writer.truncate(owner, Offset(2), None)
        late = r.writer.rewrite(owner, Rewrite([batch_at(1)]), None)
        assert (await cut, await late) == (False, False)
        gone = r.writer.rewrite(other := r.owner(1), Rewrite([batch_at(0)]), None)
        r.writer.forget(other)
        assert not await gone
        r.store.gate.set()
        await hears(owner, ("persisted", 1, False), ("truncated", 2))
        assert all(not write.rewrites for writes, _ in r.store.writes[3:] for write in writes)


async def test_a_rewrite_of_what_a_cut_that_runs_takes_away_is_left_out() -> None:
    async with rig() as r:
        owner = r.owner(0)
        r.writer.append(owner, 1, [batch_at(0), batch_at(1), batch_at(2)], None, sync=False)
        await hears(owner, ("persisted", 1, False))
        r.store.gate.clear()
        r.writer.truncate(owner, Offset(1), None)
        await wait_until_async(lambda: not r.writer._pending, what="it runs")
        late = r.writer.rewrite(owner, Rewrite([batch_at(0, 9)]), Cleaned())
        r.store.gate.set()
        assert not await late
        assert r.store.read(owner.slot, Offset(0), 1, Offset(3)) == [batch_at(0)]


async def test_a_rewrite_on_a_full_disk_is_left_out() -> None:
    async with rig() as r:
        owner = r.owner(0)
        r.store.failure = ClusterError("full", ErrorCode.DISK_FULL)
        assert not await r.writer.rewrite(owner, Rewrite([batch_at(0)]), None)


async def test_a_full_disk_takes_later_writes_of_the_replica_with_it() -> None:
    async with rig() as r:
        owner, other = r.owner(0), r.owner(1)
        r.store.gate.clear()
        r.store.failure = ClusterError("full", ErrorCode.DISK_FULL)
        r.writer.append(owner, 1, [batch_at(0)], None, sync=False)
        await wait_until_async(lambda: not r.writer._pending, what="it runs")
        r.writer.append(owner, 2, [batch_at(1)], None, sync=False)
        r.writer.append(other, 1, [batch_at(0)], None, sync=False)
        r.store.gate.set()
        await hears(owner, ("failed", 1, ErrorCode.DISK_FULL))
        await hears(other, ("persisted", 1, False))
        r.writer.append(owner, 3, [batch_at(0)], None, sync=False)
        await hears(owner, ("failed", 1, ErrorCode.DISK_FULL), ("persisted", 3, False))
        assert r.store.recover(owner.slot).log_end_offset == 1


async def test_a_full_disk_that_refuses_a_rewrite_says_what_it_takes_with_it() -> None:
    """A rewrite has no id. Without a word the replica waits for its own write for ever."""
    async with rig() as r:
        owner = r.owner(0)
        r.store.gate.clear()
        r.store.failure = ClusterError("full", ErrorCode.DISK_FULL)
        refused = r.writer.rewrite(owner, Rewrite([batch_at(0)]), None)
        await wait_until_async(lambda: not r.writer._pending, what="it runs")
        r.writer.append(owner, 7, [batch_at(0)], None, sync=False)
        r.writer.append(owner, 8, [batch_at(1)], None, sync=False)
        r.store.gate.set()
        assert not await refused
        await hears(owner, ("failed", 7, ErrorCode.DISK_FULL))


@pytest.mark.parametrize("failure", [ClusterError("io", ErrorCode.STORAGE_FAILED), OSError("io")])
async def test_a_lost_disk_ends_the_writer_and_nobody_hears_a_result(failure: Exception) -> None:
    owners: list[Owner] = []

    async def lose_the_disk() -> None:
        async with rig() as r:
            owners.append(r.owner(0))
            r.store.failure = failure
            r.writer.append(owners[0], 1, [batch_at(0)], None, sync=False)
            await asyncio.wait_for(asyncio.Event().wait(), 120)

    with pytest.raises(ExceptionGroup) as ended:
        await lose_the_disk()
    assert ended.group_contains(ClusterError, match="io")
    assert owners[0].heard == []


async def test_drained_waits_for_all_that_was_asked_for() -> None:
    async with rig() as r:
        owner = r.owner(0)
        r.store.gate.clear()
        r.writer.append(owner, 1, [batch_at(0)], None, sync=False)
        assert not await r.writer.drained(0.05)
        r.writer.save(owner)
        r.writer.sync()
        r.store.gate.set()
        assert await r.writer.drained(120)
        assert r.store.writes[-1][1], "fsynced"


async def test_a_forgotten_owner_is_not_written() -> None:
    async with rig() as r:
        owner, other = r.owner(0), r.owner(1)
        r.writer.append(owner, 1, [batch_at(0)], None, sync=False)
        r.writer.append(other, 1, [batch_at(0)], None, sync=False)
        r.writer.forget(owner)
        await hears(other, ("persisted", 1, False))
        assert owner.heard == []
        assert r.store.recover(owner.slot).log_end_offset == 0


async def test_bulk_takes_a_small_part_of_a_tick_and_live_writes_go_with_it() -> None:
    """So a live write that comes while bulk is being written waits for little of it (I32)."""
    async with rig() as r:
        bulk, live = [r.owner(partition) for partition in range(5)], r.owner(5)
        r.store.gate.clear()
        r.writer.append(bulk[0], 1, [batch_at(0)], None, sync=False, bulk=True)
        await wait_until_async(lambda: not r.writer._pending, what="it runs")
        for owner in bulk[1:]:
            r.writer.append(owner, 1, [batch_at(0, 400_000)], None, sync=False, bulk=True)
        r.writer.append(live, 1, [batch_at(0)], None, sync=True)
        r.store.gate.set()
        for owner in bulk[1:3]:
            await hears(owner, ("persisted", 1, True))
        await hears(live, ("persisted", 1, True))
        for owner in bulk[3:]:
            await hears(owner, ("persisted", 1, False))
        slots = [[write.slot for write in writes] for writes, _ in r.store.writes]
        assert slots[1:] == [
            [bulk[1].slot, bulk[2].slot, live.slot],
            [bulk[3].slot, bulk[4].slot],
        ]


async def test_a_bulk_write_larger_than_its_part_is_written_and_one_that_turns_live_at_once() -> (
    None
):
    async with rig() as r:
        first, huge, turned = r.owner(0), r.owner(1), r.owner(2)
        r.store.gate.clear()
        r.writer.append(first, 1, [batch_at(0)], None, sync=False)
        await wait_until_async(lambda: not r.writer._pending, what="it runs")
        r.writer.append(huge, 1, [batch_at(0, 3_000_000)], None, sync=False, bulk=True)
        r.writer.append(turned, 1, [batch_at(0, 3_000_000)], None, sync=False, bulk=True)
        r.writer.append(turned, 2, [batch_at(1)], None, sync=False)
        r.store.gate.set()
        await hears(first, ("persisted", 1, False))
        await hears(turned, ("persisted", 2, False))
        await hears(huge, ("persisted", 1, False))
        assert [len(writes) for writes, _ in r.store.writes] == [1, 2]


async def test_the_removal_of_a_log_overtakes_no_write_of_it() -> None:
    """The tick is made up, and the thread has not got it yet."""
    async with rig() as made:
        await one_turn()  # the writer begins
        staying, going = made.owner(0), made.owner(1)
        for owner in (staying, going):
            made.writer.append(owner, 1, [batch_at(0)], None, sync=True)
        await one_turn()  # it makes up the tick
        assert made.store.writes == []
        made.writer.forget(going)
        await made.writer.drop(going.slot)
        await hears(staying, ("persisted", 1, True))
        assert going.heard == []
        assert [write.slot for write in made.store.writes[0][0]] == [staying.slot]


async def test_a_tick_stays_small_enough_for_the_event_loop() -> None:
    async with rig() as r:
        owners = [r.owner(partition) for partition in range(3)]
        for owner in owners:
            r.writer.append(owner, 1, [batch_at(0, 5_000_000)], None, sync=owner is owners[2])
        await hears(owners[2], ("persisted", 1, True))
        assert [len(writes) for writes, _ in r.store.writes] == [1, 1, 1]
        assert r.store.writes[-1][1], "the fsync came with or behind the write that asked for it"


class Appending:
    """Writes of one batch each, one after the other."""

    def __init__(self, r: Rig) -> None:
        self.rig = r
        self.owner = r.owner(0)
        self.count = 0

    async def write(self, times: int, *, size_bytes: int = 1, sync: bool = False) -> None:
        for _ in range(times):
            batch = batch_at(self.count, size_bytes)
            self.count += 1
            self.rig.writer.append(self.owner, self.count, [batch], None, sync=sync)
            await wait_until_async(
                lambda: self.owner.heard[-1:] == [("persisted", self.count, sync)],
                what=f"write {self.count}",
            )

    def here(self, last: int) -> int:
        """How many of the last writes the event loop did itself."""
        return self.rig.store.threads[-last:].count(threading.get_ident())


async def test_little_is_written_by_the_event_loop_itself_once_the_disk_is_known_to_be_quick() -> (
    None
):
    async with rig() as r:
        log = Appending(r)
        await log.write(32)
        assert log.here(32) == 0
        await log.write(10)
        assert log.here(10) == 10
        await log.write(1, size_bytes=SMALL_BYTES + 1)
        await log.write(1, sync=True)
        assert log.here(2) == 0
        r.writer.truncate(log.owner, Offset(40), None)
        r.writer.append(log.owner, 100, [], None, sync=False)
        await wait_until_async(
            lambda: log.owner.heard[-1] == ("persisted", 100, False), what="a truncation"
        )
        assert log.here(1) == 0
        assert r.store.recover(log.owner.slot).log_end_offset == 40


async def test_a_disk_that_turns_slow_holds_the_event_loop_up_once() -> None:
    async with rig() as r:
        log = Appending(r)
        await log.write(40)
        assert log.here(8) == 8
        r.store.takes_ms = 500
        await log.write(40)
        assert log.here(40) == 1
        r.store.takes_ms = 1
        await log.write(33)
        assert log.here(33) == 1


async def test_a_disk_that_was_always_slow_never_holds_the_event_loop_up() -> None:
    async with rig() as r:
        log = Appending(r)
        r.store.takes_ms = 2
        await log.write(50)
        assert log.here(50) == 0


async def test_what_the_store_asks_to_wait_with_is_written_by_the_thread() -> None:
    async with rig() as r:
        log = Appending(r)
        await log.write(40)
        r.store.asks_to_wait = True
        await log.write(5)
        assert log.here(5) == 0
        assert r.store.recover(log.owner.slot).log_end_offset == 45


async def test_what_is_to_be_removed_is_removed_though_the_disk_is_full() -> None:
    """Batches of any log in the same write are refused, and it with them."""
    async with rig() as r:
        log, other = Appending(r), r.owner(1)
        await log.write(40)
        r.store.failure = ClusterError("no space", ErrorCode.DISK_FULL)
        r.writer.append(other, 1, [batch_at(0)], None, sync=False)
        r.writer.move_log_start(log.owner, Offset(30))
        await hears(other, ("failed", 1, ErrorCode.DISK_FULL))
        await wait_until_async(
            lambda: r.store.recover(log.owner.slot).checkpoint.log_start_offset == 30,
            what="it is removed",
        )


async def test_a_removal_for_which_the_disk_has_no_space_is_left_to_its_owner() -> None:
    async with rig() as r:
        log = Appending(r)
        await log.write(40)
        r.store.failure = ClusterError("no space", ErrorCode.DISK_FULL)
        r.writer.move_log_start(log.owner, Offset(30))
        await wait_until_async(lambda: log.owner.heard[-1] == "removal refused", what="a refusal")
        assert r.store.recover(log.owner.slot).checkpoint.log_start_offset == 0


async def test_a_disk_that_is_full_is_heard_of_from_the_event_loop_too() -> None:
    async with rig() as r:
        log = Appending(r)
        await log.write(40)
        r.store.failure = ClusterError("no space", ErrorCode.DISK_FULL)
        r.writer.append(log.owner, 41, [batch_at(40)], None, sync=False)
        await wait_until_async(
            lambda: log.owner.heard[-1] == ("failed", 41, ErrorCode.DISK_FULL), what="a refusal"
        )
        await log.write(1)


@pytest.mark.parametrize("failure", [ClusterError("io", ErrorCode.STORAGE_FAILED), OSError("io")])
async def test_a_disk_that_is_lost_under_the_event_loop_ends_the_writer(failure: Exception) -> None:
    heard: list[object] = []

    async def lose_the_disk() -> None:
        async with rig() as r:
            log = Appending(r)
            await log.write(40)
            assert log.here(1) == 1
            log.owner.heard = heard
            r.store.failure = failure
            r.writer.append(log.owner, 41, [batch_at(40)], None, sync=False)
            await asyncio.wait_for(asyncio.Event().wait(), 120)

    with pytest.raises(ExceptionGroup) as ended:
        await lose_the_disk()
    assert ended.group_contains(ClusterError, match="io")
    assert heard == []


@pytest.mark.parametrize("warm", [0, 40], ids=["by the thread", "by the event loop"])
async def test_a_log_that_cannot_be_written_is_left_out_of_a_write(warm: int) -> None:
    async with rig() as r:
        await Appending(r).write(warm)
        first, dead, last = (r.owner(partition) for partition in (1, 2, 3))
        r.store.dead = {dead.slot}
        for owner in (first, dead, last):
            r.writer.append(owner, 1, [batch_at(0)], None, sync=False)
        await hears(dead, ("damaged", ErrorCode.DATA_CORRUPTED, False))
        await hears(first, ("persisted", 1, False))
        await hears(last, ("persisted", 1, False))
        assert [len(writes) for writes, _ in r.store.writes[-2:]] == [3, 2]
        r.store.dead = set()
        r.writer.append(dead, 2, [batch_at(0)], None, sync=True)
        await wait_until_async(
            lambda: dead.heard[-1] == ("persisted", 2, True), what="the writer goes on"
        )


@pytest.mark.parametrize("warm", [0, 40], ids=["by the thread", "by the event loop"])
async def test_what_cannot_be_removed_from_a_damaged_log_stays_and_what_is_added_is_written(
    warm: int,
) -> None:
    async with rig() as r:
        await Appending(r).write(warm)
        owner, other = r.owner(1), r.owner(2)
        r.writer.append(owner, 1, [batch_at(0)], None, sync=False)
        await hears(owner, ("persisted", 1, False))
        r.store.stuck = {owner.slot}
        r.writer.move_log_start(owner, Offset(1))
        rewriting = r.writer.rewrite(owner, Rewrite((batch_at(0),)), None)
        r.writer.append(owner, 2, [batch_at(1)], None, sync=False)
        r.writer.append(other, 1, [batch_at(0)], None, sync=False)
        await hears(
            owner,
            ("persisted", 1, False),
            ("damaged", ErrorCode.DATA_CORRUPTED, True),
            ("persisted", 2, False),
        )
        await hears(other, ("persisted", 1, False))
        assert not await rewriting
        r.store.stuck = set()
        log = r.store.recover(owner.slot)
        assert (log.checkpoint.log_start_offset, log.log_end_offset) == (0, 2)


async def test_a_log_that_cannot_be_read_after_a_truncation_stops_nothing_else() -> None:
    async with rig() as r:
        owner, other = r.owner(1), r.owner(2)
        r.writer.append(owner, 1, [batch_at(0), batch_at(1)], None, sync=False)
        await hears(owner, ("persisted", 1, False))
        r.store.stuck = {owner.slot}
        r.writer.truncate(owner, Offset(1), None)
        r.writer.append(other, 1, [batch_at(0)], None, sync=False)
        await hears(owner, ("persisted", 1, False), ("damaged", ErrorCode.DATA_CORRUPTED, False))
        await hears(other, ("persisted", 1, False))


async def test_the_event_loop_writes_what_is_asked_for_in_one_turn_together() -> None:
    async with rig() as r:
        log = Appending(r)
        await log.write(40)
        others = [r.owner(partition) for partition in (1, 2, 3)]
        for owner in others:
            asyncio.get_running_loop().call_soon(
                partial(r.writer.append, owner, 1, [batch_at(0)], None, sync=False)
            )
        before = len(r.store.threads)
        for owner in others:
            await hears(owner, ("persisted", 1, False))
        assert len(r.store.threads) == before + 1
        assert log.here(1) == 1


async def test_nothing_is_written_once_the_writer_has_ended() -> None:
    async with rig() as r:
        log = Appending(r)
        await log.write(40)
        # It is asked for in the turn in which the writer ends, and would be written behind that.
        asyncio.get_running_loop().call_soon(
            partial(r.writer.append, log.owner, 41, [batch_at(40)], None, sync=False)
        )
    # The thread is done some turns of the loop later.
    assert (await asyncio.to_thread(r.store.recover, log.owner.slot)).log_end_offset == 40


@pytest.mark.parametrize("refusal", ["full", "damaged"])
async def test_what_the_thread_has_is_not_written_again_to_a_log_that_is_removed(
    refusal: str,
) -> None:
    """The removal is next in line; the store refuses writes to a log that is gone, for good."""
    async with rig() as r:
        going, other = Appending(r), r.owner(1)
        await going.write(40)
        r.store.gate.clear()
        if refusal == "full":
            r.store.failure = ClusterError("full", ErrorCode.DISK_FULL)
            r.writer.move_log_start(going.owner, Offset(30))
        else:
            r.store.dead.add(other.slot)
            r.writer.append(going.owner, 41, [batch_at(40)], None, sync=False)
        r.writer.append(other, 1, [batch_at(0)], None, sync=False)
        await wait_until_async(lambda: not r.writer._pending, what="the thread has it")
        await wait_until_async(lambda: not r.writer._wake.is_set(), what="it is being written")
        r.writer.forget(going.owner)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(r.writer.drop(going.owner.slot))
            r.store.gate.set()
        third = r.owner(2)
        r.writer.append(third, 1, [batch_at(0)], None, sync=False)
        await hears(third, ("persisted", 1, False))
        assert other.heard, "it was refused"
