"""The `Records` protobuf message (`records.proto`), written and read by hand.

All its fields are length-delimited: bytes, or packed fixed-width integers. So writing is a
join of tag, length and buffer, and reading a loop that cuts a memoryview into pieces without
copying any. `core` stays free of protobuf, and both directions run at memory speed.

The bytes equal what generated code serializes (fields in order of number, empty ones left
out); a test compares them. The reader takes fields in any order and skips unknown ones, but
refuses a known field that comes twice or unpacked: proto3 would allow both, and both would cost
every reader a copy. Next: `penstock.core.records` checks the content of the columns.
"""

import sys
from array import array
from typing import Final

from penstock.core.columns import NO_DATA, Columns
from penstock.errors import ClusterError, ErrorCode

# Column name and bytes per item (1: bytes field) by field number.
_FIELDS: Final = {
    1: ("key_data", 1),
    2: ("key_lengths", 4),
    3: ("value_data", 1),
    4: ("value_lengths", 4),
    5: ("timestamp_deltas_ms", 8),
    6: ("header_counts", 4),
    7: ("header_key_data", 1),
    8: ("header_key_lengths", 4),
    9: ("header_value_data", 1),
    10: ("header_value_lengths", 4),
    11: ("offset_deltas", 4),
}
_LENGTH_DELIMITED: Final = 2
_FIXED_BYTES: Final = {1: 8, 5: 4}
MAX_FIELDS: Final = 64
"""Limit on fields, known and unknown; it bounds the reader's loop."""


def encode_message(columns: Columns) -> bytes:
    """The serialized `Records` message of these columns."""
    parts: list[bytes | memoryview] = []
    for number, (name, item_bytes) in _FIELDS.items():
        data: memoryview | None = getattr(columns, name)
        if data is None or data.nbytes == 0:
            continue
        parts.append(_varint(number << 3 | _LENGTH_DELIMITED))
        parts.append(_varint(data.nbytes))
        parts.append(data if item_bytes == 1 else little_endian(data, sys.byteorder))
    return b"".join(parts)


def message_bytes(columns: Columns) -> int:
    """The value of `len(encode_message(columns))`."""
    total = 0
    for name, _ in _FIELDS.values():
        data: memoryview | None = getattr(columns, name)
        if data is not None and data.nbytes:
            total += 1 + len(_varint(data.nbytes)) + data.nbytes
    return total


def decode_message(message: bytes) -> dict[str, memoryview]:
    """The columns in this message by their name in `Columns`; empty and absent ones are omitted.

    The views share the message's memory and have format "B", "i" or "q".
    Raises ClusterError(CORRUPT_BATCH).
    """
    view = memoryview(message)
    found: dict[str, memoryview] = {}
    position = 0
    for _ in range(MAX_FIELDS):
        if position == len(view):
            return {name: data for name, data in found.items() if data.nbytes}
        tag, position = _read_varint(view, position)
        number, wire_type = tag >> 3, tag & 7
        end, position = _field_end(view, number, wire_type, position)
        if number not in _FIELDS:
            position = end
            continue
        name, item_bytes = _FIELDS[number]
        if wire_type != _LENGTH_DELIMITED:
            raise corrupt(f"field {number} ({name}) has wire type {wire_type}; it must be packed")
        if name in found:
            raise corrupt(f"field {number} ({name}) appears twice; write it once")
        found[name] = _column(name, view[position:end], item_bytes)
        position = end
    raise corrupt(f"more than {MAX_FIELDS} fields")


def corrupt(what: str) -> ClusterError:
    """The error for a payload that breaks the format."""
    return ClusterError(
        f"record batch payload is corrupt: {what}; build the batch again", ErrorCode.CORRUPT_BATCH
    )


def little_endian(data: memoryview, byte_order: str) -> memoryview:
    """Converts integers between this host's byte order and the wire; no copy on most hosts."""
    if byte_order == "little":
        return data
    swapped = array(data.format, data.tobytes())
    swapped.byteswap()
    return memoryview(swapped)


def _column(name: str, data: memoryview, item_bytes: int) -> memoryview:
    if item_bytes == 1:
        return data
    if data.nbytes % item_bytes:
        raise corrupt(f"{name} has {data.nbytes} bytes, not a multiple of {item_bytes}")
    if data.nbytes == 0:  # cast refuses it; empty fields are omitted in the end
        return NO_DATA
    return little_endian(data.cast("i" if item_bytes == 4 else "q"), sys.byteorder)


def _field_end(view: memoryview, number: int, wire_type: int, position: int) -> tuple[int, int]:
    """Where the field ends, and where its content starts (after the length, if it has one)."""
    if number == 0:
        raise corrupt(f"field number 0 before byte {position}")
    if wire_type == _LENGTH_DELIMITED:
        size, position = _read_varint(view, position)
        end = position + size
    elif wire_type == 0:
        _, end = _read_varint(view, position)
    elif wire_type in _FIXED_BYTES:
        end = position + _FIXED_BYTES[wire_type]
    else:
        raise corrupt(f"field {number} has wire type {wire_type}, which is not supported")
    if end > len(view):
        raise corrupt(
            f"field {number} ends at byte {end}, but the message has {len(view)}; it is truncated"
        )
    return end, position


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(view: memoryview, position: int) -> tuple[int, int]:
    """The number at `position` and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if position == len(view):
            raise corrupt(f"it ends inside a number, at byte {position}")
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise corrupt(f"a number before byte {position} has more than 10 bytes")
