"""Frames other than messages: the beginning and the end of a call."""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import grpc
from grpc._cython import cygrpc

Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]
BROKEN: Final = "Stream removed (Socket closed)"
"""gRPC's message for a connection that ended during a call."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The first frame of a call. `request`: the only one of a unary call; None: a stream."""

    method: str
    metadata: Metadata
    deadline_us: int | None
    request: bytes | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The last frame of a call. `message`: the only one of a unary call that succeeded."""

    message: bytes | None
    status: Any


def final_status(code: grpc.StatusCode, details: str, trailing: Metadata | None = ()) -> Any:
    """A final status, as the core passes it to `grpc.aio`."""
    return cygrpc.AioRpcStatus(code.value[0], details, trailing, details)
