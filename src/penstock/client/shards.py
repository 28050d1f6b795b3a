"""Whole columns to batches: no Python step per record unless keys decide the partition.

    lists, NumPy, Arrow ──▶ Columns ──▶ [by key: one Columns per partition] ──▶ pieces that fit

Arrow buffers are taken as they are. With keys, each key is hashed (`core.partitioner`) and the
rows of a partition are gathered by lists, in the order given. Runs on the calling thread, and
touches nothing of the producer but the topic's limits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from time import time_ns
from typing import Any, TypeVar

from penstock.client.accumulator import BATCH_OVERHEAD_BYTES, TopicBuffer
from penstock.core.columns import Columns, Header
from penstock.core.records import BinaryBuffers, columns_from_buffers, encode_columns
from penstock.core.records_wire import message_bytes
from penstock.core.slicing import split_columns
from penstock.errors import MisuseError

Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class Shard:
    """Columns that fit into one batch. `partition` None = the next one in turn."""

    partition: int | None
    columns: Columns


def shard_columns(
    buffer: TopicBuffer,
    values: Any,
    keys: Any,
    *,
    timestamps_ms: Any,
    partition: int | None,
    headers: Sequence[Sequence[Header] | None] | None,
) -> list[Shard]:
    """The pieces to send, in order. Raises MisuseError (RECORD_TOO_LARGE) before any is queued."""
    columns = to_columns(values, keys, timestamps_ms, headers)
    if columns is None:
        return []
    parts: list[tuple[int | None, Columns]]
    if partition is not None:
        buffer.queue(partition)
        parts = [(partition, columns)]
    elif keys is None and not buffer.has_partitioner:
        parts = [(None, columns)]
    else:
        parts = list(_by_partition(buffer, columns))
    return [Shard(where, piece) for where, part in parts for piece in _pieces(buffer, part)]


def to_columns(
    values: Any,
    keys: Any,
    timestamps_ms: Any,
    headers: Sequence[Sequence[Header] | None] | None,
) -> Columns | None:
    """Columns of whatever was given; None for no records at all. Raises MisuseError."""
    given = values if values is not None else keys
    if given is None:
        raise MisuseError("send_columns needs values or keys")
    count = len(given)
    if count == 0:
        return None
    times = time_ns() // 1_000_000 if timestamps_ms is None else _times(timestamps_ms)
    if isinstance(values, list | tuple | None) and isinstance(keys, list | tuple | None):
        return encode_columns(
            [None] * count if values is None else values,
            keys,
            timestamps_ms=times,
            headers=headers,
        )
    return columns_from_buffers(
        _buffers("values", values),
        _buffers("keys", keys),
        timestamps_ms=times,
        record_count=count,
        headers=headers,
    )


def _by_partition(buffer: TopicBuffer, columns: Columns) -> Iterator[tuple[int | None, Columns]]:
    """The rows of each partition, in the order given. Rows for any partition come as None."""
    keys, values = columns.keys(), columns.values()
    rows: dict[int | None, list[int]] = {}
    for index, partition in enumerate(map(buffer.partition_of, keys)):
        rows.setdefault(partition, []).append(index)
    if len(rows) == 1:
        yield next(iter(rows)), columns
        return
    times = columns.timestamps() if columns.timestamp_deltas_ms is not None else None
    headers = columns.headers() if columns.header_counts is not None else None
    for partition, indexes in rows.items():
        yield (
            partition,
            encode_columns(
                _rows(values, indexes),
                _rows(keys, indexes),
                timestamps_ms=(
                    columns.first_timestamp_ms if times is None else _rows(times, indexes)
                ),
                headers=None if headers is None else _rows(headers, indexes),
            ),
        )


def _rows(column: Sequence[Entry], indexes: list[int]) -> Sequence[Entry]:
    if len(indexes) == 1:
        return [column[indexes[0]]]
    rows: tuple[Entry, ...] = itemgetter(*indexes)(column)
    return rows


def _pieces(buffer: TopicBuffer, columns: Columns) -> Iterator[Columns]:
    for piece in split_columns(columns, max_bytes=buffer.batch_bytes - BATCH_OVERHEAD_BYTES):
        if piece.record_count == 1:
            buffer.check_record_size(message_bytes(piece))
        yield piece


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


def _times(given: Any) -> Any:
    """Timestamps as `encode_columns` takes them."""
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
