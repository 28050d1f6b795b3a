"""Columns: the records of one batch, side by side, without an object per record.

A binary column (keys, values, header names, header values) is two buffers:

    entries   b"AA"   None   b""   b"Lufthansa"
    data      A A L u f t h a n s a                  all entries, one after another
    lengths   2  -1  0  9                            int32 each; -1 = null, 0 = empty

`lengths` None means the column is absent: every entry is null. Timestamps are int64
differences to the first record's, absent when all are equal. Headers are two binary columns
with an entry per header, and each record has a count of its headers.

Every memoryview here is one-dimensional, contiguous and in the byte order of this machine (format
"B", "i" or "q"), so that `numpy.frombuffer` and `pyarrow.py_buffer` accept it unchanged. A
compacted batch keeps its offsets in the log and loses records: `offset_deltas` has the offsets of
the remaining records, `covered_offsets` the number of offsets it covers.

Memoryviews may point, unaligned, into a received payload: nothing is copied until an accessor
creates Python objects. `penstock.core.records` creates only consistent Columns; the accessors trust
them.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import islice, repeat
from typing import Final, NamedTuple

from penstock.core.types import Offset
from penstock.core.value import value

Header = tuple[str, bytes | None]
"""Name and value of one header. A name may occur more than once in a record."""
Headers = tuple[Header, ...]

NULL: Final = -1
NO_DATA: Final = memoryview(b"")


class Record(NamedTuple):
    """One record as read. A named tuple because `map` builds millions of them a second.

    `key` and `value` None = null, which is not b"".
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@value(frozen=True, slots=True)
class Columns:
    """All records of a batch. Times in ms since 1970-01-01 UTC.

    record_count: at least 1, but 0 in a batch that compaction emptied.
    base_offset: where the batch begins; 0 before a broker set it. Record i has offset
        base_offset + i, or base_offset + offset_deltas[i] in a compacted batch.
    append_time_ms: when not 0, the timestamp of every record, regardless of their producer's.
    offset_deltas: int32 each, strictly ascending, below `covered_offsets`; None = 0, 1, 2 …
    covered_offsets: of a compacted batch, its number of offsets; 0 = as many as records.
    """

    record_count: int
    first_timestamp_ms: int
    value_data: memoryview = NO_DATA
    value_lengths: memoryview | None = None
    key_data: memoryview = NO_DATA
    key_lengths: memoryview | None = None
    timestamp_deltas_ms: memoryview | None = None
    header_counts: memoryview | None = None
    header_key_data: memoryview = NO_DATA
    header_key_lengths: memoryview | None = None
    header_value_data: memoryview = NO_DATA
    header_value_lengths: memoryview | None = None
    base_offset: Offset = Offset(0)
    append_time_ms: int = 0
    offset_deltas: memoryview | None = None
    covered_offsets: int = 0

    @property
    def next_offset(self) -> Offset:
        """The first offset after the batch, whether its last record is still there or not."""
        return Offset(self.base_offset + (self.covered_offsets or self.record_count))

    @property
    def max_timestamp_ms(self) -> int:
        """The largest timestamp that the producer set (without `append_time_ms`)."""
        if self.timestamp_deltas_ms is None:
            return self.first_timestamp_ms
        return self.first_timestamp_ms + max(self.timestamp_deltas_ms.tolist())

    def keys(self) -> list[bytes | None]:
        """A key per record."""
        return _entries(self.key_data, self.key_lengths, self.record_count)

    def values(self) -> list[bytes | None]:
        """A value per record."""
        return _entries(self.value_data, self.value_lengths, self.record_count)

    def offsets(self) -> Sequence[int]:
        """An offset per record, ascending."""
        base = self.base_offset
        if self.offset_deltas is None:
            return range(base, base + self.record_count)
        return [base + delta for delta in self.offset_deltas.tolist()]

    def offset_at(self, index: int) -> int:
        """Offset of the record at 0 <= index < record_count; `next_offset` for record_count."""
        if index == self.record_count:
            return self.next_offset
        return self.base_offset + (
            index if self.offset_deltas is None else self.offset_deltas[index]
        )

    def index_of(self, offset: int) -> int:
        """Index of the first record at or after `offset`; record_count if there is none."""
        delta = max(0, offset - self.base_offset)
        if self.offset_deltas is None:
            return min(delta, self.record_count)
        return bisect_left(self.offset_deltas, delta)

    def timestamps(self) -> list[int]:
        """A timestamp per record: the append time if the broker set one, else its own."""
        if self.append_time_ms:
            return [self.append_time_ms] * self.record_count
        if self.timestamp_deltas_ms is None:
            return [self.first_timestamp_ms] * self.record_count
        first = self.first_timestamp_ms
        return [first + delta for delta in self.timestamp_deltas_ms.tolist()]

    def headers(self) -> list[Headers]:
        """The headers per record; () for a record without headers."""
        if self.header_counts is None:
            return [()] * self.record_count
        pairs = self._header_pairs()
        return [tuple(islice(pairs, count)) for count in self.header_counts.tolist()]

    def records(self) -> Iterator[Record]:
        """All records in order. Decodes every column at the first step."""
        headers = repeat(()) if self.header_counts is None else self.headers()
        return map(Record, self.offsets(), self.timestamps(), self.keys(), self.values(), headers)

    def record(self, index: int) -> Record:
        """The record at 0 <= index < record_count; raises IndexError.

        Sums up the lengths before it: use it only for a few records.
        """
        if not 0 <= index < self.record_count:
            raise IndexError(f"record {index} of a batch of {self.record_count}")
        timestamp_ms = self.append_time_ms or self.first_timestamp_ms
        if self.timestamp_deltas_ms is not None and not self.append_time_ms:
            timestamp_ms += self.timestamp_deltas_ms[index]
        return Record(
            self.offset_at(index),
            timestamp_ms,
            _entry(self.key_data, self.key_lengths, index),
            _entry(self.value_data, self.value_lengths, index),
            () if self.header_counts is None else self.headers()[index],
        )

    def _header_pairs(self) -> Iterator[Header]:
        names = _entries(self.header_key_data, self.header_key_lengths, 0)
        count = len(names)
        values = _entries(self.header_value_data, self.header_value_lengths, count)
        # Names are never null; decode_batch and encode_columns ensure that.
        return zip((str(name, "utf-8") for name in names if name is not None), values, strict=True)


def data_bytes(lengths: Sequence[int]) -> int:
    """Bytes of the entries with these lengths; nulls have none."""
    return sum(lengths) + lengths.count(NULL)


def _entries(data: memoryview, lengths: memoryview | None, count: int) -> list[bytes | None]:
    """The entries of a binary column; `count` nulls if it is absent."""
    if lengths is None:
        return [None] * count
    sizes = lengths.tolist()
    entries: list[bytes | None]
    if NULL not in sizes:
        # Twice as fast as slicing: BytesIO keeps the position, map stays in C.
        entries = list(map(BytesIO(data).read, sizes))
        return entries
    # read(-1) would read all that is left: a null reads 0 bytes, and is then corrected.
    nulls = [index for index, size in enumerate(sizes) if size == NULL]
    for index in nulls:
        sizes[index] = 0
    entries = list(map(BytesIO(data).read, sizes))
    for index in nulls:
        entries[index] = None
    return entries


def _entry(data: memoryview, lengths: memoryview | None, index: int) -> bytes | None:
    if lengths is None or lengths[index] == NULL:
        return None
    start = data_bytes(lengths[:index].tolist())
    return bytes(data[start : start + lengths[index]])
