"""One stream of requests to one broker: sends requests in order, receives answers as they come.

    sender.next_request ──▶ write ──▶ broker ──▶ read ──▶ sender.answered
                                        └─ stream ends ──▶ sender.broken: outcomes unknown

The link pulls: it asks for the next request only when the transport has accepted the previous one,
so with a slow broker batches grow instead of queues. The stream keeps the order in which requests
were written, which a series of unary calls would not. When it ends, for any reason, every request
without an answer has an unknown outcome; the lanes decide what to do about it. A new stream is
opened when there is something to send. When there is a newer token, or the broker turns out to have
a port for messages while the link uses gRPC, it waits for the answers and opens another stream.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from penstock.client.clock import now_ms
from penstock.client.cluster.connections import Connection
from penstock.client.producer.accumulator import PartitionQueue, PendingBatch
from penstock.client.producer.lane import Entry, Lane
from penstock.client.producer.wires import GrpcWire, MessageWire, ProduceWire
from penstock.errors import Applied, ClusterError, ErrorCode, PenstockError, UnreachableError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1 import streams_pb2
from penstock.rpc.cancelling import heeding_cancellation

CONNECT_S: Final = 2.0
"""How long one attempt to connect may take before it is reported to the sender."""
STALL_MS: Final = 1_000
"""If an answer takes longer than this, the client checks whether the leader is still the same."""
_HELLO: Final = streams_pb2.StreamHello(method=streams_pb2.STREAM_METHOD_PRODUCE)


@dataclass(frozen=True, slots=True)
class Sent:
    """One batch in a request."""

    queue: PartitionQueue
    lane: Lane[PendingBatch]
    entry: Entry[PendingBatch]


@dataclass(slots=True)
class Request:
    """A ProduceRequest in flight; `parts` are in the order of its partitions."""

    message: pb.ProduceRequest
    parts: list[Sent]
    written_ms: int = field(default=0)


class RequestSource(Protocol):
    """The sender, as a link sees it."""

    def next_request(self, address: str) -> Request | None:
        """What to send to the broker at `address` now; the batches count as sent."""

    def answered(self, request: Request, answer: pb.ProduceResponse) -> None:
        """The broker's answer to a request."""

    def broken(self, requests: Sequence[Request], error: PenstockError, *, refused: bool) -> None:
        """No answer to these will come. Their outcome is unknown, whatever the error's code proves
        about other calls, unless the stream itself was `refused` before it answered any."""

    def unreachable(self, address: str, error: PenstockError) -> None:
        """Nothing was sent: there is no connection."""


class StreamBrokenError(Exception):
    """Ends the tasks of one stream; `error` says why. `refused`: as in `RequestSource.broken`."""

    def __init__(self, error: PenstockError, *, refused: bool = False) -> None:
        super().__init__(error.message)
        self.error = error
        self.refused = refused


class ProduceLink:
    """Run `run` as a task; `wake` when there may be something to send."""

    def __init__(self, connection: Connection, source: RequestSource) -> None:
        self.address = connection.address
        self._connection = connection
        self._shown = connection.credentials.shown()
        self._port_tried = ""
        """Where the broker had its port for messages when the stream was opened."""
        self._source = source
        self._work = asyncio.Event()
        self._snap = asyncio.Event()
        self._snapped: PenstockError | None = None
        self._pending: dict[int, Request] = {}
        self._is_answered = False
        """The broker has taken this stream: it has answered a request."""
        self._correlation_id = 0
        self._resume_ms = 0
        self.connecting = False
        """There is something to send, but no connection yet."""

    def wake(self) -> None:
        self._work.set()

    @property
    def pending(self) -> Sequence[Request]:
        """Requests without an answer, oldest first."""
        return tuple(self._pending.values())

    def snap(self, error: PenstockError) -> None:
        """Ends the stream and stops waiting for its answers."""
        self._snapped = error
        self._snap.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._work.wait()
            self.connecting = True
            wire = await self._connect()
            self.connecting = False
            if wire is not None:
                with heeding_cancellation():  # the group of its tasks may lose that
                    await self._stream(wire)
                continue
            self._work.clear()
            error = UnreachableError(f"no connection to the broker at {self.address}")
            self._source.unreachable(self.address, error)

    async def _connect(self) -> ProduceWire | None:
        """A stream to the broker; None: it cannot be reached."""
        connection = self._connection
        connection.follow_files()
        shown = self._shown = connection.credentials.shown()
        self._port_tried = connection.streams.address
        stream = await connection.streams.open(_HELLO, shown)
        if stream is None:
            if not await connection.ready(CONNECT_S):
                return None
            # The broker may have come up in between.
            self._port_tried = connection.streams.address
            stream = await connection.streams.open(_HELLO, shown)
        return GrpcWire(connection, shown) if stream is None else MessageWire(stream)

    async def _stream(self, wire: ProduceWire) -> None:
        """One stream, from its first request to its end. Never raises but CancelledError."""
        self._snap.clear()
        self._is_answered = False
        end: StreamBrokenError | None = None
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write(wire))
                group.create_task(self._wait_for_snap())
                # Not a task as well: when one fails while the group only waits for its tasks, this
                # task still counts as being cancelled afterwards (CPython up to 3.12), and with
                # CPython 3.11.2 a timeout that ends then cancels it for good.
                await self._read(wire)
        except* StreamBrokenError as broken:
            first = broken.exceptions[0]
            assert isinstance(first, StreamBrokenError)
            end = first
        finally:
            wire.end()
            pending = self.pending
            self._pending.clear()
        assert end is not None, "the group's tasks end only by an error"
        self._source.broken(pending, end.error, refused=end.refused)

    async def _write(self, wire: ProduceWire) -> None:
        while True:
            pause_ms = self._resume_ms - now_ms()
            if pause_ms > 0:
                await asyncio.sleep(pause_ms / 1000)
            self._work.clear()
            if self._connection.credentials.is_outdated(self._shown):
                await self._drain("with a new token")
            if isinstance(wire, GrpcWire) and self._connection.streams.address != self._port_tried:
                await self._drain("as the broker's port for messages has changed")
            request = self._source.next_request(self.address)
            if request is None:
                await self._work.wait()
                continue
            self._correlation_id += 1
            request.message.correlation_id = self._correlation_id
            request.written_ms = now_ms()
            self._pending[self._correlation_id] = request
            if not await wire.write(request.message):
                return  # the stream has ended: the reader knows why

    async def _drain(self, why: str) -> None:
        """Waits for the answers, and ends the stream, to be opened again."""
        while self._pending:
            await self._work.wait()
            self._work.clear()
        self.wake()  # there may be something to send
        raise StreamBrokenError(UnreachableError(f"{self.address}: opened again {why}"))

    async def _read(self, wire: ProduceWire) -> None:
        try:
            await wire.deliver(self._take)
        except PenstockError as error:
            self._connection.streams.ended(error)
            judged = self._connection.credentials.judged(error, self._shown)
            refused = not (self._is_answered or judged.retriable)
            raise StreamBrokenError(_as_broken(judged), refused=refused) from error
        raise StreamBrokenError(UnreachableError(f"{self.address}: the broker ended the stream"))

    def _take(self, answer: pb.ProduceResponse) -> None:
        if answer.throttle_ms:
            self._resume_ms = now_ms() + answer.throttle_ms
        self._is_answered = True
        request = self._pending.pop(answer.correlation_id, None)
        if request is None:
            raise StreamBrokenError(
                ClusterError(
                    f"{self.address}: answer to request {answer.correlation_id}, which is not in "
                    "flight",
                    ErrorCode.INTERNAL,
                )
            )
        self._source.answered(request, answer)
        # Behind those that the answer has woken, in the same turn: whoever waited for it may have
        # the next record, and the sender has looked.
        self.wake()

    async def _wait_for_snap(self) -> None:
        await self._snap.wait()
        assert self._snapped is not None
        raise StreamBrokenError(self._snapped)


def _as_broken(error: PenstockError) -> PenstockError:
    """What the end of a stream means for its requests: refused for good, or just no answer."""
    if error.retriable or error.applied is Applied.NO:
        return error
    return UnreachableError(error.message)
