"""The machine's calls of the metadata store: one at a time, beside the loop that decides.

    Ready with writes ─▶ take ─┐           ┌─▶ WriteDone | WriteConflict | WriteUnknown ─▶ feed
    Ready with reload ─▶ take ─┼─▶ store ──┤
    a new machine     ─▶ begin ┘           └─▶ Loaded; not readable: again, later

A machine may end while a call is under way (`drop`). Its answer is then for nobody: it carries the
number of a generation that is over.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.core.control import contract as c
from penstock_broker.controller.counters import Counters
from penstock_broker.controller.loading import to_change
from penstock_broker.controller.metadata_store.interface import (
    StoreUnavailableError,
    WriteConflictError,
)
from penstock_broker.controller.seams import ControllerSeams
from penstock_broker.observability import EventLog

_RETRY_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
_events = EventLog("controller")


class StoreTask:
    """Of one controller process, for one machine after the other."""

    def __init__(
        self,
        seams: ControllerSeams,
        counters: Counters,
        *,
        load: Callable[[], Awaitable[c.Loaded | None]],
        feed: Callable[[c.Event], None],
        tell_store_state: Callable[[], None],
    ) -> None:
        """`load`: reads the store, None if that is not possible now. `feed`: of the machine."""
        self._store = seams.store
        self._clock = seams.clock
        self._counters = counters
        self._load = load
        self._feed = feed
        self._tell_store_state = tell_store_state
        self._generation = 0
        self._write: c.Ready | None = None
        self._reload = False
        self._wanted = asyncio.Event()

    def begin(self) -> None:
        """A new machine: it reads the store first."""
        self._generation += 1
        self._reload = True
        self._wanted.set()

    def take(self, ready: c.Ready) -> None:
        """What the machine wants of the store."""
        if ready.writes:
            assert self._write is None
            self._write = ready
            self._wanted.set()
        if ready.reload:
            self._reload = True
            self._wanted.set()

    def drop(self) -> None:
        """Nothing more is done for this machine, and an answer on its way is not for it."""
        self._generation += 1
        self._write, self._reload = None, False

    async def run(self) -> None:
        """Until cancelled. Raises what ends the process: a permanent error of the store."""
        failures = 0
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            if self._write is not None:
                ready, self._write = self._write, None
                if ready.stored_only and self._store.journaling:
                    # Since it was decided, brokers stand in for the store.
                    self._tell_store_state()
                    self._feed(c.WriteNotSent(ready.write_id))
                else:
                    await self._carry_out(ready.write_id, ready.writes)
            elif self._reload:
                generation = self._generation
                loaded = await self._load()
                if loaded is None:
                    await self._clock.sleep(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
                    failures += 1
                    self._wanted.set()
                elif generation == self._generation:
                    failures = 0
                    self._reload = False
                    self._feed(loaded)

    async def _carry_out(
        self, write_id: int, stages: tuple[tuple[c.DocumentWrite, ...], ...]
    ) -> None:
        generation, started = self._generation, self._clock.now_s()
        changes = [[to_change(write) for write in stage] for stage in stages]
        event: c.Event
        try:
            versions = await self._store.write(changes)
            event = c.WriteDone(write_id, versions)
        except WriteConflictError as error:
            self._counters.write_conflicts += 1
            _events.warning("metadata conflict", reason=error.message)
            event = c.WriteConflict(write_id)
        except StoreUnavailableError as error:
            self._counters.write_unknowns += 1
            _events.warning("metadata write unanswered", reason=error.message)
            event = c.WriteUnknown(write_id)
        self._counters.writes += 1
        self._counters.write_seconds += self._clock.now_s() - started
        if generation == self._generation:
            self._feed(event)
