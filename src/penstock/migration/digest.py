"""One number for a sequence of records: equal records in equal order have equal numbers.

CRC-32C over every record's timestamp, key, value and headers, each with its length, so that no
two sequences are the same bytes. It finds what was lost, doubled, reordered or changed by mistake;
it is no protection against an attacker.
"""

import struct
from collections.abc import Sequence
from typing import Final

import google_crc32c

from penstock.core.columns import Header
from penstock.migration.model import Rows

_HEAD: Final = struct.Struct("<qiii")
_PAIR: Final = struct.Struct("<ii")
_NULL: Final = -1


def extended(digest: int, rows: Rows) -> int:
    """The digest of what `digest` stands for (0: of nothing), followed by these rows."""
    parts = []
    columns = (rows.timestamps_ms, rows.keys, rows.values, rows.headers)
    for timestamp_ms, key, value, headers in zip(*columns, strict=True):
        key_bytes = _NULL if key is None else len(key)
        value_bytes = _NULL if value is None else len(value)
        parts.append(_HEAD.pack(timestamp_ms, key_bytes, value_bytes, len(headers or ())))
        if key:
            parts.append(key)
        if value:
            parts.append(value)
        if headers:
            parts += _of_headers(headers)
    return int(google_crc32c.extend(digest, b"".join(parts)))


def _of_headers(headers: Sequence[Header]) -> list[bytes]:
    parts = []
    for name, value in headers:
        text = name.encode()
        parts += [_PAIR.pack(len(text), _NULL if value is None else len(value)), text, value or b""]
    return parts
