"""Errors on the wire: `PenstockError` to the protocol's Error message and gRPC status, and back.

    per-partition result     error_to_wire ──▶ Error ──▶ error_from_wire
    whole call               abort ──▶ status + trailer penstock-error-bin ──▶ error_from_rpc
    no answer at all         UNAVAILABLE, DEADLINE_EXCEEDED, … ──▶ error_from_rpc

A code this version does not know becomes a plain ClusterError whose message keeps the number,
so that an older client survives a newer broker.
"""

from typing import Any, Final, NoReturn

import grpc

from penstock.errors import (
    TRAITS,
    ClusterError,
    CurrentLeader,
    ErrorCode,
    NotLeaderError,
    OffsetOutOfRangeError,
    OffsetRange,
    OverloadedError,
    PenstockError,
    StaleDataDirectoryError,
    ThrottledError,
    UnknownCallError,
    UnreachableError,
)
from penstock.proto.v1 import errors_pb2 as pb

ERROR_TRAILER: Final = "penstock-error-bin"
PUSHBACK_TRAILER: Final = "grpc-retry-pushback-ms"
"""Of THROTTLED: when gRPC's own retries may go on (gRFC A6)."""
_REFUSED: Final = "Connection refused"
"""The operating system's text for ECONNREFUSED, which gRPC passes on; gRPC has no status for it."""
_DEADLINE: Final = "Deadline Exceeded"
"""gRPC's details of a call that had no answer in time."""
_FIRST_CLIENT_CODE: Final = 1000
_STATUS: Final = {status.value[0]: status for status in grpc.StatusCode}


def error_to_wire(error: PenstockError) -> pb.Error:
    """The message for this error. Codes that only a client knows are sent as INVALID_REQUEST."""
    code = error.code if error.code < _FIRST_CLIENT_CODE else ErrorCode.INVALID_REQUEST
    message = pb.Error(code=pb.ErrorCode.ValueType(int(code)), message=error.message)
    match error:
        case NotLeaderError(leader=CurrentLeader() as leader):
            message.current_leader.CopyFrom(
                pb.CurrentLeader(
                    broker_id=leader.broker_id,
                    leader_epoch=leader.leader_epoch,
                    host=leader.host,
                    port=leader.port,
                )
            )
        case OffsetOutOfRangeError(valid=OffsetRange() as valid):
            message.offset_range.CopyFrom(
                pb.OffsetRange(
                    log_start_offset=valid.log_start_offset,
                    high_watermark=valid.high_watermark,
                )
            )
        case OverloadedError(throttle_ms=throttle_ms):
            message.throttle_ms = throttle_ms
        case StaleDataDirectoryError(generation=generation):
            message.data_generation = generation
        case _:
            pass
    return message


def error_from_wire(message: pb.Error) -> PenstockError:
    """The typed error for this message."""
    try:
        code = ErrorCode(message.code)
    except ValueError:
        return ClusterError(
            f"{message.message} (error code {message.code}, unknown to this version)",
            ErrorCode.UNSPECIFIED,
        )
    if TRAITS[code].names_leader:
        leader = None
        if message.HasField("current_leader"):
            seen = message.current_leader
            leader = CurrentLeader(seen.broker_id, seen.leader_epoch, seen.host, seen.port)
        return NotLeaderError(message.message, code, leader)
    if code is ErrorCode.OFFSET_OUT_OF_RANGE:
        valid = None
        if message.HasField("offset_range"):
            seen_range = message.offset_range
            valid = OffsetRange(seen_range.log_start_offset, seen_range.high_watermark)
        return OffsetOutOfRangeError(message.message, valid)
    if code is ErrorCode.OVERLOADED:
        return OverloadedError(message.message, message.throttle_ms)
    if code is ErrorCode.THROTTLED:
        return ThrottledError(message.message, message.throttle_ms)
    if code is ErrorCode.STALE_DATA_DIRECTORY:
        return StaleDataDirectoryError(message.message, message.data_generation)
    return ClusterError(message.message, code)


async def abort(context: "grpc.aio.ServicerContext[Any, Any]", error: PenstockError) -> NoReturn:
    """Ends the whole call with this error's gRPC status and the Error in the trailer."""
    trailers: list[tuple[str, str | bytes]] = [
        (ERROR_TRAILER, error_to_wire(error).SerializeToString())
    ]
    if isinstance(error, ThrottledError):
        trailers.append((PUSHBACK_TRAILER, str(error.throttle_ms)))
    await context.abort(_STATUS[TRAITS[error.code].grpc_code], error.message, tuple(trailers))


def error_from_rpc(error: grpc.RpcError, address: str = "") -> PenstockError:
    """The error for a failed call; the message names `address`.

    Without our trailer the call never reached a Penstock server, or its outcome is unknown:
    UNAVAILABLE gives UnreachableError, DEADLINE_EXCEEDED and CANCELLED give REQUEST_TIMED_OUT,
    RESOURCE_EXHAUSTED gives OverloadedError.
    """
    for key, value in _trailing_metadata(error):
        if key == ERROR_TRAILER and isinstance(value, bytes):
            return error_from_wire(pb.Error.FromString(value))
    status = error.code() if callable(getattr(error, "code", None)) else grpc.StatusCode.UNKNOWN
    details = error.details() if callable(getattr(error, "details", None)) else str(error)
    where = f"{address}: " if address else ""
    if details == _DEADLINE:
        details = "no answer in time"
    text = f"{where}{details or status.name.lower()}"
    match status:
        case grpc.StatusCode.UNAVAILABLE:
            return UnreachableError(text, refused=_REFUSED in text)
        case grpc.StatusCode.DEADLINE_EXCEEDED | grpc.StatusCode.CANCELLED:
            return ClusterError(text, ErrorCode.REQUEST_TIMED_OUT)
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return OverloadedError(text)
        case grpc.StatusCode.UNIMPLEMENTED:
            older = "the broker does not know this call: it is older than this client, or no broker"
            return UnknownCallError(f"{where}{older}: {details}")
        case grpc.StatusCode.INVALID_ARGUMENT:
            return ClusterError(text, ErrorCode.INVALID_REQUEST)
        case _:
            return ClusterError(f"{text} (gRPC status {status.name})", ErrorCode.UNSPECIFIED)


def _trailing_metadata(error: grpc.RpcError) -> list[tuple[str, str | bytes]]:
    read = getattr(error, "trailing_metadata", None)
    metadata = read() if callable(read) else None
    return [(key, value) for key, value in metadata or ()]
