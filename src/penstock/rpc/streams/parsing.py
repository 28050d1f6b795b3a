"""What arrives in a stream, as a protobuf message."""

from typing import TypeVar, cast

from google.protobuf.message import DecodeError, Message

from penstock.errors import ClusterError, ErrorCode
from penstock.rpc.streams.frames import Received

_M = TypeVar("_M", bound=Message)


def parsed(kind: type[_M], received: Received | memoryview, sender: str) -> _M:
    """Raises ClusterError(INVALID_REQUEST), which names `sender`, for bytes that are no `kind`."""
    try:
        return kind.FromString(cast("bytes", received))  # any buffer will do
    except DecodeError as error:
        raise ClusterError(
            f"{sender} sent {len(received)} bytes that are no {kind.__name__}: {error}",
            ErrorCode.INVALID_REQUEST,
        ) from error
