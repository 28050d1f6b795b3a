"""Entries in flight to one broker: those that arrive during a call share the next call.

    put(entry, heard) ─▶ [ waiting ] ── a call is free ─▶ call(entries) ─▶ results ─▶ heard
                                         as many entries as fit

One call is in flight at a time, so that a busy pair of brokers makes one call per round trip,
however many transactions there are (group commit for calls). A call can wait at the other broker:
for a participant that is still finishing, for replicas that are behind. So a call that takes longer
than `_STRAGGLER_S` no longer delays the next one; there are at most `_CALLS_MAX`. An entry that is
put again while it is waiting or in flight is not sent twice; all callers get its result.
"""

from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from typing import Any, Final, Generic, TypeVar

from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_broker.clock import Clock
from penstock_broker.observability import EventLog

EntryT = TypeVar("EntryT", bound=Hashable)
Heard = Callable[[PenstockError | None], None]
"""None: done. Called once; must not raise."""
Call = Callable[[Sequence[EntryT]], Awaitable[Sequence[PenstockError | None]]]
"""One result per entry, in order. Raises PenstockError: that is every entry's result."""

Spawn = Callable[[Coroutine[Any, Any, None]], object]
WAITING_MAX: Final = 20_000
_ENTRIES_PER_CALL: Final = 1_000
_STRAGGLER_S: Final = 0.02
_CALLS_MAX: Final = 16
_events = EventLog("transactions")


class Lane(Generic[EntryT]):
    """See the module. `to` names the other broker in logs and errors."""

    def __init__(self, to: str, call: Call[EntryT], clock: Clock, spawn: Spawn) -> None:
        """`spawn` starts a call and owns it."""
        self._to = to
        self._call = call
        self._clock = clock
        self._spawn = spawn
        self._waiting: dict[EntryT, list[Heard]] = {}
        self._under_way: dict[EntryT, list[Heard]] = {}
        self._calls = 0
        self._newest_s = 0.0
        self._looking = False

    @property
    def idle(self) -> bool:
        """Nothing is waiting or in flight."""
        return not self._waiting and not self._under_way

    def put(self, entry: EntryT, heard: Heard) -> None:
        """Sends soon; `heard` is called later, never before this returns."""
        known = self._under_way.get(entry)
        if known is None:
            known = self._waiting.get(entry)
        if known is not None:
            known.append(heard)
            return
        if len(self._waiting) >= WAITING_MAX:
            error = ClusterError(
                f"{WAITING_MAX:,} transaction entries already wait for {self._to}; try again",
                ErrorCode.OVERLOADED,
            )
            self._clock.call_at(self._clock.now_s(), lambda: heard(error))
            return
        self._waiting[entry] = [heard]
        self._look_soon(0.0)

    def _look_soon(self, after_s: float) -> None:
        """At the end of this turn of the loop, or later: entries until then share the call."""
        if not self._looking:
            self._looking = True
            self._clock.call_at(self._clock.now_s() + after_s, self._look)

    def _look(self) -> None:
        self._looking = False
        if not self._waiting or self._calls >= _CALLS_MAX:
            return  # the end of a call looks again
        if self._calls:
            early_s = self._newest_s + _STRAGGLER_S - self._clock.now_s()
            if early_s > 0:
                self._look_soon(early_s)
                return
        entries = list(self._waiting)[:_ENTRIES_PER_CALL]
        for entry in entries:
            self._under_way[entry] = self._waiting.pop(entry)
        self._calls += 1
        self._newest_s = self._clock.now_s()
        self._spawn(self._run(entries))
        if self._waiting:
            self._look_soon(_STRAGGLER_S)

    async def _run(self, entries: list[EntryT]) -> None:
        results: Sequence[PenstockError | None]
        try:
            results = self._all(entries, await self._call(entries))
        except PenstockError as error:
            results = [error] * len(entries)
        except Exception as error:  # noqa: BLE001 - those that wait must get it
            _events.defect("a call about transactions failed", error, to=self._to)
            failed = ClusterError(f"a call to {self._to} failed: {error}", ErrorCode.INTERNAL)
            results = [failed] * len(entries)
        self._calls -= 1
        for entry, result in zip(entries, results, strict=True):
            for heard in self._under_way.pop(entry):
                heard(result)
        self._look()

    def _all(
        self, entries: list[EntryT], results: Sequence[PenstockError | None]
    ) -> Sequence[PenstockError | None]:
        if len(results) == len(entries):
            return results
        error = ClusterError(
            f"{self._to} answered {len(results)} of {len(entries)} entries", ErrorCode.INTERNAL
        )
        return [error] * len(entries)
