"""The tasks of a stream server, common to all carriers: one per stream, ended with the server."""

import asyncio
from collections.abc import Awaitable, Callable
from random import uniform
from typing import Protocol

from penstock.errors import ClusterError, ErrorCode, OverloadedError, PenstockError
from penstock.rpc.streams.contract import Handle, MessageStream


class AcceptedStream(MessageStream, Protocol):
    """A stream as its server sees it."""

    def cut(self) -> None:
        """Ends the connection without a word."""
        ...


class Serving:
    """Runs a handler per stream. Streams above `streams_max` are refused, with OVERLOADED."""

    def __init__(self, handle: Handle, streams_max: int, age_s: float | None = None) -> None:
        """`age_s`: after about how long a stream is ended, so that its other side opens another;
        None: never."""
        self._age_s = age_s
        self._handle = handle
        self._streams_max = streams_max
        self._streams = 0
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self, begin: Callable[[], Awaitable[None]]) -> None:
        """Serves what is accepted until it is cancelled; then all streams end.

        `begin`: from then on streams may be accepted.
        """
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                await begin()
                await asyncio.Event().wait()
            finally:
                self._tasks = None

    def accept(self, stream: AcceptedStream) -> None:
        """A new stream. Refusing takes a moment too, so there is a limit above which it is cut."""
        if self._tasks is None or self._streams >= 2 * self._streams_max:
            stream.cut()
        else:
            self._streams += 1
            self._tasks.create_task(self._serve(stream, refused=self._streams > self._streams_max))

    async def _serve(self, stream: AcceptedStream, *, refused: bool) -> None:
        error: PenstockError | None = ClusterError(
            "the server is stopping", ErrorCode.SHUTTING_DOWN
        )
        try:
            if refused:
                raise OverloadedError(f"{self._streams_max} streams are open here, the maximum")
            error = await self._handled(stream)
        except PenstockError as refusal:
            error = refusal
        finally:
            await stream.close(error)
            self._streams -= 1

    async def _handled(self, stream: AcceptedStream) -> PenstockError | None:
        """How the stream ends. A TimeoutError of the handler is none of the limit's."""
        limit = asyncio.timeout(self._age())
        try:
            async with limit:
                await self._handle(stream)
        except TimeoutError:
            if not limit.expired():
                return ClusterError("the server waited too long", ErrorCode.REQUEST_TIMED_OUT)
            return ClusterError("the connection is old; open another", ErrorCode.SHUTTING_DOWN)
        return None

    def _age(self) -> float | None:
        """Varied, so that not all come back at once."""
        return None if self._age_s is None else self._age_s * uniform(0.9, 1.1)  # noqa: S311
