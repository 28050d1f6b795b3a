"""Whole columns to batches: no Python step per record unless keys decide the partition.

    Arrow, NumPy ──▶ Columns over their buffers ──────────┐
    lists ──▶ chunks ──▶ [by key: rows per partition] ──▶ Columns ──▶ pieces that fit a batch

Arrow buffers are used as they are. With keys, each key is hashed (`core.partitioner`) and the rows
of a partition are collected, in the order given. Pieces are made one after the other, while earlier
ones are in flight; this runs on the calling thread and uses only the topic's limits of the
producer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from time import time_ns
from typing import Any, Final, TypeVar

from penstock.client.producer.accumulator import BATCH_OVERHEAD_BYTES
from penstock.client.producer.topic_buffer import TopicBuffer, checked_timestamp
from penstock.core.columns import Columns, Headers
from penstock.core.partitioner import partitions_for_keys
from penstock.core.records import BinaryBuffers, columns_from_buffers, encode_columns
from penstock.core.records_wire import message_bytes
from penstock.core.slicing import split_columns
from penstock.errors import MisuseError

CHUNK_RECORDS: Final = 65_536
"""Lists are encoded in chunks of this many records, which bounds the memory that a call needs."""

Entry = TypeVar("Entry")
Entries = Sequence[bytes | None]
HeaderLists = Sequence[Headers | Sequence[tuple[str, bytes | None]] | None]


@dataclass(frozen=True, slots=True)
class Shard:
    """Columns that fit into one batch. `partition` None = the next one in turn.

    `record_bytes`: of a single record, with framing, which may be too large for the topic; None:
    there are several.
    """

    partition: int | None
    columns: Columns
    record_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """Records as lists. `timestamps_ms` may be one value for all."""

    values: Entries | None
    keys: Entries | None
    timestamps_ms: Any
    headers: HeaderLists | None

    def __len__(self) -> int:
        return len(self.values if self.values is not None else self.keys or ())

    def chunks(self) -> Iterator["Rows"]:
        """The same records, at most CHUNK_RECORDS at a time."""
        one_time = isinstance(self.timestamps_ms, int)
        for lo in range(0, len(self), CHUNK_RECORDS):
            part = slice(lo, lo + CHUNK_RECORDS)
            yield Rows(
                None if self.values is None else self.values[part],
                None if self.keys is None else self.keys[part],
                self.timestamps_ms if one_time else self.timestamps_ms[part],
                None if self.headers is None else self.headers[part],
            )

    def at(self, indexes: list[int]) -> "Rows":
        """The records at these indexes, in that order."""
        one_time = isinstance(self.timestamps_ms, int)
        return Rows(
            None if self.values is None else _pick(self.values, indexes),
            None if self.keys is None else _pick(self.keys, indexes),
            self.timestamps_ms if one_time else _pick(self.timestamps_ms, indexes),
            None if self.headers is None else _pick(self.headers, indexes),
        )

    def encoded(self) -> Columns:
        return encode_columns(
            [None] * len(self) if self.values is None else self.values,
            self.keys,
            timestamps_ms=self.timestamps_ms,
            headers=self.headers,
        )


def shard_columns(
    buffer: TopicBuffer,
    values: Any,
    keys: Any,
    *,
    timestamps_ms: Any,
    partition: int | None,
    headers: HeaderLists | None,
) -> Iterator[Shard]:
    """The pieces to send, in order. Raises MisuseError in between, for invalid records; their sizes
    are left to whoever sends them."""
    if partition is not None:
        buffer.queue(partition)
    times = time_ns() // 1_000_000 if timestamps_ms is None else _times(buffer.name, timestamps_ms)
    _check_lengths(values, keys, times, headers)
    by_key = partition is None and (keys is not None or buffer.has_partitioner)
    if not by_key and not (_is_list(values) and _is_list(keys)):
        columns = _from_buffers(values, keys, times, headers)
        if columns is not None:
            yield from _pieces(buffer, partition, columns)
        return
    rows = Rows(_listed("values", values), _listed("keys", keys), times, headers)
    for chunk in rows.chunks():
        if not by_key:
            yield from _pieces(buffer, partition, chunk.encoded())
            continue
        for where, indexes in _by_partition(buffer, chunk).items():
            part = chunk if len(indexes) == len(chunk) else chunk.at(indexes)
            yield from _pieces(buffer, where, part.encoded())


def _check_lengths(values: Any, keys: Any, times: Any, headers: HeaderLists | None) -> None:
    if values is None and keys is None:
        raise MisuseError("send_columns needs values or keys")
    given = {"values": values, "keys": keys, "headers": headers}
    if not isinstance(times, int):
        given["timestamps_ms"] = times
    sizes = {name: len(column) for name, column in given.items() if column is not None}
    if len(set(sizes.values())) > 1:
        raise MisuseError(f"columns differ in length: {sizes}; give one entry per record")


def _by_partition(buffer: TopicBuffer, rows: Rows) -> dict[int | None, list[int]]:
    """Indexes of the records of each partition, ascending. None = any partition."""
    keys = rows.keys if rows.keys is not None else [None] * len(rows)
    partitions: list[int | None] | list[int]
    if buffer.has_partitioner or None in keys:
        partitions = [buffer.partition_of(key) for key in keys]
    else:
        partitions = partitions_for_keys(
            keys,  # type: ignore[arg-type]  # no None in it
            len(buffer.queues),
            buffer.key_hash,
        )
    indexes: dict[int | None, list[int]] = {partition: [] for partition in set(partitions)}
    for index, partition in enumerate(partitions):
        indexes[partition].append(index)
    return indexes


def _pick(column: Sequence[Entry], indexes: list[int]) -> Sequence[Entry]:
    if len(indexes) == 1:
        return [column[indexes[0]]]
    picked: tuple[Entry, ...] = itemgetter(*indexes)(column)
    return picked


def _pieces(buffer: TopicBuffer, partition: int | None, columns: Columns) -> Iterator[Shard]:
    for piece in split_columns(columns, max_bytes=buffer.batch_bytes - BATCH_OVERHEAD_BYTES):
        yield Shard(partition, piece, message_bytes(piece) if piece.record_count == 1 else None)


def _is_list(column: Any) -> bool:
    return column is None or isinstance(column, list | tuple)


def _listed(name: str, column: Any) -> Entries | None:
    """A column as a list of bytes."""
    if _is_list(column):
        return column  # type: ignore[no-any-return]  # a list, a tuple or None
    buffers = _buffers(name, column)
    if buffers is None:
        return [None] * len(column)
    return Columns(len(column), 0, value_data=buffers.data, value_lengths=buffers.lengths).values()


def _from_buffers(
    values: Any, keys: Any, times: Any, headers: HeaderLists | None
) -> Columns | None:
    count = len(values if values is not None else keys)
    if count == 0:
        return None
    return columns_from_buffers(
        _buffers("values", values),
        _buffers("keys", keys),
        timestamps_ms=times,
        record_count=count,
        headers=headers,
    )


def _buffers(name: str, column: Any) -> BinaryBuffers | None:
    """A column as two buffers; None if every entry is null."""
    if column is None:
        return None
    if _is_from("pyarrow", column):
        return _from_arrow(name, column)
    if _is_from("numpy", column):
        return _from_numpy(name, column)
    listed = encode_columns(list(column), timestamps_ms=0)
    if listed.value_lengths is None:
        return None
    return BinaryBuffers(listed.value_data, listed.value_lengths)


def _is_from(package: str, value: object) -> bool:
    """Whether an object's class comes from a package, without importing that."""
    return type(value).__module__.partition(".")[0] == package


def _from_arrow(name: str, column: Any) -> BinaryBuffers | None:
    import numpy as np  # noqa: PLC0415 - only with Arrow data
    import pyarrow as pa  # noqa: PLC0415 - only with Arrow data

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.null_count == len(column):
        return None
    nulls = column.is_null() if column.null_count else None
    try:
        column = column.cast(pa.binary())
    except pa.ArrowException as error:
        raise MisuseError(f"{name} are {column.type}; give binary or string arrays") from error
    if nulls is not None:
        column = column.fill_null(b"")  # so that no bytes hide behind a null
    _, offsets_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(column) + 1, column.offset * 4)
    lengths = np.diff(offsets)
    if nulls is not None:
        lengths[nulls.to_numpy(zero_copy_only=False)] = -1
    data = memoryview(b"") if data_buffer is None else memoryview(data_buffer).cast("B")
    return BinaryBuffers(data[offsets[0] : offsets[-1]], lengths.data)


def _from_numpy(name: str, column: Any) -> BinaryBuffers | None:
    import numpy as np  # noqa: PLC0415 - only with NumPy data

    if column.dtype == np.uint8 and column.ndim == 2:
        data = np.ascontiguousarray(column)
        lengths = np.full(len(data), data.shape[1], np.int32)
        return BinaryBuffers(data.data.cast("B"), lengths.data)
    if column.dtype.kind in "SO" and column.ndim == 1:
        return _buffers(name, column.tolist())
    raise MisuseError(
        f"{name} are a NumPy array of {column.dtype} with {column.ndim} dimensions; give one of "
        "bytes (dtype 'S' or object), or a two-dimensional uint8 array with a row per record"
    )


def _times(topic: str, given: Any) -> Any:
    """Timestamps as `encode_columns` takes them."""
    if not hasattr(given, "__len__"):
        return checked_timestamp(topic, given)
    if _is_from("pyarrow", given):
        import pyarrow as pa  # noqa: PLC0415 - only with Arrow data

        if isinstance(given, pa.ChunkedArray):
            given = given.combine_chunks()
        if pa.types.is_timestamp(given.type):
            given = given.cast(pa.timestamp("ms", tz=given.type.tz), safe=False)
        return given.cast(pa.int64()).to_numpy(zero_copy_only=False)
    if _is_from("numpy", given) and given.dtype.kind == "M":
        return given.astype("datetime64[ms]").astype("int64")
    return given
