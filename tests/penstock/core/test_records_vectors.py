"""The golden vectors, read the way another language would: generated classes, struct, a CRC."""

import importlib.util
import json
import shutil
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import google_crc32c
import lz4.frame
import pytest
import zstandard

from penstock.core.batch import Codec, unpack_batch
from penstock.core.partitioner import KeyHash, partition_for_key
from penstock.core.records import build_batch, decode_batch, encode_columns
from penstock.core.types import ProducerId
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import records_pb2
from penstock.rpc.batches import batch_from_wire, batch_to_wire

VECTORS = Path(__file__).resolve().parents[2] / "vectors"
RECORDS = json.loads((VECTORS / "records.json").read_text())
KEYS = json.loads((VECTORS / "partitioner.json").read_text())

ACCEPTED = pytest.mark.parametrize("case", RECORDS["accepted"], ids=lambda case: case["name"])


def unhexed(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def rows(case: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (
            unhexed(record["key"]),
            unhexed(record["value"]),
            record["timestamp_ms"],
            tuple((name, unhexed(value)) for name, value in record["headers"]),
        )
        for record in case["records"]
    ]


def plain_column(data: bytes, lengths: Any, count: int) -> list[bytes | None]:
    entries: list[bytes | None] = []
    for length in lengths or [-1] * count:
        entries.append(None if length < 0 else data[:length])
        data = data[max(length, 0) :]
    assert data == b""
    return entries


@ACCEPTED
def test_a_reader_from_generated_code_sees_the_records(case: dict[str, Any]) -> None:
    batch = records_pb2.RecordBatch.FromString(bytes.fromhex(case["record_batch"]))
    match batch.codec:
        case records_pb2.CODEC_ZSTD:
            message = zstandard.decompress(batch.payload)
        case records_pb2.CODEC_LZ4:
            message = lz4.frame.decompress(batch.payload)
        case _:
            message = batch.payload
    assert message.hex() == case["records_message"]
    records = records_pb2.Records.FromString(message)
    count = batch.record_count
    names = plain_column(records.header_key_data, records.header_key_lengths, 0)
    contents = plain_column(records.header_value_data, records.header_value_lengths, 0)
    pairs = iter([(str(name or b"", "utf-8"), c) for name, c in zip(names, contents, strict=True)])
    assert rows(case) == [
        (key, value, batch.first_timestamp_ms + delta, tuple(next(pairs) for _ in range(headers)))
        for key, value, delta, headers in zip(
            plain_column(records.key_data, records.key_lengths, count),
            plain_column(records.value_data, records.value_lengths, count),
            records.timestamp_deltas_ms or [0] * count,
            records.header_counts or [0] * count,
            strict=True,
        )
    ]


@ACCEPTED
def test_the_crc_can_be_computed_from_the_drawing(case: dict[str, Any]) -> None:
    batch = records_pb2.RecordBatch.FromString(bytes.fromhex(case["record_batch"]))
    sealed = struct.pack(
        ">BBHIqqqiiI",
        1,
        batch.codec,
        batch.flags,
        batch.record_count,
        batch.first_timestamp_ms,
        batch.max_timestamp_ms,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.uncompressed_bytes,
    )
    assert sealed.hex() == case["sealed_header"]
    assert batch.payload.hex() == case["payload"]
    crc = google_crc32c.value(sealed + batch.payload)
    assert f"{crc:08x}" == f"{batch.crc:08x}" == case["crc"]


@ACCEPTED
def test_this_client_reads_them_from_wire_and_disk(case: dict[str, Any]) -> None:
    wire = records_pb2.RecordBatch.FromString(bytes.fromhex(case["record_batch"]))
    stored = unpack_batch(bytes.fromhex(case["stored"]))
    assert stored.base_offset == case["stamps"]["base_offset"]
    assert stored.header.leader_epoch == case["stamps"]["leader_epoch"]
    for batch in (batch_from_wire(wire), stored):
        records = decode_batch(batch).records()
        assert [tuple(record)[1:] for record in records] == [
            (stamp, key, value, headers) for key, value, stamp, headers in rows(case)
        ]


@pytest.mark.parametrize(
    "case",
    [case for case in RECORDS["accepted"] if case["codec"] == "none"],
    ids=lambda case: case["name"],
)
def test_this_client_writes_the_same_bytes(case: dict[str, Any]) -> None:
    keys, values, stamps, headers = (list(column) for column in zip(*rows(case), strict=True))
    batch = build_batch(
        encode_columns(values, keys, timestamps_ms=stamps, headers=headers),
        codec=Codec.NONE,
        producer_id=ProducerId(case["producer_id"]),
        producer_epoch=case["producer_epoch"],
        base_sequence=case["base_sequence"],
    )
    assert batch_to_wire(batch).SerializeToString().hex() == case["record_batch"]


@pytest.mark.parametrize("case", RECORDS["compacted"], ids=lambda case: case["name"])
def test_compacted_batches_keep_their_place_and_what_is_left(case: dict[str, Any]) -> None:
    wire = records_pb2.RecordBatch.FromString(bytes.fromhex(case["record_batch"]))
    records = records_pb2.Records.FromString(bytes.fromhex(case["records_message"]))
    offsets = [record["offset"] for record in case["records"]]
    assert [wire.base_offset + delta for delta in records.offset_deltas] == offsets
    assert (wire.record_count, wire.flags) == (case["record_count"], 4)
    for batch in (batch_from_wire(wire), unpack_batch(bytes.fromhex(case["stored"]))):
        columns = decode_batch(batch)
        assert batch.next_offset == columns.next_offset == case["next_offset"]
        assert columns.covered_offsets == case["record_count"]
        assert [tuple(record) for record in columns.records()] == [
            (offset, stamp, key, value, headers)
            for offset, (key, value, stamp, headers) in zip(offsets, rows(case), strict=True)
        ]


@pytest.mark.parametrize("case", RECORDS["refused"], ids=lambda case: case["name"])
def test_this_client_refuses_what_it_must(case: dict[str, str]) -> None:
    wire = records_pb2.RecordBatch.FromString(bytes.fromhex(case["record_batch"]))
    with pytest.raises(ClusterError) as raised:
        decode_batch(batch_from_wire(wire))
    assert raised.value.code is ErrorCode[case["code"]]


@pytest.mark.parametrize("case", KEYS["cases"], ids=lambda case: case["key"][:16] or "empty")
def test_keys_have_the_partitions_of_the_vectors(case: dict[str, Any]) -> None:
    key = bytes.fromhex(case["key"])
    assert f"{google_crc32c.value(key):08x}" == case["crc32c"]
    for count, partition in case["partitions"].items():
        assert int(case["crc32c"], 16) % int(count) == partition
        assert partition_for_key(key, int(count)) == partition
    for count, partition in case["kafka"].items():
        assert (int(case["murmur2"], 16) & 0x7FFFFFFF) % int(count) == partition
        assert partition_for_key(key, int(count), KeyHash.MURMUR2) == partition


@pytest.fixture
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_vectors", VECTORS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_files_are_what_the_code_makes(generator: ModuleType) -> None:
    assert generator.main(["--check"]) == 0


def test_a_drifted_or_missing_file_is_reported(
    generator: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copy(VECTORS / "records.json", tmp_path)
    text = (VECTORS / "partitioner.json").read_text()
    (tmp_path / "partitioner.json").write_text(text.replace('"12": 7', '"12": 8'))
    monkeypatch.setattr(generator, "HERE", tmp_path)
    assert generator.main(["--check"]) == 1
    assert "partitioner.json differ" in capsys.readouterr().err
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0
    assert (tmp_path / "partitioner.json").read_text() == text
