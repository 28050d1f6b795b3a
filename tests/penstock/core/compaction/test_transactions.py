"""Compaction of logs with transactions: read_committed readers see no difference (I11, I20).

The log is written by transactions that interleave, ends at its last stable offset, and is compacted
in chunks from the newest to the oldest. What a read_committed reader sees is compared with what
the outcomes say.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.aborted import AbortedTransaction
from penstock.core.batch import Batch, BatchFlags, build_marker, compute_crc
from penstock.core.columns import Record
from penstock.core.compaction.keymap import ENTRY_BYTES, KeyMap
from penstock.core.compaction.outcomes import Outcomes
from penstock.core.compaction.plan import Plan
from penstock.core.compaction.rewrite import Rewriter, Statistics
from penstock.core.records import build_batch, decode_batch, encode_columns
from penstock.core.types import LeaderEpoch, Offset, ProducerId

NO_TIME = Offset(0)


@dataclass
class Log:
    """Batches of transactions, and how those ended."""

    batches: list[Batch] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    first: dict[tuple[int, int], Offset] = field(default_factory=dict)
    sequences: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def end(self) -> Offset:
        return self.batches[-1].next_offset if self.batches else Offset(0)

    def append(self, producer: int, epoch: int, *pairs: tuple[bytes, bytes | None]) -> Batch:
        """`producer` -1: outside of transactions."""
        named = (producer, epoch)
        sequence = self.sequences.get(named, 0)
        transactional = producer >= 0
        columns = encode_columns(
            [value for _, value in pairs], [key for key, _ in pairs], timestamps_ms=1
        )
        batch = build_batch(
            columns,
            producer_id=ProducerId(producer),
            producer_epoch=epoch if transactional else -1,
            base_sequence=sequence if transactional else -1,
            flags=BatchFlags.TRANSACTIONAL if transactional else BatchFlags.NONE,
        ).stamped(self.end, LeaderEpoch(1), 0)
        self.sequences[named] = sequence + len(pairs)
        self.first.setdefault(named, batch.base_offset)
        self.batches.append(batch)
        return batch

    def finish(self, producer: int, epoch: int, *, commit: bool) -> None:
        marker = build_marker(ProducerId(producer), epoch, commit=commit, timestamp_ms=1)
        at = self.end
        self.batches.append(marker.stamped(at, LeaderEpoch(1), 0))
        if not commit:
            self.aborted.append(
                AbortedTransaction(
                    marker_offset=at,
                    first_offset=self.first[producer, epoch],
                    producer_id=ProducerId(producer),
                    producer_epoch=epoch,
                    stable_offset=self.end,
                )
            )

    def compact(self, *, markers_end: Offset = NO_TIME, chunk: int = 2) -> Statistics:
        """A whole pass up to the end, as the broker does it."""
        outcomes = Outcomes(self.aborted)
        keys = KeyMap(1000 * ENTRY_BYTES)
        for batch in self.batches:
            if not batch.header.is_control and not outcomes.aborted(batch.header):
                keys.add(decode_batch(batch))
        rewriter = Rewriter(keys, Plan(Offset(0), self.end, markers_end, 0), outcomes)
        left, done = self.batches, list[Batch]()
        while left:
            done = rewriter.rewrite(left[-chunk:]) + done
            left = left[:-chunk]
        self.batches = done
        return rewriter.statistics

    def seen(self) -> dict[Offset, Record]:
        """What a read_committed reader sees, by offset."""
        outcomes = Outcomes(self.aborted)
        return {
            Offset(record.offset): record
            for batch in self.batches
            if not batch.header.is_control and not outcomes.aborted(batch.header)
            for record in decode_batch(batch).records()
        }


def newest(records: dict[Offset, Record]) -> dict[bytes | None, tuple[Offset, bytes | None]]:
    return {record.key: (offset, record.value) for offset, record in sorted(records.items())}


def test_aborted_records_go_and_their_keys_supersede_nothing() -> None:
    log = Log()
    log.append(-1, -1, (b"a", b"old"))
    log.append(7, 0, (b"a", b"aborted"), (b"b", b"aborted"))
    log.finish(7, 0, commit=False)
    statistics = log.compact()
    assert [(r.key, r.value) for r in log.seen().values()] == [(b"a", b"old")]
    assert statistics.removed == 2
    kept = log.batches[1]
    assert (kept.base_offset, kept.header.record_count) == (1, 2)
    assert not kept.header.is_transactional
    assert list(decode_batch(kept).records()) == []


def test_committed_batches_lose_their_flag_and_supersede_older_records() -> None:
    log = Log()
    log.append(7, 0, (b"a", b"1"), (b"b", b"2"))
    log.append(-1, -1, (b"a", b"0"))
    log.append(8, 0, (b"a", b"3"))
    log.finish(7, 0, commit=True)
    log.finish(8, 0, commit=True)
    log.compact()
    assert not any(b.header.is_transactional and not b.header.is_control for b in log.batches)
    assert {r.key: r.value for r in log.seen().values()} == {b"b": b"2", b"a": b"3"}
    assert all(b.header.crc == compute_crc(b.header, b.payload) for b in log.batches)


def test_a_marker_stays_in_the_pass_of_its_data_and_goes_when_its_time_has_come() -> None:
    log = Log()
    log.append(7, 0, (b"a", b"1"))
    log.finish(7, 0, commit=True)
    assert log.compact().tombstones == 1
    assert [b.header.is_marker for b in log.batches] == [False, True]
    assert log.compact(markers_end=log.end).tombstones == 0
    assert not any(b.header.is_marker for b in log.batches)
    assert log.end == 2
    assert {r.key: r.value for r in log.seen().values()} == {b"a": b"1"}


def test_the_same_producers_next_transaction_is_another_one() -> None:
    log = Log()
    log.append(7, 0, (b"a", b"aborted"))
    log.finish(7, 0, commit=False)
    log.append(7, 1, (b"a", b"committed"))
    log.finish(7, 1, commit=True)
    log.compact()
    assert [r.value for r in log.seen().values()] == [b"committed"]


def test_a_batch_that_cannot_be_opened_loses_its_flag_or_everything() -> None:
    for commit in (True, False):
        log = Log()
        damaged = log.append(7, 0, (b"a", b"1"))
        header = replace(damaged.header, uncompressed_bytes=3)
        log.batches[0] = Batch(
            replace(header, crc=compute_crc(header, b"\x12\xff\xff")), b"\x12\xff\xff"
        )
        log.append(-1, -1, (b"b", b"2"))
        log.finish(7, 0, commit=commit)
        outcomes = Outcomes(log.aborted)
        plan = Plan(Offset(0), log.end, NO_TIME, 0)
        (first, *_) = Rewriter(KeyMap(1000), plan, outcomes).rewrite(log.batches)
        assert not first.header.is_transactional
        assert (first.payload == b"\x12\xff\xff") == commit
        assert first.header.crc == compute_crc(first.header, first.payload)


def test_markers_do_not_count_among_the_last_batches_of_a_producer() -> None:
    log = Log()
    for number in range(5):
        log.append(7, 0, (b"k%d" % number, b"v"))
    log.append(-1, -1, *((b"k%d" % number, b"w") for number in range(5)))
    log.finish(7, 0, commit=True)
    log.compact(chunk=10)
    kept = [b.header.base_sequence for b in log.batches if b.header.producer_id == 7]
    assert kept == [0, 1, 2, 3, 4, -1]


step = st.tuples(
    st.sampled_from(["send", "send", "send", "plain", "commit", "abort"]),
    st.integers(0, 2),
    st.integers(0, 4),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(step, max_size=40), st.integers(1, 5))
def test_a_reader_sees_the_newest_committed_value_of_every_key(
    steps: list[tuple[str, int, int]], chunk: int
) -> None:
    log, epochs = Log(), {0: 0, 1: 0, 2: 0}
    opened: set[int] = set()
    for number, (what, producer, key) in enumerate(steps):
        pair = (b"k%d" % key, b"%d" % number if number % 7 else None)
        match what:
            case "send":
                log.append(producer, epochs[producer], pair)
                opened.add(producer)
            case "plain":
                log.append(-1, -1, pair)
            case _ if producer in opened:
                log.finish(producer, epochs[producer], commit=what == "commit")
                epochs[producer] += 1
                opened.discard(producer)
    for producer in opened:
        log.finish(producer, epochs[producer], commit=producer != 1)
    if not log.batches:
        return
    before, end = log.seen(), log.end
    log.compact(chunk=chunk)
    after = log.seen()
    assert newest(after) == newest(before)
    assert after.items() <= before.items()
    assert log.end == end
    log.compact(markers_end=end, chunk=chunk)
    living = {k: v for k, v in newest(before).items() if v[1] is not None}
    assert {k: v for k, v in newest(log.seen()).items() if v[1] is not None} == living
    assert not any(batch.header.is_transactional for batch in log.batches)


@pytest.mark.parametrize("other", [{"producer_id": 8}, {"producer_epoch": 8}])
def test_outcomes_go_by_producer_and_epoch(other: dict[str, Any]) -> None:
    log = Log()
    batch = log.append(7, 3, (b"a", b"1"))
    log.finish(7, 3, commit=False)
    outcomes = Outcomes(log.aborted)
    assert outcomes.aborted(batch.header)
    assert not outcomes.aborted(replace(batch.header, **other))
