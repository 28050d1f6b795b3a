"""Channels to brokers, one per address, and the one place where calls are made.

Where brokers have a port for message streams, a connection knows it (`streams.py`).

A call either returns its answer or raises a PenstockError; gRPC errors do not leave here.
Channels connect on first use and live until the client closes. They are known by the address a
broker advertises, whatever `resolve_address` makes of it.

With TLS, every call shows what `credentials` has; when its files change, channels are replaced, and
calls and streams on the former ones go on for a while.

A channel that cannot connect is replaced: gRPC resolves a name again only after a second, then 1.6,
2.6 … (no setting changes that), and would keep the address of a deleted pod while its successor
already serves under the same name.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

import grpc

from penstock.client.clock import loop_time_s
from penstock.client.cluster.credentials import Credentials, Metadata, joined
from penstock.client.cluster.diagnosis import diagnose
from penstock.client.cluster.streams import StreamPort
from penstock.client.model import BrokerDescription
from penstock.errors import ClusterError, ErrorCode, UnreachableError
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.proto.v1.group_pb2_grpc import GroupServiceStub
from penstock.proto.v1.transaction_pb2_grpc import TransactionServiceStub
from penstock.rpc.cancelling import being_cancelled, heeding_cancellation
from penstock.rpc.channel import open_aio_channel
from penstock.rpc.errors import error_from_rpc
from penstock.rpc.tls import Tls

Answer = TypeVar("Answer")


class OpenChannel(Protocol):
    """As `open_aio_channel`, which it is outside of simulations."""

    def __call__(
        self, address: str, tls: Tls | None = None, *, known_as: str = ""
    ) -> grpc.aio.Channel: ...


PATIENCE_S: Final = 0.5
"""Timeout of the first attempt to connect; doubled after each attempt that times out."""
PATIENCE_MAX_S: Final = 4.0
PAUSE_S: Final = 0.1
"""Pause between attempts that are refused at once, or whose name cannot be resolved (yet)."""
LAST_CALLS_S: Final = 5.0
"""How long calls that still wait on a replaced channel may take."""
LAST_STREAMS_S: Final = 60.0
"""The same if it was replaced for other certificates, and works: streams leave it by themselves."""


async def _ask_on(call: Any, request: Any) -> Any:
    with suppress(asyncio.InvalidStateError, grpc.RpcError, grpc.aio.UsageError):
        await call.write(request)  # if the stream has ended, reading says why
    with heeding_cancellation():
        return await call.read()


class Connection:
    """A channel to one address and the stubs on it.

    `address` is what errors name; `target` is what the channel connects to.
    """

    def __init__(
        self,
        address: str,
        target: str,
        credentials: Credentials | None = None,
        open_channel: OpenChannel = open_aio_channel,
    ) -> None:
        """`credentials` None: plaintext."""
        self.address = address
        self._open_channel = open_channel
        self.credentials = credentials or Credentials()
        self._target = target
        self._known_as = address.rpartition(":")[0] if target != address else ""
        self.streams = StreamPort(self.credentials.tls)
        self._patience_s = PATIENCE_S
        self._replaced: list[tuple[float, grpc.aio.Channel]] = []
        """With the times at which they may be closed."""
        self._open()

    def _open(self) -> None:
        self._opened_s = loop_time_s()
        self._generation = self.credentials.generation
        self.channel = self._open_channel(
            self._target, self.credentials.tls, known_as=self._known_as.strip("[]")
        )
        self.broker = BrokerServiceStub(self.channel)
        self.admin = AdminServiceStub(self.channel)
        self.group = GroupServiceStub(self.channel)
        self.transactions = TransactionServiceStub(self.channel)

    def follow_files(self) -> None:
        """From now on uses certificates as they are in the files."""
        if self._generation != self.credentials.generation:
            self._replaced.append((loop_time_s() + LAST_STREAMS_S, self.channel))
            self._open()

    async def _replace(self) -> None:
        """A new channel, which looks the name up and connects at once."""
        self._replaced.append((loop_time_s() + LAST_CALLS_S, self.channel))
        self._open()
        await self._close_due()

    async def _close_due(self) -> None:
        now_s = loop_time_s()
        due = [channel for until_s, channel in self._replaced if until_s < now_s]
        self._replaced = [each for each in self._replaced if each[0] >= now_s]
        for channel in due:
            await channel.close()

    async def call(
        self,
        method: Callable[..., Awaitable[Answer]],
        request: Any,
        timeout_s: float,
        more: Metadata = None,
    ) -> Answer:
        """One unary call of a method of this connection's stubs; raises PenstockError.

        Made once more if it was refused, and there is a newer token. `more`: further metadata.
        """
        if self._replaced:
            await self._close_due()
        shown = self.credentials.metadata()
        try:
            told = joined(shown, more)
            return await self._answer(method(request, timeout=timeout_s, metadata=told))
        except ClusterError as error:
            if not self.credentials.has_newer(error, shown):
                raise
        told = joined(self.credentials.metadata(), more)
        return await self._answer(method(request, timeout=timeout_s, metadata=told))

    async def ask_on(self, call: Any, request: Any) -> Any:
        """The next answer on a stream of this connection, after `request` was written to it.

        `grpc.aio.EOF` if the stream ends instead. Raises PenstockError.
        """
        return await self._answer(_ask_on(call, request))

    async def _answer(self, awaited: Awaitable[Answer]) -> Answer:
        """The answer of a call or stream, with errors as PenstockErrors."""
        try:
            return await awaited
        except grpc.RpcError as error:
            await self._look()
            raise error_from_rpc(error, self.address) from error
        except asyncio.CancelledError:
            if being_cancelled():
                raise
            raise UnreachableError(f"{self.address}: the connection was closed") from None

    async def _look(self) -> None:
        """After a failed call: must the channel be replaced before the next one?"""
        broken = self.channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE
        if broken and loop_time_s() - self._opened_s > PAUSE_S:
            await self._replace()

    async def diagnosis(self) -> UnreachableError | None:
        """What is certainly wrong with this address; None: nothing that can be seen."""
        return await diagnose(self._target, self.credentials.tls, self._known_as.strip("[]"))

    async def ready(self, timeout_s: float) -> bool:
        """Whether there is a connection now or within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while not await self._attempt():
                    await self._replace()
        except TimeoutError:
            return False
        return True

    async def _attempt(self) -> bool:
        """One attempt to connect, on the channel as it is."""
        channel, state = self.channel, self.channel.get_state(try_to_connect=True)
        try:
            async with asyncio.timeout(self._patience_s):
                while state is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        await asyncio.sleep(PAUSE_S)
                        return False
                    await channel.wait_for_state_change(state)
                    state = channel.get_state(try_to_connect=True)
        except TimeoutError:
            self._patience_s = min(2 * self._patience_s, PATIENCE_MAX_S)
            return False
        self._patience_s = PATIENCE_S
        return True

    async def aclose(self) -> None:
        """Closes the channels; pending calls end with an error."""
        for _, channel in self._replaced:
            await channel.close()
        await self.channel.close()


class Connections:
    """All channels of one client. Owned by its event loop."""

    def __init__(
        self,
        resolve_address: Callable[[str], str] | None = None,
        credentials: Credentials | None = None,
        open_channel: OpenChannel = open_aio_channel,
    ) -> None:
        """`credentials` None: plaintext."""
        self.credentials = credentials or Credentials()
        self._open_channel = open_channel
        self._resolve = resolve_address or str
        self._by_address: dict[str, Connection] = {}
        self._stream_addresses: dict[str, str] = {}
        self._closed = False

    def to(self, address: str) -> Connection:
        """The connection to `host:port`; created if there is none yet."""
        if self._closed:
            raise ClusterError("the client is closed", ErrorCode.CLOSED)
        connection = self._by_address.get(address)
        if connection is None:
            target = self._resolve(address)
            connection = Connection(address, target, self.credentials, self._open_channel)
            self._by_address[address] = connection
            connection.streams.address = self._stream_addresses.get(address, "")
        else:
            connection.follow_files()
        return connection

    def learn(self, brokers: Iterable[BrokerDescription]) -> None:
        """What the newest metadata says about message streams.

        With `resolve_address` there are none: it knows the addresses of gRPC alone.
        """
        if self._resolve is not str:
            return
        self._stream_addresses = {
            broker.address: f"{broker.host}:{broker.stream_port}"
            for broker in brokers
            if broker.stream_port
        }
        for address, connection in self._by_address.items():
            connection.streams.address = self._stream_addresses.get(address, "")

    async def aclose(self) -> None:
        """Closes every channel; pending calls end with an error."""
        self._closed = True
        connections, self._by_address = self._by_address, {}
        for connection in connections.values():
            await connection.aclose()
