"""Columns become Arrow without a copy of keys and values, in the schema Spark expects."""

import importlib
import random
import sys
from typing import Any

import pyarrow as pa
import pytest

from penstock.client.arrow import SCHEMA, SCHEMA_WITH_HEADERS, batch_to_arrow, batches_to_table
from penstock.client.model import ConsumedBatch
from penstock.core.batch import Codec
from penstock.core.columns import Columns
from penstock.core.records import build_batch, decode_batch, encode_columns
from penstock.core.types import LeaderEpoch, Offset
from penstock.errors import MisuseError


def stored(
    columns: Columns, *, base: int = 100, append_ms: int = 0, codec: Codec = Codec.NONE
) -> Columns:
    """The columns as a consumer gets them."""
    return decode_batch(
        build_batch(columns, codec=codec).stamped(Offset(base), LeaderEpoch(1), append_ms)
    )


def arrow(columns: Columns, lo: int = 0, hi: int | None = None, **options: Any) -> pa.RecordBatch:
    end = columns.record_count if hi is None else hi
    return batch_to_arrow(columns, "flights", 7, lo, end, **options)


def random_columns(rng: random.Random, count: int) -> Columns:
    def entry() -> bytes | None:
        return None if rng.random() < 0.2 else rng.randbytes(rng.randrange(20))

    return encode_columns(
        [entry() for _ in range(count)],
        [entry() for _ in range(count)],
        timestamps_ms=[rng.randrange(10**12) for _ in range(count)],
        headers=[
            [(f"n{rng.randrange(3)}", entry()) for _ in range(rng.randrange(3))]
            for _ in range(count)
        ],
    )


def test_the_schema_is_the_one_spark_has() -> None:
    assert [(field.name, str(field.type)) for field in SCHEMA] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int32"),
        ("offset", "int64"),
        ("timestamp", "timestamp[us, tz=UTC]"),
    ]
    assert SCHEMA_WITH_HEADERS.field("headers").type == pa.list_(
        pa.struct([("key", pa.string()), ("value", pa.binary())])
    )


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("count", [1, 7, 8, 9, 1_000])
def test_arrow_rows_equal_the_records(rng: random.Random, count: int, codec: Codec) -> None:
    columns = stored(random_columns(rng, count), codec=codec)
    lo = rng.randrange(count)
    hi = rng.randrange(lo, count + 1)
    batch = arrow(columns, lo, hi, include_headers=True)
    batch.validate(full=True)
    assert batch.schema.equals(SCHEMA_WITH_HEADERS)
    consumed = ConsumedBatch("flights", 7, columns, lo, hi)
    expected = [
        {
            "key": record.key,
            "value": record.value,
            "topic": "flights",
            "partition": 7,
            "offset": record.offset,
            "timestamp": record.timestamp_ms * 1_000,
            "headers": [{"key": name, "value": value} for name, value in record.headers],
        }
        for record in consumed.records()
    ]
    times = batch.column("timestamp").cast(pa.int64())
    rows = batch.set_column(5, "timestamp", times).to_pylist()
    assert rows == expected


def test_absent_columns_are_null_and_absent_headers_are_empty_lists() -> None:
    columns = stored(encode_columns([None, None], timestamps_ms=5))
    rows = arrow(columns, include_headers=True).to_pylist()
    assert [(row["key"], row["value"], row["headers"]) for row in rows] == [(None, None, [])] * 2


def test_the_append_time_replaces_the_producers_times() -> None:
    columns = stored(encode_columns([b"a", b"b"], timestamps_ms=[1, 2]), append_ms=9_000)
    assert arrow(columns).column("timestamp").cast(pa.int64()).to_pylist() == [9_000_000] * 2


def test_keys_and_values_are_shared_not_copied() -> None:
    columns = stored(encode_columns([b"x" * 1_000] * 10, [b"k"] * 10, timestamps_ms=5))
    before = pa.total_allocated_bytes()
    batch = arrow(columns)
    assert pa.total_allocated_bytes() - before < 2_000
    assert batch.column("value").buffers()[2].size == 10_000


def test_the_arrow_batch_keeps_the_memory_alive() -> None:
    batch = arrow(stored(encode_columns([b"abc"] * 100, timestamps_ms=5)))
    junk = [bytes(500) for _ in range(1_000)]
    assert batch.column("value").to_pylist() == [b"abc"] * 100, len(junk)


def test_no_batches_make_an_empty_table_of_the_right_schema() -> None:
    table = batches_to_table([], include_headers=True)
    assert (table.num_rows, table.schema) == (0, SCHEMA_WITH_HEADERS)


def test_a_part_of_a_batch_is_cut_by_offsets() -> None:
    columns = stored(encode_columns([b"%d" % i for i in range(10)], timestamps_ms=5))
    whole = ConsumedBatch("t", 0, columns, 0, 10)
    part = whole.between(103, 106)
    assert (part.values(), list(part.offsets())) == ([b"3", b"4", b"5"], [103, 104, 105])
    assert part.to_arrow().column("offset").to_pylist() == [103, 104, 105]
    assert part.between(0, 105).values() == [b"3", b"4"]
    assert len(whole.between(0, 100)) == len(whole.between(110, 200)) == 0


def test_without_pyarrow_the_error_is_one_line_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "penstock.client.arrow")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MisuseError, match=r"needs .* pyarrow, .*: pip install 'penstock\[arrow\]'"):
        importlib.import_module("penstock.client.arrow")
