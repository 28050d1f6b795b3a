"""Hosts of machines that live on a log (`logged.host`), while a world looks over their shoulder.

A host survives what its machine or its shell does wrong: it logs a defect and starts over. Here a
defect ends the history, and so does a check that fails in the middle of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from penstock.errors import ErrorCode, PenstockError
from penstock_broker.logged.host import MachineHost
from penstock_broker.metrics import Metrics

if TYPE_CHECKING:
    from penstock_sim.broker import SimBroker
    from penstock_sim.world import World


class WatchedHost(MachineHost[Any, Any, Any]):
    """Comes before the kind of host in the order of bases."""

    broker: SimBroker
    trace_word: str
    _event: Any = None

    @property
    def world(self) -> World:
        return self.broker.world

    @property
    def quiet(self) -> bool:
        """All that was decided is committed."""
        return self._handed == self._durable

    async def load(self) -> None:
        try:
            await super().load()
        except PenstockError as error:
            if error.code in {ErrorCode.DATA_CORRUPTED, ErrorCode.CORRUPT_BATCH}:
                self.world.scheduler.fail(error)
            raise
        if self.serving:
            self.world.scheduler.note(self.broker.name, "coordinates", self)

    def handle(self, event: Any) -> None:
        outer, self._event = self._event, event
        try:
            super().handle(event)
        finally:
            self._event = outer

    def note(self, ready: Any) -> None:
        """A line of the trace."""
        scheduler = self.world.scheduler
        if scheduler.traced:
            shown = [decision.event for decision in ready.decisions]
            said = (*ready.records, *ready.outputs)
            scheduler.note(self.broker.name, self.trace_word, self._event, shown, *said)

    def judge(self, check: Callable[..., None], *args: Any) -> None:
        """Whoever called may swallow what a check raises."""
        try:
            check(*args)
        except Exception as error:  # noqa: BLE001 - it ends the history
            self.world.scheduler.fail(error)

    def _stop(self, what: str, error: BaseException) -> None:
        self.world.scheduler.fail(error)
        super()._stop(what, error)

    def close(self, error: PenstockError) -> None:
        if self.closed is None:
            self.world.scheduler.note(self.broker.name, "coordinates no more", error)
        super().close(error)


class _NoSession:
    """The topics are there from the beginning: no controller is asked for them."""

    def connection(self) -> Any:
        raise NotImplementedError

    async def call(self, what: str, answer: Any) -> Any:
        raise NotImplementedError


def no_session() -> _NoSession:
    return _NoSession()


@cache
def no_metrics() -> Metrics:
    """Nobody looks at them: one for all nodes."""
    return Metrics()
