"""One number for a sequence of records: equal records in equal order have equal numbers.

CRC-32C over every record's timestamp, key, value and headers, each with its length, so that no
two sequences are the same bytes. It finds what was lost, doubled, reordered or changed by mistake;
it is no protection against an attacker.
"""

import struct
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Final

import google_crc32c

from penstock.core.columns import Header
from penstock.migration.model import Rows

_HEAD: Final = struct.Struct("<qiii")
_PAIR: Final = struct.Struct("<ii")
_NULL: Final = -1


def extended(digest: int, rows: Rows) -> int:
    """The digest of what `digest` stands for (0: of nothing), followed by these rows."""
    lengths = (_lengths(rows.keys), _lengths(rows.values))
    keys, values = _texts(rows.keys), _texts(rows.values)
    if any(rows.headers):
        parts = _with_headers(rows, *lengths, keys, values)
    else:
        heads = map(_HEAD.pack, rows.timestamps_ms, *lengths, repeat(0))
        parts = list(chain.from_iterable(zip(heads, keys, values, strict=False)))
    return int(google_crc32c.extend(digest, b"".join(parts)))


def _lengths(column: Sequence[bytes | None]) -> list[int]:
    if None in column:
        return [_NULL if entry is None else len(entry) for entry in column]
    return list(map(len, column))  # type: ignore[arg-type]  # there is no None


def _texts(column: Sequence[bytes | None]) -> Sequence[bytes]:
    if None in column:
        return [entry or b"" for entry in column]
    return column  # type: ignore[return-value]  # there is no None


def _with_headers(
    rows: Rows,
    key_bytes: list[int],
    value_bytes: list[int],
    keys: Sequence[bytes],
    values: Sequence[bytes],
) -> list[bytes]:
    parts: list[bytes] = []
    for index, headers in enumerate(rows.headers):
        head = (rows.timestamps_ms[index], key_bytes[index], value_bytes[index], len(headers or ()))
        parts += (_HEAD.pack(*head), keys[index], values[index], *_of_headers(headers or ()))
    return parts


def _of_headers(headers: Sequence[Header]) -> list[bytes]:
    parts = []
    for name, value in headers:
        text = name.encode()
        parts += [_PAIR.pack(len(text), _NULL if value is None else len(value)), text, value or b""]
    return parts
