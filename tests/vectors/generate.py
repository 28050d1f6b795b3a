"""Writes the golden vectors, or with --check compares them with what the code makes now.

    python tests/vectors/generate.py           rewrite records.json and partitioner.json
    python tests/vectors/generate.py --check   exit code 1 if they drifted

`README.md` beside this file explains the fields. Compressed payloads are kept as they stand in
the file: libraries of another version may compress otherwise, but must read them.
"""

import argparse
import json
import sys
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.core.batch import (
    Batch,
    BatchFlags,
    BatchHeader,
    Codec,
    compute_crc,
    pack_batch,
    pack_sealed,
)
from penstock.core.columns import Columns
from penstock.core.compression import compress
from penstock.core.partitioner import KeyHash, murmur2, partition_for_key
from penstock.core.records import build_batch, decode_batch, encode_columns
from penstock.core.records_wire import encode_message
from penstock.core.types import LeaderEpoch, Offset, ProducerId
from penstock.errors import ClusterError
from penstock.proto.v1 import records_pb2
from penstock.rpc.batches import batch_from_wire, batch_to_wire

HERE = Path(__file__).resolve().parent
NOON = 1_700_000_000_000
Row = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]

RECORDS: dict[str, list[Row]] = {
    "one value": [(None, b"hello", NOON, [])],
    "keys and values": [(b"k%d" % i, b"value %d" % i, NOON, []) for i in range(3)],
    "null is not empty": [
        (None, b"", NOON, []),
        (b"", None, NOON, []),
        (None, None, NOON, []),
        (b"", b"", NOON, []),
    ],
    "all null": [(None, None, NOON, [])] * 2,
    "timestamps differ, also downwards": [
        (None, b"a", NOON, []),
        (None, b"b", NOON - 86_400_000, []),
        (None, b"c", NOON + 1, []),
    ],
    "timestamps at the limits": [
        (None, b"year 1", -62_135_596_800_000, []),
        (None, b"year 9999", 253_402_300_799_999, []),
    ],
    "headers": [
        (b"k", b"v", NOON, [("trace", b"\x00\xff"), ("trace", b""), ("null", None)]),
        (b"k", b"v", NOON, []),
        (b"k", b"v", NOON, [("größe ✓", b"1"), ("", b"empty name")]),
    ],
    "lengths of more than one byte": [
        (b"k" * 127, b"v" * 128, NOON, []),
        (b"K" * 128, bytes(range(256)) * 2, NOON, []),
    ],
}
STAMPS = {"base_offset": 4_294_967_296, "leader_epoch": 7, "append_time_ms": 0}
PRODUCER = {"producer_id": 1234, "producer_epoch": 5, "base_sequence": 2_147_483_647}
NOT_IDEMPOTENT = dict.fromkeys(PRODUCER, -1)
KEYS = [
    b"",
    b"a",
    b"123456789",
    b"UA",
    b"carrier-UA",
    "größe".encode(),
    bytes(range(256)),
    b"\x00",
    b"\x00\x00",
    b"\xff" * 32,
    b"user-00000001",
    b"user-00000002",
]
PARTITION_COUNTS = [1, 2, 3, 6, 12, 16, 100, 1000]


def hexed(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def sealed(header: BatchHeader, payload: bytes) -> Batch:
    return Batch(replace(header, crc=compute_crc(header, payload)), payload)


def case(name: str, rows: list[Row], codec: Codec, kept: dict[str, bytes]) -> dict[str, Any]:
    """One batch: what went in, and the bytes at every stage."""
    producer = PRODUCER if "headers" in name else NOT_IDEMPOTENT
    keys, values, stamps, headers = (list(column) for column in zip(*rows, strict=True))
    columns = encode_columns(values, keys, timestamps_ms=stamps, headers=headers)
    message = encode_message(columns)
    payload = kept.get(name) or compress(codec, message)
    plain = build_batch(
        columns,
        producer_id=ProducerId(producer["producer_id"]),
        producer_epoch=producer["producer_epoch"],
        base_sequence=producer["base_sequence"],
    )
    batch = sealed(replace(plain.header, codec=codec), payload)
    assert decode_batch(batch) == columns, f"{name}: the kept payload does not decode"
    stamped = batch.stamped(Offset(STAMPS["base_offset"]), LeaderEpoch(STAMPS["leader_epoch"]), 0)
    return {
        "name": name,
        "records": [
            {
                "key": hexed(key),
                "value": hexed(value),
                "timestamp_ms": stamp,
                "headers": [[header, hexed(content)] for header, content in pairs],
            }
            for key, value, stamp, pairs in rows
        ],
        "codec": codec.name.lower(),
        **producer,
        "records_message": message.hex(),
        "payload": payload.hex(),
        "sealed_header": pack_sealed(batch.header).hex(),
        "crc": f"{batch.header.crc:08x}",
        "record_batch": batch_to_wire(batch).SerializeToString(deterministic=True).hex(),
        "stamps": STAMPS,
        "stored": pack_batch(stamped).hex(),
    }


def compacted_case(
    name: str, rows: list[Row], deltas: list[int], covered: int, producer: dict[str, int]
) -> dict[str, Any]:
    """A batch as compaction leaves it at offset `STAMPS["base_offset"]`."""
    columns = Columns(0, NOON, covered_offsets=covered)
    if rows:
        keys, values, stamps, headers = (list(column) for column in zip(*rows, strict=True))
        columns = replace(
            encode_columns(values, keys, timestamps_ms=stamps, headers=headers),
            offset_deltas=memoryview(array("i", deltas)),
            covered_offsets=covered,
        )
    batch = build_batch(
        columns,
        producer_id=ProducerId(producer["producer_id"]),
        producer_epoch=producer["producer_epoch"],
        base_sequence=producer["base_sequence"],
    ).stamped(Offset(STAMPS["base_offset"]), LeaderEpoch(STAMPS["leader_epoch"]), 0)
    return {
        "name": name,
        "records": [
            {
                "offset": STAMPS["base_offset"] + delta,
                "key": hexed(key),
                "value": hexed(value),
                "timestamp_ms": stamp,
                "headers": [[header, hexed(content)] for header, content in pairs],
            }
            for (key, value, stamp, pairs), delta in zip(rows, deltas, strict=True)
        ],
        "record_count": covered,
        "next_offset": batch.next_offset,
        **producer,
        "records_message": encode_message(columns).hex(),
        "record_batch": batch_to_wire(batch).SerializeToString(deterministic=True).hex(),
        "stored": pack_batch(batch).hex(),
    }


def compacted_cases() -> list[dict[str, Any]]:
    headers = RECORDS["headers"]
    return [
        compacted_case("the last of three is left", [headers[2]], [2], 3, NOT_IDEMPOTENT),
        compacted_case("a gap behind the last", [headers[0], headers[2]], [0, 7], 9, PRODUCER),
        compacted_case("nothing is left but the sequence", [], [], 5, PRODUCER),
        compacted_case("a gap of more than 1048576", [], [], 2_147_483_647, NOT_IDEMPOTENT),
    ]


def refused() -> list[dict[str, str]]:
    """Batches a reader must refuse, as the RecordBatch message, with the error code's name."""
    good = build_batch(encode_columns([b"one", b"two"], timestamps_ms=NOON))
    header, payload = good.header, good.payload
    compacted = replace(header, flags=BatchFlags.COMPACTED)
    message = records_pb2.Records
    odd_utf8 = message(
        header_counts=[1, 0],
        header_key_data=b"\xff",
        header_key_lengths=[1],
        header_value_lengths=[-1],
    )
    lies = {
        "a bit of the payload flipped": Batch(header, payload.replace(b"one", b"onf")),
        "payload cut off": Batch(header, payload[:-1]),
        "crc of another batch": Batch(replace(header, crc=header.crc ^ 1), payload),
        "record count 0": sealed(replace(header, record_count=0), payload),
        "record count does not match the lengths": sealed(replace(header, record_count=3), payload),
        "record count over 1048576": sealed(replace(header, record_count=1_048_577), payload),
        "uncompressed bytes do not match": sealed(
            replace(header, uncompressed_bytes=len(payload) + 1), payload
        ),
        "max timestamp is not the largest": sealed(
            replace(header, max_timestamp_ms=NOON + 1), payload
        ),
        "max timestamp below the first": sealed(
            replace(header, max_timestamp_ms=NOON - 1), payload
        ),
        "producer id without epoch and sequence": sealed(
            replace(header, producer_id=ProducerId(1)), payload
        ),
        "unknown flag": sealed(replace(header, flags=BatchFlags(8)), payload),
        "offset deltas without the flag": with_message(message(offset_deltas=[0, 1]), header),
        "compacted, offset deltas that do not rise": with_message(
            message(offset_deltas=[1, 1]), compacted
        ),
        "compacted, an offset behind the batch": with_message(
            message(offset_deltas=[0, 2]), compacted
        ),
        "compacted, more lengths than records": with_message(
            message(offset_deltas=[1], value_data=b"ab", value_lengths=[1, 1]), compacted
        ),
        "length -2": with_message(message(value_lengths=[-2, 2]), header),
        "lengths add up to more than the data": with_message(
            message(value_lengths=[1, 1], value_data=b"a"), header
        ),
        "first timestamp difference is not 0": with_message(
            message(timestamp_deltas_ms=[-1, 0]), header
        ),
        "more headers counted than named": with_message(message(header_counts=[1, 0]), header),
        "header name is not UTF-8": with_message(odd_utf8, header),
        "a field twice": with_bytes(b"\x1a\x01a\x1a\x01b", header),
        "lengths not packed": with_bytes(b"\x25" + bytes(4), header),
    }
    messages = {name: batch_to_wire(batch) for name, batch in lies.items()}
    messages["unknown codec"] = batch_to_wire(good)
    messages["unknown codec"].codec = 9  # type: ignore[assignment]  # no value of the enum
    cases = []
    for name, sent in messages.items():
        wire = sent.SerializeToString(deterministic=True)
        try:
            decode_batch(batch_from_wire(records_pb2.RecordBatch.FromString(wire)))
        except ClusterError as error:
            cases.append({"name": name, "record_batch": wire.hex(), "code": error.code.name})
        else:
            raise AssertionError(f"{name}: accepted")
    return cases


def with_message(message: records_pb2.Records, header: BatchHeader) -> Batch:
    return with_bytes(message.SerializeToString(deterministic=True), header)


def with_bytes(payload: bytes, header: BatchHeader) -> Batch:
    return sealed(replace(header, uncompressed_bytes=len(payload)), payload)


def records_document(kept: dict[str, bytes]) -> dict[str, Any]:
    cases = [case(name, rows, Codec.NONE, {}) for name, rows in RECORDS.items()]
    cases += [
        case(f"{name}, {codec.name.lower()}", RECORDS[name], codec, kept)
        for codec in (Codec.ZSTD, Codec.LZ4)
        for name in ("keys and values", "headers", "lengths of more than one byte")
    ]
    return {
        "format": 1,
        "accepted": cases,
        "compacted": compacted_cases(),
        "refused": refused(),
    }


def partitioner_document() -> dict[str, Any]:
    return {
        "hashes": ["crc32c", "murmur2"],
        "cases": [
            {
                "key": key.hex(),
                "crc32c": f"{partition_for_key(key, 2**32):08x}",
                "partitions": {
                    str(count): partition_for_key(key, count) for count in PARTITION_COUNTS
                },
                "murmur2": f"{murmur2(key):08x}",
                "kafka": {
                    str(count): partition_for_key(key, count, KeyHash.MURMUR2)
                    for count in PARTITION_COUNTS
                },
            }
            for key in KEYS
        ],
    }


def kept_payloads() -> dict[str, bytes]:
    """The compressed payloads in the file, by case name."""
    path = HERE / "records.json"
    if not path.exists():
        return {}
    cases = json.loads(path.read_text())["accepted"]
    return {
        case["name"]: bytes.fromhex(case["payload"]) for case in cases if case["codec"] != "none"
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Write or check the golden vectors.")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args(arguments).check
    documents = {
        "records.json": records_document(kept_payloads()),
        "partitioner.json": partitioner_document(),
    }
    drifted = []
    for name, document in documents.items():
        text = json.dumps(document, indent=1) + "\n"
        path = HERE / name
        if check and (not path.exists() or path.read_text() != text):
            drifted.append(name)
        elif not check:
            path.write_text(text)
    if drifted:
        sys.stderr.write(
            f"{', '.join(drifted)} differ from what the code makes. Other clients rely on these "
            "bytes: repair the code, or regenerate if the format was meant to change.\n"
        )
    return 1 if drifted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
