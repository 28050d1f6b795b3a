"""A channel: one connection at a time, opened on first use, and calls that wait for it.

    IDLE ─ a call ─▶ CONNECTING ─ there and back ─▶ READY ─ broken ─▶ IDLE
                          └─ refused, no answer ─▶ TRANSIENT_FAILURE ─ back-off ─▶ again

A channel that has failed stays failed, and fails calls at once, until an attempt succeeds; it keeps
trying by itself, with gRPC's back-off and the settings of `penstock.rpc.channel`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Self

import grpc
from grpc._cython import cygrpc
from grpc.aio import _call as aio_calls

from penstock.rpc.channel import CHANNEL_OPTIONS
from penstock_sim.network import KEEPALIVE_MS, POLL_MS, Network
from penstock_sim.node_loop import NodeLoop
from penstock_sim.wire.client_call import ClientCall
from penstock_sim.wire.connection import Connection
from penstock_sim.wire.messages import final_status

if TYPE_CHECKING:
    from penstock_sim.wire.transport import SimTransport

_OPTIONS: Final = dict(CHANNEL_OPTIONS)
_BACKOFF_MS: Final = _OPTIONS["grpc.initial_reconnect_backoff_ms"]
_BACKOFF_MAX_MS: Final = _OPTIONS["grpc.max_reconnect_backoff_ms"]
_GROWTH: Final = 1.6
_JITTER: Final = (0.8, 1.2)
_State = grpc.ChannelConnectivity


def _quietly(kind: Any) -> Any:
    """gRPC's class without its `__del__`, which cancels a call that is no longer referenced.

    The time of garbage collection is not part of a history; a shell that drops a call leaks it
    here.
    """
    return type(kind.__name__, (kind,), {"__del__": lambda _self: None})


_UnaryUnaryCall: Final = _quietly(aio_calls.UnaryUnaryCall)
_UnaryStreamCall: Final = _quietly(aio_calls.UnaryStreamCall)
_StreamStreamCall: Final = _quietly(aio_calls.StreamStreamCall)


class SimChannel:
    """Replaces `grpc.aio.Channel`, and the core's channel under its calls."""

    def __init__(self, transport: SimTransport, address: str) -> None:
        self.net: Network = transport.net
        self.loop: NodeLoop = transport.loop
        self.node_id = transport.node_id
        self.host = transport.host
        self.window_bytes = transport.window_bytes
        self._address = address
        self._state = _State.IDLE
        self._connection: Connection | None = None
        self._failures = 0
        self._why: Any = None
        self._asked_since_ms = 0.0
        self._waiting: dict[ClientCall, None] = {}
        self._calls: dict[ClientCall, Any] = {}
        self._watchers: list[asyncio.Future[None]] = []

    # ------------------------------------------------------------ grpc.aio.Channel

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, _grace: float | None = None) -> None:
        """Ends all calls as if their callers had cancelled them."""
        if self._state is _State.SHUTDOWN:
            return
        self._become(_State.SHUTDOWN)
        for call in list(self._calls.values()):
            call.cancel()
        if self._connection is not None:
            self._connection.leave()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        state = self._state
        if try_to_connect and state is _State.IDLE:
            self._connect()
        return state

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        while self._state is last_observed_state:
            watcher = self.loop.create_future()
            self._watchers.append(watcher)
            await watcher

    async def channel_ready(self) -> None:
        while (state := self.get_state(try_to_connect=True)) is not _State.READY:
            await self.wait_for_state_change(state)

    def unary_unary(self, method: str, *functions: Any, **named: Any) -> _Method:
        return _Method(self, _UnaryUnaryCall, method, *functions, **named)

    def unary_stream(self, method: str, *functions: Any, **named: Any) -> _Method:
        return _Method(self, _UnaryStreamCall, method, *functions, **named)

    def stream_stream(self, method: str, *functions: Any, **named: Any) -> _Method:
        return _Method(self, _StreamStreamCall, method, *functions, **named)

    # ------------------------------------------------------------ calls

    def call(
        self, method: str, timeout_s: Any, _credentials: Any, waits: bool | None, _handle: int
    ) -> ClientCall:
        """Called by `grpc.aio`'s calls to create the core call below them."""
        if self._state is _State.SHUTDOWN:
            raise cygrpc.UsageError("Channel is closed.")
        scheduler = self.net.scheduler
        if timeout_s is None:
            return ClientCall(self, method, None, waits=bool(waits))
        deadline_us = scheduler.now_us + int(timeout_s * 1_000_000)
        call = ClientCall(self, method, deadline_us, waits=bool(waits))
        scheduler.after(timeout_s * 1000, call.expired)
        return call

    def register(self, core: ClientCall, call: Any) -> None:
        """From now on, `close` ends this call."""
        self._calls[core] = call

    def attach(self, call: ClientCall) -> None:
        """The call opens as soon as there is a connection, or fails with it."""
        if self._state is _State.READY:
            assert self._connection is not None, "what is ready is connected"
            call.connected(self._connection)
        elif self._state is _State.TRANSIENT_FAILURE and not call.waits_for_ready:
            self.loop.call_soon(call.failed, self._why)
        else:
            self._waiting[call] = None
            if self._state is _State.IDLE:
                self._connect()

    def forget(self, call: ClientCall) -> None:
        """The call has ended."""
        self._waiting.pop(call, None)
        self._calls.pop(call, None)

    # ------------------------------------------------------------ connecting

    def lost(self, connection: Connection) -> None:
        """The connection is broken, or its server accepts no more calls on it."""
        if self._connection is connection:
            self._connection = None
            if self._state is not _State.SHUTDOWN:
                self._become(_State.IDLE)

    def _connect(self) -> None:
        if self._state is not _State.TRANSIENT_FAILURE:
            self._become(_State.CONNECTING)
        self._asked_since_ms = self.net.scheduler.now_us / 1000
        self.net.scheduler.after(self.net.delay_ms(), self._knock)

    def _knock(self) -> None:
        """The request to connect arrives."""
        if self._is_over():
            return
        place = self.net.places.get(self._address)
        if place is not None and self.net.is_blocked(self.node_id, place.node_id):
            self._again(self._knock)
        elif place is None or place.server is None:
            self.net.scheduler.after(self.net.delay_ms(), self._give_up, "Connection refused")
        else:
            connection = Connection(self.net, self, place.server)
            self.net.scheduler.after(self.net.delay_ms(), self._greeted, connection)

    def _greeted(self, connection: Connection) -> None:
        """The server's answer arrives."""
        if self._is_over():
            connection.leave()
        elif connection.broken:
            self._give_up("Connection reset by peer")
        elif self.net.is_blocked(connection.acceptor, connection.opener):
            if not self._again(self._greeted, connection):
                connection.leave()
        else:
            self._failures = 0
            self._connection = connection
            self._become(_State.READY)
            waiting, self._waiting = list(self._waiting), {}
            for call in waiting:
                call.connected(connection)

    def _again(self, act: Callable[..., None], *args: object) -> bool:
        """The network delays it; False if it has for too long."""
        scheduler = self.net.scheduler
        if scheduler.now_us / 1000 - self._asked_since_ms < KEEPALIVE_MS:
            scheduler.after(POLL_MS, act, *args)
            return True
        self._give_up("Connection timed out")
        return False

    def _give_up(self, reason: str) -> None:
        if self._is_over():
            return
        self._why = final_status(
            grpc.StatusCode.UNAVAILABLE,
            f"failed to connect to all addresses; last error: UNKNOWN: ipv4:{self._address}: "
            f"Failed to connect to remote host: {reason}",
        )
        self._become(_State.TRANSIENT_FAILURE)
        for call in [call for call in self._waiting if not call.waits_for_ready]:
            call.failed(self._why)
        scheduler = self.net.scheduler
        grown_ms = min(_BACKOFF_MS * _GROWTH**self._failures, _BACKOFF_MAX_MS)
        self._failures += 1
        due_ms = self._asked_since_ms + grown_ms * scheduler.between(*_JITTER)
        scheduler.after(due_ms - scheduler.now_us / 1000, self._retry)

    def _retry(self) -> None:
        if not self._is_over():
            self._connect()

    def _is_over(self) -> bool:
        return self.loop.dead or self._state is _State.SHUTDOWN

    def _become(self, state: grpc.ChannelConnectivity) -> None:
        if state is self._state:
            return
        self._state = state
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)


class _Method:
    """One method of a stub, like `grpc.aio`'s multi-callables."""

    def __init__(
        self,
        channel: SimChannel,
        kind: Any,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        _registered_method: bool = False,
    ) -> None:
        self._channel = channel
        self._kind = kind
        self._method = method
        self._serialize = request_serializer
        self._parse = response_deserializer

    def __call__(
        self,
        request: Any = None,
        *,
        timeout: float | None = None,
        metadata: Any = None,
        wait_for_ready: bool | None = None,
    ) -> Any:
        call = self._kind(
            request,
            timeout,
            metadata or (),
            None,
            wait_for_ready,
            self._channel,
            self._method,
            self._serialize,
            self._parse,
            self._channel.loop,
        )
        self._channel.register(call._cython_call, call)
        return call
