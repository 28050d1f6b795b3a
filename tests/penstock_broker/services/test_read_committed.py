"""What readers see of transactions: a real broker, gRPC, machine and RocksDB (I11, D8, D9)."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.local_broker import LocalBroker, local_broker, topic_info
from support.transactions import Transactor
from support.waiting import wait_until_async

from penstock.core import aborted
from penstock.core.batch import Batch, BatchFlags
from penstock.core.groups.catalog import NamedPartition
from penstock.core.lag import fetch_from, oldest_unread, partition_lag
from penstock.core.records import decode_batch
from penstock.core.types import Offset, ReplicaKey, TopicId
from penstock.proto.v1 import admin_pb2, errors_pb2
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.batches import batch_from_wire
from penstock.rpc.transport import GrpcTransport
from penstock_broker.groups.leaders import PeerLeaders
from penstock_broker.replication.reads import LogReader
from penstock_broker.services import fetching
from penstock_broker.store import rocks
from penstock_broker.store.rocks import RocksLogStore

KEY = ReplicaKey(TopicId("id-1"), 0)
DEFAULT = pb.ISOLATION_LEVEL_UNSPECIFIED
COMMITTED, UNCOMMITTED = pb.ISOLATION_LEVEL_READ_COMMITTED, pb.ISOLATION_LEVEL_READ_UNCOMMITTED
NO_MEMORY = "cache.bytes=1"
"""So that reads go to the store, but for the newest batch."""


class Scene:
    """One partition on one broker, and readers of it."""

    def __init__(self, broker: LocalBroker, log: Transactor | None) -> None:
        self.broker = broker
        replicas = broker.process._replicas
        replica = replicas.by_key[KEY]
        if log is None:
            log = Transactor(replicas, replica)
        else:
            log.adopt(replicas, replica)
        self.log = log
        self.replica = replica

    @property
    def high_watermark(self) -> int:
        return self.replica.marks.high_watermark

    async def fetch(
        self,
        offset: int,
        isolation: pb.IsolationLevel.ValueType = DEFAULT,
        *,
        max_bytes: int = 0,
        wait_ms: int = 0,
    ) -> Any:
        request = pb.FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            isolation_level=isolation,
            partitions=[pb.FetchPartition(topic="t", offset=offset, max_bytes=max_bytes)],
        )
        (result,) = (await self.broker.data.Fetch(request)).results
        assert not result.HasField("error"), result.error
        return result

    async def read(
        self, offset: int, isolation: pb.IsolationLevel.ValueType = DEFAULT, max_bytes: int = 0
    ) -> list[bytes]:
        """All there is for such a reader, in as many fetches as it takes; then it is at its end."""
        found: list[bytes] = []
        while True:
            result = await self.fetch(offset, isolation, max_bytes=max_bytes)
            end = result.high_watermark if isolation == UNCOMMITTED else result.last_stable_offset
            if offset >= end:
                return found
            assert result.batches, f"a reader at {offset} of {end} gets nothing: stuck"
            for batch in map(batch_from_wire, result.batches):
                assert not batch.header.flags & BatchFlags.CONTROL
                found += values_from(batch, offset)
                assert batch.next_offset > offset
                offset = batch.next_offset
            assert offset <= end

    async def check(self, max_bytes: int = 0) -> None:
        """Readers of both kinds, from every tenth offset on."""
        for isolation in (DEFAULT, COMMITTED, UNCOMMITTED):
            for offset in range(0, self.high_watermark, max(1, self.high_watermark // 10)):
                committed = isolation != UNCOMMITTED
                expected = self.log.expected(offset, self.high_watermark, committed=committed)
                assert await self.read(offset, isolation, max_bytes) == expected

    async def list_offset(
        self, isolation: pb.IsolationLevel.ValueType = DEFAULT, **spec: Any
    ) -> int:
        part = pb.ListOffsetsPartition(topic="t", **spec)
        request = pb.ListOffsetsRequest(isolation_level=isolation, partitions=[part])
        (result,) = (await self.broker.data.ListOffsets(request)).results
        assert not result.HasField("error"), result.error
        return int(result.offset)


def values_from(batch: Batch, offset: int) -> list[bytes]:
    """The values at `offset` and behind; opens the batch as every client does."""
    columns = decode_batch(batch)
    pairs = zip(columns.offsets(), columns.values(), strict=True)
    return [value or b"" for at, value in pairs if at >= offset]


@asynccontextmanager
async def scene(
    path: Path, *settings: str, log: Transactor | None = None, epoch: int = 1
) -> AsyncIterator[Scene]:
    async with local_broker(path, *settings) as broker:
        await broker.apply(topic_info(epoch=epoch, version=epoch))
        yield Scene(broker, log)


async def test_readers_see_what_was_committed_and_stop_before_what_is_open(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        log = here.log
        await log.send(None, 2)  # 0, 1
        await log.send(1, 2)  # 2, 3
        await log.send(2)  # 4
        await log.end(1, commit=True)  # 5
        await log.send(None)  # 6
        assert await here.read(0) == [b"0", b"1", b"2", b"3"]
        assert await here.read(0, UNCOMMITTED) == [b"0", b"1", b"2", b"3", b"4", b"5"]
        result = await here.fetch(0)
        assert (result.high_watermark, result.last_stable_offset) == (7, 4)
        assert here.broker.process.totals().stable_offset_lags == {("t", 0): 3}
        await log.end(2, commit=False)  # 7
        assert await here.read(0) == [b"0", b"1", b"2", b"3", b"5"]
        assert (await here.fetch(0)).last_stable_offset == 8
        await here.check()


async def test_what_a_producer_committed_is_shown_also_when_it_aborted_before(
    tmp_path: Path,
) -> None:
    """A transaction is named by producer id and epoch, never by the id alone."""
    async with scene(tmp_path) as here:
        for commit in (False, True, False, True):
            await here.log.send(1, 2)
            await here.log.end(1, commit=commit)
        assert await here.read(0) == [b"2", b"3", b"6", b"7"]
        await here.check()


@pytest.mark.parametrize("settings", [(), (NO_MEMORY,)], ids=["memory", "store"])
async def test_a_reader_behind_a_hidden_tail_moves_on(
    tmp_path: Path, settings: tuple[str, ...]
) -> None:
    async with scene(tmp_path, *settings) as here:
        await here.log.send(None)
        for _ in range(3):
            await here.log.send(1, 2)
            await here.log.end(1, commit=False)
        result = await here.fetch(0)
        shown, covering = map(batch_from_wire, result.batches)
        assert (shown.base_offset, shown.next_offset) == (0, 1)
        assert (covering.base_offset, covering.next_offset) == (1, 10)
        assert covering.header.flags == BatchFlags.COMPACTED
        assert decode_batch(covering).record_count == 0, "with a CRC of its own"
        handed_out = here.broker.process.metrics.registry.get_sample_value(
            "penstock_records_out_total"
        )
        assert handed_out == 1, "what is covered is not handed out"
        assert await here.read(0) == [b"0"]
        assert await here.list_offset(latest=pb.Latest()) == 10, "its lag is 0"


async def test_hidden_chunks_are_passed_over_within_one_answer_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_HIDDEN_S", 60.0)
    async with scene(tmp_path, NO_MEMORY) as here:
        for _ in range(20):
            await here.log.send(1, size=1_000)
            await here.log.end(1, commit=False)
        await here.log.send(None)
        (batch,) = map(batch_from_wire, (await here.fetch(0, max_bytes=1)).batches)
        assert batch.base_offset == 40, "one call, though each chunk has nothing to show"
        monkeypatch.setattr(fetching, "_HIDDEN_BYTES_MAX", 5_000)
        (batch,) = map(batch_from_wire, (await here.fetch(0, max_bytes=1)).batches)
        assert batch.header.flags == BatchFlags.COMPACTED
        assert 0 < batch.next_offset < 40
        assert batch.base_offset == 0
        await here.check(max_bytes=1)


async def test_what_was_aborted_before_a_restart_is_judged_without_a_look_at_the_index_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(tmp_path) as here:
        for commit in (False, True):
            await here.log.send(1, 2)
            await here.log.end(1, commit=commit)
        log = here.log
    read, reads = RocksLogStore.read, 0

    def counted(*args: Any) -> list[Batch]:
        nonlocal reads
        reads += 1
        return read(*args)

    async with scene(tmp_path, log=log, epoch=2) as here:
        await wait_until_async(lambda: here.high_watermark == 6, what="all is committed again")
        monkeypatch.setattr(RocksLogStore, "read", counted)
        monkeypatch.delattr(RocksLogStore, "aborted")
        assert await here.read(0) == [b"2", b"3"]
        assert reads == 1


@pytest.mark.parametrize("remembered", [aborted.NEWEST_MAX, 2], ids=["all", "two"])
@pytest.mark.parametrize("settings", [(), (NO_MEMORY,)], ids=["memory", "store"])
async def test_any_history_is_read_as_it_was_decided_also_after_a_restart(
    tmp_path: Path, settings: tuple[str, ...], remembered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where memory has only the newest of the aborted transactions."""
    for module in (aborted, rocks):
        monkeypatch.setattr(module, "NEWEST_MAX", remembered)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    log: Transactor | None = None
    for epoch in (1, 2):
        async with scene(tmp_path, *settings, log=log, epoch=epoch) as here:
            log = here.log
            await wait_until_async(
                lambda: here.high_watermark == here.replica.marks.log_end_offset,
                what="all that was written is committed again",
            )
            await here.check()
            for _ in range(40):
                producer = rng.choice([None, 1, 2, 3])
                if producer is not None and rng.random() < 0.4:
                    await log.end(producer, commit=rng.random() < 0.5)
                else:
                    await log.send(producer, rng.randint(1, 4))
            stable = log.stable_offset(here.high_watermark)
            assert here.replica.marks.last_stable_offset == stable
            await here.check()
            await here.check(max_bytes=1)


async def test_committed_readers_are_woken_by_the_stable_offset_and_others_are_not(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as here:
        await here.log.send(1)
        parked = {
            level: here.broker.tasks.create_task(here.fetch(offset, level, wait_ms=60_000))
            for level, offset in ((COMMITTED, 0), (UNCOMMITTED, 1))
        }
        replica = here.replica
        await wait_until_async(
            lambda: len(replica.waiters) + len(replica.stable_waiters) == 2, what="both are parked"
        )
        woken: list[str] = []
        (waiter,) = replica.stable_waiters
        wake = waiter.wake

        def counted(one: Any) -> None:
            woken.append("committed")
            wake(one)

        waiter.wake = counted  # type: ignore[method-assign, assignment]
        await here.log.send(None)
        async with asyncio.timeout(600):
            assert len((await parked[UNCOMMITTED]).batches) == 1
        await here.log.send(None)
        assert woken == [], "the high watermark moved twice, its end did not"
        await here.log.end(1, commit=True)
        async with asyncio.timeout(600):
            assert (await parked[COMMITTED]).batches
        assert woken


async def test_a_stream_shows_the_same_as_a_fetch(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        await here.log.send(1, 2)
        await here.log.send(2, 2)
        await here.log.end(2, commit=False)
        for level, first in ((DEFAULT, []), (UNCOMMITTED, [b"0", b"1", b"2", b"3"])):
            call = here.broker.data.Subscribe()
            part = pb.FetchPartition(topic="t", offset=0)
            await call.write(
                pb.SubscribeRequest(
                    isolation_level=level,
                    subscribe=[part],
                    credit_bytes=1 << 20,
                )
            )
            found: list[bytes] = []
            if level:
                await _take(call, found, 4)
                assert found == first
            else:
                await here.log.end(1, commit=True)
                await _take(call, found, 2)
                assert found == [b"0", b"1"], "nothing before the marker, nothing of the other"
            call.cancel()


@pytest.mark.parametrize("level", [COMMITTED, UNCOMMITTED])
async def test_a_stream_holds_no_replica_that_it_does_not_read(
    tmp_path: Path, level: pb.IsolationLevel.ValueType
) -> None:
    async with scene(tmp_path) as here, asyncio.timeout(600):
        watching = here.replica.stable_waiters if level == COMMITTED else here.replica.waiters
        before = set(watching)
        call: Any = here.broker.data.Subscribe()

        async def ask(**what: Any) -> None:
            request = pb.SubscribeRequest(isolation_level=level, credit_bytes=1 << 20, **what)
            await call.write(request)

        def parked() -> set[Any]:
            return set(watching) - before

        await ask(subscribe=[pb.FetchPartition(topic="t", offset=0)])
        await wait_until_async(parked, what="it is watched")
        (stream,) = parked()
        await ask(unsubscribe=[pb.PartitionName(topic="t")])
        await wait_until_async(lambda: not parked(), what="it is watched no more")
        await ask(subscribe=[pb.FetchPartition(topic="t", offset=10)])
        (result,) = (await call.read()).results
        assert result.HasField("error"), "there is nothing at that offset"
        assert not parked()
        await ask(subscribe=[pb.FetchPartition(topic="t", offset=0)])
        await wait_until_async(parked, what="it is watched again")
        await here.log.send(None)
        await _take(call, [], 1)
        await here.broker.apply(full=False, deleted=("id-1",))
        (result,) = (await call.read()).results
        assert result.HasField("error"), "the topic is gone"
        assert not parked()
        assert (stream._watched, stream._replica_of, stream._replicas) == ({}, {}, {})
        call.cancel()


async def _take(call: Any, found: list[bytes], count: int) -> None:
    async with asyncio.timeout(600):
        while len(found) < count:
            answer = await call.read()
            for result in answer.results:
                for message in result.batches:
                    found += values_from(batch_from_wire(message), 0)


async def test_the_end_and_a_time_are_found_for_the_reader_that_asks(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        log = here.log
        await log.send(None, timestamp_ms=1_000)  # 0
        await log.send(1, timestamp_ms=2_000)  # 1
        await log.end(1, commit=False)  # 2, at 1,000
        await log.send(2, timestamp_ms=2_000)  # 3
        await log.end(2, commit=True)  # 4
        await log.send(3, timestamp_ms=3_000)  # 5, open
        await log.send(None, timestamp_ms=4_000)  # 6
        latest = pb.Latest()
        assert await here.list_offset(latest=latest) == 5
        assert await here.list_offset(COMMITTED, latest=latest) == 5
        assert await here.list_offset(UNCOMMITTED, latest=latest) == 7
        assert await here.list_offset(timestamp_ms=2_000) == 3, "not the aborted one, nor a marker"
        assert await here.list_offset(UNCOMMITTED, timestamp_ms=2_000) == 1
        assert await here.list_offset(timestamp_ms=3_000) == -1, "open: not there yet"
        assert await here.list_offset(UNCOMMITTED, timestamp_ms=3_000) == 5
        assert await here.list_offset(timestamp_ms=0) == 0


async def test_a_time_that_only_a_marker_has_names_no_record(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        await here.log.send(1, timestamp_ms=10)
        await here.log.end(1, commit=True)  # its marker has the time 1,000
        assert await here.list_offset(UNCOMMITTED, timestamp_ms=500) == -1
        assert await here.list_offset(timestamp_ms=500) == -1


async def test_lag_is_what_a_reader_could_have_read(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        await here.log.send(None)  # 0
        await here.log.send(1, 2)  # 1, 2
        await here.log.end(1, commit=False)  # 3
        await here.log.send(2)  # 4, open
        await here.log.send(None)  # 5
        assert await lag(here, 0) == 4, "the open transaction is not its lag, the holes are"
        assert await lag(here, 1) == 0, "all that is left is aborted, or a marker"
        assert await lag(here, 4) == 0
        await here.log.end(2, commit=True)  # 6
        assert await lag(here, 4) == 3
        assert await lag(here, 6) == 0, "a marker is no record"
        assert await lag(here, 7) == 0


async def lag(here: Scene, committed: int) -> int | None:
    """As the broker's metrics have it."""
    where = NamedPartition("t", KEY.topic_id, 0)
    leaders = PeerLeaders(here.broker.process._view, GrpcTransport())
    try:
        start, end = (await leaders.bounds([where]))[where]
        position = fetch_from(committed, start, end)
        unread = None
        while position is not None and position < end and unread is None:
            (batches,) = (await leaders.first_batches({where: position})).values()
            unread = oldest_unread(batches, position)
            position = batches[-1].next_offset
        return partition_lag(committed, start, end, unread, 0).records
    finally:
        await leaders.close()


async def test_deleting_records_stops_at_the_stable_offset_and_says_so(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        await here.log.send(None, 3)
        await here.log.send(1, 2)
        await here.log.send(None, 3)
        answer = await here.broker.admin.DeleteRecords(
            admin_pb2.DeleteRecordsRequest(topic="t", partition=0, before_offset=-1)
        )
        assert (answer.log_start_offset, answer.HasField("error")) == (3, False)
        assert await here.read(3, UNCOMMITTED) == [b"3", b"4", b"5", b"6", b"7"]
        await here.log.end(1, commit=True)
        assert await here.read(3) == [b"3", b"4", b"5", b"6", b"7"]


@pytest.mark.parametrize("isolation", [COMMITTED, UNCOMMITTED])
@pytest.mark.parametrize("before", [3, 7])
async def test_what_is_removed_while_it_is_read_is_out_of_range_and_no_gap(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    isolation: pb.IsolationLevel.ValueType,
    before: int,
) -> None:
    """A reader took the first records that are left for those behind a compacted gap (I17)."""
    read_for = LogReader.read_for
    async with scene(tmp_path, NO_MEMORY) as here:
        for _ in range(3):
            await here.log.send(None, 2)  # 0 to 5
        await here.log.send(1)  # 6
        await here.log.end(1, commit=True)  # 7
        await here.log.send(None)  # 8

        async def removed_first(self: LogReader, *args: Any) -> Any:
            monkeypatch.undo()
            request = admin_pb2.DeleteRecordsRequest(topic="t", partition=0, before_offset=before)
            await here.broker.admin.DeleteRecords(request)
            store = here.broker.process._seams.store
            await wait_until_async(
                lambda: store.read(here.replica.slot, Offset(0), 1, Offset(9))[0].base_offset > 0,
                what="they are gone",
            )
            return await read_for(self, *args)

        monkeypatch.setattr(LogReader, "read_for", removed_first)
        part = pb.FetchPartition(topic="t", offset=0)
        request = pb.FetchRequest(min_bytes=1, isolation_level=isolation, partitions=[part])
        (result,) = (await here.broker.data.Fetch(request)).results
        assert result.error.code == errors_pb2.ERROR_CODE_OFFSET_OUT_OF_RANGE, result
        assert not result.batches


async def test_retention_stops_at_the_stable_offset(tmp_path: Path) -> None:
    async with scene(tmp_path, "log.retention.check.interval.ms=50") as here:
        await here.log.send(None, 3)
        await here.log.send(1, 2)
        await here.log.send(None, 3)
        moved: list[int] = []
        store = here.broker.process._seams.store
        retention_start = store.retention_start

        def noted(*where: Any, **limits: Any) -> Any:
            start = retention_start(*where, **limits)
            moved.append(-1 if start is None else start)
            return start

        store.retention_start = noted  # type: ignore[method-assign]
        await here.broker.apply(topic_info(configs={"retention.ms": "1"}, version=2))
        replica = here.replica
        await wait_until_async(lambda: replica.marks.log_start_offset == 3, what="the log is cut")
        seen = len(moved)
        await wait_until_async(lambda: len(moved) >= seen + 3, what="three more rounds")
        assert set(moved[seen:]) == {-1}, "it does not even ask for more"
        assert await here.read(3, UNCOMMITTED) == [b"3", b"4", b"5", b"6", b"7"]
        await here.log.end(1, commit=True)
        await wait_until_async(lambda: replica.marks.log_start_offset == 9, what="all may go")
