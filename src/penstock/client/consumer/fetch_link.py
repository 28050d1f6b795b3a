"""Fetches of one consumer from one broker: over a message stream where there is one, else gRPC.

    fetch ─▶ stream ─▶ answers, by correlation id ─▶ whoever waits for it
         └─▶ BrokerService.Fetch

The stream is opened by the first fetch that finds none, and when it breaks, all that wait get the
error. A fetch changes nothing, so asking again costs nothing.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from penstock.client.cluster.connections import Connection
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


class FetchLink:
    """Owned by the consumer's event loop; its stream ends with `tasks`."""

    def __init__(self, connection: Connection, tasks: BackgroundTasks) -> None:
        """`tasks`: in which the stream is read."""
        self._connection = connection
        self._tasks = tasks
        self._stream: TcpStream | None = None
        self._opening = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[Fetched]] = {}
        self._correlation_id = 0

    async def fetch(self, request: pb.FetchRequest, timeout_s: float) -> Fetched:
        """Raises PenstockError."""
        stream = await self._opened()
        if stream is None:
            connection = self._connection
            return Fetched(await connection.call(connection.broker.Fetch, request, timeout_s))
        self._correlation_id = correlation_id = self._correlation_id + 1
        answer: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = answer
        try:
            async with asyncio.timeout(timeout_s):
                await stream.send(stream_fetch_request(correlation_id, request))
                return await answer
        except TimeoutError:
            raise ClusterError(
                f"{self._connection.address}: no answer to a fetch within {timeout_s:g} s",
                ErrorCode.REQUEST_TIMED_OUT,
            ) from None
        finally:
            self._waiting.pop(correlation_id, None)

    async def _opened(self) -> TcpStream | None:
        if self._stream is None:
            async with self._opening:
                if self._stream is None:
                    await self._open()
        return self._stream

    async def _open(self) -> None:
        stream = await self._connection.streams.open(_HELLO)
        if stream is None:
            return
        reading = self._tasks.spawn(self._read(stream), f"fetched-{self._connection.address}")
        if reading is None:
            stream.cut()
            return
        # A task that is cancelled before its first step does not clean up.
        reading.add_done_callback(lambda _: stream.cut())
        self._stream = stream

    async def _read(self, stream: TcpStream) -> None:
        error: PenstockError = UnreachableError("the broker ended the stream")
        try:
            await stream.deliver(self._take)
        except PenstockError as broken:
            error = broken
            self._connection.streams.ended(error)
        finally:
            self._stream = None
            waiting, self._waiting = self._waiting, {}
            for answer in waiting.values():
                with suppress(asyncio.InvalidStateError):
                    answer.set_exception(error)

    def _take(self, message: Received) -> None:
        head, payloads = stream_fetch_read(message)
        answer = self._waiting.get(head.correlation_id)
        if answer is None or answer.done():
            return  # nobody waits for it any more
        if head.HasField("error"):
            answer.set_exception(error_from_wire(head.error))
        else:
            answer.set_result(Fetched(head.fetch, payloads))
