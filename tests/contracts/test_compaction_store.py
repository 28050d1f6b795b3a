"""Rewriting stored batches in place, against RocksDB and its memory twin."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.core.batch import Batch, BatchFlags, BatchHeader, compute_crc
from penstock.core.compaction.plan import Cleaned, CleanPoint, LogFacts
from penstock.core.replication.contract import Checkpoint, ProducerEntry
from penstock.core.types import (
    TRANSACTIONAL_PRODUCER_BIT,
    LeaderEpoch,
    Offset,
    ProducerId,
    ReplicaKey,
    TopicId,
)
from penstock.errors import ClusterError
from penstock_broker.store.interface import LogStore, PartitionWrite, Rewrite, Slot
from penstock_broker.store.memory import MemoryLogStore
from penstock_broker.store.rocks import RocksLogStore

END = Offset(2**62)
KEY = ReplicaKey(TopicId("orders"), 0)


def batch(
    offset: int, count: int = 1, *, size: int = 100, time_ms: int = 1000, producer: int = -1
) -> Batch:
    """`size` is the stored size; 72 makes one that compaction emptied."""
    payload = bytes([offset % 251]) * (size - 72)
    header = BatchHeader(
        record_count=count,
        first_timestamp_ms=time_ms,
        max_timestamp_ms=time_ms,
        uncompressed_bytes=len(payload),
        crc=0,
        flags=BatchFlags.COMPACTED if count > 1 or size == 72 else BatchFlags.NONE,
        producer_id=ProducerId(producer),
        producer_epoch=-1 if producer < 0 else 0,
        base_sequence=-1 if producer < 0 else offset,
        base_offset=Offset(offset),
        leader_epoch=LeaderEpoch(1),
    )
    return Batch(replace(header, crc=compute_crc(header, payload)), payload)


class Harness:
    """A store and one open slot."""

    def __init__(self, make: Callable[[], LogStore]) -> None:
        self._make = make
        self.store = make()
        self.slot: Slot = self.store.open_slot(KEY)

    def reopen(self) -> None:
        self.store.close()
        self.store = self._make()

    def write(self, **what: Any) -> None:
        self.store.write([PartitionWrite(self.slot, **what)], sync=False)

    def rewrite(self, *batches: Batch, **what: Any) -> None:
        self.write(rewrites=[Rewrite(batches)], **what)

    def read(self, offset: int = 0, max_bytes: int = 1 << 40) -> list[Batch]:
        return self.store.read(self.slot, Offset(offset), max_bytes, END)

    def offsets(self, offset: int = 0) -> list[int]:
        return [found.base_offset for found in self.read(offset)]

    def facts(self, end: int) -> LogFacts:
        return self.store.compaction_facts(self.slot, Offset(end))

    @property
    def size_bytes(self) -> int:
        return self.store.size_bytes(self.slot)


@pytest.fixture(params=["memory", "rocks"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    memory = MemoryLogStore()
    makers: dict[str, Callable[[], LogStore]] = {
        "memory": lambda: memory,
        "rocks": lambda: RocksLogStore(tmp_path / "log"),
    }
    harness = Harness(makers[request.param])
    yield harness
    harness.store.close()


@pytest.mark.parametrize("size", [100, 2000])
def test_rewritten_batches_take_the_place_of_the_old_ones(log: Harness, size: int) -> None:
    log.write(batches=[batch(n, size=size) for n in range(10)])
    merged = batch(2, 5, size=size + 7)
    log.rewrite(merged, batch(7, size=size))
    for _ in range(2):
        assert log.offsets() == [0, 1, 2, 7, 8, 9]
        assert log.read(2)[0] == merged
        assert log.offsets(6) == [2, 7, 8, 9]
        assert log.store.recover(log.slot).log_end_offset == 10
        log.store.reclaim()
        log.reopen()


def test_sizes_are_exact_after_a_whole_pass(log: Harness) -> None:
    log.write(batches=[batch(n, size=100 * (n + 1)) for n in range(10)])
    log.rewrite(batch(6, 3, size=200))
    for kept, start in ((1201, 5), (1801, 4), (2300, 4), (2301, 3), (3000, 2), (3400, None)):
        found = log.store.retention_start(log.slot, older_than_ms=None, max_bytes=kept, end=END)
        assert found == start, f"{kept}: what a pass has saved so far is no record that is kept"
    log.rewrite(batch(3, size=400), batch(4, 2, size=72))
    log.rewrite(batch(0, size=100), batch(1, size=150), batch(2, size=300))
    assert log.size_bytes == 100 + 150 + 300 + 400 + 72 + 200 + 1000
    for kept, start in ((1000, 9), (1001, 6), (1200, 6), (1201, 4), (1672, 3), (2122, 1)):
        found = log.store.retention_start(
            log.slot, older_than_ms=None, max_bytes=kept, end=Offset(10)
        )
        assert found == start, kept
    log.reopen()
    assert log.size_bytes == 2222
    assert log.store.find_timestamp(log.slot, 1000, END) is not None


def test_the_newest_batches_can_be_rewritten_and_the_log_goes_on(log: Harness) -> None:
    log.write(batches=[batch(n) for n in range(5)])
    log.rewrite(batch(0, 5, size=72))
    log.write(batches=[batch(5)])
    assert log.offsets() == [0, 5]
    assert log.size_bytes == 172
    assert log.store.recover(log.slot).log_end_offset == 6


def test_a_rewrite_with_an_append_and_one_that_the_log_start_passed(log: Harness) -> None:
    log.write(batches=[batch(n) for n in range(10)])
    log.rewrite(batch(6, 2, size=72), batches=[batch(10)])
    log.rewrite(batch(2, 4, size=72), log_start_offset=Offset(4))
    assert log.offsets() == [4, 5, 6, 8, 9, 10]
    log.write(log_start_offset=Offset(7))
    assert log.offsets() == [6, 8, 9, 10]
    assert log.store.recover(log.slot).checkpoint.log_start_offset == 7


def test_only_whole_batches_are_rewritten(log: Harness) -> None:
    log.write(batches=[batch(0, 5), batch(5, 5)])
    with pytest.raises(AssertionError):
        log.rewrite(batch(0, 7))
    assert log.offsets() == [0, 5]


def test_a_compacted_batch_is_cut_off_whole_when_a_log_is_truncated_inside_it(
    log: Harness,
) -> None:
    log.write(batches=[batch(n) for n in range(10)])
    log.rewrite(
        batch(3, 5, size=72), cleaned=Cleaned((CleanPoint(Offset(3), 1), CleanPoint(Offset(8), 2)))
    )
    log.write(truncate_to=Offset(6))
    assert log.offsets() == [0, 1, 2]
    assert log.store.recover(log.slot).log_end_offset == 3
    assert log.facts(3).cleaned == Cleaned((CleanPoint(Offset(3), 1),))
    log.write(batches=[batch(3)])
    assert log.offsets() == [0, 1, 2, 3]


def test_producers_are_recovered_from_headers_that_were_kept(log: Harness) -> None:
    log.write(batches=[batch(n, producer=7) for n in range(10)])
    before = log.store.recover(log.slot).producers
    log.rewrite(batch(0, 5, size=72), *(batch(n, producer=7, size=72) for n in range(5, 10)))
    assert [p.batches for p in log.store.recover(log.slot).producers] == [p.batches for p in before]
    log.write(
        checkpoint=Checkpoint(LeaderEpoch(1), Offset(10), Offset(0), ()),
        log_start_offset=Offset(5),
    )
    log.reopen()
    assert [p.batches for p in log.store.recover(log.slot).producers] == [p.batches for p in before]


def test_it_is_kept_up_to_where_markers_may_be_gone(log: Harness) -> None:
    done = Cleaned((CleanPoint(Offset(4), 5),), Offset(3), 2, markers_end=Offset(4))
    log.write(batches=[batch(n, time_ms=n) for n in range(10)])
    assert log.store.recover(log.slot).swept_end == 0
    log.write(cleaned=done)
    for _ in range(2):
        assert log.facts(9).cleaned == done
        assert log.store.recover(log.slot).swept_end == 4
        log.reopen()


def test_where_markers_may_be_gone_is_never_taken_back_by_a_pass(log: Harness) -> None:
    """The pass was planned before the log copied from one that had swept further."""
    done = Cleaned((CleanPoint(Offset(4), 5),), Offset(3), 2, markers_end=Offset(4))
    log.write(batches=[batch(n, time_ms=n) for n in range(10)])
    log.write(swept_end=Offset(7))
    assert log.facts(9).cleaned == Cleaned(markers_end=Offset(7))
    log.write(cleaned=done)
    log.write(swept_end=Offset(5))
    for _ in range(2):
        assert log.facts(9).cleaned == done.without_markers(Offset(7))
        assert log.store.recover(log.slot).swept_end == 7
        log.reopen()


def test_markers_past_the_log_end_are_taken_back_by_whoever_copies_them_no_more(
    log: Harness,
) -> None:
    """Elected uncleanly, or in the next epoch: a pass that was planned before knows no better."""
    log.write(batches=[batch(n, time_ms=n) for n in range(10)], swept_end=Offset(40))
    log.write(batches=[batch(10)], swept_end=Offset(10))
    for _ in range(2):
        assert log.store.recover(log.slot).swept_end == 10
        log.reopen()
    log.write(swept_end=Offset(4))
    assert log.store.recover(log.slot).swept_end == 10, "of what is there, nothing is taken back"


@pytest.mark.parametrize("to", [0, 6])
def test_markers_past_what_a_truncation_leaves_are_taken_back(log: Harness, to: int) -> None:
    log.write(batches=[batch(n) for n in range(10)], swept_end=Offset(40))
    log.write(truncate_to=Offset(to))
    for _ in range(2):
        assert log.store.recover(log.slot).swept_end == to
        log.reopen()


def test_an_empty_log_that_begins_anew_lacks_no_markers(log: Harness) -> None:
    start = Checkpoint(LeaderEpoch(1), Offset(5), Offset(5), ())
    log.write(checkpoint=start, swept_end=Offset(40))
    log.write(truncate_to=Offset(5), checkpoint=replace(start, log_start_offset=Offset(9)))
    assert log.store.recover(log.slot).swept_end == 5


def test_what_a_snapshot_has_open_has_ended_if_its_marker_was_swept(log: Harness) -> None:
    """The snapshot is older than the marker, and the marker is in the log no more."""
    first, second = (
        ProducerEntry(
            producer_id=ProducerId(TRANSACTIONAL_PRODUCER_BIT + offset),
            producer_epoch=3,
            batches=(),
            last_timestamp_ms=0,
            open_offset=Offset(offset),
        )
        for offset in (2, 4)
    )
    log.write(batches=[batch(n) for n in range(5)], producers=(first, second))
    log.write(batches=[batch(n) for n in range(5, 8)])
    log.write(swept_end=Offset(9))
    assert log.store.recover(log.slot).producers == (first, second), "it has not got so far yet"
    log.write(batches=[batch(8)])
    log.write(cleaned=Cleaned((CleanPoint(Offset(9), 5),), Offset(4), 0))
    ended = replace(first, producer_epoch=4, open_offset=None)
    for _ in range(2):
        found = {one.producer_id: one for one in log.store.recover(log.slot).producers}
        assert found[first.producer_id] == ended
        assert found[second.producer_id].open_offset is None
        log.reopen()


def test_what_a_snapshot_has_open_behind_all_swept_markers_is_open(log: Harness) -> None:
    entry = ProducerEntry(
        producer_id=ProducerId(TRANSACTIONAL_PRODUCER_BIT + 1),
        producer_epoch=3,
        batches=(),
        last_timestamp_ms=0,
        open_offset=Offset(4),
    )
    log.write(batches=[batch(n) for n in range(8)], producers=(entry,), swept_end=Offset(4))
    assert log.store.recover(log.slot).producers == (entry,)


def test_what_passes_did_is_kept_with_the_log_until_it_is_dropped(log: Harness) -> None:
    done = Cleaned((CleanPoint(Offset(4), 5), CleanPoint(Offset(6), 9)), Offset(3), 2)
    log.write(batches=[batch(n, time_ms=n) for n in range(10)], cleaned=done)
    for _ in range(2):
        assert log.facts(9) == LogFacts(done, Offset(0), Offset(6), Offset(9), 600, 300, 6)
        assert log.facts(5) == LogFacts(done, Offset(0), Offset(5), Offset(5), 500)
        assert log.facts(0) == LogFacts(done, Offset(0), Offset(0), Offset(0))
        log.reopen()
    log.write(log_start_offset=Offset(8))
    assert log.facts(10) == LogFacts(done, Offset(8), Offset(8), Offset(10), 0, 200, 8)
    log.store.drop(log.slot)
    assert log.facts(10) == LogFacts(Cleaned(), Offset(10), Offset(10), Offset(10))


def test_chunks_hold_as_many_batches_as_fit_and_at_least_one(log: Harness) -> None:
    log.write(batches=[batch(n, size=100 * (n + 1)) for n in range(10)])

    def start(end: int, max_bytes: int) -> int:
        return log.store.chunk_start(log.slot, Offset(end), max_bytes)

    assert [start(10, n) for n in (1, 1000, 1899, 1900, 10**6)] == [9, 9, 9, 8, 0]
    assert [start(2, n) for n in (1, 200, 300)] == [1, 1, 0]
    assert start(1, 1) == 0


def test_a_reader_never_sees_a_mixture_while_batches_are_rewritten(log: Harness) -> None:
    log.write(batches=[batch(n, size=2000) for n in range(40)])
    done = threading.Event()
    problems: list[str] = []

    def reader() -> None:
        while not done.is_set():
            try:
                found = log.read()
            except ClusterError as error:
                problems.append(error.message)
                return
            ends = [b.next_offset for b in found]
            if [b.base_offset for b in found] != [0, *ends[:-1]] or ends[-1] != 40:
                problems.append(f"read up to {ends}")

    thread = threading.Thread(target=reader)
    thread.start()
    try:
        for n in range(150):
            for start in (30, 20, 10, 0):
                merged = batch(start, 10, size=1500 + n)
                log.rewrite(merged)
                log.write(rewrites=[Rewrite([replace_part(start, part) for part in range(10)])])
    finally:
        done.set()
        thread.join(timeout=30)
    assert problems == []


def replace_part(start: int, part: int) -> Batch:
    return batch(start + part, size=2000)
