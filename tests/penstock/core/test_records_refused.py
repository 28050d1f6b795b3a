"""Batches that lie: each rule of check_batch and decode_batch broken on its own, CRC intact."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.core.batch import Batch, BatchFlags, BatchHeader, Codec, build_marker, compute_crc
from penstock.core.compression import compress
from penstock.core.records import (
    MAX_RECORDS,
    MAX_TIMESTAMP_MS,
    MAX_UNCOMPRESSED_BYTES,
    MIN_TIMESTAMP_MS,
    build_batch,
    check_batch,
    check_size,
    decode_batch,
    encode_columns,
)
from penstock.core.types import ProducerId
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1.records_pb2 import Records

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1


def seal(payload: bytes = b"", **fields: Any) -> Batch:
    """A batch with these header fields and the right CRC."""
    header = BatchHeader(
        **{
            "record_count": 1,
            "first_timestamp_ms": 0,
            "max_timestamp_ms": 0,
            "uncompressed_bytes": len(payload),
            "crc": 0,
            **fields,
        }
    )
    return Batch(replace(header, crc=compute_crc(header, payload)), payload)


HEADERS = [
    ({"record_count": 0}, "record count is 0; it must be 1 to", ErrorCode.CORRUPT_BATCH),
    ({"record_count": MAX_RECORDS + 1}, "record count is 1048577", ErrorCode.CORRUPT_BATCH),
    ({"record_count": 2**32 - 1}, "record count is 4294967295", ErrorCode.CORRUPT_BATCH),
    ({"codec": 3}, "has codec 3, known are 0 to 2", ErrorCode.UNSUPPORTED_CODEC),
    ({"codec": 255}, "has codec 255", ErrorCode.UNSUPPORTED_CODEC),
    ({"uncompressed_bytes": 1}, "has 0 bytes, the header says 1", ErrorCode.CORRUPT_BATCH),
    (
        {"uncompressed_bytes": MAX_UNCOMPRESSED_BYTES + 1, "codec": Codec.ZSTD},
        f"says it takes {MAX_UNCOMPRESSED_BYTES + 1} bytes",
        ErrorCode.RECORD_TOO_LARGE,
    ),
    ({"producer_id": 5}, "are 5, -1, -1; all must be -1, or none", ErrorCode.CORRUPT_BATCH),
    ({"producer_epoch": 0}, "are -1, 0, -1", ErrorCode.CORRUPT_BATCH),
    ({"base_sequence": 0}, "are -1, -1, 0", ErrorCode.CORRUPT_BATCH),
    (
        {"producer_id": 1, "producer_epoch": 1, "base_sequence": -2},
        "are 1, 1, -2",
        ErrorCode.CORRUPT_BATCH,
    ),
    ({"base_offset": -1}, "base offset is -1", ErrorCode.CORRUPT_BATCH),
    ({"base_offset": INT64_MAX}, f"base offset is {INT64_MAX}", ErrorCode.CORRUPT_BATCH),
    ({"append_time_ms": -1}, "append time is -1 ms", ErrorCode.CORRUPT_BATCH),
    (
        {"append_time_ms": MAX_TIMESTAMP_MS + 1},
        f"append time is {MAX_TIMESTAMP_MS + 1} ms",
        ErrorCode.CORRUPT_BATCH,
    ),
    ({"max_timestamp_ms": -1}, "0 and -1 ms", ErrorCode.INVALID_TIMESTAMP),
    (
        {"first_timestamp_ms": MIN_TIMESTAMP_MS - 1},
        f"are {MIN_TIMESTAMP_MS - 1} and 0 ms",
        ErrorCode.INVALID_TIMESTAMP,
    ),
    (
        {"max_timestamp_ms": MAX_TIMESTAMP_MS + 1},
        f"0 and {MAX_TIMESTAMP_MS + 1} ms",
        ErrorCode.INVALID_TIMESTAMP,
    ),
]


@pytest.mark.parametrize(("fields", "problem", "code"), HEADERS)
def test_a_header_that_lies_is_refused_by_broker_and_reader(
    fields: dict[str, Any], problem: str, code: ErrorCode
) -> None:
    batch = seal(**fields)
    for check in (lambda: check_batch(batch), lambda: decode_batch(batch)):
        with pytest.raises(ClusterError, match=problem) as raised:
            check()
        assert raised.value.code is code


def test_a_header_at_its_limits_passes() -> None:
    columns = encode_columns([None] * MAX_RECORDS, timestamps_ms=MAX_TIMESTAMP_MS)
    batch = build_batch(
        columns,
        producer_id=ProducerId(INT64_MAX),
        producer_epoch=INT32_MAX,
        base_sequence=INT32_MAX,
    )
    check_batch(batch)
    check_size(batch, batch.size_bytes)
    assert decode_batch(batch).record_count == MAX_RECORDS


def test_producers_may_set_the_transactional_flag_alone_and_leaders_any() -> None:
    columns = encode_columns([b"a"], timestamps_ms=0)
    sequenced: dict[str, Any] = {
        "producer_id": ProducerId(1 << 62),
        "producer_epoch": 0,
        "base_sequence": 0,
    }
    for flags in (BatchFlags.CONTROL, BatchFlags(3), BatchFlags(5)):
        batch = build_batch(columns, flags=flags, **sequenced)
        with pytest.raises(
            ClusterError, match=f"batch has flags {flags:#x}; producers send 0"
        ) as seen:
            check_batch(batch)
        assert seen.value.code is ErrorCode.INVALID_REQUEST
        check_batch(batch, allow_internal_flags=True)
    batch = build_batch(columns, flags=BatchFlags.TRANSACTIONAL, **sequenced)
    check_batch(batch)
    assert decode_batch(batch).values() == [b"a"]


def test_unknown_flags_are_refused_by_everyone() -> None:
    batch = seal(flags=BatchFlags(32))
    for check in (
        lambda: check_batch(batch, allow_internal_flags=True),
        lambda: decode_batch(batch),
    ):
        with pytest.raises(ClusterError, match="flags are 0x20, known are 0x1f"):
            check()


MARKER = {"producer_id": 1 << 62, "producer_epoch": 3, "base_sequence": -1}
PRODUCER = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_comes_from_brokers_only(commit: bool) -> None:
    batch = build_marker(ProducerId(1 << 62), 3, commit=commit, timestamp_ms=7)
    check_batch(batch, allow_internal_flags=True)
    assert decode_batch(batch).record_count == 1
    with pytest.raises(ClusterError, match="producers send 0") as raised:
        check_batch(batch)
    assert raised.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({**MARKER, "flags": BatchFlags(8)}, "marker has flags 0x8, allowed are"),
        ({**MARKER, "flags": BatchFlags(8 | 2)}, "marker has flags 0xa"),
        ({**MARKER, "flags": BatchFlags(8 | 1)}, "marker has flags 0x9"),
        ({**MARKER, "flags": BatchFlags(16 | 4 | 2 | 1)}, "marker has flags 0x17"),
        ({**MARKER, "flags": BatchFlags(16 | 8 | 2 | 1)}, "marker has flags 0x1b"),
        ({**MARKER, "flags": BatchFlags(11), "record_count": 2}, "marker has 2 records"),
        ({**MARKER, "flags": BatchFlags(11), "base_sequence": 0}, "and sequence 0"),
        ({**MARKER, "flags": BatchFlags(11), "producer_id": -1}, "producer -1 and"),
        ({**MARKER, "flags": BatchFlags(11), "producer_epoch": -1}, "all must be -1, or none"),
        ({"flags": BatchFlags(1)}, "has flags 0x1, but no producer id"),
        ({**PRODUCER, "base_sequence": -1, "flags": BatchFlags(1)}, "all must be -1, or none"),
    ],
)
def test_flags_that_contradict_each_other_are_refused_by_everyone(
    fields: dict[str, Any], message: str
) -> None:
    batch = seal(**fields)
    for check in (
        lambda: check_batch(batch, allow_internal_flags=True),
        lambda: decode_batch(batch),
    ):
        with pytest.raises(ClusterError, match=message) as raised:
            check()
        assert raised.value.code is ErrorCode.CORRUPT_BATCH


def test_the_limit_of_a_topic_counts_header_and_payload() -> None:
    batch = build_batch(encode_columns([b"x" * 100], timestamps_ms=0))
    assert batch.size_bytes == 72 + 108
    check_batch(batch)
    check_size(batch, 180)
    with pytest.raises(ClusterError, match=r"has 180 bytes, the limit .* is 179") as raised:
        check_size(batch, 179)
    assert raised.value.code is ErrorCode.RECORD_TOO_LARGE


def test_a_reader_may_set_its_own_limit_of_uncompressed_bytes() -> None:
    batch = build_batch(encode_columns([bytes(5000)], timestamps_ms=0), codec=Codec.LZ4)
    size = batch.header.uncompressed_bytes
    assert decode_batch(batch, max_uncompressed_bytes=size).values() == [bytes(5000)]
    with pytest.raises(ClusterError, match=f"takes {size} bytes uncompressed, the limit is"):
        decode_batch(batch, max_uncompressed_bytes=size - 1)


@pytest.mark.parametrize(
    "change",
    [
        {"crc": 0},
        {"record_count": 2},
        {"first_timestamp_ms": -1},
        {"max_timestamp_ms": 1},
        {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0},
        {"flags": BatchFlags.CONTROL},
    ],
)
def test_every_sealed_field_is_under_the_crc(change: dict[str, Any]) -> None:
    batch = build_batch(encode_columns([b"a"], timestamps_ms=0))
    changed = Batch(replace(batch.header, **change), batch.payload)
    with pytest.raises(ClusterError, match="CRC-32C of header and 9 payload bytes is") as raised:
        check_batch(changed, allow_internal_flags=True)
    assert raised.value.code is ErrorCode.CORRUPT_BATCH


MESSAGES = [
    ({"key_data": b"a"}, "key_data has 1 bytes without key_lengths"),
    ({"value_data": b"a"}, "value_data has 1 bytes without value_lengths"),
    ({"key_lengths": [0]}, "key_lengths has 1 entries, expected 2"),
    ({"value_lengths": [0, 0, 0]}, "value_lengths has 3 entries, expected 2"),
    ({"value_lengths": [0, -2]}, r"value_lengths\[1\] is -2; it must be at least -1"),
    ({"value_lengths": [3, -3]}, r"value_lengths\[1\] is -3"),
    ({"value_lengths": [1, 1]}, "value_lengths add up to 2, but value_data has 0 bytes"),
    ({"value_lengths": [1, -1], "value_data": b"ab"}, "add up to 1, but value_data has 2 bytes"),
    (
        {"key_lengths": [INT32_MAX, INT32_MAX]},
        f"key_lengths add up to {2 * INT32_MAX}, but key_data has 0 bytes",
    ),
    ({"timestamp_deltas_ms": [0]}, "timestamp_deltas_ms has 1 entries, expected 2"),
    ({"timestamp_deltas_ms": [1, 0]}, r"timestamp_deltas_ms\[0\] is 1; it must be 0"),
    ({"timestamp_deltas_ms": [0, 5]}, "largest timestamp is 5, but the header says 0"),
    ({"timestamp_deltas_ms": [0, INT64_MAX]}, f"largest timestamp is {INT64_MAX}"),
    ({"timestamp_deltas_ms": [0, MIN_TIMESTAMP_MS - 1]}, "smallest timestamp is"),
    ({"header_counts": [0]}, "header_counts has 1 entries, expected 2"),
    ({"header_counts": [0, -1]}, r"header_counts\[1\] is -1; it must be at least 0"),
    ({"header_counts": [MAX_RECORDS, 1]}, "1048577 headers in one batch, the limit is 1048576"),
    ({"header_counts": [1, 0]}, "1 headers without header_key_lengths or"),
    ({"header_counts": [1, 0], "header_key_lengths": [0]}, "1 headers without"),
    ({"header_counts": [1, 0], "header_value_lengths": [0]}, "1 headers without"),
    ({"header_key_lengths": [0]}, "header_key_lengths has 1 entries, expected 0"),
    ({"header_value_lengths": [0]}, "header_value_lengths has 1 entries, expected 0"),
    ({"header_key_data": b"a"}, "header_key_data has 1 bytes without"),
    ({"header_value_data": b"a"}, "header_value_data has 1 bytes without"),
    (
        {"header_counts": [1, 0], "header_key_lengths": [-1], "header_value_lengths": [0]},
        r"header_key_lengths\[0\] is -1; it must be at least 0",
    ),
    (
        {
            "header_counts": [1, 0],
            "header_key_lengths": [1],
            "header_key_data": b"\xff",
            "header_value_lengths": [-1],
        },
        r"name of header 0, b'\\xff', is not UTF-8",
    ),
    (
        # Together the two names are valid, each on its own is half a character.
        {
            "header_counts": [1, 1],
            "header_key_lengths": [1, 1],
            "header_key_data": "é".encode(),
            "header_value_lengths": [-1, -1],
        },
        "name of header 0",
    ),
]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize(("columns", "problem"), MESSAGES)
def test_columns_that_lie_are_refused(columns: dict[str, Any], problem: str, codec: Codec) -> None:
    message = Records(**columns).SerializeToString()
    batch = seal(
        compress(codec, message), record_count=2, codec=codec, uncompressed_bytes=len(message)
    )
    # The broker does not look inside: such a batch reaches readers, who must refuse it.
    check_batch(batch)
    with pytest.raises(ClusterError, match=problem) as raised:
        decode_batch(batch)
    assert raised.value.code is ErrorCode.CORRUPT_BATCH


def test_columns_another_writer_may_spell_otherwise_are_accepted() -> None:
    message = Records(
        value_lengths=[-1, -1],
        timestamp_deltas_ms=[0, 0],
        header_counts=[0, 0],
    ).SerializeToString()
    columns = decode_batch(seal(message, record_count=2))
    assert columns.values() == [None, None]
    assert columns.timestamps() == [0, 0]
    assert columns.headers() == [(), ()]


def test_names_that_are_not_ascii_are_accepted_one_by_one() -> None:
    headers = [[("é", b"1"), ("漢字", None), ("", b"")]]
    batch = build_batch(encode_columns([b"a"], timestamps_ms=0, headers=headers))
    assert decode_batch(batch).headers() == [tuple(headers[0])]
