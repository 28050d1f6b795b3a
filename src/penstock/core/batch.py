"""The record batch as brokers handle it: a header and an opaque payload.

Producers build batches (`penstock.core.records`), brokers stamp three header fields and store
the rest untouched. The stored form, all integers big-endian:

     0        8       12        20    24     28                                      72
     ┌────────┬───────┬─────────┬─────┬──────┬─────────────────────────────────────┬─────────
     │ base   │ leader│ append  │ crc │header│ the 44 bytes the CRC starts with     │ payload
     │ offset │ epoch │ time ms │     │ crc  │ (format codec flags count first max  │
     │ i64    │ i32   │ i64     │ u32 │ u32  │  pid pepoch bseq uncompressed)       │
     └────────┴───────┴─────────┴─────┴──────┴─────────────────────────────────────┴─────────

`crc` covers the 44 bytes and the payload, and never changes between producer and consumer. `header
crc` covers bytes 0..24, which the broker stamped (I22).

A transaction of a producer is identified by its id and epoch. Its batches are TRANSACTIONAL; in
each partition a marker follows them, a separate control batch with the outcome in its sealed flags:
a reader of headers knows the outcome of the transaction, and no payload is decoded.
"""

import struct
from dataclasses import replace
from enum import IntEnum, IntFlag
from typing import Final

import google_crc32c

from penstock.core.types import NO_PRODUCER, LeaderEpoch, Offset, ProducerId
from penstock.core.value import value
from penstock.errors import ClusterError, ErrorCode

FORMAT: Final = 1
_STAMP: Final = struct.Struct(">qiqI")
_HEADER_CRC: Final = struct.Struct(">I")
_SEALED: Final = struct.Struct(">BBHIqqqiiI")
STAMP_BYTES: Final = _STAMP.size
HEADER_BYTES: Final = _STAMP.size + _HEADER_CRC.size + _SEALED.size
assert HEADER_BYTES == 72


class Codec(IntEnum):
    """Compression of the payload. Values are the protocol's."""

    NONE = 0
    ZSTD = 1
    LZ4 = 2


class BatchFlags(IntFlag):
    NONE = 0
    TRANSACTIONAL = 1
    CONTROL = 2
    COMPACTED = 4
    """Some of its offsets no longer hold a record (`Records.offset_deltas`)."""
    COMMIT = 8
    ABORT = 16
    """A marker has one of these two, with CONTROL and TRANSACTIONAL: the outcome of the transaction
    of its producer id and epoch."""


_OUTCOMES: Final = BatchFlags.COMMIT | BatchFlags.ABORT
_MARKER: Final = BatchFlags.CONTROL | BatchFlags.TRANSACTIONAL
# Headers are checked for these at least once per batch, and `&` of an `IntFlag` runs in Python and
# creates a flag: this does neither.
_has: Final = int.__and__


@value(frozen=True, slots=True)
class BatchHeader:
    """What is known of a batch without its payload. Times in ms since 1970 UTC, sizes in bytes.

    `record_count` is the number of its offsets; compaction never changes it, it only leaves
    fewer records (COMPACTED), down to none. `append_time_ms` 0 = records keep their own timestamps.
    `producer_id` -1 = not idempotent.
    """

    record_count: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    uncompressed_bytes: int
    crc: int
    codec: Codec = Codec.NONE
    flags: BatchFlags = BatchFlags.NONE
    producer_id: ProducerId = NO_PRODUCER
    producer_epoch: int = -1
    base_sequence: int = -1
    base_offset: Offset = Offset(0)
    leader_epoch: LeaderEpoch = LeaderEpoch(0)
    append_time_ms: int = 0

    @property
    def next_offset(self) -> Offset:
        """The first offset after the batch."""
        return Offset(self.base_offset + self.record_count)

    @property
    def last_sequence(self) -> int:
        """Sequence of the last offset; sequences wrap from 2**31 - 1 to 0, as Kafka's do."""
        return (self.base_sequence + self.record_count - 1) & 0x7FFFFFFF

    @property
    def effective_max_timestamp_ms(self) -> int:
        return self.append_time_ms or self.max_timestamp_ms

    @property
    def is_transactional(self) -> bool:
        """Belongs to a transaction: its records, or its marker."""
        return bool(_has(self.flags, BatchFlags.TRANSACTIONAL))

    @property
    def is_control(self) -> bool:
        """Written by brokers for brokers: never returned to users."""
        return bool(_has(self.flags, BatchFlags.CONTROL))

    @property
    def is_compacted(self) -> bool:
        """Compaction may have removed records of it."""
        return bool(_has(self.flags, BatchFlags.COMPACTED))

    @property
    def is_marker(self) -> bool:
        """Ends the transaction of its producer id and epoch; `commits` says how."""
        return bool(_has(self.flags, _OUTCOMES))

    @property
    def commits(self) -> bool:
        """A marker of a committed transaction; False for an aborted one."""
        return bool(_has(self.flags, BatchFlags.COMMIT))


@value(frozen=True, slots=True)
class Batch:
    """A header and the payload as produced (a serialized `Records` message, maybe compressed)."""

    header: BatchHeader
    payload: bytes

    @property
    def base_offset(self) -> Offset:
        return self.header.base_offset

    @property
    def next_offset(self) -> Offset:
        header = self.header  # not its property: searches call this most often
        return Offset(header.base_offset + header.record_count)

    @property
    def size_bytes(self) -> int:
        """Stored size: header and payload."""
        return HEADER_BYTES + len(self.payload)

    def stamped(self, base_offset: Offset, epoch: LeaderEpoch, append_time_ms: int) -> "Batch":
        """The same batch as appended to the log. The payload is shared, the CRC unchanged."""
        old = self.header
        # Explicitly: `replace` looks fields up by name, and this runs once per batch appended.
        header = BatchHeader(
            old.record_count,
            old.first_timestamp_ms,
            old.max_timestamp_ms,
            old.uncompressed_bytes,
            old.crc,
            old.codec,
            old.flags,
            old.producer_id,
            old.producer_epoch,
            old.base_sequence,
            base_offset,
            epoch,
            append_time_ms,
        )
        return Batch(header, self.payload)


def build_marker(
    producer_id: ProducerId, producer_epoch: int, *, commit: bool, timestamp_ms: int
) -> Batch:
    """The batch that ends a transaction in one partition: one offset, and no payload.

    Args:
        producer_id: Owner of the transaction.
        producer_epoch: The epoch that ends; the producer continues with the next.
        commit: Whether its records become visible, or never will.
        timestamp_ms: Now, ms since 1970 UTC.
    """
    header = BatchHeader(
        record_count=1,
        first_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        uncompressed_bytes=0,
        crc=0,
        flags=_MARKER | (BatchFlags.COMMIT if commit else BatchFlags.ABORT),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )
    return Batch(replace(header, crc=compute_crc(header, b"")), b"")


def describe_bad_flags(header: BatchHeader) -> str | None:
    """What is wrong with the flags of a batch on a leader or a disk; None: nothing.

    Flags that this version does not know are not checked here.
    """
    flags = header.flags
    if not flags:
        return None
    if flags & _OUTCOMES:
        if flags & ~_OUTCOMES != _MARKER or flags & _OUTCOMES == _OUTCOMES:
            return f"marker has flags {int(flags):#x}, allowed are 0xb (commit) and 0x13 (abort)"
        if header.record_count != 1 or header.producer_id < 0 or header.base_sequence != -1:
            return (
                f"marker has {header.record_count} records, producer {header.producer_id} and "
                f"sequence {header.base_sequence}; it takes one offset, names a producer, and has "
                "sequence -1"
            )
    elif flags & BatchFlags.TRANSACTIONAL and header.producer_id < 0:
        return f"batch has flags {int(flags):#x}, but no producer id"
    return None


def pack_sealed(header: BatchHeader) -> bytes:
    """The 44 header bytes under the CRC."""
    return _SEALED.pack(
        FORMAT,
        header.codec,
        header.flags,
        header.record_count,
        header.first_timestamp_ms,
        header.max_timestamp_ms,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.uncompressed_bytes,
    )


def compute_crc(header: BatchHeader, payload: bytes) -> int:
    """CRC-32C over the sealed header bytes and the payload."""
    return _crc_of(pack_sealed(header), payload)


def _crc_of(sealed: bytes, payload: bytes) -> int:
    return int(google_crc32c.extend(google_crc32c.value(sealed), payload))


def pack_stamp(header: BatchHeader) -> bytes:
    """The 24 bytes that the leader has stamped, with the CRC of all the rest."""
    return _STAMP.pack(header.base_offset, header.leader_epoch, header.append_time_ms, header.crc)


def pack_header(header: BatchHeader) -> bytes:
    """The 72 bytes stored before the payload."""
    stamp = pack_stamp(header)
    return stamp + _HEADER_CRC.pack(int(google_crc32c.value(stamp))) + pack_sealed(header)


def unpack_header(stored: bytes | memoryview) -> BatchHeader:
    """Reads the header of a stored batch (the payload may be cut off).

    Raises ClusterError(DATA_CORRUPTED) if it is too short, of another format, or fails its CRC.
    """
    if len(stored) < HEADER_BYTES:
        raise ClusterError(
            f"stored batch has {len(stored)} bytes, but the header alone has {HEADER_BYTES}",
            ErrorCode.DATA_CORRUPTED,
        )
    base_offset, epoch, append_time_ms, crc = _STAMP.unpack_from(stored, 0)
    (header_crc,) = _HEADER_CRC.unpack_from(stored, STAMP_BYTES)
    seen = int(google_crc32c.value(bytes(stored[:STAMP_BYTES])))
    if seen != header_crc:
        raise ClusterError(
            f"stored batch header has CRC {seen:#010x}, expected {header_crc:#010x}",
            ErrorCode.DATA_CORRUPTED,
        )
    sealed = _SEALED.unpack_from(stored, STAMP_BYTES + 4)
    if sealed[0] != FORMAT or sealed[1] not in (0, 1, 2):
        raise ClusterError(
            f"stored batch at offset {base_offset} has format {sealed[0]} codec {sealed[1]}; "
            f"this version reads format {FORMAT}, codecs 0 to 2",
            ErrorCode.DATA_CORRUPTED,
        )
    return BatchHeader(
        codec=Codec(sealed[1]),
        flags=BatchFlags(sealed[2]),
        record_count=sealed[3],
        first_timestamp_ms=sealed[4],
        max_timestamp_ms=sealed[5],
        producer_id=ProducerId(sealed[6]),
        producer_epoch=sealed[7],
        base_sequence=sealed[8],
        uncompressed_bytes=sealed[9],
        base_offset=Offset(base_offset),
        leader_epoch=LeaderEpoch(epoch),
        append_time_ms=append_time_ms,
        crc=crc,
    )


def pack_batch(batch: Batch) -> bytes:
    """The stored form."""
    return pack_header(batch.header) + batch.payload


def unpack_batch(stored: bytes) -> Batch:
    """Reads a stored batch and checks both CRCs; raises ClusterError(DATA_CORRUPTED)."""
    header = unpack_header(stored)
    payload = stored[HEADER_BYTES:]
    seen = _crc_of(stored[HEADER_BYTES - _SEALED.size : HEADER_BYTES], payload)
    if seen != header.crc:
        raise ClusterError(
            f"stored batch at offset {header.base_offset} has CRC {seen:#010x}, "
            f"expected {header.crc:#010x}",
            ErrorCode.DATA_CORRUPTED,
        )
    return Batch(header, payload)
