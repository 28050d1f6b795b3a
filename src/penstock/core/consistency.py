"""Whether the columns of a received message agree with each other and with the batch header.

The last step of `penstock.core.records.decode_batch`; before it, no length can be trusted. Every
rule is a sum, minimum or count over a whole column, in C; a column is only turned into a list after
its number of entries has passed its limit (I23). Errors name column, value and limit.
"""

from itertools import islice
from operator import lt

from penstock.core.columns import NULL, Columns, data_bytes
from penstock.core.limits import MAX_RECORDS, MIN_TIMESTAMP_MS
from penstock.core.records_wire import corrupt


def check_columns(columns: Columns, max_timestamp_ms: int) -> None:
    """Passes if the accessors of these columns cannot fail.

    Args:
        columns: As cut out of a message, with a record count within its limit.
        max_timestamp_ms: Its value in the batch header.

    Raises ClusterError(CORRUPT_BATCH).
    """
    count = columns.record_count
    _check_binary("key", columns.key_data, columns.key_lengths, count)
    _check_binary("value", columns.value_data, columns.value_lengths, count)
    _check_timestamps(columns, max_timestamp_ms)
    headers = _count_headers(columns.header_counts, count)
    _check_binary("header_key", columns.header_key_data, columns.header_key_lengths, headers, 0)
    _check_binary("header_value", columns.header_value_data, columns.header_value_lengths, headers)
    if headers and (columns.header_key_lengths is None or columns.header_value_lengths is None):
        raise corrupt(f"{headers} headers without header_key_lengths or header_value_lengths")
    _check_names(columns)
    _check_offsets(columns)


def _check_offsets(columns: Columns) -> None:
    """Only a compacted batch lists the offsets of its records; they are checked one by one."""
    deltas = columns.offset_deltas
    if deltas is None:
        return
    if not columns.covered_offsets:
        raise corrupt("offset_deltas in a batch that is not flagged as compacted")
    listed = deltas.tolist()
    if listed[0] < 0 or listed[-1] >= columns.covered_offsets:
        raise corrupt(
            f"offset_deltas run from {listed[0]} to {listed[-1]}, but the batch covers "
            f"{columns.covered_offsets} offsets"
        )
    if not all(map(lt, listed, islice(listed, 1, None))):
        raise corrupt("offset_deltas are not in ascending order")


def _check_binary(
    name: str, data: memoryview, lengths: memoryview | None, count: int, smallest: int = NULL
) -> None:
    if lengths is None:
        if data.nbytes:
            raise corrupt(f"{name}_data has {data.nbytes} bytes without {name}_lengths")
        return
    if len(lengths) != count:
        raise corrupt(f"{name}_lengths has {len(lengths)} entries, expected {count}")
    sizes = lengths.tolist()
    if min(sizes) < smallest:
        at = next(index for index, size in enumerate(sizes) if size < smallest)
        raise corrupt(f"{name}_lengths[{at}] is {sizes[at]}; it must be at least {smallest}")
    total = data_bytes(sizes)
    if total != data.nbytes:
        raise corrupt(f"{name}_lengths add up to {total}, but {name}_data has {data.nbytes} bytes")


def _check_timestamps(columns: Columns, max_timestamp_ms: int) -> None:
    first, deltas = columns.first_timestamp_ms, columns.timestamp_deltas_ms
    listed = [0]
    if deltas is not None:
        if len(deltas) != columns.record_count:
            raise corrupt(
                f"timestamp_deltas_ms has {len(deltas)} entries, expected {columns.record_count}"
            )
        listed = deltas.tolist()
    if listed[0] != 0:
        raise corrupt(f"timestamp_deltas_ms[0] is {listed[0]}; it must be 0")
    if first + max(listed) != max_timestamp_ms:
        raise corrupt(
            f"largest timestamp is {first + max(listed)}, but the header says {max_timestamp_ms}"
        )
    if first + min(listed) < MIN_TIMESTAMP_MS:
        raise corrupt(
            f"smallest timestamp is {first + min(listed)}; it must be at least {MIN_TIMESTAMP_MS}"
        )


def _count_headers(counts: memoryview | None, record_count: int) -> int:
    if counts is None:
        return 0
    if len(counts) != record_count:
        raise corrupt(f"header_counts has {len(counts)} entries, expected {record_count}")
    listed = counts.tolist()
    if min(listed) < 0:
        at = next(index for index, value in enumerate(listed) if value < 0)
        raise corrupt(f"header_counts[{at}] is {listed[at]}; it must be at least 0")
    total = sum(listed)
    if total > MAX_RECORDS:
        raise corrupt(f"{total} headers in one batch, the limit is {MAX_RECORDS}")
    return total


def _check_names(columns: Columns) -> None:
    """Header names are UTF-8, each separately: no character spans two names."""
    if columns.header_key_lengths is None:
        return
    data = columns.header_key_data.tobytes()
    if data.isascii():
        return
    position = 0
    for index, size in enumerate(columns.header_key_lengths.tolist()):
        name = data[position : position + size]
        try:
            name.decode()
        except UnicodeDecodeError as error:
            raise corrupt(f"name of header {index}, {name[:32]!r}, is not UTF-8") from error
        position += size
