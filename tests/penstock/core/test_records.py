"""Records into columns, columns into batches, and back; and what a caller may not give."""

from array import array
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.batch import BatchFlags, Codec
from penstock.core.columns import Columns, Record
from penstock.core.records import (
    MAX_RECORDS,
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    binary_buffers,
    build_batch,
    check_batch,
    check_size,
    columns_from_buffers,
    decode_batch,
    encode_columns,
)
from penstock.core.types import LeaderEpoch, Offset, ProducerId
from penstock.errors import ErrorCode, MisuseError

NOON = 1_700_000_000_000
CODECS = pytest.mark.parametrize("codec", list(Codec))


def everything() -> Columns:
    return encode_columns(
        [b"one", None, b"", b"four" * 50],
        [None, b"k", b"", b"k"],
        timestamps_ms=[NOON, NOON - 5, NOON + 7, NOON],
        headers=[[("a", b"1"), ("ü", None)], None, [], [("a", b""), ("a", b"2")]],
    )


@CODECS
def test_what_was_encoded_comes_back(codec: Codec) -> None:
    columns = everything()
    batch = build_batch(columns, codec=codec)
    check_batch(batch)
    check_size(batch, batch.size_bytes)
    opened = decode_batch(batch)
    assert opened == columns
    assert opened.values() == [b"one", None, b"", b"four" * 50]
    assert opened.keys() == [None, b"k", b"", b"k"]
    assert opened.timestamps() == [NOON, NOON - 5, NOON + 7, NOON]
    assert opened.headers() == [
        (("a", b"1"), ("ü", None)),
        (),
        (),
        (("a", b""), ("a", b"2")),
    ]
    assert batch.header.max_timestamp_ms == NOON + 7
    assert batch.header.first_timestamp_ms == NOON


def test_records_can_be_read_one_by_one_and_at_random() -> None:
    batch = build_batch(everything()).stamped(Offset(100), LeaderEpoch(3), 0)
    columns = decode_batch(batch)
    records = list(columns.records())
    assert records[1] == Record(101, NOON - 5, b"k", None, ())
    assert records[0].headers == (("a", b"1"), ("ü", None))
    assert records == [columns.record(index) for index in range(4)]
    assert [record.offset for record in records] == list(columns.offsets())


@pytest.mark.parametrize("index", [-1, 4])
def test_a_record_that_is_not_there_is_an_index_error(index: int) -> None:
    with pytest.raises(IndexError, match=f"record {index} of a batch of 4"):
        everything().record(index)


def test_append_time_replaces_every_timestamp() -> None:
    batch = build_batch(everything()).stamped(Offset(0), LeaderEpoch(1), NOON + 99)
    columns = decode_batch(batch)
    assert columns.timestamps() == [NOON + 99] * 4
    assert columns.record(1).timestamp_ms == NOON + 99
    assert columns.max_timestamp_ms == NOON + 7


def test_absent_columns_are_all_null_and_take_no_bytes() -> None:
    columns = encode_columns([None, None], [None, None], timestamps_ms=NOON, headers=[None, []])
    batch = build_batch(columns)
    assert batch.payload == b""
    opened = decode_batch(batch)
    assert list(opened.records()) == [
        Record(0, NOON, None, None, ()),
        Record(1, NOON, None, None, ()),
    ]
    assert opened.headers() == [(), ()]
    assert opened.timestamps() == [NOON, NOON]


def test_one_timestamp_for_all_equals_the_same_timestamp_for_each() -> None:
    alike: list[Any] = [
        NOON,
        [NOON] * 2,
        np.int64(NOON),
        np.full(2, NOON),
        (NOON, np.int64(NOON)),
    ]
    for stamps in alike:
        columns = encode_columns([b"a", b"b"], timestamps_ms=stamps)
        assert columns.timestamp_deltas_ms is None
        assert columns.first_timestamp_ms == NOON
        assert type(columns.first_timestamp_ms) is int


def test_headers_of_null_values_only_survive() -> None:
    columns = encode_columns([b"v"], timestamps_ms=0, headers=[[("", None), ("b", None)]])
    assert decode_batch(build_batch(columns)).headers() == [(("", None), ("b", None))]


def test_every_bytes_like_type_is_a_value() -> None:
    values: list[Any] = [b"a", bytearray(b"b"), memoryview(b"c")]
    columns = encode_columns(values, timestamps_ms=0)
    assert columns.values() == [b"a", b"b", b"c"]


def test_producer_fields_and_flags_are_sealed() -> None:
    header = build_batch(
        everything(),
        producer_id=ProducerId(7),
        producer_epoch=2,
        base_sequence=40,
        flags=BatchFlags.TRANSACTIONAL,
    ).header
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 40)
    assert header.flags is BatchFlags.TRANSACTIONAL
    assert header.record_count == 4


# Buffers


def test_arrow_arrays_become_columns_without_a_copy() -> None:
    values = pa.array([b"skipped", b"one", b"", b"three"], pa.binary())[1:]
    _, offsets, data = values.buffers()
    ends: Any = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    stamps: Any = np.array([3, 2, 1]) + NOON
    columns = columns_from_buffers(binary_buffers(data, offsets=ends), timestamps_ms=stamps)
    assert columns.values() == [b"one", b"", b"three"]
    assert columns.timestamps() == [NOON + 3, NOON + 2, NOON + 1]
    assert columns.value_data.obj is data


def test_lengths_carry_nulls_and_large_offsets_are_taken() -> None:
    values = binary_buffers(b"onethree", lengths=array("i", [3, -1, 0, 5]))
    keys = binary_buffers(b"xabcd", offsets=array("q", [1, 2, 3, 4, 5]))
    columns = columns_from_buffers(
        values, keys, timestamps_ms=NOON, headers=[None, [("h", b"1")], None, None]
    )
    assert columns == encode_columns(
        [b"one", None, b"", b"three"],
        [b"a", b"b", b"c", b"d"],
        timestamps_ms=NOON,
        headers=[None, [("h", b"1")], None, None],
    )


def test_buffers_may_be_raw_bytes_and_columns_missing() -> None:
    keys = binary_buffers(b"ab", lengths=array("i", [1, 1]).tobytes())
    assert columns_from_buffers(None, keys, timestamps_ms=0).values() == [None, None]
    assert columns_from_buffers(None, timestamps_ms=0, record_count=3).keys() == [None] * 3
    stamps = array("q", [1, 2]).tobytes()
    assert columns_from_buffers(None, keys, timestamps_ms=stamps).timestamps() == [1, 2]


@pytest.mark.parametrize(
    ("buffers", "message"),
    [
        ({}, "either lengths or offsets"),
        ({"lengths": array("i", [3]), "offsets": array("i", [0, 3])}, "either lengths or offsets"),
        ({"lengths": array("i", [2])}, "add up to 2 bytes, but the data has 3"),
        ({"lengths": array("i", [5, -2])}, r"smallest -2"),
        ({"lengths": array("q", [3])}, "format 'q' of 8 bytes; give int32"),
        ({"lengths": b"abc"}, "format 'B' of 1 bytes; give int32"),
        ({"offsets": array("I", [0, 3])}, "format 'I'"),
        ({"offsets": array("i", [0, 3]).tobytes()}, "give int32 or int64"),
        ({"offsets": array("i", [])}, r"run from \[\] to \[\]"),
        ({"offsets": array("i", [0, 4])}, r"run from \[0\] to \[4\], but the data has 3"),
        ({"offsets": array("i", [-1, 3])}, r"run from \[-1\]"),
        ({"offsets": array("i", [0, 3, 2, 3])}, "decrease"),
        ({"offsets": array("q", [0, 2**40, 3])}, "too large"),
        ({"offsets": np.arange(8, dtype=np.int32)[::2]}, "contiguous and one-dimensional"),
    ],
)
def test_buffers_that_do_not_agree_are_refused(buffers: dict[str, Any], message: str) -> None:
    with pytest.raises(MisuseError, match=message):
        binary_buffers(b"abc", **buffers)


# What a caller may not give


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": []}, "no records"),
        ({"values": ["text"]}, r"values\[0\] is str; give bytes, or None"),
        ({"values": [None, b"a", 5]}, r"values\[2\] is int"),
        ({"values": [b"a"], "keys": [b"a", b"b"]}, "keys has 2 entries for 1 records"),
        ({"values": [b"a"], "timestamps_ms": [1, 2]}, "timestamps_ms has 2 entries for 1"),
        ({"values": [b"a"], "timestamps_ms": [1.5]}, "must be integers"),
        ({"values": [b"a"], "timestamps_ms": [2**63]}, "must be integers of at most 64 bits"),
        ({"values": [b"a"], "timestamps_ms": 1.5}, "must be integers"),
        ({"values": [b"a"], "timestamps_ms": NOON * 1000}, "are they in milliseconds"),
        ({"values": [b"a"], "timestamps_ms": MIN_TIMESTAMP_MS - 1}, "are they in milliseconds"),
        ({"values": [b"a"] * 2, "timestamps_ms": [0, MAX_TIMESTAMP_MS + 1]}, "milliseconds"),
        ({"values": [b"a"], "headers": [None, None]}, "headers has 2 entries for 1 records"),
        ({"values": [b"a"], "headers": [[("a", b"1", b"2")]]}, "must be .* pairs"),
        ({"values": [b"a"], "headers": [[(b"a", b"1")]]}, "must be .* pairs"),
        ({"values": [b"a"], "headers": [[("\ud800", b"1")]]}, "valid UTF-8"),
        ({"values": [b"a"], "headers": [7]}, "must be .* pairs"),
        ({"values": [b"a"], "headers": [[("a", "text")]]}, r"header values\[0\] is str"),
        ({"values": iter([b"a"])}, "values must be a list or other sequence"),
        ({"values": [memoryview(b"abcd")[::2]]}, "values cannot be joined"),
        ({"values": [b"a"], "headers": [object()]}, "must be .* pairs"),
        ({"values": memoryview(array("d", [1.0]))}, r"values\[0\] is float"),
        ({"values": [memoryview(array("i", [1]))]}, "larger than a byte"),
        ({"values": [None, memoryview(array("i", [1]))]}, "larger than a byte"),
    ],
)
def test_wrong_input_is_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(MisuseError, match=message):
        encode_columns(**{"timestamps_ms": 0, **arguments})


def test_timestamps_out_of_range_have_their_own_code() -> None:
    with pytest.raises(MisuseError) as raised:
        encode_columns([b"a"], timestamps_ms=NOON * 1000)
    assert raised.value.code is ErrorCode.INVALID_TIMESTAMP


def test_the_range_of_timestamps_includes_its_ends() -> None:
    stamps = [MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS]
    assert (
        decode_batch(build_batch(encode_columns([b""] * 2, timestamps_ms=stamps))).timestamps()
        == stamps
    )


class Huge:
    """Claims, as a sequence, more bytes than a column can have."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> "Huge":
        return self

    def __next__(self) -> bytes:
        raise OverflowError


@pytest.mark.parametrize("column", ["values", "keys"])
def test_columns_over_the_range_of_lengths_are_refused(column: str) -> None:
    given: dict[str, Any] = {"values": [b"a"], "timestamps_ms": 0, column: Huge()}
    with pytest.raises(MisuseError, match=f"{column} are too large"):
        encode_columns(**given)


def test_a_batch_has_a_limit_of_records_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    many = encode_columns([None] * (MAX_RECORDS + 1), timestamps_ms=0)
    with pytest.raises(MisuseError, match=f"{MAX_RECORDS + 1} records in one batch") as raised:
        build_batch(many)
    assert raised.value.code is ErrorCode.RECORD_TOO_LARGE
    monkeypatch.setattr("penstock.core.records.MAX_UNCOMPRESSED_BYTES", 20)
    with pytest.raises(MisuseError, match="takes 28 bytes before compression, the limit is 20"):
        build_batch(encode_columns([b"x" * 20], timestamps_ms=0))
