"""What goes over the wire beside messages: how a call begins and how it ends."""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import grpc
from grpc._cython import cygrpc

Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]
BROKEN: Final = "Stream removed (Socket closed)"
"""gRPC's words for a connection that ended under a call."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The first frame of a call. `request`: the only one, of a unary call; None: a stream."""

    method: str
    metadata: Metadata
    deadline_us: int | None
    request: bytes | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The last frame of a call. `message`: the only one, of a unary call that ended well."""

    message: bytes | None
    status: Any


def final_status(code: grpc.StatusCode, details: str, trailing: Metadata | None = ()) -> Any:
    """A final status, as the core hands it to `grpc.aio`."""
    return cygrpc.AioRpcStatus(code.value[0], details, trailing, details)
