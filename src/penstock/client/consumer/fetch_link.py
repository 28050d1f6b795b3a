"""Fetches of one consumer from one broker: over a message stream where there is one, else gRPC.

    fetch ─▶ stream ─▶ answers, by correlation id ─▶ whoever waits for it
         └─▶ BrokerService.Fetch

The stream is opened by the first fetch that finds none, and when it breaks, all that wait get the
error. A fetch changes nothing, so asking again costs nothing. When there is a newer token, further
fetches use another stream.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from penstock.client.cluster.connections import Connection
from penstock.client.cluster.credentials import Shown
from penstock.client.tasks import BackgroundTasks
from penstock.errors import ClusterError, ErrorCode, PenstockError, UnreachableError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1 import streams_pb2
from penstock.rpc.errors import error_from_wire
from penstock.rpc.splice import stream_fetch_read, stream_fetch_request
from penstock.rpc.streams.frames import Received
from penstock.rpc.streams.tcp import TcpStream

_HELLO: Final = streams_pb2.StreamHello(method=streams_pb2.STREAM_METHOD_FETCH)


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer. `payloads` of its batches, in their order; None: they are in the message."""

    response: pb.FetchResponse
    payloads: Sequence[bytes] | None = None


@dataclass(slots=True)
class _Open:
    """A stream, and who waits for answers on it, by correlation id."""

    stream: TcpStream
    shown: Shown
    waiting: dict[int, "asyncio.Future[Fetched]"] = field(default_factory=dict)

    def take(self, message: Received) -> None:
        head, payloads = stream_fetch_read(message)
        answer = self.waiting.get(head.correlation_id)
        if answer is None or answer.done():
            return  # nobody waits for it any more
        if head.HasField("error"):
            answer.set_exception(error_from_wire(head.error))
        else:
            answer.set_result(Fetched(head.fetch, payloads))


class FetchLink:
    """Owned by the consumer's event loop; its streams end with `tasks`."""

    def __init__(self, connection: Connection, tasks: BackgroundTasks) -> None:
        """`tasks`: in which streams are read."""
        self._connection = connection
        self._tasks = tasks
        self._open: _Open | None = None
        self._opening = asyncio.Lock()
        self._correlation_id = 0

    async def fetch(self, request: pb.FetchRequest, timeout_s: float) -> Fetched:
        """Raises PenstockError."""
        on = await self._opened()
        if on is None:
            connection = self._connection
            return Fetched(await connection.call(connection.broker.Fetch, request, timeout_s))
        self._correlation_id = correlation_id = self._correlation_id + 1
        answer: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
        on.waiting[correlation_id] = answer
        try:
            async with asyncio.timeout(timeout_s):
                await on.stream.send(stream_fetch_request(correlation_id, request))
                return await answer
        except TimeoutError:
            raise ClusterError(
                f"{self._connection.address}: no answer to a fetch within {timeout_s:g} s",
                ErrorCode.REQUEST_TIMED_OUT,
            ) from None
        finally:
            on.waiting.pop(correlation_id, None)
            if on is not self._open and not on.waiting:
                on.stream.cut()  # it was replaced, and this was its last fetch

    async def _opened(self) -> _Open | None:
        self._leave_outdated()
        if self._open is None:
            async with self._opening:
                if self._open is None:
                    await self._connect()
        return self._open

    def _leave_outdated(self) -> None:
        """When there is a newer token, fetches go to another stream; those on this one stay."""
        on = self._open
        if on is not None and self._connection.credentials.is_outdated(on.shown):
            self._open = None
            if not on.waiting:
                on.stream.cut()

    async def _connect(self) -> None:
        shown = self._connection.credentials.shown()
        stream = await self._connection.streams.open(_HELLO, shown)
        if stream is None:
            return
        on = _Open(stream, shown)
        reading = self._tasks.spawn(self._read(on), f"fetched-{self._connection.address}")
        if reading is None:
            stream.cut()
            return
        # A task that is cancelled before its first step does not clean up.
        reading.add_done_callback(lambda _: stream.cut())
        self._open = on

    async def _read(self, on: _Open) -> None:
        error: PenstockError = UnreachableError("the broker ended the stream")
        try:
            await on.stream.deliver(on.take)
        except PenstockError as broken:
            error = self._connection.credentials.judged(broken, on.shown)
            self._connection.streams.ended(broken)
        finally:
            if self._open is on:
                self._open = None
            waiting, on.waiting = on.waiting, {}
            for answer in waiting.values():
                with suppress(asyncio.InvalidStateError):
                    answer.set_exception(error)
