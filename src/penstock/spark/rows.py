"""Arrow batches of a DataFrame, in the form a producer takes: grouped by topic and partition.

    record batch ─▶ rows per (topic, partition) ─▶ columns: keys, values, headers

With one topic and no partition column a batch is one group and nothing is copied. Columns are found
by name, because Spark passes them in the order of the query. Rows keep their order within a group,
and so do the records of each key.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import MisuseError

_NULL: Final = b"\xff" * 4
"""In place of a length."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows for one topic. `partition` None: by key. `keys` None: no row has a key."""

    topic: str
    partition: int | None
    values: pa.Array
    keys: pa.Array | None
    headers: list[list[tuple[str, bytes | None]]] | None


def rows_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[Rows]:
    """The rows of a batch, group by group; `topic` overrides the column topic.

    Raises MisuseError for a row without topic, with a negative partition or with a header without
    key, before it yields anything of the batch.
    """
    if batch.num_rows == 0:
        return
    names = set(batch.schema.names)
    topics = None if topic is not None else batch.column("topic")
    partitions = batch.column("partition") if "partition" in names else None
    _check(topics, partitions)
    if "headers" in names:
        _check_headers(batch.column("headers"))
    if topics is None and (partitions is None or partitions.null_count == batch.num_rows):
        assert topic is not None
        yield _rows(batch, topic, None)
        return
    for where, indexes in _groups(topics, partitions, batch.num_rows):
        part = batch if len(indexes) == batch.num_rows else batch.take(pa.array(indexes))
        yield _rows(part, where[0] if topic is None else topic, where[1])


def digest_of(rows: Rows) -> int:
    """The sum of a CRC-32 per row, of where it goes, key, value and headers: 64 bits, the same in
    any order of the rows, however they are split."""
    seed = crc32(f"{rows.topic}/{rows.partition}".encode())
    crcs = [seed if rows.keys is not None else _crc(None, seed)] * len(rows.values)
    if rows.keys is not None:
        crcs = _crcs(rows.keys, crcs)
    crcs = _crcs(rows.values, crcs)
    for index, row in enumerate(rows.headers or ()):
        for name, value in row:
            crcs[index] = _crc(value, _crc(name.encode(), crcs[index]))
    return sum(crcs) % 2**64


def _crc(field: bytes | memoryview | None, seed: int) -> int:
    """Goes on with a row's CRC: with the length first, so that fields do not run together. A null
    is not an empty value."""
    if field is None:
        return crc32(_NULL, seed)
    return crc32(field, crc32(len(field).to_bytes(4, "little"), seed))


def _crcs(column: pa.Array, seeds: list[int]) -> list[int]:
    """Goes on with each row's CRC."""
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64 if large else np.int32)
    ends = ends[column.offset : column.offset + len(column) + 1]
    view = memoryview(data or b"")
    crcs = [
        _crc(view[lo:hi], seed)
        for (lo, hi), seed in zip(pairwise(ends.tolist()), seeds, strict=True)
    ]
    if column.null_count:
        for index in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            crcs[index] = _crc(None, seeds[index])
    return crcs


def _check(topics: pa.Array | None, partitions: pa.Array | None) -> None:
    if topics is not None and topics.null_count:
        raise MisuseError(
            f"column 'topic' is null in {topics.null_count} rows: name a topic in each, or set the "
            "option topic"
        )
    if partitions is not None and partitions.null_count < len(partitions):
        least = pc.min(partitions).as_py()
        if least < 0:
            raise MisuseError(
                f"column 'partition' is {least}: partitions start at 0, null means by key"
            )


def _check_headers(column: pa.Array) -> None:
    # The flattened keys are null where the whole entry is, too.
    if column.flatten().flatten()[0].null_count == 0:
        return
    rows = sum(
        any(each is None or each["key"] is None for each in row or ()) for row in column.to_pylist()
    )
    raise MisuseError(
        f"column 'headers' has a null entry, or one without key, in {rows} rows: leave them out "
        "with filter(headers, h -> h.key is not null)"
    )


def _groups(
    topics: pa.Array | None, partitions: pa.Array | None, count: int
) -> Iterator[tuple[tuple[Any, int | None], list[int]]]:
    """Topic, partition and the indexes of their rows, ascending."""
    wheres = zip(
        [None] * count if topics is None else topics.to_pylist(),
        [None] * count if partitions is None else partitions.to_pylist(),
        strict=True,
    )
    found: dict[tuple[Any, int | None], list[int]] = {}
    for index, where in enumerate(wheres):
        found.setdefault(where, []).append(index)
    yield from found.items()


def _rows(batch: pa.RecordBatch, topic: str, partition: int | None) -> Rows:
    names = set(batch.schema.names)
    keys = batch.column("key") if "key" in names else None
    headers = batch.column("headers") if "headers" in names else None
    return Rows(
        topic,
        partition,
        batch.column("value"),
        None if keys is None or keys.null_count == len(keys) else keys,
        None if headers is None else _headers(headers),
    )


def _headers(column: pa.Array) -> list[list[tuple[str, bytes | None]]] | None:
    """Headers per row; None if no row has any."""
    if len(column.flatten()) == 0:
        return None
    return [[(each["key"], each["value"]) for each in row or ()] for row in column.to_pylist()]
