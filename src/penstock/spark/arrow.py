"""Decoded batches to Arrow record batches, column by column, without touching a record.

Data of keys, values and headers stays where the network put it: Arrow arrays are built around
it from a running sum of the lengths. Only what no batch carries is made: offsets, timestamps
in microseconds, and the constant columns, which are kept and sliced.

Rows per Arrow batch: 8,192 to 20,000, or about 16 MiB. Below that Spark pays per batch, above
it memory peaks and nothing is gained (measured: 1,000 rows 3.4, 10,000 rows 4.6, 100,000 rows
5.0 million rows per second).
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.client import ConsumedBatch
from penstock.client.arrow import (
    binary_column,
    headers_column,
    offset_column,
    timestamp_column,
)
from penstock.core.columns import Columns

MIN_ROWS: Final = 8_192
MAX_ROWS: Final = 20_000
MAX_BYTES: Final = 16 << 20


def to_arrow(parts: Iterator[ConsumedBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Record batches of exactly `schema`, rows in the order of the parts."""
    waiting: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for part in parts:
        for batch in _convert(part, schema):
            too_much = rows + batch.num_rows > MAX_ROWS or size_bytes + batch.nbytes > MAX_BYTES
            if waiting and (rows >= MIN_ROWS or too_much):
                yield _joined(waiting)
                waiting, rows, size_bytes = [], 0, 0
            waiting.append(batch)
            rows += batch.num_rows
            size_bytes += batch.nbytes
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    [joined] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def _convert(part: ConsumedBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    whole = {
        field.name: _WHOLE[field.name](part.columns, field.type)
        for field in schema
        if field.name in _WHOLE
    }
    for lo, hi in _pieces(part):
        arrays = [
            whole[field.name].slice(lo, hi - lo)
            if field.name in whole
            else _MADE[field.name](part, lo, hi).cast(field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _pieces(part: ConsumedBatch) -> Iterator[tuple[int, int]]:
    """Cuts [lo, hi) so that no piece has too many rows, or (on average) bytes."""
    columns = part.columns
    views = (columns.key_data, columns.value_data, columns.header_value_data)
    row_bytes = sum(view.nbytes for view in views) // columns.record_count + 1
    rows = max(1, min(MAX_ROWS, MAX_BYTES // row_bytes))
    for lo in range(part.lo, part.hi, rows):
        yield lo, min(part.hi, lo + rows)


def _keys(columns: Columns, kind: pa.DataType) -> pa.Array:
    return binary_column(columns.key_data, columns.key_lengths, columns.record_count, kind)


def _values(columns: Columns, kind: pa.DataType) -> pa.Array:
    return binary_column(columns.value_data, columns.value_lengths, columns.record_count, kind)


_WHOLE: Final[dict[str, Callable[[Columns, pa.DataType], pa.Array]]] = {
    "key": _keys,
    "value": _values,
    "headers": headers_column,
}


def _topic(part: ConsumedBatch, lo: int, hi: int) -> pa.Array:
    return _repeated_text(part.topic).slice(0, hi - lo)


@lru_cache(maxsize=64)
def _repeated_text(text: str) -> pa.Array:
    encoded = text.encode()
    offsets = np.arange(MAX_ROWS + 1, dtype=np.int32) * np.int32(len(encoded))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(encoded * MAX_ROWS)]
    return pa.Array.from_buffers(pa.string(), MAX_ROWS, buffers, 0)


@lru_cache(maxsize=256)
def _repeated_int32(number: int) -> pa.Array:
    return _from_numpy(np.full(MAX_ROWS, number, dtype=np.int32), pa.int32())


def _partition(part: ConsumedBatch, lo: int, hi: int) -> pa.Array:
    return _repeated_int32(part.partition).slice(0, hi - lo)


def _timestamp_type(part: ConsumedBatch, lo: int, hi: int) -> pa.Array:
    """0 = the producer's time, 1 = the broker's (append) time, as in Kafka."""
    return _repeated_int32(1 if part.columns.append_time_ms else 0).slice(0, hi - lo)


def _offset(part: ConsumedBatch, lo: int, hi: int) -> pa.Array:
    return offset_column(part.columns, lo, hi)


def _timestamp(part: ConsumedBatch, lo: int, hi: int) -> pa.Array:
    return timestamp_column(part.columns, lo, hi)


def _from_numpy(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)], 0)


_MADE: Final[dict[str, Callable[[ConsumedBatch, int, int], pa.Array]]] = {
    "topic": _topic,
    "partition": _partition,
    "offset": _offset,
    "timestamp": _timestamp,
    "timestampType": _timestamp_type,
}
