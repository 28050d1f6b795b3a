"""One `ProduceStream`: requests are appended as they are read, answered as they finish.

    read ─▶ Producing.submit ─▶ unanswered ─▶ outbox ─▶ write
     ▲            in order (I9)                           │
     └──────────── space for another one ◀─────────────────┘

One task reads and submits, another writes: a request needs no task and no lock of its own. While it
waits, only a `PendingProduce` is kept, not its payload, so that a client slow to read its answers
uses no other memory. The number of requests in flight is bounded, unwritten answers included (I23);
at the limit, nothing is read.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Any

from penstock.proto.v1 import broker_pb2 as pb
from penstock_broker.services.opening import Opened
from penstock_broker.services.producing import PendingProduce, Producing


class ProduceStream:
    """Serves one stream; `run` once."""

    def __init__(
        self,
        producing: Producing,
        context: Any,
        observe: Callable[[float], None],
        inflight_max: int,
    ) -> None:
        """`observe` gets the seconds from each request's arrival to its answer.

        This includes the wait for its turn, but not the answer's way to the client: a client that
        reads slowly does not make the broker slow.
        """
        self._producing = producing
        self._context = context
        self._observe = observe
        self._inflight_max = inflight_max
        self._inflight = 0
        """Requests read whose answer is not written yet."""
        self._arrived_s: dict[PendingProduce, float] = {}
        """Requests without an answer, and when they arrived."""
        self._outbox: deque[pb.ProduceResponse] = deque()
        self._ended = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def run(self, requests: AsyncIterator[pb.ProduceRequest]) -> None:
        """Runs until the client ends the stream and has its answers; raises as `Producing.submit`.

        Leaves no request waiting, however it ends.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write())
                await self._read(requests)
        finally:
            for pending, arrived_s in self._arrived_s.items():
                self._producing.give_up(pending)
                self._observe(monotonic() - arrived_s)

    async def _read(self, requests: AsyncIterator[pb.ProduceRequest]) -> None:
        async for request in requests:
            arrived_s = monotonic()
            while self._inflight >= self._inflight_max:
                self._room.clear()
                await self._room.wait()
            opening = self._producing.opening(request)
            self._submit(request, arrived_s, None if opening is None else await opening)
            del request  # do not keep the last one until the next arrives
        self._ended = True
        self._news.set()

    def _submit(self, request: pb.ProduceRequest, arrived_s: float, opened: Opened | None) -> None:
        def answered(pending: PendingProduce) -> None:
            self._arrived_s.pop(pending, None)
            self._observe(monotonic() - arrived_s)
            self._outbox.append(pending.response)
            self._news.set()

        self._inflight += 1
        try:
            pending = self._producing.submit(request, answered, opened)
        except BaseException:
            self._observe(monotonic() - arrived_s)
            raise
        if not pending.is_over:
            self._arrived_s[pending] = arrived_s

    async def _write(self) -> None:
        while True:
            while self._outbox:
                await self._context.write(self._outbox.popleft())
                self._inflight -= 1
                self._room.set()
            if self._ended and not self._inflight:
                return
            self._news.clear()
            await self._news.wait()
