"""A call on its client's side: replaces what `grpc.aio`'s own call classes use below them.

    UnaryUnaryCall, StreamStreamCall, … of grpc.aio, unchanged
            └─▶ ClientCall instead of cygrpc._AioCall ─▶ Way ─▶ ServerCall

So request iterators, cancellation and styles of reading are gRPC's own code. This module has what
its C core does: statuses, metadata, messages, deadlines, in the order observed in the core. The
final status counts once all messages before it were read; a call that breaks drops them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc._cython import cygrpc

from penstock_sim.wire.end import CallEnd, one_turn
from penstock_sim.wire.messages import Answer, Metadata, Opening, final_status
from penstock_sim.wire.server_call import ServerCall

if TYPE_CHECKING:
    from penstock_sim.wire.channel import SimChannel
    from penstock_sim.wire.connection import Connection

_MOMENT_S: Final = 0.0001


class ClientCall(CallEnd):
    """Replaces `cygrpc._AioCall`: its public methods have that class's names."""

    def __init__(
        self, channel: SimChannel, method: str, deadline_us: int | None, *, waits: bool
    ) -> None:
        super().__init__(channel.loop)
        self.channel = channel
        self.waits_for_ready = waits
        self._method = method
        self._deadline_us = deadline_us
        self._opening: Opening | None = None
        self._connection: Connection | None = None
        self._server: ServerCall | None = None
        self._number = channel.net.next_number()
        self._locally_cancelled = False
        self._arrived: Any = None
        """The final status, after messages that were not read yet."""
        self._status: Any = None
        self._initial_metadata: Metadata | None = None
        self._progress: asyncio.Future[None] | None = None
        """Waits for the connection, the initial metadata or the end of a unary call."""
        self._waiters: list[asyncio.Future[None]] = []
        self._callbacks: list[Callable[[], object]] = []

    # ------------------------------------------------------------ what the channel says

    def connected(self, connection: Connection) -> None:
        """There is a connection: the call opens on it."""
        assert self._opening is not None, "the channel knows of calls that began"
        self._connection = connection
        self._out, self._in = connection.ways()
        self._server = ServerCall(connection, self, self._number, (self._out, self._in))
        connection.client_calls[self._number] = self
        connection.server_calls[self._number] = self._server
        self._out.send(self._server.opened, self._opening)
        self._go_on()

    def failed(self, final: Any) -> None:
        """There is no connection, and will be none for this call."""
        if self._status is None:
            self._set_status(final)

    def connection_lost(self, details: str) -> None:
        """The other end has gone."""
        self._ended(final_status(grpc.StatusCode.UNAVAILABLE, details))

    # ------------------------------------------------------------ what the server says

    def take_initial_metadata(self, metadata: Metadata) -> None:
        """Handles a frame with initial metadata."""
        if self._initial_metadata is None:
            self._initial_metadata = metadata
            self._go_on()
            self._wake_waiters()

    def take_answer(self, answer: Answer) -> None:
        """Handles the last frame: the call ends. The status waits for the messages before it."""
        if self._status is not None:
            return
        self.take_initial_metadata(())
        if answer.message is not None:
            self._inbox.append(answer.message)
            self._set_status(answer.status)
        elif self._inbox:
            self._arrived = answer.status
            self._no_more = self._broken = True
            self._fail_writer()
        else:
            self._end_beside_writer(answer.status)

    def expired(self) -> None:
        """The deadline passed: each end notices it by its own clock."""
        if self._loop.dead or self._status is not None or self._arrived is not None:
            return
        self._ended(final_status(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))
        if self._server is not None:
            delay_ms = self.channel.net.delay_ms()
            self._loop.scheduler.after(delay_ms, self._server.client_gone, None)

    # ------------------------------------------------------------ the end

    def _ended(self, final: Any) -> None:
        """Something other than the handler ended the call: unread messages are lost."""
        if self._status is None and self._arrived is None:
            self._inbox.clear()
            self._end_beside_writer(final)

    def _end_beside_writer(self, final: Any) -> None:
        """A write that waits fails with a status of its own, before or after the real one."""
        self._no_more = self._broken = True
        if self._loop.scheduler.chance(0.5) and self._fail_writer():
            self._loop.call_later(_MOMENT_S, self._set_final, final)
        else:
            self._set_status(final)

    def _set_final(self, final: Any) -> None:
        if not self._locally_cancelled:
            self._set_status(final)

    def _set_status(self, final: Any) -> None:
        """Can also change it: the status of a failed write wins, as in gRPC."""
        self._status = final
        self._arrived = None
        self._no_more = self._broken = True
        if self._initial_metadata is None:
            self._initial_metadata = ()
        self._go_on()
        self._wake_reader()
        self._fail_writer()
        self._wake_waiters()
        self.channel.forget(self)
        connection = self._connection
        if connection is not None:
            connection.client_calls.pop(self._number, None)
            connection.settle()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._loop.run(callback)

    def _fail_writer(self) -> bool:
        """False if no write waits."""
        way = self._out
        return way is not None and way.fail_writer(cygrpc.ExecuteBatchError("the call is over"))

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _go_on(self) -> None:
        progress, self._progress = self._progress, None
        if progress is not None and not progress.done():
            progress.set_result(None)

    # ------------------------------------------------------------ cygrpc._AioCall

    def done(self) -> bool:
        return self._status is not None

    def cancelled(self) -> bool:
        return self.done() and self._status.code() == cygrpc.StatusCode.cancelled

    def is_locally_cancelled(self) -> bool:
        return self._locally_cancelled

    def is_ok(self) -> bool:
        return self.done() and self._status.code() == cygrpc.StatusCode.ok

    def cancel(self, details: str) -> None:
        self._locally_cancelled = True
        self._inbox.clear()
        self._set_status(final_status(grpc.StatusCode.CANCELLED, details, None))
        if self._server is not None and self._out is not None:
            self._out.send(self._server.client_gone, None)

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        if self.done():
            callback()
        else:
            self._callbacks.append(callback)

    def time_remaining(self) -> float | None:
        if self._deadline_us is None:
            return None
        return max(0.0, (self._deadline_us - self._loop.scheduler.now_us) / 1_000_000)

    def set_internal_error(self, reason: str) -> None:
        self._set_status(
            cygrpc.AioRpcStatus(cygrpc.StatusCode.internal, "Internal error from Core", (), reason)
        )

    async def status(self) -> Any:
        while self._status is None:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
        return self._status

    async def initial_metadata(self) -> Metadata | None:
        while self._initial_metadata is None:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
        return self._initial_metadata

    async def unary_unary(
        self, request: bytes, metadata: Metadata, _context: object = None
    ) -> bytes | None:
        self._begin(metadata, request)
        while self._status is None:
            await self._progressed()
        return self._inbox.popleft() if self._inbox else None

    async def initiate_unary_stream(
        self, request: bytes, metadata: Metadata, _context: object = None
    ) -> None:
        self._begin(metadata, request)
        while self._initial_metadata is None:
            await self._progressed()

    async def initiate_stream_stream(
        self, metadata: Metadata, on_sent: Callable[[], None], _context: object = None
    ) -> None:
        self._begin(metadata, None)
        while self._server is None and self._status is None:
            await self._progressed()
        on_sent()
        while self._initial_metadata is None:
            await self._progressed()

    async def receive_serialized_message(self) -> Any:
        message = await self._receive()
        if not self._inbox and self._arrived is not None:
            self._set_status(self._arrived)
        return cygrpc.EOF if message is None else message

    async def send_serialized_message(self, message: bytes) -> None:
        assert self._server is not None, "nothing is written before the call has opened"
        await self._transmit(message, self._server)

    async def send_receive_close(self) -> None:
        assert self._server is not None, "as above"
        if self._out is not None:
            self._out.send(self._server.half_closed, None)
        await one_turn()

    # ------------------------------------------------------------

    def _begin(self, metadata: Metadata, request: bytes | None) -> None:
        if self._status is None:
            self._opening = Opening(self._method, metadata, self._deadline_us, request)
            self.channel.attach(self)

    async def _progressed(self) -> None:
        self._progress = self._loop.create_future()
        await self._progress
