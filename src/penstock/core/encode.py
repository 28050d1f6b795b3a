"""Creates columns from lists of bytes, or from buffers that are already columnar.

Lists are joined and measured by loops in C (`bytes.join`, `map`); only a null in a list costs a
Python step per record. Buffers (Arrow, NumPy) are used unchanged: no record is touched.
Wrong input raises MisuseError naming the column, the index and the type seen, before
anything is built. No limits on sizes apply yet; `penstock.core.records.build_batch` has them.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from operator import index, sub
from typing import TYPE_CHECKING

from penstock.core.columns import NO_DATA, NULL, Columns, Header, data_bytes
from penstock.core.limits import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from penstock.errors import ErrorCode, MisuseError

if TYPE_CHECKING:
    from typing_extensions import Buffer

Entries = Sequence[bytes | None]
HeaderLists = Sequence[Sequence[Header] | None]


@dataclass(frozen=True, slots=True)
class BinaryBuffers:
    """A binary column as two buffers, as in `Columns`; create it with `binary_buffers`."""

    data: memoryview
    lengths: memoryview


def encode_columns(
    values: Entries,
    keys: Entries | None = None,
    *,
    timestamps_ms: "int | Sequence[int] | Buffer",
    headers: HeaderLists | None = None,
) -> Columns:
    """Columns from a list per column.

    Args:
        values: An entry per record, at least one; None = null, which is not b"".
        keys: As `values`; None = every key is null.
        timestamps_ms: One for all, or one per record (also a buffer of int64), in ms since
            1970-01-01 UTC, from MIN_TIMESTAMP_MS to MAX_TIMESTAMP_MS.
        headers: Per record its (name, value) pairs; None = none. Names may repeat.

    Raises MisuseError (INVALID_TIMESTAMP for timestamps); nothing is built then.
    """
    try:
        count = len(values)
    except TypeError as error:
        raise MisuseError(f"values must be a list or other sequence ({error})") from error
    first, deltas = _timestamps(timestamps_ms, count)
    _check_count("keys", count if keys is None else len(keys), count)
    value_data, value_lengths = _join("values", values)
    key_data, key_lengths = (NO_DATA, None) if keys is None else _join("keys", keys)
    columns = Columns(
        record_count=count,
        first_timestamp_ms=first,
        value_data=value_data,
        value_lengths=value_lengths,
        key_data=key_data,
        key_lengths=key_lengths,
        timestamp_deltas_ms=deltas,
    )
    return columns if headers is None else _with_headers(columns, headers)


def columns_from_buffers(
    values: BinaryBuffers | None,
    keys: BinaryBuffers | None = None,
    *,
    timestamps_ms: "int | Sequence[int] | Buffer",
    record_count: int | None = None,
    headers: HeaderLists | None = None,
) -> Columns:
    """Columns from buffers, without touching a record.

    Args:
        values: From `binary_buffers`; None = every value is null.
        keys: As `values`.
        timestamps_ms: One for all, or int64 per record.
        record_count: Needed only if both columns are None.
        headers: As in `encode_columns`.

    Raises MisuseError (INVALID_TIMESTAMP for timestamps). The buffers must not change as long
    as the columns are in use.
    """
    if record_count is None:
        column = values or keys
        record_count = 0 if column is None else len(column.lengths)
    first, deltas = _timestamps(timestamps_ms, record_count)
    for name, given in (("values", values), ("keys", keys)):
        _check_count(name, record_count if given is None else len(given.lengths), record_count)
    columns = Columns(
        record_count=record_count,
        first_timestamp_ms=first,
        value_data=NO_DATA if values is None else values.data,
        value_lengths=None if values is None else values.lengths,
        key_data=NO_DATA if keys is None else keys.data,
        key_lengths=None if keys is None else keys.lengths,
        timestamp_deltas_ms=deltas,
    )
    return columns if headers is None else _with_headers(columns, headers)


def binary_buffers(
    data: "Buffer", *, lengths: "Buffer | None" = None, offsets: "Buffer | None" = None
) -> BinaryBuffers:
    """A binary column from its data and either lengths or offsets.

    Args:
        data: All entries, one after another.
        lengths: int32 per entry, -1 = null, 0 = empty; must add up to the size of `data`.
        offsets: int32 or int64, one more than entries: entry i is data[offsets[i]:offsets[i+1]],
            as Arrow has it (slice `offsets` for a slice of the array, keep `data`). No entry is
            null; for nulls give lengths.

    Raises MisuseError if the buffers do not agree.
    """
    view = _one_dimension("data", data).cast("B")
    if (lengths is None) == (offsets is None):
        raise MisuseError("give either lengths or offsets of a column, not both or neither")
    if offsets is not None:
        ends = _integers("offsets", offsets, (4, 8)).tolist()
        if not ends or not 0 <= ends[0] <= ends[-1] <= len(view):
            raise MisuseError(
                f"offsets run from {ends[:1]} to {ends[-1:]}, but the data has {len(view)} bytes"
            )
        try:
            sizes = array("i", map(sub, islice(ends, 1, None), ends))
        except OverflowError as error:
            raise _too_large("entries") from error
        if min(sizes, default=0) < 0:
            raise MisuseError("offsets decrease; each must be at least the previous one")
        return BinaryBuffers(view[ends[0] : ends[-1]], memoryview(sizes))
    assert lengths is not None
    given = _integers("lengths", lengths, (4,))
    listed = given.tolist()
    if min(listed, default=0) < NULL or data_bytes(listed) != len(view):
        raise MisuseError(
            f"lengths (smallest {min(listed, default=0)}) add up to {data_bytes(listed)} bytes, "
            f"but the data has {len(view)}; a null entry has length -1, and none can have less"
        )
    return BinaryBuffers(view, given)


def _join(name: str, entries: Entries) -> tuple[memoryview, memoryview | None]:
    """Data and lengths; no lengths if every entry is null. Raises MisuseError."""
    try:
        data, lengths = _joined(entries)
    except TypeError as error:
        for at, entry in enumerate(entries):
            if not isinstance(entry, bytes | bytearray | memoryview | None):
                raise MisuseError(
                    f"{name}[{at}] is {type(entry).__name__}; give bytes, or None for null"
                ) from None
        raise MisuseError(f"{name} cannot be joined to bytes ({error})") from error
    except (OverflowError, MemoryError) as error:
        raise _too_large(name) from error
    if data_bytes(lengths) != len(data):
        raise MisuseError(
            f"{name} contain memoryviews with items larger than a byte; cast them to 'B'"
        )
    if lengths.count(NULL) == len(lengths):
        return NO_DATA, None
    return memoryview(data), memoryview(lengths)


def _joined(entries: Entries) -> "tuple[bytes, array[int]]":
    try:
        data = b"".join(entries)  # type: ignore[arg-type]  # a null raises TypeError: see below
        return data, array("i", [len(entry) for entry in entries])  # type: ignore[arg-type]
    except TypeError:
        data = b"".join([entry for entry in entries if entry is not None])
        return data, array("i", [NULL if entry is None else len(entry) for entry in entries])


def _timestamps(given: "int | Sequence[int] | Buffer", count: int) -> tuple[int, memoryview | None]:
    """The first timestamp and the differences to it, None if all are equal."""
    if count < 1:
        raise MisuseError("no records; a batch must have at least one")
    try:
        times = [index(given)]  # type: ignore[arg-type]  # one for all, of any integer type
    except TypeError:
        times = _time_list(given)  # type: ignore[arg-type]  # not an integer
        _check_count("timestamps_ms", len(times), count)
    first, smallest, largest = times[0], min(times), max(times)
    if not MIN_TIMESTAMP_MS <= smallest <= largest <= MAX_TIMESTAMP_MS:
        raise MisuseError(
            f"timestamps run from {smallest} to {largest} ms; they must be {MIN_TIMESTAMP_MS} to "
            f"{MAX_TIMESTAMP_MS} (the years 1 to 9999); are they in milliseconds?",
            ErrorCode.INVALID_TIMESTAMP,
        )
    if smallest == largest:
        return first, None
    return first, memoryview(array("q", [time - first for time in times]))


def _time_list(given: "Sequence[int] | Buffer") -> list[int]:
    try:
        view = memoryview(given)  # type: ignore[arg-type]  # a sequence raises TypeError
    except TypeError:
        pass
    else:
        return _integers("timestamps_ms", view, (8,)).tolist()
    try:
        return array("q", list(given)).tolist()  # type: ignore[arg-type]  # no buffer got here
    except (TypeError, OverflowError) as error:
        raise MisuseError(
            f"timestamps_ms must be integers of at most 64 bits ({error})",
            ErrorCode.INVALID_TIMESTAMP,
        ) from error


def _with_headers(columns: Columns, headers: HeaderLists) -> Columns:
    """The columns with these headers; the same columns if no record has headers."""
    _check_count("headers", len(headers), columns.record_count)
    try:
        counts = [len(given) if given else 0 for given in headers]
        pairs = [(name, value) for name, value in chain.from_iterable(filter(None, headers))]
        names = [name.encode() for name, _ in pairs]
    except (TypeError, ValueError, AttributeError) as error:
        raise MisuseError(
            "headers must be (str, bytes or None) pairs per record, with names in valid "
            f"UTF-8 ({error})"
        ) from error
    if not pairs:
        return columns
    key_data, key_lengths = _join("header names", names)
    value_data, value_lengths = _join("header values", [value for _, value in pairs])
    if value_lengths is None:
        # Unlike keys and values, header values have no absent form: every header has a length.
        value_lengths = memoryview(array("i", [NULL]) * len(pairs))
    return replace(
        columns,
        header_counts=memoryview(array("i", counts)),
        header_key_data=key_data,
        header_key_lengths=key_lengths,
        header_value_data=value_data,
        header_value_lengths=value_lengths,
    )


def _integers(name: str, buffer: "Buffer", sizes: tuple[int, ...]) -> memoryview:
    """The buffer as signed integers of one of these sizes; bytes pass if only one size is possible.

    Raises MisuseError.
    """
    view = _one_dimension(name, buffer)
    raw = view.format in {"B", "b", "c"} and len(sizes) == 1 and view.nbytes % sizes[0] == 0
    if not raw and (view.format not in {"i", "l", "q"} or view.itemsize not in sizes):
        kinds = " or ".join(f"int{size * 8}" for size in sizes)
        raise MisuseError(
            f"{name} have format {view.format!r} of {view.itemsize} bytes; "
            f"give {kinds} in this machine's byte order"
        )
    item_bytes = sizes[0] if raw else view.itemsize
    return view.cast("B").cast("i" if item_bytes == 4 else "q")


def _one_dimension(name: str, buffer: "Buffer") -> memoryview:
    view = memoryview(buffer)
    if not view.c_contiguous or view.ndim != 1:
        raise MisuseError(f"{name} must be contiguous and one-dimensional; copy it first")
    return view


def _check_count(name: str, seen: int, expected: int) -> None:
    if seen != expected:
        raise MisuseError(f"{name} has {seen} entries for {expected} records")


def _too_large(name: str) -> MisuseError:
    return MisuseError(
        f"{name} are too large to encode at once; send fewer records", ErrorCode.RECORD_TOO_LARGE
    )
