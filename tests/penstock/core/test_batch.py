"""The stored form of a batch: layout, and that no changed byte goes unseen."""

import struct
from dataclasses import replace

import google_crc32c
import pytest

from penstock.core.batch import (
    HEADER_BYTES,
    STAMP_BYTES,
    Batch,
    BatchFlags,
    BatchHeader,
    Codec,
    build_marker,
    compute_crc,
    pack_batch,
    pack_header,
    pack_sealed,
    unpack_batch,
    unpack_header,
)
from penstock.core.types import LeaderEpoch, Offset, ProducerId, is_transactional_producer
from penstock.errors import ClusterError, ErrorCode

PAYLOAD = b"any bytes: the store does not look inside"


def sample() -> Batch:
    header = BatchHeader(
        record_count=3,
        first_timestamp_ms=-5,
        max_timestamp_ms=1_700_000_000_000,
        uncompressed_bytes=99,
        crc=0,
        codec=Codec.ZSTD,
        flags=BatchFlags.TRANSACTIONAL,
        producer_id=ProducerId(77),
        producer_epoch=4,
        base_sequence=2**31 - 2,
        base_offset=Offset(1 << 40),
        leader_epoch=LeaderEpoch(9),
        append_time_ms=123,
    )
    return Batch(replace(header, crc=compute_crc(header, PAYLOAD)), PAYLOAD)


def test_a_stored_batch_comes_back() -> None:
    batch = sample()
    stored = pack_batch(batch)
    assert len(stored) == batch.size_bytes == HEADER_BYTES + len(PAYLOAD)
    assert unpack_batch(stored) == batch
    assert unpack_header(stored[:HEADER_BYTES]) == batch.header
    assert unpack_header(memoryview(stored)) == batch.header


def test_headers_say_what_a_batch_is() -> None:
    data, plain = sample().header, replace(sample().header, flags=BatchFlags.NONE)
    commit = build_marker(ProducerId(1 << 62), 4, commit=True, timestamp_ms=9).header
    abort = build_marker(ProducerId(1 << 62), 4, commit=False, timestamp_ms=9).header
    words = ("is_transactional", "is_control", "is_marker", "commits")
    seen = [
        tuple(getattr(header, word) for word in words) for header in (plain, data, commit, abort)
    ]
    assert seen == [
        (False, False, False, False),
        (True, False, False, False),
        (True, True, True, True),
        (True, True, True, False),
    ]
    assert (commit.flags, abort.flags) == (0x0B, 0x13)
    assert (commit.record_count, commit.base_sequence, commit.max_timestamp_ms) == (1, -1, 9)


def test_a_stored_marker_comes_back() -> None:
    marker = build_marker(ProducerId(1 << 62), 4, commit=False, timestamp_ms=9)
    assert unpack_batch(pack_batch(marker)) == marker


def test_ids_of_transactional_producers_are_told_by_their_top_bit() -> None:
    ids = (-1, 0, (1 << 62) - 1, 1 << 62, (1 << 63) - 1)
    told = [is_transactional_producer(ProducerId(one)) for one in ids]
    assert told == [False, False, False, True, True]


def test_the_layout_is_the_one_drawn() -> None:
    batch = sample()
    stored = pack_batch(batch)
    assert struct.unpack(">qiqI", stored[:STAMP_BYTES]) == (1 << 40, 9, 123, batch.header.crc)
    assert stored[24:28] == google_crc32c.value(stored[:24]).to_bytes(4, "big")
    assert stored[28:72] == pack_sealed(batch.header)
    assert struct.unpack(">BBHIqqqiiI", stored[28:72]) == (
        1, 1, 1, 3, -5, 1_700_000_000_000, 77, 4, 2**31 - 2, 99,
    )  # fmt: skip
    assert batch.header.crc == google_crc32c.value(stored[28:])


def test_every_changed_bit_and_every_cut_is_seen() -> None:
    stored = pack_batch(sample())
    for position in range(len(stored)):
        for bit in range(8):
            changed = bytearray(stored)
            changed[position] ^= 1 << bit
            with pytest.raises(ClusterError) as raised:
                unpack_batch(bytes(changed))
            assert raised.value.code is ErrorCode.DATA_CORRUPTED
        with pytest.raises(ClusterError) as raised:
            unpack_batch(stored[:position])
        assert raised.value.code is ErrorCode.DATA_CORRUPTED


@pytest.mark.parametrize(("position", "what"), [(28, "format 2 codec 1"), (29, "format 1 codec 3")])
def test_a_format_of_the_future_is_named(position: int, what: str) -> None:
    stored = bytearray(pack_batch(sample()))
    stored[position] = int(what.split()[1]) if position == 28 else 3
    with pytest.raises(ClusterError, match=what):
        unpack_header(bytes(stored))


def test_stamping_leaves_payload_and_seal_alone() -> None:
    batch = sample()
    stamped = batch.stamped(Offset(5), LeaderEpoch(2), 0)
    assert stamped.payload is batch.payload
    assert stamped.header.crc == batch.header.crc == compute_crc(stamped.header, PAYLOAD)
    assert (stamped.base_offset, stamped.next_offset) == (5, 8)
    assert unpack_batch(pack_batch(stamped)) == stamped
    assert pack_header(stamped.header) != pack_header(batch.header)


def test_sequences_wrap_and_append_time_wins() -> None:
    header = sample().header
    assert header.last_sequence == 0
    assert replace(header, base_sequence=10).last_sequence == 12
    assert header.effective_max_timestamp_ms == 123
    assert replace(header, append_time_ms=0).effective_max_timestamp_ms == 1_700_000_000_000


def test_a_header_knows_where_the_next_batch_begins() -> None:
    header = BatchHeader(3, 0, 0, 0, 0, base_offset=Offset(7))
    assert header.next_offset == Batch(header, b"").next_offset == 10
