"""Reading ranges in an executor: every record of [lo, hi) once and in order, or an error.

The log behind `ScriptedFetcher` holds real batches; answers can be scripted to fail first.
"""

import logging
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.core.batch import Batch, BatchFlags, Codec
from penstock.core.records import build_batch, encode_columns
from penstock.core.types import LeaderEpoch, Offset
from penstock.errors import (
    ClusterError,
    ErrorCode,
    NotLeaderError,
    OffsetOutOfRangeError,
    PenstockError,
    UnreachableError,
)
from penstock.errors import (
    OffsetRange as ValidRange,
)
from penstock.spark import ranges
from penstock.spark.arrow import MAX_ROWS, MIN_ROWS, Slice, to_arrow
from penstock.spark.data_loss import DataLossError
from penstock.spark.options import COLUMNS, parse
from penstock.spark.planning import OffsetRange
from penstock.spark.ranges import Answer, Pending, RangeReader
from penstock.spark.schema import schema_of


def batch_at(base: int, count: int, **settings) -> Batch:
    values = [b"value %d" % i for i in range(base, base + count)]
    columns = encode_columns(values, timestamps_ms=[1000 * i for i in range(base, base + count)])
    return build_batch(columns, **settings).stamped(Offset(base), LeaderEpoch(1), 0)


@dataclass
class Scripted:
    answer: Answer | PenstockError
    log: "ScriptedFetcher"

    def result(self) -> Answer:
        self.log.under_way -= 1
        if isinstance(self.answer, PenstockError):
            raise self.answer
        return self.answer

    def cancel(self) -> None:
        self.log.under_way -= 1
        self.log.cancelled += 1


@dataclass
class ScriptedFetcher:
    """A log of batches; `failures` are given out before any answer."""

    batches: list[Batch]
    end: int
    per_answer: int = 1
    failures: deque[PenstockError | Answer] = field(default_factory=deque)
    asked: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0
    cancelled: int = 0

    def start(self, wanted: OffsetRange, offset: int, max_bytes: int, timeout_s: float) -> Pending:
        self.asked.append(offset)
        self.sizes.append(max_bytes)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        if self.failures:
            return Scripted(self.failures.popleft(), self)
        found = [b for b in self.batches if b.next_offset > offset][: self.per_answer]
        return Scripted(Answer(found, self.end), self)


def reader_of(fetcher: ScriptedFetcher, **options: str) -> RangeReader:
    base = {"penstock.bootstrap.servers": "a:1", "subscribe": "t"}
    return RangeReader(fetcher, parse(base | options))


def offsets(slices: Iterator[Slice]) -> list[int]:
    return [s.columns.base_offset + i for s in slices for i in range(s.lo, s.hi)]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "FIRST_PAUSE_S", 0.001)


@pytest.mark.parametrize("per_answer", [1, 2, 9])
def test_a_range_is_cut_out_of_the_batches_around_it(per_answer: int) -> None:
    log = ScriptedFetcher([batch_at(base, 10) for base in range(0, 50, 10)], 50, per_answer)
    assert offsets(reader_of(log).read([OffsetRange("t", 0, 7, 33)])) == list(range(7, 33))


def test_every_range_of_every_log_comes_out_whole() -> None:
    seed = 20_240
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(60):
        held: list[int] = []
        batches, at = [], 0
        while len(batches) < 8:
            at += rng.choice([0, 0, 0, 3, 40])  # gaps, as compaction leaves them
            count = rng.randint(1, 12)
            control = rng.random() < 0.2
            flags = BatchFlags.CONTROL if control else BatchFlags.NONE
            batches.append(batch_at(at, count, flags=flags))
            held += [] if control else range(at, at + count)
            at += count
        end = at + rng.choice([0, 15])
        lo, hi = sorted(rng.randint(0, end) for _ in range(2))
        log = ScriptedFetcher(batches, end, rng.randint(1, 4))
        seen = offsets(reader_of(log).read([OffsetRange("t", 0, lo, hi)]))
        assert seen == [offset for offset in held if lo <= offset < hi]


def test_one_fetch_is_under_way_while_records_are_consumed() -> None:
    log = ScriptedFetcher([batch_at(base, 10) for base in range(0, 30, 10)], 30)
    slices = reader_of(log).read([OffsetRange("t", 0, 0, 20), OffsetRange("t", 1, 0, 10)])
    next(slices)
    assert log.asked == [0, 10]
    next(slices)
    assert log.asked == [0, 10, 0]  # of the next range, before this one is consumed
    next(slices)
    assert log.most_under_way == 1
    assert next(slices, None) is None
    assert log.under_way == 0


def test_an_abandoned_read_cancels_its_fetch() -> None:
    log = ScriptedFetcher([batch_at(base, 10) for base in range(0, 30, 10)], 30)
    slices = reader_of(log).read([OffsetRange("t", 0, 0, 30)])
    next(slices)
    slices.close()
    assert (log.under_way, log.cancelled) == (0, 1)


def test_a_short_range_does_not_ask_for_megabytes() -> None:
    log = ScriptedFetcher([batch_at(0, 1000), batch_at(1000, 1000)], 2000)
    assert offsets(reader_of(log).read([OffsetRange("t", 0, 0, 1050)])) == list(range(1050))
    assert log.sizes[0] < 2 << 20
    assert log.sizes[1] == 64 << 10
    long = ScriptedFetcher([batch_at(0, 1000)], 1000)
    next(reader_of(long).read([OffsetRange("t", 0, 0, 10**9)]))
    assert set(long.sizes) == {4 << 20}


@pytest.mark.parametrize(
    "problem",
    [
        NotLeaderError("moved"),
        UnreachableError("killed"),
        ClusterError("slow", ErrorCode.REQUEST_TIMED_OUT),
        ClusterError("new", ErrorCode.UNKNOWN_TOPIC),
        OffsetOutOfRangeError("not committed here yet", ValidRange(0, 3)),
        OffsetOutOfRangeError("no details"),
        Answer((), 2),  # the new leader's end is behind
        Answer([batch_at(0, 4)], 20),  # only what was read before
    ],
    ids=str,
)
def test_what_passes_is_waited_out(problem: PenstockError | Answer) -> None:
    batches = [batch_at(0, 10), batch_at(10, 10)]
    for fail_at in (0, 1):
        log = ScriptedFetcher(batches, 20)
        slices = reader_of(log).read([OffsetRange("t", 0, 5, 20)])
        seen = []
        if fail_at == 0:
            log.failures.extend([problem, problem, problem])
        else:
            seen += offsets(iter([next(slices)]))  # the second fetch is under way
            slices.close()
            log.failures.extend([problem])
            slices = reader_of(log).read([OffsetRange("t", 0, 10, 20)])
        assert seen + offsets(slices) == list(range(5, 20))


def test_past_the_deadline_topic_partition_offset_and_reason_are_named() -> None:
    log = ScriptedFetcher([batch_at(0, 10)], 10)
    reader = reader_of(log, pollTimeoutMs="30")
    with pytest.raises(ClusterError) as caught:
        offsets(reader.read([OffsetRange("t", 3, 0, 20)]))
    message = str(caught.value)
    assert message.startswith("t/3: no records at offset 10 (of 0 to 20) within 30 ms")
    assert "readable up to 10" in message
    assert "pollTimeoutMs" in message
    assert "\n" not in message
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT


def test_answers_that_never_get_on_end_at_the_deadline_too() -> None:
    log = ScriptedFetcher([], 50, failures=deque([Answer([batch_at(0, 4)], 50)] * 10_000))
    with pytest.raises(ClusterError, match="no records at offset 5"):
        offsets(reader_of(log, pollTimeoutMs="30").read([OffsetRange("t", 0, 5, 20)]))


def test_an_error_that_waiting_does_not_cure_is_raised_at_once() -> None:
    log = ScriptedFetcher([], 0, failures=deque([ClusterError("no", ErrorCode.DATA_CORRUPTED)]))
    with pytest.raises(ClusterError, match="t/0 at offset 4: no") as caught:
        offsets(reader_of(log).read([OffsetRange("t", 0, 4, 9)]))
    assert caught.value.code is ErrorCode.DATA_CORRUPTED


def test_a_batch_that_lies_is_refused_with_its_place() -> None:
    good = batch_at(0, 10)
    log = ScriptedFetcher([Batch(good.header, b"x" + good.payload[1:])], 10)
    with pytest.raises(ClusterError, match=r"t/0, batch at offset 0: .*CRC"):
        offsets(reader_of(log).read([OffsetRange("t", 0, 0, 10)]))


LOSSES = {
    "retention": (OffsetOutOfRangeError("gone", ValidRange(12, 20)), 12, "available are 12 to 20"),
    "again": (ClusterError("other id", ErrorCode.TOPIC_ID_MISMATCH), 20, "created again"),
    "gone": (ClusterError("unknown", ErrorCode.UNKNOWN_TOPIC), 20, "does not exist any more"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_records_lost_while_reading_fail_the_task_or_are_skipped(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    problem, resume_at, words = LOSSES[name]
    monkeypatch.setattr(ranges, "UNKNOWN_TOPIC_PATIENCE_S", 0)
    batches = [batch_at(0, 10), batch_at(10, 10)]
    wanted = [OffsetRange("t", 0, 0, 20), OffsetRange("t", 1, 0, 5)]
    log = ScriptedFetcher(batches, 20, failures=deque([problem]))
    with pytest.raises(DataLossError, match=f"t/0 lost records .* offset 0, .*{words}") as caught:
        offsets(reader_of(log).read(wanted))
    assert "failOnDataLoss" in str(caught.value)
    log = ScriptedFetcher(batches, 20, failures=deque([problem]))
    with caplog.at_level(logging.WARNING):
        seen = offsets(reader_of(log, failOnDataLoss="false").read(wanted))
    assert seen == [*range(resume_at, 20), *range(5)]
    assert words in caplog.text


# --- Arrow


def arrow_of(slices: list[Slice], columns: tuple[str, ...] = (*COLUMNS, "headers")) -> pa.Table:
    schema = to_arrow_schema(schema_of(columns), timezone="UTC")
    batches = list(to_arrow(iter(slices), schema))
    assert all(batch.schema.equals(schema) for batch in batches)
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema=schema)


def slice_of(values, lo=0, hi=None, *, append_time_ms=0, base=100, **columns) -> Slice:
    columns.setdefault("timestamps_ms", list(range(len(values))))
    encoded = encode_columns(values, **columns)
    batch = build_batch(encoded).stamped(Offset(base), LeaderEpoch(1), append_time_ms)
    decoded = ranges.decode_batch(batch)
    return Slice("orders", 4, decoded, lo, len(values) if hi is None else hi)


def test_null_is_not_empty_and_headers_are_never_null() -> None:
    table = arrow_of(
        [
            slice_of(
                [b"a", None, b"", b"dd"],
                keys=[None, b"k", b"", None],
                timestamps_ms=[5, 3, 1_700_000_000_123, -1],
                headers=[[], [("x", None), ("y", b"")], [("z", b"1")], []],
            )
        ]
    )
    assert table.column("value").to_pylist() == [b"a", None, b"", b"dd"]
    assert table.column("key").to_pylist() == [None, b"k", b"", None]
    assert table.column("topic").to_pylist() == ["orders"] * 4
    assert table.column("partition").to_pylist() == [4] * 4
    assert table.column("offset").to_pylist() == [100, 101, 102, 103]
    times = table.column("timestamp").cast(pa.int64()).to_pylist()
    assert times == [5000, 3000, 1_700_000_000_123_000, -1000]
    assert table.column("timestampType").to_pylist() == [0] * 4
    assert table.column("headers").to_pylist() == [
        [],
        [{"key": "x", "value": None}, {"key": "y", "value": b""}],
        [{"key": "z", "value": b"1"}],
        [],
    ]


def test_absent_columns_are_nulls_and_empty_lists() -> None:
    table = arrow_of([slice_of([None, None])])
    assert table.column("key").to_pylist() == [None, None]
    assert table.column("value").to_pylist() == [None, None]
    assert table.column("headers").to_pylist() == [[], []]
    assert table.column("headers").null_count == 0


def test_append_time_replaces_every_timestamp_and_says_so() -> None:
    table = arrow_of([slice_of([b"a", b"b"], append_time_ms=77)])
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [77_000, 77_000]
    assert table.column("timestampType").to_pylist() == [1, 1]


def test_slices_cut_all_columns_alike() -> None:
    values = [b"%d" % i for i in range(20)]
    headers = [[("h", value)] for value in values]
    table = arrow_of([slice_of(values, 3, 9, keys=values, headers=headers)])
    assert table.column("value").to_pylist() == values[3:9]
    assert table.column("key").to_pylist() == values[3:9]
    assert table.column("offset").to_pylist() == list(range(103, 109))
    times = table.column("timestamp").cast(pa.int64()).to_pylist()
    assert times == [1000 * i for i in range(3, 9)]
    assert [h[0]["value"] for h in table.column("headers").to_pylist()] == values[3:9]


def test_chosen_columns_come_in_the_order_chosen() -> None:
    columns = ("offset", "value")
    table = arrow_of([slice_of([b"a"])], columns)
    assert table.to_pylist() == [{"offset": 100, "value": b"a"}]


def test_small_batches_are_put_together_and_large_ones_cut() -> None:
    schema = to_arrow_schema(schema_of(COLUMNS), timezone="UTC")
    small = [slice_of([b"v"] * 100, base=100 * i) for i in range(200)]
    batches = list(to_arrow(iter(small), schema))
    assert [b.num_rows for b in batches] == [8200, 8200, 3600]
    assert all(MIN_ROWS <= b.num_rows <= MAX_ROWS for b in batches[:-1])
    joined = pa.Table.from_batches(batches).column("offset").to_pylist()
    assert joined == list(range(20_000))
    [large] = [slice_of([b"v"] * 50_000)]
    sizes = [b.num_rows for b in to_arrow(iter([large]), schema)]
    assert sizes == [20_000, 20_000, 10_000]


def test_large_values_are_cut_by_bytes() -> None:
    schema = to_arrow_schema(schema_of(("value",)), timezone="UTC")
    values = [bytes(1 << 20) for _ in range(40)]
    batches = list(to_arrow(iter([slice_of(values)]), schema))
    assert [b.num_rows for b in batches] == [15, 15, 10]


@pytest.mark.parametrize("codec", Codec)
def test_compressed_batches_read_the_same(codec: Codec) -> None:
    log = ScriptedFetcher([batch_at(0, 50, codec=codec)], 50)
    table = arrow_of(list(reader_of(log).read([OffsetRange("t", 0, 10, 40)])))
    assert table.column("value").to_pylist() == [b"value %d" % i for i in range(10, 40)]
