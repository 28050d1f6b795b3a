"""Compaction against a dictionary: whatever happens, readers see the newest value per key.

The log here is a list of batches that grows, is compacted in chunks from the newest to the
oldest, and is compared with what was ever written to it.
"""

from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.batch import Batch, BatchFlags, Codec, compute_crc
from penstock.core.columns import Record
from penstock.core.compaction.keymap import ENTRY_BYTES, KeyMap, check_keys
from penstock.core.compaction.outcomes import Outcomes
from penstock.core.compaction.plan import Cleaned, CleanPoint, LogFacts, Plan, plan_compaction
from penstock.core.compaction.rewrite import Rewriter, Statistics, trimmed
from penstock.core.records import build_batch, decode_batch, encode_columns
from penstock.core.replication.producers import PRODUCERS_MAX, Append, Duplicate, ProducerTable
from penstock.core.topic import TopicConfig
from penstock.core.types import LeaderEpoch, Offset, ProducerId
from penstock.errors import ClusterError, ErrorCode

RETENTION_MS = 1000
CONFIG = TopicConfig(min_cleanable_dirty_ratio=0.0, delete_retention_ms=RETENTION_MS)
Pair = tuple[bytes | None, bytes | None]


@dataclass
class Log:
    """Batches, what was written, and what passes left behind."""

    batches: list[Batch] = field(default_factory=list)
    written: dict[int, Record] = field(default_factory=dict)
    headers: list[Batch] = field(default_factory=list)
    cleaned: Cleaned = field(default_factory=Cleaned)
    now_ms: int = 10_000
    epoch: int = 1
    sequences: dict[int, int] = field(default_factory=dict)

    @property
    def end(self) -> Offset:
        return self.batches[-1].next_offset if self.batches else Offset(0)

    def append(
        self,
        *pairs: Pair,
        producer: int = -1,
        codec: Codec = Codec.NONE,
        appended: bool = False,
        headers: bool = False,
    ) -> Batch:
        keys, values = zip(*pairs, strict=True)
        columns = encode_columns(
            list(values),
            list(keys),
            timestamps_ms=[self.now_ms - index for index in range(len(pairs))],
            headers=[[("h", b"%d" % index)] * (index % 2) for index in range(len(pairs))]
            if headers
            else None,
        )
        sequence = self.sequences.get(producer, 0) if producer >= 0 else -1
        batch = build_batch(
            columns,
            codec=codec,
            producer_id=ProducerId(producer),
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence,
        ).stamped(self.end, LeaderEpoch(self.epoch), self.now_ms if appended else 0)
        self.sequences[producer] = sequence + len(pairs)
        self.batches.append(batch)
        self.headers.append(batch)
        self.written |= {record.offset: record for record in decode_batch(batch).records()}
        return batch

    def records(self, start: int = 0) -> list[Record]:
        found = [record for batch in self.batches for record in decode_batch(batch).records()]
        return [record for record in found if record.offset >= start]

    def facts(self, end: Offset) -> LogFacts:
        start = self.batches[0].base_offset if self.batches else Offset(0)
        first_dirty = min(max(start, self.cleaned.end_offset), end)
        dirty = [b for b in self.batches if first_dirty <= b.base_offset < end]
        return LogFacts(
            self.cleaned,
            start,
            first_dirty,
            end,
            clean_bytes=sum(b.size_bytes for b in self.batches if b.base_offset < first_dirty),
            dirty_bytes=sum(b.size_bytes for b in dirty),
            first_dirty_ms=dirty[0].header.effective_max_timestamp_ms if dirty else 0,
        )

    def compact(
        self, end: Offset | None = None, *, keys: int = 1000, chunk: int = 3
    ) -> Statistics | None:
        """A whole pass, as the broker does it; None if none was due."""
        plan = plan_compaction(self.facts(self.end if end is None else end), CONFIG, self.now_ms)
        if plan is None:
            return None
        known = KeyMap(keys * ENTRY_BYTES)
        reached = plan.first_dirty
        for batch in self.batches:
            if plan.first_dirty <= batch.base_offset < plan.end and not known.is_full:
                known.add(decode_batch(batch))
                reached = batch.next_offset
        plan = replace(plan, end=reached)
        rewriter = Rewriter(known, plan, Outcomes())
        below = [b for b in self.batches if b.base_offset < plan.end]
        rest = self.batches[len(below) :]
        while below:
            rest = rewriter.rewrite(below[-chunk:]) + rest
            below = below[:-chunk]
        self.batches = rest
        self.cleaned = self.cleaned.after(plan, rewriter.statistics.tombstones, self.now_ms)
        return rewriter.statistics

    def producers(self, batches: list[Batch]) -> ProducerTable:
        table = ProducerTable()
        for batch in batches:
            table.apply(batch.header)
        return table


def newest(records: list[Record]) -> dict[bytes, bytes]:
    state: dict[bytes, bytes] = {}
    for record in records:
        if record.key is not None and record.value is not None:
            state[record.key] = record.value
        elif record.key is not None:
            state.pop(record.key, None)
    return state


def check(log: Log) -> None:
    """All that must hold at any time."""
    written = [log.written[offset] for offset in sorted(log.written)]
    kept = log.records()
    assert newest(kept) == newest(written)
    assert all(log.written[record.offset] == record for record in kept), "I6"
    last = {record.key: record for record in written}
    offsets = {record.offset for record in kept}
    due = log.cleaned.tombstones_end(0, log.now_ms - RETENTION_MS)
    for record in last.values():
        if record.key is None or record.value is not None or record.offset >= due:
            assert record.offset in offsets, f"{record} must stay"
    assert all(r.offset in offsets for r in written if r.key is None), "no key, nothing newer"
    covered = [(batch.base_offset, batch.next_offset) for batch in log.batches]
    assert all(one[1] == two[0] for one, two in pairwise(covered))
    before, after = log.producers(log.headers), log.producers(log.batches)
    for known in before.snapshot():
        found = after.get(known.producer_id)
        assert found is not None
        assert (found.producer_epoch, found.batches) == (known.producer_epoch, known.batches)


PAIRS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from([b"a", b"b", b"c" * 20, b"d" * 20, b""])),
        st.one_of(st.none(), st.binary(max_size=3)),
    ),
    min_size=1,
    max_size=4,
)
APPEND = st.tuples(
    st.just("append"),
    PAIRS,
    st.integers(-1, 2),
    st.sampled_from([Codec.NONE, Codec.LZ4]),
    st.booleans(),
    st.booleans(),
)
STEP = st.one_of(
    APPEND,
    APPEND,
    APPEND,
    st.tuples(st.just("compact"), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3)),
    st.tuples(st.just("time"), st.sampled_from([1, 400, RETENTION_MS])),
    st.tuples(st.just("epoch")),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_any_life_of_a_log_keeps_what_must_be_kept(steps: list[tuple[object, ...]]) -> None:
    log = Log()
    for step in steps:
        match step:
            case ("append", list(pairs), int(producer), Codec() as codec, bool(own), bool(more)):
                log.append(*pairs, producer=producer, codec=codec, appended=own, headers=more)
            case ("compact", int(keys), int(chunk), int(spared)):
                below = log.batches[: max(0, len(log.batches) - spared)]
                end = below[-1].next_offset if below else Offset(0)
                if end >= log.cleaned.end_offset:
                    log.compact(end, keys=keys, chunk=chunk)
            case ("time", int(passed)):
                log.now_ms += passed
            case _:
                log.epoch += 1
        check(log)
    log.now_ms += RETENTION_MS
    while log.compact() is not None:
        check(log)
        log.now_ms += RETENTION_MS
    kept = [record for record in log.records() if record.key is not None]
    assert len({record.key for record in kept}) == len(kept), "one record per key in the end"
    assert all(record.value is not None for record in kept), "no null values in the end"
    for start in range(log.end + 1):
        read = newest(log.records(start))
        last = {r.key: r for r in log.written.values()}
        assert read == {
            key: record.value
            for key, record in last.items()
            if key is not None and record.value is not None and record.offset >= start
        }


# ------------------------------------------------------------------ sequences


def test_the_last_five_batches_of_a_producer_keep_their_headers_even_empty() -> None:
    log = Log()
    for value in range(8):
        log.append((b"k", b"%d" % value), producer=7)
    log.compact(chunk=100)
    assert [(b.base_offset, b.next_offset) for b in log.batches] == [
        *((0, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8))
    ]
    assert [len(decode_batch(b).values()) for b in log.batches] == [0, 0, 0, 0, 0, 1]
    table = log.producers(log.batches)
    again = [table.check(batch.header) for batch in log.headers[3:]]
    assert again == [Duplicate(Offset(n), Offset(n + 1)) for n in range(3, 8)]
    next_one = replace(log.headers[-1].header, base_sequence=8)
    assert isinstance(table.check(next_one), Append)
    assert table.check(log.headers[0].header) == Duplicate(Offset(-1), Offset(3))


def test_a_new_epoch_of_a_producer_makes_the_old_ones_headers_useless() -> None:
    log = Log()
    for _ in range(3):
        log.append((b"k", b"old"), producer=7)
    newer = replace(log.headers[0].header, producer_epoch=1, base_offset=Offset(3))
    newer = replace(newer, crc=compute_crc(newer, log.headers[0].payload))
    log.batches.append(Batch(newer, log.headers[0].payload))
    log.compact(chunk=100)
    assert [b.header.producer_id for b in log.batches] == [-1, 7]


def test_no_more_producers_are_remembered_than_the_table_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert PRODUCERS_MAX > 1000
    monkeypatch.setattr("penstock.core.compaction.rewrite.PRODUCERS_MAX", 2)
    log = Log()
    for producer in (1, 2, 3):
        log.append((b"k", b"v"), producer=producer)
    log.compact(chunk=1)
    assert [b.header.producer_id for b in log.batches] == [-1, 2, 3]


# ------------------------------------------------------------------ batches


def test_neighbours_that_lost_records_become_one_batch() -> None:
    log = Log()
    for n in range(100):
        log.append((b"%d" % (n % 10), b"%d" % n))
    statistics = log.compact(chunk=1000)
    assert [(b.base_offset, b.next_offset) for b in log.batches] == [(0, 100)]
    assert [record.offset for record in log.records()] == list(range(90, 100))
    assert statistics is not None
    assert (statistics.records, statistics.removed, statistics.tombstones) == (100, 90, 0)
    assert statistics.bytes_after < statistics.bytes_before / 5


def test_batches_of_two_leader_epochs_stay_two() -> None:
    log = Log()
    log.append((b"a", b"1"))
    log.epoch = 2
    log.append((b"a", b"2"))
    log.append((b"a", b"3"))
    log.compact()
    assert [(b.base_offset, b.header.leader_epoch) for b in log.batches] == [(0, 1), (1, 2)]


def test_what_needs_no_change_is_the_same_batch() -> None:
    log = Log()
    kept = [log.append((b"a", b"1")), log.append((b"b", b"2")), log.append((None, b"3"))]
    log.compact()
    assert all(one is two for one, two in zip(log.batches, kept, strict=True))


def test_merged_batches_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.core.compaction.rewrite.MERGED_BYTES_MAX", 300)
    log = Log()
    for n in range(20):
        log.append((b"%d" % n, b"v" * 50), (b"x", b"w"))
    log.compact(chunk=100)
    assert 1 < len(log.batches) < 20
    assert all(batch.header.uncompressed_bytes <= 400 for batch in log.batches)


def test_what_cannot_be_opened_is_not_touched() -> None:
    log = Log()
    log.append((b"a", b"1"))
    damaged = log.append((b"a", b"2"))
    header = replace(damaged.header, record_count=1, uncompressed_bytes=3)
    log.batches[1] = Batch(
        replace(header, crc=compute_crc(header, b"\x12\xff\xff")), b"\x12\xff\xff"
    )
    log.append((b"a", b"4"))
    known = KeyMap(1000)
    known.add(decode_batch(log.batches[2]))
    rewriter = Rewriter(known, Plan(Offset(0), Offset(3), Offset(0), 0), Outcomes())
    rewritten = rewriter.rewrite(log.batches)
    assert rewritten[1:] == log.batches[1:]
    assert rewritten[0].header.flags == BatchFlags.COMPACTED
    assert rewriter.statistics.unreadable == 1


def test_what_cannot_be_built_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    log.append((b"a", b"1"), (b"b", b"2"), producer=1)
    log.append((b"a", b"1"), (b"c", b"2"))
    log.append((b"a", b"2"))
    before = list(log.batches)
    monkeypatch.setattr("penstock.core.records.MAX_UNCOMPRESSED_BYTES", 20)
    log.compact(chunk=100)
    assert log.batches == before


def test_append_times_stay_the_time_of_every_record_also_when_merged() -> None:
    log = Log()
    log.append((b"a", b"1"), (b"b", b"1"), appended=True)
    log.now_ms += 50
    log.append((b"a", b"2"), (b"c", b"2"), appended=True)
    log.now_ms += 50
    log.append((b"d", b"3"))
    log.compact()
    check(log)
    assert len(log.batches) == 1
    assert log.batches[0].header.append_time_ms == 0
    assert [record.timestamp_ms for record in log.records()] == [10_000, 10_050, 10_050, 10_100]


def test_a_merged_batch_is_cut_for_a_replica_that_ends_inside_it() -> None:
    log = Log()
    for n in range(10):
        log.append((b"%d" % (n % 5), b"%d" % n), appended=True, codec=Codec.LZ4)
    log.compact(chunk=100)
    [merged] = log.batches
    for start in range(1, 10):
        part = trimmed(merged, Offset(start))
        assert (part.base_offset, part.next_offset) == (start, 10)
        assert list(decode_batch(part).records()) == log.records(start)
        assert part.header.leader_epoch == merged.header.leader_epoch


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.LZ4])
def test_what_stays_is_compressed_as_it_was_and_what_is_empty_is_not(codec: Codec) -> None:
    log = Log()
    log.append((b"a", b"1"), (b"b", b"1" * 100), codec=codec)
    log.append((b"a", b"2"), codec=codec)
    log.append((b"a", b"3"), codec=codec)
    log.compact(Offset(3))
    (merged,) = (batch for batch in log.batches if batch.next_offset == 3)
    assert merged.header.codec is codec
    assert [record.offset for record in decode_batch(merged).records()] == [1, 2]
    log.compact()
    (merged,) = (batch for batch in log.batches if batch.next_offset >= 3 > batch.base_offset)
    assert merged.header.codec is codec


def test_a_cut_behind_all_records_leaves_an_empty_batch_without_times() -> None:
    log = Log()
    log.append((b"a", b"1"), (b"b", b"1"), appended=True)
    log.append((b"b", b"2"), appended=True)
    log.append((b"b", b"3"))
    log.append((b"c", b"1"))
    log.compact(chunk=2)
    merged = log.batches[0]
    assert (merged.next_offset, merged.header.append_time_ms) == (3, log.now_ms)
    assert [record.offset for record in decode_batch(merged).records()] == [0]
    part = trimmed(merged, Offset(1))
    assert (part.base_offset, part.next_offset) == (1, 3)
    assert part.header.append_time_ms == 0
    assert list(decode_batch(part).records()) == []


def test_only_merged_batches_are_cut() -> None:
    """A log that begins inside another one, as its records were deleted up to there, takes all."""
    log = Log()
    plain = log.append((b"a", b"1"), (b"b", b"2"))
    assert trimmed(plain, Offset(1)) is plain
    log.append((b"a", b"2"), (b"b", b"2"), producer=7)
    log.append((b"a", b"3"), (b"b", b"3"), producer=8)
    log.compact()
    emptied = next(batch for batch in log.batches if batch.header.producer_id == 7)
    assert emptied.header.flags & BatchFlags.COMPACTED
    assert trimmed(emptied, Offset(3)) is emptied


# ------------------------------------------------------------------ null values, plans


def test_null_values_stay_until_their_time_has_come_and_then_go_without_new_records() -> None:
    log = Log()
    log.append((b"a", b"1"))
    log.append((b"a", None))
    log.compact()
    assert [record.value for record in log.records()] == [None]
    log.now_ms += RETENTION_MS - 1
    assert log.compact() is None
    log.now_ms += 1
    assert log.compact() is not None
    assert log.records() == []
    assert log.compact() is None, "nothing is left to look for"


def test_null_values_that_a_copy_does_not_have_yet_stay_however_late_it_is() -> None:
    points = (CleanPoint(Offset(5), 0), CleanPoint(Offset(10), 0))
    found = LogFacts(Cleaned(points, tombstones=1), Offset(0), Offset(10), Offset(10))
    config = TopicConfig(delete_retention_ms=RETENTION_MS)

    def swept_to(copied_to: Offset | None) -> int | None:
        plan = plan_compaction(found, config, 9 * RETENTION_MS, copied_to)
        return None if plan is None else plan.tombstones_end

    assert swept_to(None) == swept_to(Offset(10)) == swept_to(Offset(99)) == 10
    assert swept_to(Offset(7)) == 7
    assert swept_to(Offset(0)) is None, "a pass for nothing would come again and again"
    dirty = replace(found, end=Offset(20), dirty_bytes=100)
    plan = plan_compaction(dirty, config, 9 * RETENTION_MS, Offset(7))
    assert plan == Plan(Offset(10), Offset(20), Offset(7), RETENTION_MS)
    after = found.cleaned.after(plan, 1, 9 * RETENTION_MS)
    assert after.tombstones_end(RETENTION_MS, 9 * RETENTION_MS) == 10, "due once the copy has ended"


def facts(dirty: int, clean: int = 100, at_ms: int = 0) -> LogFacts:
    return LogFacts(Cleaned(), Offset(0), Offset(10), Offset(20), clean, dirty, at_ms)


@pytest.mark.parametrize(("dirty", "due"), [(0, False), (99, False), (100, True), (300, True)])
def test_a_pass_is_due_when_enough_of_the_log_is_dirty(dirty: int, due: bool) -> None:
    assert (plan_compaction(facts(dirty), TopicConfig(), 5) is not None) == due


def test_old_records_make_a_pass_due_whatever_the_ratio() -> None:
    config = TopicConfig(max_compaction_lag_ms=1000)
    assert plan_compaction(facts(1, at_ms=500), config, 1500) is None
    assert plan_compaction(facts(1, at_ms=500), config, 1501) == Plan(
        Offset(10), Offset(20), Offset(0), config.delete_retention_ms
    )


def test_an_empty_log_needs_nothing() -> None:
    config = TopicConfig(min_cleanable_dirty_ratio=0.0)
    assert plan_compaction(facts(0, 0), config, 10**15) is None


def test_points_stay_few_and_are_never_earlier_than_they_were() -> None:
    cleaned, retention_ms = Cleaned(), 1_000_000
    passes: list[CleanPoint] = []
    for n in range(1, 3000):
        now_ms = n * 1000
        due = cleaned.tombstones_end(retention_ms, now_ms)
        cleaned = cleaned.after(Plan(Offset(n - 1), Offset(n), due, retention_ms), 1, now_ms)
        passes.append(CleanPoint(Offset(n), now_ms))
        assert len(cleaned.points) <= 35
        allowed = [p.end_offset for p in passes if p.at_ms + retention_ms <= now_ms]
        slack = [p.end_offset for p in passes if p.at_ms + retention_ms * 1.1 <= now_ms]
        assert max(slack, default=0) <= cleaned.tombstones_end(retention_ms, now_ms)
        assert cleaned.tombstones_end(retention_ms, now_ms) <= max(allowed, default=0)


def test_truncation_forgets_passes_over_what_was_cut() -> None:
    points = (CleanPoint(Offset(10), 1), CleanPoint(Offset(20), 2))
    cleaned = Cleaned(points, Offset(15), 3)
    assert cleaned.cut(Offset(20)) == cleaned
    assert cleaned.cut(Offset(19)) == Cleaned(points[:1], Offset(15), 3)
    assert cleaned.cut(Offset(9)) == Cleaned((), Offset(9), 3)


def test_a_pass_that_is_cut_off_has_told_which_markers_may_be_gone() -> None:
    plan = Plan(Offset(5), Offset(9), Offset(4), 1000)
    told = Cleaned((CleanPoint(Offset(4), 1),)).before_markers_go(plan)
    assert told.markers_end == 4
    assert told.swept_end == 0, "null values below it were not looked at yet"
    assert told.after(plan, 0, 5_000).markers_end == 4
    assert told.cut(Offset(2)).markers_end == 2


def test_a_full_map_says_so() -> None:
    known = KeyMap(2 * ENTRY_BYTES)
    columns = encode_columns([b"v"] * 2, [b"a", b"a"], timestamps_ms=0)
    known.add(columns)
    assert (len(known), known.is_full) == (1, False)
    known.add(encode_columns([b"v"], [b"b"], timestamps_ms=0))
    assert known.is_full
    assert known.superseded([0, 1, 0], [b"a", b"a", None]) == [True, False, False]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("keys", [None, [b"a", None]])
def test_a_record_without_a_key_is_named(codec: Codec, keys: list[bytes | None] | None) -> None:
    batch = build_batch(encode_columns([b"v", b"v"], keys, timestamps_ms=0), codec=codec)
    at = 0 if keys is None else 1
    with pytest.raises(
        ClusterError, match=f"record {at} of 2 in the batch for t/3 has no key"
    ) as no:
        check_keys(batch, "t/3")
    assert no.value.code is ErrorCode.INVALID_RECORD


def test_a_batch_that_cannot_be_opened_is_refused_and_empty_keys_are_keys() -> None:
    check_keys(build_batch(encode_columns([None, b"v"], [b"", b"a"], timestamps_ms=0)), "t/3")
    good = build_batch(encode_columns([b"v"], [b"a"], timestamps_ms=0))
    lying = replace(good.header, record_count=2)
    with pytest.raises(ClusterError) as caught:
        check_keys(Batch(replace(lying, crc=compute_crc(lying, good.payload)), good.payload), "t/3")
    assert caught.value.code is ErrorCode.CORRUPT_BATCH
