"""One stream to a controller, below the session: its messages, its end, an answer that was lost."""

import asyncio
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc

from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import controller_pb2 as pb
from penstock.rpc.cancelling import heeding_cancellation
from penstock.rpc.errors import error_from_rpc, error_from_wire

SessionCall: TypeAlias = "grpc.aio.StreamStreamCall[pb.SessionRequest, pb.SessionResponse]"


@dataclass(slots=True)
class Line:
    """One stream to a controller. `ready` starts its heartbeats.

    `generation`: of the TLS that it was opened with. `renew_s`: when it is to be replaced, on the
    loop's clock.
    """

    channel: grpc.aio.Channel
    call: SessionCall
    ready: asyncio.Future[float]
    generation: int
    renew_s: float

    async def hang_up(self, grace_s: float | None = None) -> None:
        """Ends it, other calls on its channel after `grace_s`."""
        self.ready.cancel()
        self.call.cancel()
        await self.channel.close(grace_s)


async def read(call: SessionCall) -> pb.SessionResponse:
    """The next message; raises the controller's error, or one for the end of the stream."""
    with heeding_cancellation():
        response: Any = await call.read()
    if response is grpc.aio.EOF:
        raise ClusterError("the controller ended the session", ErrorCode.CONTROLLER_UNAVAILABLE)
    if response.WhichOneof("message") == "error":
        raise error_from_wire(response.error)
    assert isinstance(response, pb.SessionResponse)
    return response


def unanswered(what: str, error: BaseException) -> PenstockError:
    """The error for a call without an answer; a refusal by the controller passes through."""
    if isinstance(error, grpc.aio.AioRpcError):
        seen = error_from_rpc(error)
        if seen.code not in {ErrorCode.UNREACHABLE, ErrorCode.REQUEST_TIMED_OUT}:
            return seen
    return ClusterError(
        f"{what}: the controller did not answer in time; whether it was done is unknown, "
        "check before you try again",
        ErrorCode.CONTROLLER_UNAVAILABLE,
    )
