"""Channels to brokers, one per address, and the one place where calls are made.

A call either returns its answer or raises a PenstockError; gRPC errors do not leave here.
Channels connect on first use, reconnect by themselves and live until the client closes. They are
known by the address a broker advertises, whatever `resolve_address` makes of it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc

from penstock.errors import ClusterError, ErrorCode, UnreachableError
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.proto.v1.group_pb2_grpc import GroupServiceStub
from penstock.rpc.channel import open_aio_channel
from penstock.rpc.errors import error_from_rpc

Answer = TypeVar("Answer")


def _being_cancelled() -> bool:
    """Whether this task was asked to end.

    gRPC raises CancelledError as well in a call whose channel is closed by another task; that
    is an error of the call, and must not look as if the caller's task were cancelled.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Connection:
    """A channel to one address and the stubs on it.

    `address` is what errors name; `target` is what the channel connects to.
    """

    def __init__(self, address: str, target: str) -> None:
        self.address = address
        self.channel = open_aio_channel(target)
        self.broker = BrokerServiceStub(self.channel)
        self.admin = AdminServiceStub(self.channel)
        self.group = GroupServiceStub(self.channel)

    async def call(
        self,
        method: Callable[..., Awaitable[Answer]],
        request: Any,
        timeout_s: float,
    ) -> Answer:
        """One unary call of a method of this connection's stubs; raises PenstockError."""
        try:
            return await method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self.address) from error
        except asyncio.CancelledError:
            if _being_cancelled():
                raise
            raise UnreachableError(f"{self.address}: the connection was closed") from None

    async def ready(self, timeout_s: float) -> bool:
        """Whether there is a connection now or within `timeout_s`."""
        if self.channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self.channel.channel_ready()
        except TimeoutError:
            return False
        return True


class Connections:
    """All channels of one client. Owned by its event loop."""

    def __init__(self, resolve_address: Callable[[str], str] | None = None) -> None:
        self._resolve = resolve_address or str
        self._by_address: dict[str, Connection] = {}
        self._closed = False

    def to(self, address: str) -> Connection:
        """The connection to `host:port`; made if there is none yet."""
        if self._closed:
            raise ClusterError("the client is closed", ErrorCode.CLOSED)
        connection = self._by_address.get(address)
        if connection is None:
            connection = self._by_address[address] = Connection(address, self._resolve(address))
        return connection

    async def aclose(self) -> None:
        """Closes every channel; calls under way end with an error."""
        self._closed = True
        connections, self._by_address = self._by_address, {}
        for connection in connections.values():
            await connection.channel.close()
