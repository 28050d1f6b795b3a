"""Cutting columns: a producer holds any number of records, a batch holds a bounded number.

A cut iterates once over the lengths with a cursor that knows, for every buffer, where the next
record begins; the pieces share the buffers of the whole. Only timestamp differences are rewritten,
since they count from the first record of their own piece.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from penstock.core.columns import NO_DATA, NULL, Columns, data_bytes
from penstock.core.limits import MAX_RECORDS
from penstock.core.records_wire import message_bytes
from penstock.core.types import Offset

_FRAMING_BYTES: Final = 64
"""More than the size of the tags and lengths of the ten fields that a producer writes, each below
2**32."""


@dataclass(frozen=True, slots=True)
class _Cursor:
    """Where the next record begins: indexes into lengths, positions in data."""

    record: int = 0
    value: int = 0
    key: int = 0
    header: int = 0
    header_key: int = 0
    header_value: int = 0


def split_columns(
    columns: Columns, *, max_bytes: int, max_records: int = MAX_RECORDS
) -> Iterator[Columns]:
    """The same records in order, in pieces that fit into a batch.

    Args:
        columns: Any number of records.
        max_bytes: Limit of a piece's serialized message, uncompressed. A record that is larger
            becomes a separate piece: the sender refuses it.
        max_records: Limit of a piece's records, at least 1.
    """
    assert max_records >= 1
    assert not columns.covered_offsets, "a compacted batch cannot be sliced by record"
    count = columns.record_count
    if count <= max_records and message_bytes(columns) <= max_bytes:
        yield columns
        return
    ends = array("q", accumulate(_row_bytes(columns)))
    cursor, taken = _Cursor(), 0
    while cursor.record < count:
        start = cursor.record
        fitting = bisect_right(ends, taken + max_bytes - _FRAMING_BYTES, lo=start) - start
        size = max(1, min(fitting, max_records))
        part, cursor = _take(columns, cursor, size)
        taken = ends[cursor.record - 1]
        yield part


def _take(columns: Columns, at: _Cursor, count: int) -> tuple[Columns, _Cursor]:
    """The next `count` records, and where those after them begin."""
    first, end = at.record, at.record + count
    value_data, value_lengths, value = _cut(
        columns.value_data, columns.value_lengths, first, end, at.value
    )
    key_data, key_lengths, key = _cut(columns.key_data, columns.key_lengths, first, end, at.key)
    first_timestamp_ms, deltas = _cut_timestamps(columns, first, end)
    part = Columns(
        record_count=count,
        first_timestamp_ms=first_timestamp_ms,
        value_data=value_data,
        value_lengths=value_lengths,
        key_data=key_data,
        key_lengths=key_lengths,
        timestamp_deltas_ms=deltas,
        base_offset=Offset(columns.base_offset + first),
        append_time_ms=columns.append_time_ms,
    )
    behind = replace(at, record=end, value=value, key=key)
    if columns.header_counts is None:
        return part, behind
    counts = columns.header_counts[first:end]
    header = at.header + sum(counts.tolist())
    names, name_lengths, header_key = _cut(
        columns.header_key_data, columns.header_key_lengths, at.header, header, at.header_key
    )
    values, lengths, header_value = _cut(
        columns.header_value_data, columns.header_value_lengths, at.header, header, at.header_value
    )
    behind = replace(behind, header=header, header_key=header_key, header_value=header_value)
    if header == at.header:
        return part, behind
    part = replace(
        part,
        header_counts=counts,
        header_key_data=names,
        header_key_lengths=name_lengths,
        header_value_data=values,
        header_value_lengths=lengths,
    )
    return part, behind


def _cut(
    data: memoryview, lengths: memoryview | None, first: int, end: int, position: int
) -> tuple[memoryview, memoryview | None, int]:
    """Entries first <= i < end, whose data begins at `position`, and where it ends."""
    if lengths is None:
        return NO_DATA, None, position
    part = lengths[first:end]
    data_end = position + data_bytes(part.tolist())
    return data[position:data_end], part, data_end


def _cut_timestamps(columns: Columns, first: int, end: int) -> tuple[int, memoryview | None]:
    if columns.timestamp_deltas_ms is None:
        return columns.first_timestamp_ms, None
    deltas = columns.timestamp_deltas_ms[first:end]
    shift = deltas[0]
    first_timestamp_ms = columns.first_timestamp_ms + shift
    if shift == 0:
        return first_timestamp_ms, deltas
    return first_timestamp_ms, memoryview(array("q", [delta - shift for delta in deltas.tolist()]))


def _row_bytes(columns: Columns) -> list[int]:
    """The bytes of each record in the message, without the framing of the fields."""
    fixed = 0 if columns.timestamp_deltas_ms is None else 8
    rows = [fixed] * columns.record_count
    for lengths in (columns.key_lengths, columns.value_lengths):
        if lengths is not None:
            rows = [row + 4 + size for row, size in zip(rows, _sizes(lengths), strict=True)]
    names, values = columns.header_key_lengths, columns.header_value_lengths
    if columns.header_counts is None or names is None or values is None:
        return rows
    headers = zip(_sizes(names), _sizes(values), strict=True)
    ends = [0, *accumulate(8 + name + value for name, value in headers)]
    begin = 0
    for index, count in enumerate(columns.header_counts.tolist()):
        rows[index] += 4 + ends[begin + count] - ends[begin]
        begin += count
    return rows


def _sizes(lengths: memoryview) -> list[int]:
    sizes = lengths.tolist()
    return [max(0, size) for size in sizes] if NULL in sizes else sizes
