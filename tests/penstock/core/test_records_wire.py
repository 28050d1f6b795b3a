"""The hand-written `Records` message against the one that protobuf generates."""

import sys
from array import array
from dataclasses import replace

import pytest

from penstock.core.columns import Columns
from penstock.core.records import encode_columns
from penstock.core.records_wire import (
    MAX_FIELDS,
    decode_message,
    encode_message,
    little_endian,
    message_bytes,
)
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import records_pb2

FIELDS = records_pb2.Records.DESCRIPTOR.fields

CASES = {
    "values only": encode_columns([b"a", b"bb"], timestamps_ms=5),
    "one of each": encode_columns(
        [b"value"], [b"key"], timestamps_ms=[5], headers=[[("name", b"header")]]
    ),
    "nulls and empties": encode_columns(
        [None, b"", b"x"],
        [b"", None, None],
        timestamps_ms=[9, 1, 20],
        headers=[[("", None)], None, [("é", b""), ("é", b"2")]],
    ),
    "nothing": encode_columns([None], timestamps_ms=0),
    "lengths of two and three bytes": encode_columns(
        [b"v" * 200, b"w" * 20_000], [b"k" * 128, b"l" * 127], timestamps_ms=0
    ),
    "many": encode_columns([b"x"] * 50_000, timestamps_ms=range(50_000)),
}
CASE = pytest.mark.parametrize("columns", CASES.values(), ids=CASES.keys())


def generated(columns: Columns) -> records_pb2.Records:
    """The same columns, set one by one on the generated class."""
    message = records_pb2.Records()
    for field in FIELDS:
        data = getattr(columns, field.name)
        if data is None:
            continue
        if field.is_repeated:
            getattr(message, field.name).extend(data.tolist())
        else:
            setattr(message, field.name, data.tobytes())
    return message


@CASE
def test_the_bytes_are_those_protobuf_writes(columns: Columns) -> None:
    written = encode_message(columns)
    assert written == generated(columns).SerializeToString()
    assert message_bytes(columns) == len(written)


@CASE
def test_what_protobuf_writes_can_be_read(columns: Columns) -> None:
    read = decode_message(generated(columns).SerializeToString())
    for field in FIELDS:
        data = getattr(columns, field.name)
        if data is None or data.nbytes == 0:
            assert field.name not in read
        else:
            assert read[field.name] == data
            assert read[field.name].format == data.format


def test_every_field_of_the_schema_is_a_column() -> None:
    columns = CASES["one of each"]
    full = encode_columns(
        [b"v", b"v"], [b"k", None], timestamps_ms=[1, 2], headers=[[("n", b"h")], []]
    )
    full = replace(full, offset_deltas=memoryview(array("i", [0, 2])), covered_offsets=3)
    assert {field.name for field in FIELDS} == set(decode_message(encode_message(full)))
    assert all(hasattr(columns, field.name) for field in FIELDS)


def test_views_share_the_message() -> None:
    message = encode_message(CASES["one of each"])
    assert all(view.obj is message for view in decode_message(message).values())


def test_fields_come_in_any_order_and_unknown_ones_are_skipped() -> None:
    unknown = [
        b"\x60\x96\x01",  # field 12, varint
        b"\x69" + bytes(8),  # field 13, 8 bytes
        b"\x72\x03abc",  # field 14, length-delimited
        b"\x7d" + bytes(4),  # field 15, 4 bytes
        b"\xfa\xff\xff\xff\x0f\x00",  # the largest field number
    ]
    known = [b"\x22\x04\x01\x00\x00\x00", b"\x1a\x01a"]
    expected = decode_message(b"".join(known[::-1]))
    for at in range(len(unknown) + 1):
        message = b"".join([*unknown[:at], known[0], *unknown[at:], known[1]])
        assert decode_message(message) == expected


def test_a_field_of_no_bytes_is_an_absent_one() -> None:
    assert decode_message(b"\x1a\x00\x22\x00") == {}


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"\x1a\x01a\x1a\x01b", r"field 3 \(value_data\) appears twice"),
        (b"\x22\x00\x22\x00", r"field 4 \(value_lengths\) appears twice"),
        (b"\x25" + bytes(4), r"field 4 \(value_lengths\) has wire type 5; it must be packed"),
        (b"\x29" + bytes(8), r"field 5 \(timestamp_deltas_ms\) has wire type 1"),
        (b"\x08\x01", r"field 1 \(key_data\) has wire type 0"),
        (b"\x1a\x05a", "field 3 ends at byte 7, but the message has 3; it is truncated"),
        (b"\x71\x00", "field 14 ends at byte 9, but the message has 2"),
        (b"\x1a", "ends inside a number, at byte 1"),
        (b"\x9a", "ends inside a number, at byte 1"),
        (b"\x1a" + b"\xff" * 10 + b"\x01", "before byte 11 has more than 10 bytes"),
        (b"\x1a" + b"\xff" * 9 + b"\x7f", "field 3 ends at byte"),
        (b"\x22\x03abc", "value_lengths has 3 bytes, not a multiple of 4"),
        (b"\x2a\x04abcd", "timestamp_deltas_ms has 4 bytes, not a multiple of 8"),
        (b"\x02\x00", "field number 0"),
        (b"\x6b\x6c", "field 13 has wire type 3, which is not supported"),
        (b"\x6e", "field 13 has wire type 6"),
        (b"\x6a\x00" * MAX_FIELDS, f"more than {MAX_FIELDS} fields"),
    ],
)
def test_a_message_that_breaks_the_format_is_refused(message: bytes, problem: str) -> None:
    with pytest.raises(ClusterError, match=problem) as raised:
        decode_message(message)
    assert raised.value.code is ErrorCode.CORRUPT_BATCH


@pytest.mark.parametrize("kind", ["i", "q"])
def test_hosts_of_either_byte_order_write_little_endian(kind: str) -> None:
    native = memoryview(array(kind, [1, -2, 1 << 20]))
    on_wire = {
        order: b"".join(
            value.to_bytes(native.itemsize, order, signed=True) for value in native.tolist()
        )
        for order in ("little", "big")
    }
    assert on_wire[sys.byteorder] == native.tobytes()
    assert little_endian(native, "little").tobytes() == native.tobytes()
    swapped = little_endian(native, "big")
    assert little_endian(swapped, "big") == native
    assert {swapped.tobytes(), native.tobytes()} == set(on_wire.values())
