"""Record batches from columns and back: producers build, brokers check, and consumers decode them.

    encode_columns / columns_from_buffers        lists or buffers        → Columns
    build_batch       Columns → message → compressed → sealed header     → Batch
    check_batch       what a broker checks on every produce, without decoding
    decode_batch      full validation                                    → Columns

Columns have no limits, so that a producer can hold any number of records and cut them
(`penstock.core.slicing`); a batch has: `build_batch` refuses what `decode_batch` would. A batch
that passes `decode_batch` is consistent in every column, and its bytes are those the producer
sealed (I22). A failure raises ClusterError with the field, the value seen and the limit; no other
exception escapes, and no memory beyond the limits is used (I23).
The byte layout is drawn in `records.proto`, `penstock.core.batch` and
`docs/decisions/0003-record-batch-format.md`.
"""

from dataclasses import replace
from typing import Final

from penstock.core.batch import (
    Batch,
    BatchFlags,
    BatchHeader,
    Codec,
    compute_crc,
    describe_bad_flags,
)
from penstock.core.columns import Columns, Header, Headers, Record
from penstock.core.compression import compress, decompress
from penstock.core.consistency import check_columns
from penstock.core.encode import (
    BinaryBuffers,
    binary_buffers,
    columns_from_buffers,
    encode_columns,
)
from penstock.core.limits import (
    MAX_COVERED_OFFSETS,
    MAX_RECORDS,
    MAX_TIMESTAMP_MS,
    MAX_UNCOMPRESSED_BYTES,
    MIN_TIMESTAMP_MS,
)
from penstock.core.records_wire import decode_message, encode_message
from penstock.core.types import NO_PRODUCER, ProducerId
from penstock.errors import ClusterError, ErrorCode, MisuseError

__all__ = [
    "MAX_RECORDS",
    "MAX_TIMESTAMP_MS",
    "MAX_UNCOMPRESSED_BYTES",
    "MIN_TIMESTAMP_MS",
    "BinaryBuffers",
    "Columns",
    "Header",
    "Headers",
    "Record",
    "binary_buffers",
    "build_batch",
    "check_batch",
    "check_size",
    "columns_from_buffers",
    "decode_batch",
    "encode_columns",
]

_CODECS: Final = frozenset(Codec)
_MAX_INT32: Final = 2**31 - 1
_MAX_INT64: Final = 2**63 - 1
_KNOWN_FLAGS: Final = sum(BatchFlags)
_COMPACTED: Final = int(BatchFlags.COMPACTED)


def build_batch(
    columns: Columns,
    *,
    codec: Codec = Codec.NONE,
    producer_id: ProducerId = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    flags: BatchFlags = BatchFlags.NONE,
) -> Batch:
    """Seals columns into a batch that passes `check_batch` and `decode_batch`.

    Base offset, leader epoch and append time stay 0 for the broker to stamp. Columns with
    `covered_offsets` make a compacted batch.
    Raises MisuseError: RECORD_TOO_LARGE if the columns exceed MAX_RECORDS or
    MAX_UNCOMPRESSED_BYTES (cut them first), or if the codec's package is missing.
    """
    if columns.record_count > MAX_RECORDS:
        raise MisuseError(
            f"{columns.record_count} records in one batch, the limit is {MAX_RECORDS}; split them",
            ErrorCode.RECORD_TOO_LARGE,
        )
    message = encode_message(columns)
    if len(message) > MAX_UNCOMPRESSED_BYTES:
        raise MisuseError(
            f"batch of {columns.record_count} records takes {len(message)} bytes before "
            f"compression, the limit is {MAX_UNCOMPRESSED_BYTES}; split it",
            ErrorCode.RECORD_TOO_LARGE,
        )
    payload = compress(codec, message)
    if columns.covered_offsets:
        flags |= BatchFlags.COMPACTED
    header = BatchHeader(
        record_count=columns.covered_offsets or columns.record_count,
        first_timestamp_ms=columns.first_timestamp_ms,
        max_timestamp_ms=columns.max_timestamp_ms,
        uncompressed_bytes=len(message),
        crc=0,
        codec=codec,
        flags=flags,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    return Batch(replace(header, crc=compute_crc(header, payload)), payload)


def check_size(batch: Batch, max_bytes: int) -> None:
    """Raises ClusterError(RECORD_TOO_LARGE) if header and payload, compressed, have more than
    `max_bytes` (`max.message.bytes` of the topic)."""
    if batch.size_bytes > max_bytes:
        raise ClusterError(
            f"batch of {batch.header.record_count} records has {batch.size_bytes} bytes, the limit "
            f"(max.message.bytes) is {max_bytes}; send smaller batches or raise the limit",
            ErrorCode.RECORD_TOO_LARGE,
        )


def check_batch(batch: Batch, *, allow_internal_flags: bool = False) -> None:
    """What a broker checks of any batch before it appends: header, uncompressed size and CRC. The
    payload is not decoded. What its topic allows: `check_size`.

    Args:
        batch: As received from a producer or a leader.
        allow_internal_flags: Whether the batch may be control, a marker, compacted: true for
            batches from a leader and from the broker itself. Producers may set TRANSACTIONAL
            alone; the partition's leader checks it against the producer id.

    Raises ClusterError: CORRUPT_BATCH, RECORD_TOO_LARGE, UNSUPPORTED_CODEC, INVALID_TIMESTAMP,
    or INVALID_REQUEST for flags that a producer must not set. Then nothing may be appended.
    """
    header = batch.header
    if header.flags and not allow_internal_flags and header.flags != BatchFlags.TRANSACTIONAL:
        raise ClusterError(
            f"batch has flags {int(header.flags):#x}; producers send 0, or 0x1 in a transaction",
            ErrorCode.INVALID_REQUEST,
        )
    _check_header(batch, MAX_UNCOMPRESSED_BYTES)


def decode_batch(batch: Batch, *, max_uncompressed_bytes: int = MAX_UNCOMPRESSED_BYTES) -> Columns:
    """Decodes a batch; every column of the result is consistent.

    The columns share the memory of the payload, or of the message decompressed from it.

    Args:
        batch: From anywhere.
        max_uncompressed_bytes: Most that decompression may produce; at least what a producer
            may build, else good batches are refused.

    Raises ClusterError: CORRUPT_BATCH, UNSUPPORTED_CODEC, INVALID_TIMESTAMP, or RECORD_TOO_LARGE
    for a message over the limit. MisuseError if the codec's package is not installed.
    """
    header = batch.header
    _check_header(batch, max_uncompressed_bytes)
    message = decompress(header.codec, batch.payload, header.uncompressed_bytes)
    found = decode_message(message)
    count, covered = header.record_count, 0
    if header.flags & BatchFlags.COMPACTED:
        count, covered = len(found.get("offset_deltas", ())), header.record_count
        if count > MAX_RECORDS:
            raise _corrupt(f"it has {count} records left; it must have 0 to {MAX_RECORDS}")
    columns = Columns(
        record_count=count,
        first_timestamp_ms=header.first_timestamp_ms,
        base_offset=header.base_offset,
        append_time_ms=header.append_time_ms,
        covered_offsets=covered,
        **found,
    )
    check_columns(columns, header.max_timestamp_ms)
    return columns


def _check_header(batch: Batch, max_uncompressed_bytes: int) -> None:
    """Checks everything that does not need the payload's content."""
    header = batch.header
    flags = int(header.flags)  # `&` of an `IntFlag` runs in Python
    most = MAX_COVERED_OFFSETS if flags & _COMPACTED else MAX_RECORDS
    if not 1 <= header.record_count <= most:
        raise _corrupt(f"record count is {header.record_count}; it must be 1 to {most}")
    if header.codec not in _CODECS:
        raise ClusterError(
            f"batch has codec {int(header.codec)}, known are 0 to {max(_CODECS)}; "
            "upgrade this side or produce with a known codec",
            ErrorCode.UNSUPPORTED_CODEC,
        )
    if flags & ~_KNOWN_FLAGS:
        raise _corrupt(f"flags are {flags:#x}, known are {_KNOWN_FLAGS:#x}")
    bad_flags = describe_bad_flags(header)
    if bad_flags is not None:
        raise _corrupt(bad_flags)
    _check_sizes(batch, max_uncompressed_bytes)
    _check_producer(header)
    _check_timestamps(header)
    _check_stamp(header)
    seen = compute_crc(header, batch.payload)
    if seen != header.crc:
        raise _corrupt(
            f"CRC-32C of header and {len(batch.payload)} payload bytes is {seen:#010x}, but the "
            f"header says {header.crc:#010x}"
        )


def _check_sizes(batch: Batch, max_uncompressed_bytes: int) -> None:
    header, payload_bytes = batch.header, len(batch.payload)
    if not 0 <= header.uncompressed_bytes <= max_uncompressed_bytes:
        raise ClusterError(
            f"batch of {header.record_count} records says it takes {header.uncompressed_bytes} "
            f"bytes uncompressed, the limit is {max_uncompressed_bytes}; send smaller batches",
            ErrorCode.RECORD_TOO_LARGE,
        )
    if header.codec is Codec.NONE and header.uncompressed_bytes != payload_bytes:
        raise _corrupt(
            f"uncompressed payload has {payload_bytes} bytes, "
            f"the header says {header.uncompressed_bytes}"
        )


def _check_producer(header: BatchHeader) -> None:
    producer_id, epoch = header.producer_id, header.producer_epoch
    sequence = 0 if header.is_marker else header.base_sequence
    if producer_id == epoch == sequence == -1:
        return
    if not (
        0 <= producer_id <= _MAX_INT64 and 0 <= epoch <= _MAX_INT32 and 0 <= sequence <= _MAX_INT32
    ):
        raise _corrupt(
            f"producer id, epoch and base sequence are {producer_id}, {epoch}, {sequence}; "
            "all must be -1, or none negative"
        )


def _check_timestamps(header: BatchHeader) -> None:
    first, largest = header.first_timestamp_ms, header.max_timestamp_ms
    if not MIN_TIMESTAMP_MS <= first <= largest <= MAX_TIMESTAMP_MS:
        raise ClusterError(
            f"first and max timestamp are {first} and {largest} ms; both must be "
            f"{MIN_TIMESTAMP_MS} to {MAX_TIMESTAMP_MS} and the first not above the max",
            ErrorCode.INVALID_TIMESTAMP,
        )


def _check_stamp(header: BatchHeader) -> None:
    """A broker's stamps are not covered by the CRC: checks that they are plausible."""
    if not 0 <= header.base_offset <= _MAX_INT64 - header.record_count:
        raise _corrupt(f"base offset is {header.base_offset}; it must be 0 to 2**63")
    if not 0 <= header.append_time_ms <= MAX_TIMESTAMP_MS:
        raise _corrupt(
            f"append time is {header.append_time_ms} ms; it must be 0 to {MAX_TIMESTAMP_MS}"
        )


def _corrupt(what: str) -> ClusterError:
    return ClusterError(f"record batch is corrupt: {what}; build it again", ErrorCode.CORRUPT_BATCH)
