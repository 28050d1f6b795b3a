"""What every log store must do, run against RocksDB and its memory twin.

The last test lets both stores go through the same random life and compares all they answer.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.batch import Batch, BatchHeader, compute_crc
from penstock.core.replication.contract import Checkpoint, EpochStart, ProducerEntry, SequencedBatch
from penstock.core.replication.losses import emptied
from penstock.core.types import LeaderEpoch, Offset, ProducerId, ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.store.interface import LogStore, PartitionWrite, Slot, TimeIndexEntry
from penstock_broker.store.memory import MemoryLogStore
from penstock_broker.store.options import StoreOptions
from penstock_broker.store.rocks import RocksLogStore

END = Offset(2**62)
EVERYTHING = 1 << 40


def batch(
    offset: int,
    count: int = 1,
    *,
    time_ms: int = 1000,
    size: int = 100,
    epoch: int = 1,
    producer: tuple[int, int, int] | None = None,
    appended_ms: int = 0,
) -> Batch:
    """`size` is the stored size; `producer` is (id, epoch, base sequence)."""
    payload = bytes([offset % 251]) * (size - 72)
    producer_id, producer_epoch, sequence = producer or (-1, -1, -1)
    header = BatchHeader(
        record_count=count,
        first_timestamp_ms=time_ms,
        max_timestamp_ms=time_ms,
        uncompressed_bytes=len(payload),
        crc=0,
        producer_id=ProducerId(producer_id),
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        base_offset=Offset(offset),
        leader_epoch=LeaderEpoch(epoch),
        append_time_ms=appended_ms,
    )
    return Batch(replace(header, crc=compute_crc(header, payload)), payload)


def checkpoint(high_watermark: int, log_start: int = 0, *epochs: tuple[int, int]) -> Checkpoint:
    starts = tuple(EpochStart(LeaderEpoch(epoch), Offset(start)) for epoch, start in epochs)
    newest = LeaderEpoch(max((epoch for epoch, _ in epochs), default=1))
    return Checkpoint(newest, Offset(high_watermark), Offset(log_start), starts)


def producer_entry(producer_id: int, *landed: tuple[int, int, int], at_ms: int) -> ProducerEntry:
    batches = tuple(SequencedBatch(base, last, Offset(offset)) for base, last, offset in landed)
    return ProducerEntry(
        producer_id=ProducerId(producer_id),
        producer_epoch=0,
        batches=batches,
        last_timestamp_ms=at_ms,
    )


class Harness:
    """A store, one open slot, and shorthands."""

    def __init__(self, make: Callable[[], LogStore]) -> None:
        self._make = make
        self.store = make()
        self.slot = self.store.open_slot(ReplicaKey(TopicId("orders"), 0))

    def reopen(self) -> None:
        self.store.close()
        self.store = self._make()

    def append(self, *batches: Batch, checkpoint: Checkpoint | None = None) -> None:
        self.store.write([PartitionWrite(self.slot, batches, checkpoint)], sync=False)

    def truncate(self, to: int, *batches: Batch) -> None:
        self.store.write([PartitionWrite(self.slot, batches, truncate_to=Offset(to))], sync=False)

    def retain_from(self, log_start: int) -> None:
        self.store.write(
            [PartitionWrite(self.slot, log_start_offset=Offset(log_start))], sync=False
        )

    def read(self, offset: int = 0, max_bytes: int = EVERYTHING, end: int = END) -> list[Batch]:
        return self.store.read(self.slot, Offset(offset), max_bytes, Offset(end))

    def offsets(self, offset: int = 0, max_bytes: int = EVERYTHING, end: int = END) -> list[int]:
        return [found.base_offset for found in self.read(offset, max_bytes, end)]

    def at_time(self, timestamp_ms: int, end: int = END) -> TimeIndexEntry | None:
        return self.store.find_timestamp(self.slot, timestamp_ms, Offset(end))

    def retention(
        self, older_than_ms: int | None = None, max_bytes: int | None = None, end: int = END
    ) -> Offset | None:
        return self.store.retention_start(
            self.slot, older_than_ms=older_than_ms, max_bytes=max_bytes, end=Offset(end)
        )


RANGE_DELETES = StoreOptions(single_deletes_max=0)


@pytest.fixture(params=["memory", "rocks", "rocks-range-deletes"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    memory = MemoryLogStore()
    makers: dict[str, Callable[[], LogStore]] = {
        "memory": lambda: memory,
        "rocks": lambda: RocksLogStore(tmp_path / "log"),
        "rocks-range-deletes": lambda: RocksLogStore(tmp_path / "log", RANGE_DELETES),
    }
    harness = Harness(makers[request.param])
    yield harness
    harness.store.close()


# ------------------------------------------------------------------ slots


def test_a_replica_keeps_its_slot_over_restarts(log: Harness) -> None:
    other = log.store.open_slot(ReplicaKey(TopicId("orders"), 1))
    assert other != log.slot
    log.reopen()
    assert log.store.slots() == {
        ReplicaKey(TopicId("orders"), 0): log.slot,
        ReplicaKey(TopicId("orders"), 1): other,
    }
    assert log.store.open_slot(ReplicaKey(TopicId("orders"), 1)) == other


def test_a_new_slot_is_an_empty_log(log: Harness) -> None:
    recovered = log.store.recover(log.slot)
    assert recovered.log_end_offset == 0
    assert recovered.checkpoint.log_start_offset == 0
    assert recovered.checkpoint.high_watermark == 0
    assert recovered.checkpoint.epochs == ()
    assert recovered.producers == ()
    assert log.read() == []
    assert log.at_time(0) is None
    assert log.retention(older_than_ms=10**15, max_bytes=0) is None
    assert log.store.size_bytes(log.slot) == 0


def test_a_dropped_replica_is_gone_and_its_slot_is_not_given_again(log: Harness) -> None:
    neighbour = log.store.open_slot(ReplicaKey(TopicId("orders"), 1))
    log.store.write([PartitionWrite(neighbour, [batch(0)])], sync=False)
    log.append(batch(0), batch(1), checkpoint=checkpoint(2, 0, (1, 0)))
    log.store.drop(log.slot)
    log.reopen()
    assert log.store.slots() == {ReplicaKey(TopicId("orders"), 1): neighbour}
    assert log.read() == []
    assert log.store.size_bytes(log.slot) == 0
    again = log.store.open_slot(ReplicaKey(TopicId("orders"), 0))
    assert again not in (log.slot, neighbour)
    assert log.store.recover(again).log_end_offset == 0
    assert len(log.store.read(neighbour, Offset(0), 1, END)) == 1
    log.slot = neighbour


def test_a_write_to_a_dropped_slot_is_refused_whole(log: Harness) -> None:
    gone = log.store.open_slot(ReplicaKey(TopicId("orders"), 1))
    log.store.drop(gone)
    writes = [PartitionWrite(log.slot, [batch(0)]), PartitionWrite(gone, [batch(0)])]
    with pytest.raises(ClusterError, match="not open") as caught:
        log.store.write(writes, sync=False)
    assert caught.value.code is ErrorCode.STORAGE_FAILED
    assert log.read() == []


# ------------------------------------------------------------------ write and read


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("size", [72, 600, 300_000])
def test_batches_come_back_as_they_were_written(log: Harness, sync: bool, size: int) -> None:
    written = [batch(0, 3, size=size, producer=(7, 1, 5)), batch(3, 2, size=size, appended_ms=9)]
    log.store.write([PartitionWrite(log.slot, written)], sync=sync)
    assert log.read() == written
    log.reopen()
    assert log.read() == written


def test_what_is_written_at_once_is_written(log: Harness) -> None:
    for number in range(3):
        assert log.store.try_write([PartitionWrite(log.slot, [batch(number)])])
    log.append(batch(3))
    log.reopen()
    assert log.offsets() == [0, 1, 2, 3]
    with pytest.raises(ClusterError, match="not open"):
        log.store.try_write([PartitionWrite(Slot(99), [batch(0)])])


def test_reading_starts_with_the_batch_that_holds_the_offset(log: Harness) -> None:
    log.append(batch(0, 10), batch(10, 10), batch(20, 10))
    assert log.offsets(0) == [0, 10, 20]
    assert log.offsets(9) == [0, 10, 20]
    assert log.offsets(10) == [10, 20]
    assert log.offsets(29) == [20]
    assert log.offsets(30) == []


def test_reading_stops_at_the_bytes_but_gives_at_least_one_batch(log: Harness) -> None:
    log.append(*(batch(n, size=1000) for n in range(5)))
    assert log.offsets(0, max_bytes=0) == [0]
    assert log.offsets(1, max_bytes=1999) == [1]
    assert log.offsets(1, max_bytes=2000) == [1, 2]
    assert log.offsets(0, max_bytes=5000) == [0, 1, 2, 3, 4]


def test_reading_never_passes_the_end(log: Harness) -> None:
    log.append(batch(0, 10), batch(10, 10), batch(20, 10))
    assert log.offsets(0, end=30) == [0, 10, 20]
    assert log.offsets(0, end=20) == [0, 10]
    assert log.offsets(0, end=19) == [0]
    assert log.offsets(0, end=0) == []
    assert log.offsets(10, end=10) == []


def test_a_gap_in_the_offsets_is_stepped_over(log: Harness) -> None:
    log.append(batch(0, 2), batch(1000, 2, time_ms=2000), batch(5000, 2, time_ms=3000))
    assert log.offsets(2) == [1000, 5000]
    assert log.offsets(1001) == [1000, 5000]
    assert log.offsets(4000) == [5000]
    assert log.at_time(1500) == TimeIndexEntry(Offset(1000), 2000)
    assert log.at_time(2500) == TimeIndexEntry(Offset(5000), 3000)
    assert log.store.recover(log.slot).log_end_offset == 5002


def test_slots_do_not_see_each_other(log: Harness) -> None:
    slots = [log.store.open_slot(ReplicaKey(TopicId("orders"), n)) for n in range(3)]
    log.store.write([PartitionWrite(slots[n], [batch(n * 5, 5)]) for n in range(3)], sync=False)
    for n, slot in enumerate(slots):
        assert [found.base_offset for found in log.store.read(slot, Offset(0), 9999, END)] == [
            n * 5
        ]
    log.store.write([PartitionWrite(slots[1], truncate_to=Offset(0))], sync=False)
    log.store.write([PartitionWrite(slots[2], log_start_offset=Offset(99))], sync=False)
    sizes = [log.store.size_bytes(slot) for slot in slots]
    assert sizes == [100, 0, 0]


def test_bytes_are_counted_from_the_batch_that_holds_an_offset_to_the_end(log: Harness) -> None:
    assert log.store.bytes_from(log.slot, Offset(0)) == 0
    log.append(batch(0, 10), batch(10, 10, size=150), batch(20, size=200))
    sizes = {0: 450, 9: 450, 10: 350, 19: 350, 20: 200, 21: 0, 99: 0}
    for offset, size in sizes.items():
        assert log.store.bytes_from(log.slot, Offset(offset)) == size, offset
    log.store.write([PartitionWrite(log.slot, log_start_offset=Offset(10))], sync=False)
    log.reopen()
    assert log.store.bytes_from(log.slot, Offset(0)) == 350
    assert log.store.bytes_from(log.slot, Offset(20)) == 200


def test_headers_are_of_batches_that_begin_below_the_end(log: Harness) -> None:
    batches = [batch(0, 10), batch(10, 10), batch(20, 5), batch(25, 5)]
    log.append(*batches)
    known = [one.header for one in batches]

    def headers(offset: int, end: int, count_max: int = 9) -> list[BatchHeader]:
        return log.store.next_headers(log.slot, Offset(offset), Offset(end), count_max)

    assert headers(0, 30) == known
    assert headers(15, 21) == known[1:3], "the one that holds the offset, and one that passes 21"
    assert headers(10, 20) == known[1:2]
    assert headers(0, 30, 2) == known[:2]
    assert headers(30, 40) == []
    log.retain_from(12)
    assert headers(0, 25) == known[1:3], "the first that is there"


def test_many_small_batches_are_read_in_order_in_pieces(log: Harness) -> None:
    for start in range(0, 10_000, 1000):
        log.append(*(batch(n, size=80) for n in range(start, start + 1000)))
    position = 0
    while found := log.read(position, max_bytes=100_000):
        assert [b.base_offset for b in found] == list(range(position, found[-1].next_offset))
        position = found[-1].next_offset
    assert position == 10_000


def test_a_batch_that_overlaps_the_log_is_refused_and_nothing_is_written(log: Harness) -> None:
    other = log.store.open_slot(ReplicaKey(TopicId("orders"), 1))
    log.append(batch(0, 10))
    overlapping = [PartitionWrite(other, [batch(0)]), PartitionWrite(log.slot, [batch(9)])]
    with pytest.raises(AssertionError):
        log.store.write(overlapping, sync=False)
    assert log.offsets() == [0]
    assert log.store.read(other, Offset(0), 1, END) == []
    log.append(batch(10))
    assert log.offsets() == [0, 10]


def test_a_reader_sees_whole_batches_while_the_log_is_cut_at_both_ends(log: Harness) -> None:
    """Offsets 0.. grow, are cut at 20 behind the start, and truncated and written again."""
    log.append(*(batch(n, size=2000) for n in range(20)))
    done = threading.Event()
    problems: list[str] = []

    def reader() -> None:
        while not done.is_set():
            try:
                found = [b.base_offset for b in log.read(0, max_bytes=20_000)]
            except ClusterError as error:
                problems.append(error.message)
                return
            if not found or found != list(range(found[0], found[0] + len(found))):
                problems.append(f"read {found}")

    thread = threading.Thread(target=reader)
    thread.start()
    try:
        for n in range(20, 400):
            log.append(batch(n, size=2000))
            log.retain_from(n - 19)
            log.truncate(n - 2, *(batch(again, size=2000) for again in range(n - 2, n + 1)))
    finally:
        done.set()
        thread.join(timeout=30)
    assert problems == []


# ------------------------------------------------------------------ truncation


def test_truncation_removes_every_batch_from_the_offset_on(log: Harness) -> None:
    log.append(batch(0, 10), batch(10, 10), batch(20, 10))
    log.truncate(10)
    assert log.offsets() == [0]
    assert log.store.recover(log.slot).log_end_offset == 10
    assert log.store.size_bytes(log.slot) == 100
    log.reopen()
    assert log.offsets() == [0]
    assert log.store.recover(log.slot).log_end_offset == 10
    assert log.store.size_bytes(log.slot) == 100


@pytest.mark.parametrize("flushed", [False, True], ids=["in-memory", "on-disk"])
def test_batches_written_again_in_the_truncating_write_replace_the_old_ones(
    log: Harness, flushed: bool
) -> None:
    log.append(batch(0, 10), batch(10, 10), batch(20, 5, size=700), batch(25, 5))
    if flushed:
        log.truncate(30)
        log.store.reclaim()
    new = [batch(10, 10, epoch=2, size=700), batch(20, 4, epoch=2)]
    log.truncate(10, *new)
    for _ in range(2):
        assert log.read(10) == new
        assert log.store.recover(log.slot).log_end_offset == 24
        assert log.store.size_bytes(log.slot) == 100 + 700 + 100
        log.store.reclaim()
        log.reopen()


def test_truncation_to_the_end_or_behind_it_changes_nothing(log: Harness) -> None:
    log.append(batch(0, 10), checkpoint=checkpoint(10, 0, (1, 0)))
    log.truncate(10)
    log.truncate(11)
    assert log.offsets() == [0]
    assert log.store.recover(log.slot).checkpoint == checkpoint(10, 0, (1, 0))


def test_truncation_inside_a_batch_is_a_programmers_error(log: Harness) -> None:
    log.append(batch(0, 10), batch(10, 10))
    with pytest.raises(AssertionError):
        log.truncate(15)
    assert log.offsets() == [0, 10]


def test_truncation_of_everything_leaves_an_empty_log_that_goes_on(log: Harness) -> None:
    log.append(batch(0, 10, time_ms=9000), batch(10, 10))
    log.truncate(0)
    assert log.read() == []
    assert log.store.size_bytes(log.slot) == 0
    assert log.store.recover(log.slot).log_end_offset == 0
    log.append(batch(0, 3, time_ms=50))
    assert log.offsets() == [0]
    assert log.at_time(51) is None
    assert log.store.size_bytes(log.slot) == 100


@pytest.mark.parametrize("stored_start", [0, 5, 15])
def test_a_log_that_restarts_behind_its_end_is_emptied(log: Harness, stored_start: int) -> None:
    """A follower that was away longer than retention goes on where the leader's log starts.

    It truncates to its own log start, which may lie inside a batch.
    """
    log.append(batch(0, 10), batch(10, 10), checkpoint=checkpoint(20, 0, (1, 0)))
    log.retain_from(stored_start)
    void = checkpoint(500, 500)
    log.store.write(
        [PartitionWrite(log.slot, (), void, truncate_to=Offset(stored_start), producers=())],
        sync=False,
    )
    for _ in range(2):
        recovered = log.store.recover(log.slot)
        assert (recovered.log_end_offset, recovered.checkpoint) == (500, void)
        assert log.read() == []
        assert log.store.size_bytes(log.slot) == 0
        log.reopen()
    log.append(batch(495, 10), batch(505, 5))
    assert log.offsets(500) == [495, 505]
    assert log.store.recover(log.slot).log_end_offset == 510


@pytest.mark.parametrize("stored", [(), (25,), (20, 30)], ids=["empty", "full", "straddling"])
def test_a_log_that_restarts_before_its_start_forgets_all_it_had(
    log: Harness, stored: tuple[int, ...]
) -> None:
    """A log that lost writes follows a leader that ends before retention had let it begin.

    A snapshot of producers as of its old start must not be met again: others write there now.
    """
    stale = producer_entry(7, (0, 9, 20), at_ms=1)
    log.append(*(batch(base, 10) for base in stored), checkpoint=checkpoint(25, 25, (1, 0)))
    log.store.write(
        [PartitionWrite(log.slot, log_start_offset=Offset(25), producers=[stale])], sync=False
    )
    assert log.store.recover(log.slot).producers == (stale,)
    anew = checkpoint(4, 4)
    log.store.write(
        [PartitionWrite(log.slot, (), anew, truncate_to=Offset(4), producers=())], sync=False
    )
    for _ in range(2):
        recovered = log.store.recover(log.slot)
        assert (recovered.log_end_offset, recovered.checkpoint) == (4, anew)
        assert (log.read(), log.store.size_bytes(log.slot)) == ([], 0)
        log.reopen()
    log.append(batch(4, 40, producer=(8, 0, 0), time_ms=5))
    log.reopen()
    assert log.offsets() == [4]
    assert log.store.recover(log.slot).producers == (producer_entry(8, (0, 39, 4), at_ms=5),)


def test_a_thousand_batches_go_at_both_ends(log: Harness) -> None:
    log.append(*(batch(n, time_ms=n) for n in range(2000)), checkpoint=checkpoint(500))
    log.truncate(1500, *(batch(n, epoch=2, time_ms=n) for n in range(1500, 1510)))
    log.retain_from(500)
    for _ in range(2):
        assert log.offsets() == [*range(500, 1510)]
        assert log.store.size_bytes(log.slot) == 1010 * 100
        assert log.at_time(0) == TimeIndexEntry(Offset(500), 500)
        assert log.at_time(1510) is None
        log.store.reclaim()
        log.reopen()


# ------------------------------------------------------------------ checkpoint


def test_a_lost_batch_is_emptied_once_and_its_producer_is_still_known(log: Harness) -> None:
    batches = [batch(n * 10, 10, time_ms=1000 + n, producer=(7, 0, n * 10)) for n in range(5)]
    log.append(*batches)
    before = log.store.recover(log.slot)
    size, lost = log.store.size_bytes(log.slot), batches[2].header
    for _ in range(2):
        log.store.write([PartitionWrite(log.slot, lost=[lost])], sync=True)
        assert log.read() == [*batches[:2], emptied(lost), *batches[3:]]
    assert log.store.size_bytes(log.slot) <= size
    assert log.store.recover(log.slot) == before
    assert log.at_time(1002) == TimeIndexEntry(Offset(20), 1002)
    log.reopen()
    assert log.read(20, 1) == [emptied(lost)]
    assert log.store.recover(log.slot) == before


@pytest.mark.parametrize("at", [0, 4], ids=["first", "last"])
def test_a_lost_batch_at_an_end_of_the_log_is_emptied(log: Harness, at: int) -> None:
    batches = [batch(n) for n in range(5)]
    log.append(*batches)
    log.store.write([PartitionWrite(log.slot, lost=[batches[at].header])], sync=True)
    log.append(batch(5))
    found = log.read()
    assert found.pop(at) == emptied(batches[at].header)
    assert found == [*(one for one in batches if one is not batches[at]), batch(5)]


def test_what_is_not_the_batch_that_was_lost_stays(log: Harness) -> None:
    log.append(batch(0), batch(1), batch(2))
    later = batch(1, epoch=2)
    writes = [PartitionWrite(log.slot, lost=[later.header, batch(7).header])]
    log.store.write(writes, sync=True)
    log.truncate(1, later)
    log.store.write([PartitionWrite(log.slot, lost=[batch(1).header])], sync=True)
    assert log.read() == [batch(0), later]


def test_the_newest_checkpoint_is_recovered(log: Harness) -> None:
    log.append(batch(0, 10), checkpoint=checkpoint(0, 0, (1, 0)))
    newest = checkpoint(10, 3, (1, 0), (4, 10))
    log.append(checkpoint=newest)
    assert log.store.recover(log.slot).checkpoint == newest
    log.reopen()
    assert log.store.recover(log.slot).checkpoint == newest


def test_truncation_without_a_checkpoint_forgets_what_was_cut(log: Harness) -> None:
    log.append(batch(0, 10), batch(10, 10), checkpoint=checkpoint(20, 5, (1, 0), (2, 10), (3, 20)))
    log.truncate(10)
    recovered = log.store.recover(log.slot).checkpoint
    assert recovered == replace(checkpoint(10, 5, (1, 0)), leader_epoch=LeaderEpoch(3))


def test_a_checkpoint_in_the_truncating_write_is_kept_as_it_is(log: Harness) -> None:
    log.append(batch(0, 10), batch(10, 10), checkpoint=checkpoint(20, 0, (1, 0), (2, 10)))
    told = checkpoint(5, 0, (1, 0))
    log.store.write([PartitionWrite(log.slot, truncate_to=Offset(10), checkpoint=told)], sync=False)
    assert log.store.recover(log.slot).checkpoint == told


# ------------------------------------------------------------------ log start


def test_a_new_log_start_removes_whole_batches_before_it(log: Harness) -> None:
    log.append(batch(0, 10), batch(10, 10), batch(20, 10), checkpoint=checkpoint(30))
    log.retain_from(15)
    for _ in range(2):
        assert log.offsets(0) == [10, 20]
        assert log.store.size_bytes(log.slot) == 200
        assert log.store.recover(log.slot).checkpoint.log_start_offset == 15
        log.store.reclaim()
        log.reopen()
    log.retain_from(20)
    assert log.offsets(0) == [20]


def test_the_log_start_never_moves_back(log: Harness) -> None:
    log.append(batch(0, 10), batch(10, 10), checkpoint=checkpoint(20))
    log.retain_from(10)
    log.retain_from(5)
    assert log.store.recover(log.slot).checkpoint.log_start_offset == 10
    assert log.offsets() == [10]


def test_a_log_can_lose_all_its_batches_and_keeps_its_end(log: Harness) -> None:
    log.append(batch(0, 10), batch(10, 10), checkpoint=checkpoint(20))
    log.retain_from(20)
    log.reopen()
    recovered = log.store.recover(log.slot)
    assert (recovered.log_end_offset, recovered.checkpoint.log_start_offset) == (20, 20)
    assert recovered.checkpoint.high_watermark == 20
    assert log.store.size_bytes(log.slot) == 0
    log.append(batch(20, 2))
    assert log.offsets(0) == [20]
    assert log.store.size_bytes(log.slot) == 100


def test_several_writes_to_one_slot_in_one_call_build_on_each_other(log: Harness) -> None:
    log.append(batch(0, 10), batch(10, 10))
    slot = log.slot
    log.store.write(
        [
            PartitionWrite(slot, [batch(20, 10), batch(30, 10)]),
            PartitionWrite(slot, [batch(30, 5, epoch=2, size=900)], truncate_to=Offset(30)),
            PartitionWrite(slot, [batch(10, 2, epoch=3)], truncate_to=Offset(10)),
            PartitionWrite(slot, [batch(12, 8, epoch=3, size=300)], log_start_offset=Offset(15)),
        ],
        sync=False,
    )
    for _ in range(2):
        assert [(b.base_offset, b.header.leader_epoch) for b in log.read()] == [(12, 3)]
        assert log.store.size_bytes(slot) == 300
        log.reopen()


# ------------------------------------------------------------------ producers


def test_producers_are_rebuilt_from_headers(log: Harness) -> None:
    log.append(
        batch(0, 2, producer=(7, 0, 0), time_ms=5),
        batch(2, 3, producer=(7, 0, 2), time_ms=6),
        batch(5, 1, producer=(8, 0, 0), time_ms=7),
        batch(6, 1),
    )
    expected = {
        producer_entry(7, (0, 1, 0), (2, 4, 2), at_ms=6),
        producer_entry(8, (0, 0, 5), at_ms=7),
    }
    assert set(log.store.recover(log.slot).producers) == expected
    log.reopen()
    assert set(log.store.recover(log.slot).producers) == expected


def test_a_snapshot_is_brought_up_to_date_with_the_headers_behind_it(log: Harness) -> None:
    known = producer_entry(7, (100, 101, 55), at_ms=3)
    log.store.write([PartitionWrite(log.slot, [batch(0, 2)], producers=[known])], sync=False)
    log.append(batch(2, 1, producer=(7, 0, 102), time_ms=9))
    assert log.store.recover(log.slot).producers == (
        producer_entry(7, (100, 101, 55), (102, 102, 2), at_ms=9),
    )


def test_truncation_falls_back_to_an_older_snapshot(log: Harness) -> None:
    first, second = producer_entry(7, (0, 0, 0), at_ms=1), producer_entry(7, (0, 9, 0), at_ms=2)
    log.append(checkpoint=checkpoint(1))
    log.store.write([PartitionWrite(log.slot, [batch(0)], producers=[first])], sync=False)
    log.store.write([PartitionWrite(log.slot, [batch(1)], producers=[second])], sync=False)
    assert log.store.recover(log.slot).producers == (second,)
    log.truncate(1)
    for _ in range(2):
        assert log.store.recover(log.slot).producers == (first,)
        log.reopen()


def test_producers_outlive_their_batches(log: Harness) -> None:
    """Retention removes everything a producer wrote; nobody took a snapshot (I9)."""
    log.append(
        batch(0, 1, producer=(7, 0, 0), time_ms=5),
        batch(1, 1, producer=(7, 0, 1), time_ms=6),
        batch(2, 1, producer=(8, 0, 0), time_ms=7),
        batch(3, 1, producer=(9, 0, 0), time_ms=8),
        checkpoint=checkpoint(2),
    )
    log.retain_from(2)
    survivor = producer_entry(7, (0, 0, 0), (1, 1, 1), at_ms=6)
    assert survivor in log.store.recover(log.slot).producers
    log.truncate(3)
    log.reopen()
    assert set(log.store.recover(log.slot).producers) == {
        survivor,
        producer_entry(8, (0, 0, 2), at_ms=7),
    }


def test_producers_outlive_a_log_cut_down_to_a_gap(log: Harness) -> None:
    log.append(batch(0, 1, producer=(7, 0, 0)), batch(5, 1), checkpoint=checkpoint(1))
    log.retain_from(1)
    log.truncate(5)
    recovered = log.store.recover(log.slot)
    assert recovered.log_end_offset == 1
    assert recovered.producers == (producer_entry(7, (0, 0, 0), at_ms=1000),)


def test_a_snapshot_past_the_high_watermark_is_not_relied_upon_by_retention(log: Harness) -> None:
    log.append(
        batch(0, 1, producer=(7, 0, 0), time_ms=5), batch(1), batch(2), checkpoint=checkpoint(1)
    )
    known = log.store.recover(log.slot).producers
    log.store.write(
        [PartitionWrite(log.slot, producers=known, log_start_offset=Offset(1))], sync=False
    )
    log.truncate(2)
    assert log.store.recover(log.slot).producers == known


# ------------------------------------------------------------------ time


def test_the_first_batch_at_or_behind_a_time_is_found(log: Harness) -> None:
    log.append(*(batch(n * 10, 10, time_ms=1000 + n * 100) for n in range(50)))
    assert log.at_time(0) == TimeIndexEntry(Offset(0), 1000)
    assert log.at_time(1000) == TimeIndexEntry(Offset(0), 1000)
    assert log.at_time(1001) == TimeIndexEntry(Offset(10), 1100)
    assert log.at_time(5900) == TimeIndexEntry(Offset(490), 5900)
    assert log.at_time(5901) is None
    assert log.at_time(1001, end=20) == TimeIndexEntry(Offset(10), 1100)
    assert log.at_time(1001, end=19) is None


def test_times_out_of_order_give_the_first_batch_that_reaches_the_time(log: Harness) -> None:
    log.append(*(batch(n, time_ms=t) for n, t in enumerate([50, 10, 90, 20, 70, 95])))
    assert log.at_time(20) == TimeIndexEntry(Offset(0), 50)
    assert log.at_time(60) == TimeIndexEntry(Offset(2), 90)
    assert log.at_time(91) == TimeIndexEntry(Offset(5), 95)


def test_a_removed_batch_does_not_answer_for_later_ones(log: Harness) -> None:
    log.append(*(batch(n, time_ms=t) for n, t in enumerate([999, 10, 20, 30])))
    log.retain_from(1)
    assert log.at_time(15) == TimeIndexEntry(Offset(2), 20)
    assert log.at_time(31) is None
    log.reopen()
    assert log.at_time(15) == TimeIndexEntry(Offset(2), 20)


def test_truncated_batches_do_not_answer_either(log: Harness) -> None:
    log.append(batch(0, time_ms=10), batch(1, time_ms=999))
    log.truncate(1, batch(1, time_ms=20))
    assert log.at_time(500) is None
    assert log.at_time(11) == TimeIndexEntry(Offset(1), 20)


def test_append_time_counts_where_the_topic_says_so(log: Harness) -> None:
    log.append(batch(0, time_ms=10, appended_ms=5000))
    assert log.at_time(4000) == TimeIndexEntry(Offset(0), 5000)


# ------------------------------------------------------------------ retention


def test_retention_by_time_names_the_first_batch_young_enough(log: Harness) -> None:
    log.append(*(batch(n * 10, 10, time_ms=1000 + n * 100) for n in range(10)))
    assert log.retention(older_than_ms=1000) is None
    assert log.retention(older_than_ms=1001) == 10
    assert log.retention(older_than_ms=1500) == 50
    assert log.retention(older_than_ms=10_000) == 100
    assert log.retention(older_than_ms=10_000, end=35) == 30
    assert log.retention(older_than_ms=10_000, end=5) is None


def test_an_old_batch_behind_a_young_one_stays(log: Harness) -> None:
    log.append(*(batch(n, time_ms=t) for n, t in enumerate([10, 900, 20, 30])))
    assert log.retention(older_than_ms=500) == 1


def test_retention_by_size_keeps_at_least_the_limit(log: Harness) -> None:
    log.append(*(batch(n * 10, 10, size=1000) for n in range(10)))
    assert log.retention(max_bytes=10_001) is None
    assert log.retention(max_bytes=10_000) is None
    assert log.retention(max_bytes=9_001) is None
    assert log.retention(max_bytes=9_000) == 10
    assert log.retention(max_bytes=3_000) == 70
    assert log.retention(max_bytes=2_999) == 70
    assert log.retention(max_bytes=1) == 90
    assert log.retention(max_bytes=0) == 100
    assert log.retention(max_bytes=0, end=45) == 40
    log.retain_from(70)
    assert log.retention(max_bytes=3_000) is None
    assert log.retention(max_bytes=2_001) is None
    assert log.retention(max_bytes=2_000) == 80
    log.truncate(90, batch(90, 5, size=500))
    assert log.retention(max_bytes=1_501) is None
    assert log.retention(max_bytes=1_500) == 80


def test_a_large_batch_at_the_end_does_not_cost_those_before_it(log: Harness) -> None:
    log.append(*(batch(n, size=100) for n in range(10)), batch(10, size=100_000))
    assert log.retention(max_bytes=100_001) == 9
    assert log.retention(max_bytes=100_000) == 10
    log.append(batch(11, size=100))
    assert log.retention(max_bytes=100_000) == 10, "without it 100 bytes would be left"


def test_the_stricter_of_both_limits_wins(log: Harness) -> None:
    log.append(*(batch(n, time_ms=n * 100, size=1000) for n in range(10)))
    assert log.retention(older_than_ms=300, max_bytes=2_000) == 8
    assert log.retention(older_than_ms=900, max_bytes=8_000) == 9


# ------------------------------------------------------------------ both live the same life

steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.lists(
                st.tuples(
                    st.integers(1, 5),  # records
                    st.integers(72, 1500),  # stored bytes
                    st.integers(0, 1000),  # time
                    st.integers(-1, 3),  # producer
                    st.integers(0, 3),  # gap
                ),
                min_size=1,
                max_size=4,
            ),
        ),
        st.tuples(st.just("truncate"), st.integers(0, 6)),
        st.tuples(st.just("retain"), st.integers(0, 12)),
        st.tuples(st.just("watermark"), st.integers(0, 8)),
        st.tuples(st.just("snapshot"), st.just(0)),
        st.tuples(st.just("reclaim"), st.just(0)),
    ),
    max_size=25,
)


Stores = tuple[LogStore, ...]


@pytest.fixture(scope="module")
def siblings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    folder = tmp_path_factory.mktemp("siblings")
    stores = (
        MemoryLogStore(),
        RocksLogStore(folder / "log"),
        RocksLogStore(folder / "range-deletes", RANGE_DELETES),
    )
    yield stores
    for store in stores:
        store.close()


class Life:
    """Turns abstract steps into legal writes, by looking at the memory twin, the first store."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        key = ReplicaKey(TopicId("life"), len(stores[0].slots()))
        self.slots = [store.open_slot(key) for store in stores]
        self.sequences: dict[int, int] = {}

    def write(self, make: Callable[[Slot], PartitionWrite]) -> None:
        for store, slot in zip(self.stores, self.slots, strict=True):
            store.write([make(slot)], sync=False)

    def step(self, kind: str, what: object) -> None:
        log = self.stores[0].recover(self.slots[0])
        held = self.stores[0].read(self.slots[0], Offset(0), EVERYTHING, END)
        mark = log.checkpoint.high_watermark
        if kind == "append":
            assert isinstance(what, list)
            batches = self._batches(what, log.log_end_offset)
            self.write(lambda slot: PartitionWrite(slot, batches))
        elif kind == "truncate":
            ends = [b.base_offset for b in held if b.base_offset >= mark]
            if ends:
                to = ends[-(min(len(ends), int(str(what)) + 1))]
                self.write(lambda slot: PartitionWrite(slot, truncate_to=to))
        elif kind == "retain":
            start = min(mark, Offset(log.checkpoint.log_start_offset + int(str(what))))
            self.write(lambda slot: PartitionWrite(slot, log_start_offset=start))
        elif kind == "watermark":
            ends = [b.next_offset for b in held if b.next_offset >= mark]
            if ends:
                new = replace(log.checkpoint, high_watermark=ends[int(str(what)) % len(ends)])
                self.write(lambda slot: PartitionWrite(slot, checkpoint=new))
        elif kind == "snapshot":
            self.write(lambda slot: PartitionWrite(slot, producers=log.producers))
        else:
            for store in self.stores:
                store.reclaim()

    def _batches(self, shapes: list[tuple[int, ...]], offset: int) -> list[Batch]:
        made = []
        for count, size, time_ms, producer, gap in shapes:
            sequence = self.sequences.get(producer, 0)
            self.sequences[producer] = sequence + count
            identity = None if producer < 0 else (producer, 0, sequence)
            made.append(batch(offset + gap, count, size=size, time_ms=time_ms, producer=identity))
            offset = made[-1].next_offset
        return made

    def answers(self) -> list[list[object]]:
        told: list[list[object]] = []
        for store, slot in zip(self.stores, self.slots, strict=True):
            log = store.recover(slot)
            end = log.log_end_offset
            middle = Offset((log.checkpoint.log_start_offset + end) // 2)
            told.append(
                [
                    log.log_end_offset,
                    log.checkpoint,
                    set(log.producers),
                    store.size_bytes(slot),
                    store.read(slot, Offset(0), EVERYTHING, END),
                    store.read(slot, middle, 1000, middle),
                    store.read(slot, middle, 1000, end),
                    store.next_headers(slot, Offset(0), END, 1000),
                    store.next_headers(slot, middle, end, 3),
                    [store.find_timestamp(slot, t, end) for t in range(0, 1001, 50)],
                    [store.find_timestamp(slot, t, middle) for t in range(0, 1001, 250)],
                    [
                        store.retention_start(slot, older_than_ms=t, max_bytes=size, end=stop)
                        for t, size in ((None, 0), (500, None), (200, 3000), (None, 2000))
                        for stop in (middle, end)
                    ],
                ]
            )
        return told


@settings(
    max_examples=200,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=steps)
def test_rocksdb_and_memory_answer_the_same(
    siblings: Stores, steps: list[tuple[str, object]]
) -> None:
    life = Life(siblings)
    for kind, what in steps:
        life.step(kind, what)
        memory, *others = life.answers()
        for rocks in others:
            assert rocks == memory, (kind, what)
