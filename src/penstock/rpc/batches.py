"""Record batches to and from the wire. Payloads pass through untouched.

The protobuf message and `penstock.core.batch.Batch` carry the same fields; integrity is not
checked here (`penstock.core.records.check_batch`, `decode_batch` do).
"""

from penstock.core.batch import Batch, BatchFlags, BatchHeader, Codec
from penstock.core.types import LeaderEpoch, Offset, ProducerId
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import records_pb2 as pb

_CODECS = {int(codec): codec for codec in Codec}


def batch_to_wire(batch: Batch) -> pb.RecordBatch:
    """The message that carries this batch; copies the payload once."""
    message = header_to_wire(batch.header)
    message.payload = batch.payload
    return message


def header_to_wire(header: BatchHeader) -> pb.RecordBatch:
    """The message without its payload: all its small fields, listed only here."""
    return pb.RecordBatch(
        base_offset=header.base_offset,
        record_count=header.record_count,
        leader_epoch=header.leader_epoch,
        first_timestamp_ms=header.first_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms,
        append_time_ms=header.append_time_ms,
        codec=pb.Codec.ValueType(int(header.codec)),
        flags=int(header.flags),
        crc=header.crc,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        uncompressed_bytes=header.uncompressed_bytes,
    )


def batch_from_wire(message: pb.RecordBatch, payload: bytes | None = None) -> Batch:
    """The batch as sent; `payload`: if it is not in the message.

    Raises ClusterError: UNSUPPORTED_CODEC for a codec this version does not know,
    CORRUPT_BATCH for flags that do not fit into 16 bits.
    """
    codec = _CODECS.get(message.codec)
    if codec is None:
        raise ClusterError(
            f"batch has codec {message.codec}; known are "
            + ", ".join(f"{value} ({known.name.lower()})" for value, known in _CODECS.items())
            + "; upgrade this side or produce with a known codec",
            ErrorCode.UNSUPPORTED_CODEC,
        )
    flags = message.flags
    if flags > 0xFFFF:
        raise ClusterError(
            f"batch has flags {flags:#x}; only 16 bits are defined, build it again",
            ErrorCode.CORRUPT_BATCH,
        )
    header = BatchHeader(
        record_count=message.record_count,
        first_timestamp_ms=message.first_timestamp_ms,
        max_timestamp_ms=message.max_timestamp_ms,
        uncompressed_bytes=message.uncompressed_bytes,
        crc=message.crc,
        codec=codec,
        flags=BatchFlags(flags) if flags else BatchFlags.NONE,
        producer_id=ProducerId(message.producer_id),
        producer_epoch=message.producer_epoch,
        base_sequence=message.base_sequence,
        base_offset=Offset(message.base_offset),
        leader_epoch=LeaderEpoch(message.leader_epoch),
        append_time_ms=message.append_time_ms,
    )
    return Batch(header, message.payload if payload is None else payload)
