"""Cut columns hold the same records, and fit."""

import random

import pytest

from penstock.core.columns import Columns, Record
from penstock.core.records import build_batch, decode_batch, encode_columns
from penstock.core.records_wire import message_bytes
from penstock.core.slicing import split_columns

KINDS = ["all", "values", "keys", "nothing", "same time", "few headers"]


def sample(kind: str, seed: int, count: int = 60) -> Columns:
    print(f"seed {seed}")
    chance = random.Random(seed)

    def entry() -> bytes | None:
        return None if chance.random() < 0.3 else chance.randbytes(chance.choice([0, 1, 9, 40]))

    entries = [entry() for _ in range(count)]
    stamps = [chance.choice([5, chance.randrange(1000)]) for _ in range(count)]
    headers = [[("name", entry())] * chance.randrange(3) for _ in range(count)]
    match kind:
        case "all":
            return encode_columns(entries, entries[::-1], timestamps_ms=stamps, headers=headers)
        case "values":
            return encode_columns([b"abc"] * count, timestamps_ms=stamps)
        case "keys":
            return encode_columns([None] * count, entries, timestamps_ms=stamps)
        case "nothing":
            return encode_columns([None] * count, timestamps_ms=4)
        case "same time":
            return encode_columns(entries, timestamps_ms=7, headers=headers)
        case _:
            rare = [[("a", b"b")], *[None] * (count - 1)]
            return encode_columns(entries, timestamps_ms=7, headers=rare)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("max_bytes", "max_records"), [(200, 1000), (5000, 7), (1, 1000), (400, 9)]
)
def test_pieces_fit_and_hold_every_record_in_order(
    kind: str, max_bytes: int, max_records: int
) -> None:
    columns = sample(kind, 42)
    pieces = list(split_columns(columns, max_bytes=max_bytes, max_records=max_records))
    assert [record for piece in pieces for record in piece.records()] == list(columns.records())
    assert max(piece.record_count for piece in pieces) <= max_records
    too_large = [piece for piece in pieces if message_bytes(piece) > max_bytes]
    assert all(piece.record_count == 1 for piece in too_large)
    for piece in pieces:  # in a batch, offsets count from 0 until a broker stamps it
        unstamped = [Record(at, *record[1:]) for at, record in enumerate(piece.records())]
        assert list(decode_batch(build_batch(piece)).records()) == unstamped


def test_what_fits_is_not_cut() -> None:
    columns = sample("all", 1)
    assert list(split_columns(columns, max_bytes=message_bytes(columns))) == [columns]
    assert len(list(split_columns(columns, max_bytes=message_bytes(columns) - 1))) > 1


def test_pieces_are_well_filled() -> None:
    columns = encode_columns([b"x" * 100] * 10_000, timestamps_ms=0)
    pieces = list(split_columns(columns, max_bytes=100_000))
    assert len(pieces) == 11
    assert all(message_bytes(piece) > 99_000 for piece in pieces[:-1])
