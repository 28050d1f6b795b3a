"""Messages with batches, serialized with one copy of each payload.

Building protobuf messages around payloads copies every payload several times: into the batch's
message, into each message around it, and into the bytes sent. Where megabytes a second flow, the
bytes are put together here instead: protobuf serializes the small fields, and the payloads are
spliced in unchanged. Protobuf reads the result as the same message (fields may be in any order; the
tag of a field with a length is `field number << 3 | 2`).

    FetchResponse { results: FetchResult { …, batches: RecordBatch { …, payload } } }
    LeaderMessage { appends: AppendBatches { …, batches: RecordBatch { …, payload } } }
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from penstock.core.batch import Batch
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import broker_pb2, errors_pb2, records_pb2, replication_pb2, streams_pb2
from penstock.rpc.batches import header_to_wire
from penstock.rpc.streams.frames import Received
from penstock.rpc.streams.parsing import parsed

_LENGTH_DELIMITED: Final = 2
_CORRELATION_ID: Final = struct.Struct(">Q")
_HEAD_SIZE: Final = struct.Struct(">I")
_SHORT: Final = tuple(bytes([number]) for number in range(0x80))
"""Numbers of one byte."""


def _tag(message: str, field: str) -> bytes:
    """The tag byte of a field; looked up, so that a renumbered field is noticed by all tests."""
    modules = (broker_pb2, records_pb2, replication_pb2)
    descriptor = next(
        module.DESCRIPTOR.message_types_by_name[message]
        for module in modules
        if message in module.DESCRIPTOR.message_types_by_name
    )
    number = descriptor.fields_by_name[field].number
    assert number < 16, f"{message}.{field}: number {number} needs a tag of two bytes"
    return bytes([number << 3 | _LENGTH_DELIMITED])


_PAYLOAD: Final = _tag("RecordBatch", "payload")
_RESULT_BATCH: Final = _tag("FetchResult", "batches")
_RESULT: Final = _tag("FetchResponse", "results")
_PUSHED: Final = _tag("SubscribeResponse", "results")
_APPEND_BATCH: Final = _tag("AppendBatches", "batches")
_APPEND: Final = _tag("LeaderMessage", "appends")


def fetch_response(
    results: Iterable[tuple[broker_pb2.FetchResult, Sequence[Batch]]], *, throttle_ms: int = 0
) -> bytes:
    """A serialized FetchResponse; the results come without their batches."""
    parts = [broker_pb2.FetchResponse(throttle_ms=throttle_ms).SerializeToString()]
    for result, batches in results:
        _add_message(parts, _RESULT, result.SerializeToString(), _RESULT_BATCH, batches)
    return b"".join(parts)


def stream_fetch_request(correlation_id: int, request: broker_pb2.FetchRequest) -> bytes:
    """A fetch on a message stream; `stream_fetch_asked` takes it apart."""
    return _CORRELATION_ID.pack(correlation_id) + request.SerializeToString()


def stream_fetch_asked(message: Received) -> tuple[int, memoryview]:
    """The correlation id, and the serialized request.

    Raises ClusterError(INVALID_REQUEST).
    """
    if len(message) < _CORRELATION_ID.size:
        raise ClusterError(
            f"a consumer sent {len(message)} bytes; a fetch begins with a correlation id of "
            f"{_CORRELATION_ID.size}",
            ErrorCode.INVALID_REQUEST,
        )
    return _CORRELATION_ID.unpack_from(message)[0], memoryview(message)[_CORRELATION_ID.size :]


def stream_fetch_answer(
    correlation_id: int, results: Iterable[tuple[broker_pb2.FetchResult, Sequence[Batch]]]
) -> bytes:
    """A fetch's answer on a message stream: `stream_fetch_read` takes it apart."""
    head = streams_pb2.StreamFetchResponse(correlation_id=correlation_id)
    parts = [b"", b""]
    for result, batches in results:
        result.batches.extend(header_to_wire(batch.header) for batch in batches)
        head.fetch.results.append(result)
        parts += (batch.payload for batch in batches)
    head.payload_bytes.extend(map(len, parts[2:]))
    parts[1] = head.SerializeToString()
    parts[0] = _HEAD_SIZE.pack(len(parts[1]))
    return b"".join(parts)


def stream_fetch_failure(correlation_id: int, error: errors_pb2.Error) -> bytes:
    """The answer to a fetch that failed as a whole."""
    head = streams_pb2.StreamFetchResponse(correlation_id=correlation_id, error=error)
    body = head.SerializeToString()
    return _HEAD_SIZE.pack(len(body)) + body


def stream_fetch_read(message: Received) -> tuple[streams_pb2.StreamFetchResponse, list[bytes]]:
    """An answer, and the payloads of its batches in their order.

    Raises ClusterError(INVALID_REQUEST) for anything else.
    """
    if len(message) < _HEAD_SIZE.size:
        raise _no_answer(f"{len(message)} bytes")
    view = memoryview(message)
    (size,) = _HEAD_SIZE.unpack_from(message)
    at = _HEAD_SIZE.size + size
    head = parsed(streams_pb2.StreamFetchResponse, view[_HEAD_SIZE.size : at], "a broker")
    payloads = []
    for payload_bytes in head.payload_bytes:
        payloads.append(bytes(view[at : at + payload_bytes]))
        at += payload_bytes
    batches = sum(len(result.batches) for result in head.fetch.results)
    if at != len(message) or batches != len(payloads):
        raise _no_answer(
            f"{len(message)} bytes with {len(payloads)} payloads for {batches} batches, which end "
            f"at {at}"
        )
    return head, payloads


def _no_answer(what: str) -> ClusterError:
    return ClusterError(
        f"a broker answered a fetch with {what}: that cannot be read", ErrorCode.INVALID_REQUEST
    )


def subscribe_response(
    generation: int, results: Iterable[tuple[broker_pb2.FetchResult, Sequence[Batch]]]
) -> bytes:
    """A serialized SubscribeResponse; the results come without their batches."""
    parts = [broker_pb2.SubscribeResponse(generation=generation).SerializeToString()]
    for result, batches in results:
        _add_message(parts, _PUSHED, result.SerializeToString(), _RESULT_BATCH, batches)
    return b"".join(parts)


def leader_message(
    appends: Iterable[tuple[replication_pb2.AppendBatches, Sequence[Batch]]],
    *,
    copy_spent: int = 0,
) -> bytes:
    """A serialized LeaderMessage without answers and errors; appends come without their batches."""
    parts: list[bytes] = []
    if copy_spent:
        parts.append(replication_pb2.LeaderMessage(copy_spent=copy_spent).SerializeToString())
    for append, batches in appends:
        _add_message(parts, _APPEND, append.SerializeToString(), _APPEND_BATCH, batches)
    return b"".join(parts)


def _add_message(
    parts: list[bytes], tag: bytes, head: bytes, batch_tag: bytes, batches: Sequence[Batch]
) -> None:
    """Adds one message: its small fields, then its batches."""
    start = len(parts)
    parts += (tag, b"", head)
    size = len(head)
    for batch in batches:
        small = header_to_wire(batch.header).SerializeToString()
        payload_size = _varint(len(batch.payload))
        batch_size = len(small) + len(_PAYLOAD) + len(payload_size) + len(batch.payload)
        length = _varint(batch_size)
        parts += (batch_tag, length, small, _PAYLOAD, payload_size, batch.payload)
        size += len(batch_tag) + len(length) + batch_size
    parts[start + 1] = _varint(size)


def _varint(number: int) -> bytes:
    """Base 128, low groups first, the top bit says that more follow."""
    if number < len(_SHORT):
        return _SHORT[number]
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
