"""What arrives in a stream, as a protobuf message."""

import asyncio
from typing import TypeVar, cast

from google.protobuf.message import DecodeError, Message

from penstock.errors import ClusterError, ErrorCode
from penstock.rpc.streams.contract import MessageStream
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


async def introduction(
    kind: type[_M], stream: MessageStream, sender: str, wait_s: float
) -> _M | None:
    """A stream's first message; None if the other side left at once.

    Raises ClusterError(INVALID_REQUEST) if none comes within `wait_s`, or it is no `kind`.
    """
    try:
        async with asyncio.timeout(wait_s):
            first = await stream.receive()
    except TimeoutError:
        raise ClusterError(
            f"no hello came within {wait_s:.0f} s", ErrorCode.INVALID_REQUEST
        ) from None
    return None if first is None else parsed(kind, first, sender)
