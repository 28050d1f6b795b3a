"""Equal records in equal order have equal digests, however they are cut; others have not."""

import struct
from typing import Any

import google_crc32c
import pytest
from support.copied import row, rows_of

from penstock.migration.digest import extended

ROWS = [
    row("a", b"k"),
    (None, None, 5, None),
    (b"", b"", -1, []),
    (b"k", b"v", 7, [("h", b"1"), ("null", None), ("", b"")]),
    row("b"),
]


def test_it_is_the_checksum_of_lengths_and_bytes() -> None:
    head, pair = struct.Struct("<qiii"), struct.Struct("<ii")
    parts = [
        head.pack(1_700_000_000_000, 1, 1, 0), b"ka", head.pack(5, -1, -1, 0),
        head.pack(-1, 0, 0, 0), head.pack(7, 1, 1, 3), b"kv", pair.pack(1, 1), b"h1",
        pair.pack(4, -1), b"null", pair.pack(0, 0), head.pack(1_700_000_000_000, -1, 1, 0), b"b",
    ]  # fmt: skip
    assert extended(0, rows_of(0, *ROWS)) == google_crc32c.value(b"".join(parts))


@pytest.mark.parametrize("cut", range(1, len(ROWS)))
def test_it_does_not_matter_how_rows_are_cut(cut: int) -> None:
    whole = rows_of(0, *ROWS)
    parts = extended(extended(0, whole.cut(0, cut)), whole.cut(cut, len(ROWS)))
    assert parts == extended(0, whole)


@pytest.mark.parametrize(
    "other",
    [
        (b"k", b"w", 7, None), (b"kv", b"", 7, None), (None, b"v", 7, None),
        (b"k", b"v", 8, None), (b"k", b"v", 7, [("h", None)]), (b"k", None, 7, None),
    ],
)  # fmt: skip
def test_other_records_have_other_digests(other: Any) -> None:
    assert extended(0, rows_of(0, (b"k", b"v", 7, None))) != extended(0, rows_of(0, other))
