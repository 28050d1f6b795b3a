"""A task's ranges as Spark wants them: on the user's terms, in Arrow.

How ranges are read is the client's (`tests/penstock/client/consumer/test_range_reader.py`).
"""

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from support.range_log import ScriptedFetcher, batch_at

from penstock.client import ConsumedBatch
from penstock.client.consumer import range_reader
from penstock.client.consumer.range_reader import RangeReader
from penstock.core.batch import Codec
from penstock.core.records import build_batch, decode_batch, encode_columns
from penstock.core.types import LeaderEpoch, Offset
from penstock.errors import ClusterError, ErrorCode, OffsetOutOfRangeError, OffsetRange
from penstock.spark.arrow import MAX_ROWS, MIN_ROWS, to_arrow
from penstock.spark.data_loss import DataLossError
from penstock.spark.options import parse
from penstock.spark.planning import ReadRange
from penstock.spark.ranges import config_of, read_ranges
from penstock.spark.schema import schema_of
from penstock.spark.values import COLUMNS


def read(log: ScriptedFetcher, *ranges: ReadRange, **given: str) -> Iterator[ConsumedBatch]:
    options = parse({"penstock.bootstrap.servers": "a:1", "subscribe": "t"} | given)
    return read_ranges(RangeReader(log, config_of(options)), ranges, options)


def offsets(batches: Iterable[ConsumedBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.offsets()]


def test_past_the_deadline_the_option_to_raise_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "FIRST_PAUSE_S", 0.001)
    log = ScriptedFetcher([batch_at(0, 10)], 10)
    with pytest.raises(ClusterError) as caught:
        offsets(read(log, ReadRange("t", 3, 0, 20), pollTimeoutMs="30"))
    message = str(caught.value)
    assert message.startswith("t/3: no records at offset 10 (of 0 to 20) within 30 ms")
    assert message.endswith("or raise pollTimeoutMs")
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT


LOSSES = {
    "retention": (OffsetOutOfRangeError("gone", OffsetRange(12, 20)), 12, "available are 12 to 20"),
    "again": (ClusterError("other id", ErrorCode.TOPIC_ID_MISMATCH), 20, "created again"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_records_lost_while_reading_fail_the_task_or_are_skipped(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    problem, resume_at, words = LOSSES[name]
    monkeypatch.setattr(range_reader, "UNKNOWN_TOPIC_PATIENCE_S", 0)
    batches = [batch_at(0, 10), batch_at(10, 10)]
    wanted = [ReadRange("t", 0, 0, 20), ReadRange("t", 1, 0, 5)]
    log = ScriptedFetcher(batches, 20, failures=deque([problem]))
    with pytest.raises(DataLossError, match=f"t/0 lost records .* offset 0, .*{words}") as caught:
        offsets(read(log, *wanted))
    assert "failOnDataLoss" in str(caught.value)
    log = ScriptedFetcher(batches, 20, failures=deque([problem]))
    with caplog.at_level(logging.WARNING):
        seen = offsets(read(log, *wanted, failOnDataLoss="false"))
    assert seen == [*range(resume_at, 20), *range(5)]
    assert words in caplog.text


def test_a_topic_out_of_sight_fails_the_task_and_skips_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(range_reader, "UNKNOWN_TOPIC_PATIENCE_S", 0)
    unknown = ClusterError("unknown", ErrorCode.UNKNOWN_TOPIC)
    log = ScriptedFetcher([batch_at(0, 10)], 10, failures=deque([unknown]))
    with pytest.raises(ClusterError, match=r"t/0 at offset 0: .* may not see it any more"):
        offsets(read(log, ReadRange("t", 0, 0, 10), failOnDataLoss="false"))


# --- Arrow


def arrow_of(
    parts: list[ConsumedBatch], columns: tuple[str, ...] = (*COLUMNS, "headers")
) -> pa.Table:
    schema = to_arrow_schema(schema_of(columns), timezone="UTC")
    batches = list(to_arrow(iter(parts), schema))
    assert all(batch.schema.equals(schema) for batch in batches)
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema=schema)


def slice_of(
    values: Sequence[bytes | None],
    lo: int = 0,
    hi: int | None = None,
    *,
    append_time_ms: int = 0,
    base: int = 100,
    **columns: Any,
) -> ConsumedBatch:
    columns.setdefault("timestamps_ms", list(range(len(values))))
    encoded = encode_columns(values, **columns)
    batch = build_batch(encoded).stamped(Offset(base), LeaderEpoch(1), append_time_ms)
    decoded = decode_batch(batch)
    return ConsumedBatch("orders", 4, decoded, lo, len(values) if hi is None else hi)


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
    table = arrow_of(list(read(log, ReadRange("t", 0, 10, 40))))
    assert table.column("value").to_pylist() == [b"value %d" % i for i in range(10, 40)]
