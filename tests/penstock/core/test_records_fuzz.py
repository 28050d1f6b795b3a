"""Any records survive the way through a batch; no damage to one goes unseen or escapes.

Damage comes in two kinds. Accidents (truncated, flipped, spliced bytes) leave the CRC as it
was: a reader gets the original records or a PenstockError. Malice writes a fitting CRC over
nonsense: a reader gets a PenstockError, or columns whose every accessor works, within the
memory it allowed. Every test prints its seed; the same seed makes the same bytes.
"""

import random
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.batch import (
    Batch,
    BatchFlags,
    BatchHeader,
    Codec,
    compute_crc,
    pack_batch,
    unpack_batch,
)
from penstock.core.columns import Columns
from penstock.core.compression import compress
from penstock.core.records import (
    MAX_RECORDS,
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    build_batch,
    check_batch,
    check_size,
    decode_batch,
    encode_columns,
)
from penstock.core.records_wire import encode_message
from penstock.core.types import Offset, ProducerId
from penstock.errors import PenstockError
from penstock.proto.v1 import records_pb2
from penstock.rpc.batches import batch_from_wire, batch_to_wire

SEEDS = pytest.mark.parametrize("seed", range(60))
TRIES = 40
LIMIT_BYTES = 1 << 20

entries = st.none() | st.binary(max_size=300)
header_lists = st.lists(st.tuples(st.text(max_size=8), entries), max_size=4)
rows = st.tuples(
    entries, entries, st.integers(MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS), st.none() | header_lists
)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(records=st.lists(rows, min_size=1, max_size=40), codec=st.sampled_from(Codec))
def test_any_records_come_back(records: list[tuple[Any, ...]], codec: Codec) -> None:
    keys, values, stamps, headers = (list(column) for column in zip(*records, strict=True))
    batch = build_batch(
        encode_columns(values, keys, timestamps_ms=stamps, headers=headers), codec=codec
    )
    check_batch(batch)
    check_size(batch, batch.size_bytes)
    wire = records_pb2.RecordBatch.FromString(batch_to_wire(batch).SerializeToString())
    for copy in (batch_from_wire(wire), unpack_batch(pack_batch(batch))):
        columns = decode_batch(copy)
        assert columns.keys() == keys
        assert columns.values() == values
        assert columns.timestamps() == stamps
        assert columns.headers() == [tuple(given or ()) for given in headers]
        assert columns.max_timestamp_ms == copy.header.max_timestamp_ms == max(stamps)


def some_columns(chance: random.Random) -> Columns:
    count = chance.choice([1, 2, 17])

    def entry() -> bytes | None:
        return chance.choice([None, b"", chance.randbytes(chance.randrange(60))])

    return encode_columns(
        [entry() for _ in range(count)],
        [entry() for _ in range(count)],
        timestamps_ms=[chance.randrange(10**12) for _ in range(count)],
        headers=[[("née", entry())] * chance.randrange(3) for _ in range(count)],
    )


def damaged(chance: random.Random, data: bytes, other: bytes) -> bytes:
    """One accident: bits flipped, cut off, pieces lost, doubled, or taken from other data."""
    out = bytearray(data)
    start, end = sorted(chance.randrange(len(out) + 1) for _ in range(2))
    match chance.randrange(7):
        case 0:
            for _ in range(chance.randrange(1, 4)):
                out[chance.randrange(len(out))] ^= 1 << chance.randrange(8)
        case 1:
            del out[start:]
        case 2:
            del out[start:end]
        case 3:
            out[start:start] = out[start:end]
        case 4:
            out[start:end] = other[start:end]
        case 5:
            out[start:end] = bytes(end - start)
        case _:
            out += chance.randbytes(chance.randrange(1, 200))
    return bytes(out)


def read_wire(data: bytes) -> Batch:
    return batch_from_wire(records_pb2.RecordBatch.FromString(data))


def write_wire(batch: Batch) -> bytes:
    return batch_to_wire(batch).SerializeToString()


def outcome(read: Callable[[bytes], Batch], data: bytes) -> Columns | None:
    """The records read, without what brokers stamp outside the CRC; None if refused."""
    try:
        columns = decode_batch(read(data), max_uncompressed_bytes=LIMIT_BYTES)
    except (PenstockError, DecodeError):  # protobuf's own refusal of broken framing
        return None
    return replace(columns, base_offset=Offset(0), append_time_ms=0)


@SEEDS
@pytest.mark.parametrize(
    ("read", "write"), [(read_wire, write_wire), (unpack_batch, pack_batch)], ids=["wire", "disk"]
)
def test_an_accident_is_refused_or_harmless(
    read: Callable[[bytes], Batch], write: Callable[[Batch], bytes], seed: int
) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    columns, spliced = some_columns(chance), some_columns(chance)
    data, other = (write(build_batch(made, codec=Codec(seed % 3))) for made in (columns, spliced))
    assert outcome(read, data) == columns
    for _ in range(TRIES):
        changed = damaged(chance, data, other)
        # A splice may put another batch in whole, which is undamaged: no CRC can object.
        possible = [columns, None, *([spliced] if other in changed else [])]
        assert outcome(read, changed) in possible


def malicious(chance: random.Random) -> Batch:
    """A batch with a fitting CRC whose header, message or frame is nonsense."""
    columns = some_columns(chance)
    message = encode_message(columns) or b"\0"
    other = encode_message(some_columns(chance)) or b"\0"
    if chance.random() < 0.8:
        message = damaged(chance, message, other)
    codec = chance.choice(list(Codec))
    payload = compress(codec, message)
    if payload and chance.random() < 0.2:
        payload = damaged(chance, payload, other)
    odd = [0, 1, 2, 17, MAX_RECORDS, MAX_RECORDS + 1, 2**31, 2**32 - 1]
    header = BatchHeader(
        record_count=columns.record_count if chance.random() < 0.8 else chance.choice(odd),
        first_timestamp_ms=columns.first_timestamp_ms,
        max_timestamp_ms=columns.max_timestamp_ms,
        uncompressed_bytes=len(message) if chance.random() < 0.8 else chance.choice(odd),
        crc=0,
        codec=codec if chance.random() < 0.9 else chance.choice(list(Codec)),
        flags=BatchFlags(chance.choice([0, 0, 0, 1, 4])),
        producer_id=ProducerId(chance.choice([-1, -1, -1, 5])),
    )
    return Batch(replace(header, crc=compute_crc(header, payload)), payload)


def walk(columns: Columns) -> None:
    """Every accessor works, and all agree."""
    records = list(columns.records())
    assert len(records) == columns.record_count
    assert columns.keys() == [record.key for record in records]
    assert columns.values() == [record.value for record in records]
    assert columns.headers() == [record.headers for record in records]
    assert columns.timestamps() == [record.timestamp_ms for record in records]
    assert columns.record(columns.record_count - 1) == records[-1]


@SEEDS
def test_malice_is_refused_or_consistent(seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    accepted = 0
    for _ in range(TRIES):
        batch = malicious(chance)
        refusal = ""
        tracemalloc.start()
        try:
            columns = decode_batch(batch, max_uncompressed_bytes=LIMIT_BYTES)
        except PenstockError as error:
            refusal = str(error)
        else:
            accepted += 1
            if columns.record_count < 1000:
                walk(columns)
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert peak < 4 * LIMIT_BYTES
        assert len(refusal) < 500
    print(f"{accepted} of {TRIES} accepted")


def test_both_outcomes_of_malice_are_seen() -> None:
    chance = random.Random(0)
    accepted = 0
    for _ in range(200):
        try:
            decode_batch(malicious(chance), max_uncompressed_bytes=LIMIT_BYTES)
            accepted += 1
        except PenstockError:
            pass
    assert 10 < accepted < 190


@SEEDS
def test_noise_is_never_anything_but_refused(seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(TRIES):
        noise = chance.randbytes(chance.randrange(300))
        assert outcome(unpack_batch, noise) is None
        assert outcome(read_wire, noise) is None
        for codec in Codec:
            header = BatchHeader(
                record_count=1,
                first_timestamp_ms=0,
                max_timestamp_ms=0,
                uncompressed_bytes=len(noise),
                crc=0,
                codec=codec,
            )
            batch = Batch(replace(header, crc=compute_crc(header, noise)), noise)
            try:
                walk(decode_batch(batch, max_uncompressed_bytes=LIMIT_BYTES))
            except PenstockError:
                continue
