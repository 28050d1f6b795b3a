"""Columns to Arrow without touching a record: offsets are a running sum over lengths.

    lengths  2 -1 0 9   ──▶   offsets  0 2 2 2 11     validity  1 0 1 1
    data     the received payload itself: shared, not copied

The schema is the one Spark's Kafka source has, without `timestampType`:

    key binary | value binary | topic string | partition int32 | offset int64
    timestamp timestamp[us, UTC] | headers list<struct<key string, value binary>> (on request)

A record without headers has an empty list, never null. This module alone imports numpy and
pyarrow; the client loads it on first use. The columns must be consistent, which is what
`penstock.core.records.decode_batch` makes sure of.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.client.model import ConsumedBatch
from penstock.core.columns import Columns

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
    base_offset: int,
    lo: int,
    hi: int,
    *,
    include_headers: bool = False,
) -> pa.RecordBatch:
    """Records [lo, hi) of a batch whose record 0 has offset `base_offset`; 0 <= lo <= hi.

    Keys and values point into the columns' memory, which the result keeps alive.
    """
    count = columns.record_count
    arrays = [
        _binary(columns.key_data, columns.key_lengths, count),
        _binary(columns.value_data, columns.value_lengths, count),
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.array(np.full(count, partition, np.int32)),
        pa.array(np.arange(base_offset, base_offset + count, dtype=np.int64)),
        _timestamps(columns),
    ]
    if include_headers:
        arrays.append(_headers(columns))
    schema = SCHEMA_WITH_HEADERS if include_headers else SCHEMA
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return batch if (lo, hi) == (0, count) else batch.slice(lo, hi - lo)


def batches_to_table(batches: Sequence[ConsumedBatch], *, include_headers: bool) -> pa.Table:
    """One chunk per batch; a table without rows for no batches."""
    schema = SCHEMA_WITH_HEADERS if include_headers else SCHEMA
    chunks = [batch.to_arrow(include_headers=include_headers) for batch in batches]
    return pa.Table.from_batches(chunks, schema=schema)


def _offsets(lengths: "np.ndarray[Any, np.dtype[np.int32]]") -> pa.Buffer:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
    return pa.py_buffer(offsets)


def _variable(
    kind: pa.DataType, data: memoryview, lengths: "np.ndarray[Any, np.dtype[np.int32]]"
) -> pa.Array:
    """A binary or string array; lengths -1 become nulls."""
    nulls = lengths < 0
    null_count = int(nulls.sum())
    validity = pa.py_buffer(np.packbits(~nulls, bitorder="little")) if null_count else None
    buffers = [validity, _offsets(lengths), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(lengths), buffers, null_count=null_count)


def _binary(data: memoryview, lengths: memoryview | None, count: int) -> pa.Array:
    if lengths is None:
        return pa.nulls(count, pa.binary())
    return _variable(pa.binary(), data, np.frombuffer(lengths, np.int32))


def _timestamps(columns: Columns) -> pa.Array:
    count = columns.record_count
    first_ms = columns.append_time_ms or columns.first_timestamp_ms
    times_us = np.full(count, first_ms * 1000, np.int64)
    if columns.timestamp_deltas_ms is not None and not columns.append_time_ms:
        times_us += np.frombuffer(columns.timestamp_deltas_ms, np.int64) * 1000
    kind = pa.timestamp("us", tz="UTC")
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(times_us)], null_count=0)


def _headers(columns: Columns) -> pa.Array:
    count = columns.record_count
    if columns.header_counts is None:
        counts = np.zeros(count, np.int32)
        names = values = np.zeros(0, np.int32)
    else:
        counts = np.frombuffer(columns.header_counts, np.int32)
        assert columns.header_key_lengths is not None
        assert columns.header_value_lengths is not None
        names = np.frombuffer(columns.header_key_lengths, np.int32)
        values = np.frombuffer(columns.header_value_lengths, np.int32)
    pairs = pa.StructArray.from_arrays(
        [
            _variable(pa.string(), columns.header_key_data, names),
            _variable(pa.binary(), columns.header_value_data, values),
        ],
        fields=list(HEADERS_TYPE.value_type),
    )
    return pa.Array.from_buffers(
        HEADERS_TYPE, count, [None, _offsets(counts)], null_count=0, children=[pairs]
    )
