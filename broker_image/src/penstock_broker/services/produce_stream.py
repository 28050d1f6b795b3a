"""A stream of produce requests: appended as they arrive, answered as they finish.

    gRPC     read ─▶ submit ─▶ unanswered ─▶ outbox ─▶ write
    message stream  deliver ─▶ submit ─▶ unanswered ─▶ post, or outbox if the client reads slowly
                      ▲        in order (I9)               │
                      └──────── space for another one ◀────┘

A request needs no task and no lock of its own. While it waits, only a `PendingProduce` is kept, not
its payload, so that a client slow to read its answers uses no other memory. The number of requests
in flight is bounded, unwritten answers included (I23); at the limit, nothing is read.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Final

from penstock.core.quotas import Limit
from penstock.errors import PenstockError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.streams.contract import MessageStream
from penstock.rpc.streams.frames import Received
from penstock.rpc.streams.parsing import parsed
from penstock_broker.services.opening import Opened
from penstock_broker.services.producing import PendingProduce, Producing
from penstock_broker.serving.callers import caller
from penstock_broker.serving.edge import check_cluster_id
from penstock_broker.serving.request_limits import RequestCheck

_check_size: Final = RequestCheck("/penstock.proto.v1.BrokerService/ProduceStream")


class _Produces:
    """The requests of one stream, whatever carries it."""

    def __init__(
        self, producing: Producing, observe: Callable[[float], None], inflight_max: int
    ) -> None:
        """`observe` gets the seconds from each request's arrival to its answer.

        This includes the wait for its turn, but not the answer's way to the client: a client that
        reads slowly does not make the broker slow.
        """
        self._producing = producing
        self._who = caller()
        self._observe = observe
        self._inflight_max = inflight_max
        self._inflight = 0
        """Requests read whose answer is not written yet."""
        self._arrived_s: dict[PendingProduce, float] = {}
        """Requests without an answer, and when they arrived."""
        self._outbox: deque[pb.ProduceResponse] = deque()
        self._ended = False
        self._news = asyncio.Event()

    @property
    def _is_full(self) -> bool:
        return self._inflight >= self._inflight_max

    def _submit(
        self, request: pb.ProduceRequest, arrived_s: float, opened: Opened | None
    ) -> PendingProduce:
        def answered(pending: PendingProduce) -> None:
            self._arrived_s.pop(pending, None)
            self._observe(monotonic() - arrived_s)
            self._answer(pending.response)

        self._inflight += 1
        try:
            pending = self._producing.submit(request, answered, opened, self._who)
        except BaseException:
            self._observe(monotonic() - arrived_s)
            raise
        if not pending.is_over:
            self._arrived_s[pending] = arrived_s
        return pending

    async def _quota(self, size_bytes: int) -> None:
        """Waits until the request may be appended; meanwhile nothing is read."""
        await self._producing.quotas.admitted(self._who, Limit.PRODUCE, size_bytes)

    def _answer(self, response: pb.ProduceResponse) -> None:
        self._outbox.append(response)
        self._news.set()

    async def _write_with(self, write: Callable[[pb.ProduceResponse], Awaitable[None]]) -> None:
        """Writes what is in the outbox, until the client has ended the stream and its answers."""
        while True:
            while self._outbox:
                await write(self._outbox[0])
                self._outbox.popleft()
                self._written()
            if self._ended and not self._inflight:
                return
            self._news.clear()
            await self._news.wait()

    def _written(self) -> None:
        self._inflight -= 1

    def _end(self) -> None:
        self._ended = True
        self._news.set()

    def _give_up(self) -> None:
        """Leaves no request waiting."""
        for pending, arrived_s in self._arrived_s.items():
            self._producing.give_up(pending)
            self._observe(monotonic() - arrived_s)


class ProduceStream(_Produces):
    """Serves one call of `BrokerService.ProduceStream`; `run` once."""

    def __init__(
        self,
        producing: Producing,
        context: Any,
        observe: Callable[[float], None],
        inflight_max: int,
    ) -> None:
        """`observe`: as above."""
        super().__init__(producing, observe, inflight_max)
        self._context = context
        self._room = asyncio.Event()

    async def run(self, requests: AsyncIterator[pb.ProduceRequest]) -> None:
        """Runs until the client ends the stream and has its answers; raises as `Producing.submit`.

        Leaves no request waiting, however it ends.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write_with(self._context.write))
                await self._read(requests)
        finally:
            self._give_up()

    async def _read(self, requests: AsyncIterator[pb.ProduceRequest]) -> None:
        async for request in requests:
            arrived_s = monotonic()
            while self._is_full:
                self._room.clear()
                await self._room.wait()
            if self._producing.quotas.active:
                await self._quota(request.ByteSize())
            opening = self._producing.opening(request)
            self._submit(request, arrived_s, None if opening is None else await opening)
            del request  # do not keep the last one until the next arrives
        self._end()

    def _written(self) -> None:
        super()._written()
        self._room.set()


class ProduceMessages(_Produces):
    """Serves the produce requests of one message stream; `run` once.

    A request is submitted in the turn of the loop in which its bytes arrive, and its answer leaves
    in the turn in which its last partition is done: neither costs a switch of tasks.

    Of what is answered at once, such as requests that are empty or refused, `inflight_max` are
    taken; then others have a turn. Nothing else bounds them: they are never in flight.
    """

    def __init__(
        self,
        producing: Producing,
        stream: MessageStream,
        observe: Callable[[float], None],
        inflight_max: int,
        cluster_id: Callable[[], str],
    ) -> None:
        """`cluster_id` returns "" while unknown."""
        super().__init__(producing, observe, inflight_max)
        self._stream = stream
        self._cluster_id = cluster_id
        self._opening: asyncio.Task[None] | None = None
        """The request that is being opened (`opening.Opener`), or waits for its quota."""
        self._at_once = 0
        """Requests, and partitions of them, that were answered at once since the last pause."""
        self._pausing = False

    async def run(self) -> None:
        """Runs until the client ends the stream, and has then appended all that came before.

        Nothing is answered any more. Raises as `Producing.submit`, and PenstockError when the
        connection breaks. Leaves no request waiting, however it ends.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(self._write_with(self._send))
                await self._stream.deliver(partial(self._take, tasks))
                if self._opening is not None:
                    await self._opening
                writing.cancel()
        finally:
            self._give_up()

    def _take(self, tasks: asyncio.TaskGroup, message: Received) -> None:
        _check_size(message)
        request = parsed(pb.ProduceRequest, message, "a producer")
        check_cluster_id(request.cluster_id, self._cluster_id())
        arrived_s = monotonic()
        quotas = self._producing.quotas
        if quotas.debt_ms(self._who, Limit.PRODUCE):
            later = self._submit_later(request, arrived_s, len(message))
            self._opening = tasks.create_task(later)
            self._stream.hold()
            return
        if quotas.active:
            quotas.take(self._who, Limit.PRODUCE, len(message))
        opening = self._producing.opening(request)
        if opening is None:
            self._count_at_once(self._submit(request, arrived_s, None))
        else:
            self._opening = tasks.create_task(self._submit_opened(request, arrived_s, opening))
        if self._is_full or self._pausing or self._opening is not None:
            self._stream.hold()

    def _count_at_once(self, pending: PendingProduce) -> None:
        done = len(pending.response.results) - len(pending.waits_for)
        self._at_once += done + pending.is_over
        if self._at_once >= self._inflight_max:
            self._at_once = 0
            self._pausing = True
            asyncio.get_running_loop().call_soon(self._end_pause)

    def _end_pause(self) -> None:
        self._pausing = False
        self._go_on()

    async def _submit_later(
        self, request: pb.ProduceRequest, arrived_s: float, size_bytes: int
    ) -> None:
        """As `_submit_opened`, once the caller's debt is paid."""
        await self._quota(size_bytes)
        opening = self._producing.opening(request)
        self._submit(request, arrived_s, None if opening is None else await opening)
        self._opening = None
        self._go_on()

    async def _submit_opened(
        self, request: pb.ProduceRequest, arrived_s: float, opening: Awaitable[Opened]
    ) -> None:
        """Nothing is delivered meanwhile: the next request stays behind (I9)."""
        self._submit(request, arrived_s, await opening)
        self._opening = None
        self._go_on()

    def _go_on(self) -> None:
        if self._opening is None and not self._is_full and not self._pausing:
            self._stream.release()  # delivers in a later turn

    def _answer(self, response: pb.ProduceResponse) -> None:
        """Called among a machine's replies: nothing may be submitted, and nothing raised."""
        if not self._outbox and self._stream.post(response.SerializeToString()):
            self._written()
        else:
            super()._answer(response)

    async def _send(self, response: pb.ProduceResponse) -> None:
        # If the connection broke, `deliver` raises it. A client that has ended the stream wants no
        # answers, but what it sent before may still wait for its turn.
        with suppress(PenstockError):
            await self._stream.send(response.SerializeToString())

    def _written(self) -> None:
        super()._written()
        self._go_on()
