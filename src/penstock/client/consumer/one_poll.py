"""One poll of a consumer at a time.

A poll says that its caller is done with what earlier polls returned. With two callers, each would
commit what the other one has in hand, and a crash would lose that. Kafka's consumer refuses the
second one, too.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.errors import MisuseError


class OnePoll:
    """Of one consumer; used in its event loop."""

    def __init__(self) -> None:
        self._poller: asyncio.Task[object] | None = None
        self._cancelled_before = 0
        """How many cancellations the poller had swallowed before it polled."""
        self._ended = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Raises MisuseError while another poll goes on; waits for one that is being cancelled, as
        after Ctrl-C."""
        poller, mine = self._poller, asyncio.current_task()
        if poller is not None and (poller is mine or poller.cancelling() <= self._cancelled_before):
            raise MisuseError(
                "this consumer is being polled already, by another thread or task or by the poll "
                "that called this listener. A poll says that all records returned before are "
                "done, so each would commit what the other has in hand: use one consumer for each "
                "thread or task, or a WorkerPool to handle records side by side"
            )
        async with self._ended:
            self._poller = mine
            self._cancelled_before = mine.cancelling() if mine is not None else 0
            try:
                yield
            finally:
                self._poller = None
