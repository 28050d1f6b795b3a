"""A call on its server's side: the context that handlers get, and the code that runs them.

    Opening ─▶ interceptors ─▶ handler, as a task of the server's loop ─▶ Answer
    the client has gone ─▶ its reads end ─▶ its writes fail ─▶ the task is cancelled

Names, errors and their order are those of `grpc.aio`'s server, because handlers are written for it.
A handler that is cancelled during its first write can no longer answer: it has sent its initial
metadata, and does not know it. gRPC behaves like that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc
from grpc._cython import cygrpc

from penstock_sim.wire.end import CallEnd, one_turn
from penstock_sim.wire.messages import Answer, Metadata, Opening, final_status
from penstock_sim.wire.way import Way

if TYPE_CHECKING:
    from penstock_sim.wire.client_call import ClientCall
    from penstock_sim.wire.connection import Connection

_FINISHED: Final = "RPC already finished."
_log = logging.getLogger(__name__)


class ServerCall(CallEnd):
    """See the module. Also the handler's `grpc.aio.ServicerContext`."""

    def __init__(
        self, connection: Connection, client: ClientCall, number: int, ways: tuple[Way, Way]
    ) -> None:
        super().__init__(connection.server.loop)
        self._connection = connection
        self._client = client
        self._number = number
        self._in, self._out = ways
        self._opening: Opening | None = None
        self._handler: Any = None
        self._task: asyncio.Task[None] | None = None
        self._over = False
        """The client has gone, or has been answered."""
        self._metadata_sent = False
        self._metadata_out = False
        """The frame was sent; `_metadata_sent` follows when the write that sent it is complete."""
        self._status_sent = False
        self._code: Any = grpc.StatusCode.OK
        self._details = ""
        self._trailing: Metadata = ()
        self._aborted: BaseException | None = None
        self._callbacks: list[Callable[[Any], object]] = []

    # ------------------------------------------------------------ frames

    def opened(self, opening: Opening) -> None:
        """The call begins."""
        server = self._connection.server
        if self._over:
            return
        self._opening = opening
        if opening.request is not None:
            self._inbox.append(opening.request)
            self._no_more = True
        if server.running:
            self._task = server.handle(self)
            return
        assert self._out is not None, "made with both ways"
        final = final_status(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
        self._out.send(self._client.take_answer, Answer(None, final))
        self.close()

    def half_closed(self, _: None) -> None:
        """The client writes nothing more."""
        self._no_more = True
        self._wake_reader()

    def client_gone(self, _: None) -> None:
        """It cancelled, its deadline passed, or the connection broke."""
        if self._loop.dead or self._over:
            return
        self._over = self._no_more = self._broken = True
        self._inbox.clear()
        self._wake_reader()
        assert self._out is not None, "made with both ways"
        self._out.fail_writer(cygrpc.ExecuteBatchError("the client is gone"))
        # After the tasks that were just woken: gRPC ends reads and writes first.
        self._loop.call_soon(self._cancel)
        if self._task is None:
            self.close()

    def _cancel(self) -> None:
        if self._task is not None and not self._task.done() and not self._status_sent:
            self._task.cancel()

    def close(self) -> None:
        """Nothing more happens in this call."""
        self._connection.server_calls.pop(self._number, None)
        self._connection.settle()

    # ------------------------------------------------------------ grpc.aio.ServicerContext

    async def read(self) -> Any:
        """The next request, or `grpc.aio.EOF`."""
        self._check_running()
        message = await self._receive()
        self._check_running()
        if message is None:
            return grpc.aio.EOF
        parse = self._handler.request_deserializer
        return message if parse is None else parse(message)

    async def write(self, message: Any) -> None:
        self._check_running()
        serialize = self._handler.response_serializer
        data = message if serialize is None else serialize(message)
        self._send_metadata_once(())
        await self._transmit(data, self._client)
        self._metadata_sent = True

    async def send_initial_metadata(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        self._check_running()
        if self._metadata_sent:
            raise cygrpc.UsageError("Send initial metadata failed: already sent")
        self._send_metadata_once(tuple(metadata))
        await one_turn()
        self._metadata_sent = True

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()
    ) -> NoReturn:
        if self._aborted is not None:
            raise cygrpc.UsageError("Abort already called!")
        self._aborted = cygrpc.AbortError("Locally aborted.")
        self._trailing = trailing_metadata or self._trailing
        self._details = details or self._details
        self._code = code
        await self._send_status(None)
        raise self._aborted

    def set_trailing_metadata(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        self._trailing = tuple(metadata)

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def set_details(self, details: str) -> None:
        self._details = details

    def invocation_metadata(self) -> Metadata:
        assert self._opening is not None, "handlers run in calls that have opened"
        return self._opening.metadata

    def peer(self) -> str:
        """An address for the client's node, as gRPC writes them."""
        return f"ipv4:{self._connection.channel.host}:{self._connection.number}"

    def time_remaining(self) -> float | None:
        assert self._opening is not None, "as above"
        deadline_us = self._opening.deadline_us
        if deadline_us is None:
            return None
        return max(0.0, (deadline_us - self._loop.scheduler.now_us) / 1_000_000)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._callbacks.append(callback)

    def done(self) -> bool:
        return self._status_sent

    def cancelled(self) -> bool:
        """As in gRPC: whether the handler set that code, not whether its client is gone."""
        return self._code is grpc.StatusCode.CANCELLED

    # ------------------------------------------------------------ running the handler

    async def run(self, *, overloaded: bool) -> None:
        """The task of the call; what a handler raises ends here."""
        try:
            try:
                await self._respond(overloaded=overloaded)
            except cygrpc.AbortError:
                pass
            except cygrpc.ExecuteBatchError:
                raise
            except cygrpc._ServerStoppedError:
                _log.warning("a handler of %s outlived its server", self._method)
            except Exception as error:  # noqa: BLE001 - the edge: its caller gets the error
                await self._fail(error)
        except (asyncio.CancelledError, cygrpc.ExecuteBatchError):
            pass

    def finished(self) -> None:
        """The task has ended; perhaps it was cancelled before it began."""
        for callback in self._callbacks:
            callback(self)
        self.close()

    async def _respond(self, *, overloaded: bool) -> None:
        assert self._opening is not None, "as above"
        server = self._connection.server
        self._handler = handler = await server.find_handler(self._method, self._opening.metadata)
        if handler is None:
            await self._refuse(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        elif overloaded:
            details = "Concurrent RPC limit exceeded!"
            await self._refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, details)
        else:
            requests = _Requests(self) if handler.request_streaming else await self.read()
            if requests is not grpc.aio.EOF:
                await self._call(handler, requests)

    async def _call(self, handler: Any, requests: Any) -> None:
        """Coroutines and asynchronous generators, and plain functions for unregistered methods."""
        answer = None
        if handler.response_streaming:
            answers = (handler.stream_stream or handler.unary_stream)(requests, self)
            if hasattr(answers, "__aiter__"):
                async for message in answers:
                    await self.write(message)
            else:
                await answers
            self._check_running()
        else:
            answer = (handler.stream_unary or handler.unary_unary)(requests, self)
            if hasattr(answer, "__await__"):
                answer = await answer
            self._check_running()
            if self._code is not grpc.StatusCode.OK:
                answer = None
            elif handler.response_serializer is not None:
                answer = handler.response_serializer(answer)
        await self._send_status(answer)

    async def _refuse(self, code: grpc.StatusCode, details: str) -> None:
        self._code, self._details = code, details
        await self._send_status(None)

    async def _fail(self, error: Exception) -> None:
        _log.error("a handler of %s failed", self._method, exc_info=error)
        if self._status_sent:
            return
        if self._code is grpc.StatusCode.OK:
            self._code = grpc.StatusCode.UNKNOWN
        self._details = f"Unexpected {type(error)}: {error}"
        await self._send_status(None)

    @property
    def _method(self) -> str:
        assert self._opening is not None, "as above"
        return self._opening.method

    def _check_running(self) -> None:
        """Stops a handler that caught its own abort, or outlived its server."""
        if self._aborted is not None:
            raise self._aborted
        if self._status_sent:
            raise cygrpc.UsageError(_FINISHED)
        if self._connection.server.stopped:
            raise cygrpc._ServerStoppedError("Server already stopped.")

    def _send_metadata_once(self, metadata: Metadata) -> None:
        if self._metadata_sent:
            return
        if self._metadata_out:
            raise cygrpc.ExecuteBatchError(
                "initial metadata was sent by a write that was cancelled"
            )
        self._metadata_out = True
        if not self._broken:
            assert self._out is not None, "made with both ways"
            self._out.send(self._client.take_initial_metadata, metadata)

    async def _send_status(self, message: bytes | None) -> None:
        self._status_sent = True
        if self._broken:
            raise cygrpc.ExecuteBatchError("the client is gone")
        if self._metadata_out and not self._metadata_sent:
            raise cygrpc.ExecuteBatchError(
                "initial metadata was sent by a write that was cancelled"
            )
        final = final_status(self._code, self._details, self._trailing)
        assert self._out is not None, "made with both ways"
        self._out.send(self._client.take_answer, Answer(message, final))
        self._over = True
        await one_turn()


class _Requests:
    """The requests of a stream."""

    def __init__(self, call: ServerCall) -> None:
        self._call = call

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        message = await self._call.read()
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return message
