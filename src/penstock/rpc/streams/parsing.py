"""What arrives in a stream, as a protobuf message."""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from penstock.errors import ClusterError, ErrorCode

_M = TypeVar("_M", bound=Message)


def parsed(kind: type[_M], received: bytes, sender: str) -> _M:
    """Raises ClusterError(INVALID_REQUEST), which names `sender`, for bytes that are no `kind`."""
    try:
        return kind.FromString(received)
    except DecodeError as error:
        raise ClusterError(
            f"{sender} sent {len(received)} bytes that are no {kind.__name__}: {error}",
            ErrorCode.INVALID_REQUEST,
        ) from error
