"""Columns to Arrow without touching a record: offsets are a running sum over lengths.

    lengths  2 -1 0 9   ──▶   offsets  0 2 2 2 11     validity  1 0 1 1
    data     the received payload itself: shared, not copied

The schema is the one Spark's Kafka source has, without `timestampType`:

    key binary | value binary | topic string | partition int32 | offset int64
    timestamp timestamp[us, UTC] | headers list<struct<key string, value binary>> (on request)

A record without headers has an empty list, never null. The Spark source puts columns of other
types together from the same functions (`penstock.spark.arrow`). This module alone imports numpy and
pyarrow; the client loads it on first use. The columns must be consistent, which is what
`penstock.core.records.decode_batch` makes sure of.
"""

from collections.abc import Sequence
from typing import Any, Final

from penstock.client.model import ConsumedBatch
from penstock.core.columns import Columns
from penstock.errors import MisuseError

try:
    import numpy as np
    import pyarrow as pa
except ImportError as missing:
    raise MisuseError(
        f"Arrow needs the package {missing.name}, which is not installed: "
        "pip install 'penstock[arrow]'"
    ) from missing

HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_FIELDS: Final = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
]
SCHEMA: Final = pa.schema(_FIELDS)
SCHEMA_WITH_HEADERS: Final = pa.schema([*_FIELDS, pa.field("headers", HEADERS_TYPE)])


def batch_to_arrow(
    columns: Columns,
    topic: str,
    partition: int,
    lo: int,
    hi: int,
    *,
    include_headers: bool = False,
) -> pa.RecordBatch:
    """Records [lo, hi) of a batch; 0 <= lo <= hi <= record_count.

    Keys and values point into the columns' memory, which the result keeps alive.
    """
    count = columns.record_count
    arrays = [
        binary_column(columns.key_data, columns.key_lengths, count, pa.binary()),
        binary_column(columns.value_data, columns.value_lengths, count, pa.binary()),
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.array(np.full(count, partition, np.int32)),
        offset_column(columns, 0, count),
        timestamp_column(columns, 0, count),
    ]
    if include_headers:
        arrays.append(headers_column(columns, HEADERS_TYPE))
    schema = SCHEMA_WITH_HEADERS if include_headers else SCHEMA
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return batch if (lo, hi) == (0, count) else batch.slice(lo, hi - lo)


def batches_to_table(batches: Sequence[ConsumedBatch], *, include_headers: bool) -> pa.Table:
    """One chunk per batch; a table without rows for no batches."""
    schema = SCHEMA_WITH_HEADERS if include_headers else SCHEMA
    chunks = [batch.to_arrow(include_headers=include_headers) for batch in batches]
    return pa.Table.from_batches(chunks, schema=schema)


def with_values(table: pa.Table, name: str, values: list[Any]) -> pa.Table:
    """The table with other values in the column `name`, in the type that Arrow finds in them.

    Raises MisuseError if they have no common type.
    """
    try:
        column = pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise MisuseError(
            f"the decoded {name}s have no common Arrow type: {error}; use `records`, or a decoder "
            "whose results all have the same type"
        ) from error
    return table.set_column(table.schema.get_field_index(name), name, column)


def with_texts(table: pa.Table, name: str, texts: list[str | None]) -> pa.Table:
    """The table with one more column."""
    return table.append_column(name, pa.array(texts, pa.string()))


def binary_column(
    data: memoryview, lengths: memoryview | None, count: int, kind: pa.DataType
) -> pa.Array:
    """A binary or string array (`kind`) over `data`; `lengths` None = all null, -1 = null."""
    if lengths is None:
        return pa.nulls(count, kind)
    sizes = np.frombuffer(lengths, np.int32)
    offsets = np.zeros(count + 1, np.int32)
    nulls = int(np.count_nonzero(sizes < 0))
    np.cumsum(np.maximum(sizes, 0) if nulls else sizes, out=offsets[1:])
    validity = pa.py_buffer(np.packbits(sizes >= 0, bitorder="little")) if nulls else None
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, count, buffers, nulls)


def headers_column(columns: Columns, kind: pa.DataType) -> pa.Array:
    """A list of (key, value) structs per record; `kind` like `HEADERS_TYPE`."""
    offsets = np.zeros(columns.record_count + 1, np.int32)
    if columns.header_counts is not None:
        np.cumsum(np.frombuffer(columns.header_counts, np.int32), out=offsets[1:])
    total = int(offsets[-1])
    entry = kind.value_type
    names = binary_column(
        columns.header_key_data, columns.header_key_lengths, total, entry.field("key").type
    )
    values = binary_column(
        columns.header_value_data, columns.header_value_lengths, total, entry.field("value").type
    )
    entries = pa.Array.from_buffers(entry, total, [None], children=[names, values])
    buffers = [None, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, columns.record_count, buffers, children=[entries])


def offset_column(columns: Columns, lo: int, hi: int) -> pa.Array:
    """The offsets of records [lo, hi)."""
    base = columns.base_offset
    if columns.offset_deltas is None:
        offsets = np.arange(base + lo, base + hi, dtype=np.int64)
    else:
        offsets = np.frombuffer(columns.offset_deltas, np.int32)[lo:hi] + np.int64(base)
    return pa.Array.from_buffers(pa.int64(), hi - lo, [None, pa.py_buffer(offsets)], 0)


def timestamp_column(columns: Columns, lo: int, hi: int) -> pa.Array:
    """The timestamps of records [lo, hi), in microseconds."""
    first_ms = columns.append_time_ms or columns.first_timestamp_ms
    if columns.append_time_ms or columns.timestamp_deltas_ms is None:
        times_us = np.full(hi - lo, first_ms * 1000, np.int64)
    else:
        deltas_ms = np.frombuffer(columns.timestamp_deltas_ms, np.int64)[lo:hi]
        times_us = (deltas_ms + first_ms) * 1000
    buffers = [None, pa.py_buffer(times_us)]
    return pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), hi - lo, buffers, 0)
