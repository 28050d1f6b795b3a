"""What carries a link's requests: a message stream where the broker has them, else a gRPC call.

ProduceLink ── write ─▶ MessageWire ─▶ TCP          no switch of tasks per message
            ◀─ deliver ─ GrpcWire ─▶ ProduceStream
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import grpc

from penstock.client.cluster.connections import Connection
from penstock.client.cluster.credentials import Shown
from penstock.errors import PenstockError, UnreachableError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.cancelling import being_cancelled, heeding_cancellation
from penstock.rpc.errors import error_from_rpc
from penstock.rpc.streams.parsing import parsed
from penstock.rpc.streams.tcp import TcpStream


class ProduceWire(Protocol):
    """One stream of requests and answers."""

    async def write(self, request: pb.ProduceRequest) -> bool:
        """Waits until the transport has accepted it; False: the stream has ended."""
        ...

    async def deliver(self, take: Callable[[pb.ProduceResponse], None]) -> None:
        """Calls `take` with each answer; returns when the broker ends the stream.

        Raises PenstockError if it ends with one or breaks, and what `take` raises.
        """
        ...

    def end(self) -> None:
        """Nothing is wanted from it any more."""
        ...


class GrpcWire:
    """A `ProduceWire` over `BrokerService.ProduceStream`."""

    def __init__(self, connection: Connection, shown: Shown) -> None:
        self._address = connection.address
        # A stream-stream call of the generated stub; its type parameters carry no information.
        self._call: Any = connection.broker.ProduceStream(metadata=shown.metadata)

    async def write(self, request: pb.ProduceRequest) -> bool:
        """See `ProduceWire`."""
        try:
            await self._call.write(request)
        except (asyncio.InvalidStateError, grpc.RpcError, grpc.aio.UsageError):
            return False
        return True

    async def deliver(self, take: Callable[[pb.ProduceResponse], None]) -> None:
        """See `ProduceWire`."""
        try:
            while True:
                with heeding_cancellation():
                    answer = await self._call.read()
                if answer is grpc.aio.EOF:
                    return
                take(answer)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self._address) from error
        except asyncio.CancelledError:
            if being_cancelled():
                raise
            raise UnreachableError(f"{self._address}: the connection was closed") from None

    def end(self) -> None:
        """See `ProduceWire`."""
        self._call.cancel()


class MessageWire:
    """A `ProduceWire` over a message stream whose hello is sent; it owns the stream."""

    def __init__(self, stream: TcpStream) -> None:
        self._stream = stream

    async def write(self, request: pb.ProduceRequest) -> bool:
        """See `ProduceWire`."""
        message = request.SerializeToString()
        if self._stream.post(message):
            return True
        try:
            await self._stream.send(message)
        except PenstockError:
            return False
        return True

    async def deliver(self, take: Callable[[pb.ProduceResponse], None]) -> None:
        """See `ProduceWire`."""
        await self._stream.deliver(
            lambda message: take(parsed(pb.ProduceResponse, message, "a broker"))
        )

    def end(self) -> None:
        """See `ProduceWire`."""
        self._stream.cut()
