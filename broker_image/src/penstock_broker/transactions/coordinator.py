"""The transactions of one partition of `__transactions`: a machine on its log.

    Ready.outputs, once committed ─▶ tell ─┬─ Reply ────▶ the caller of `ask`
                                           └─ SendEnds ─▶ participants, until each has stored it

Loading, appending, waiting for the high watermark and the end: `logged.host`. The machine resends
an End that is lost; nothing here remembers it (I14).
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol, assert_never

from penstock.core.transactions import TransactionConfig, TransactionCoordinator
from penstock.core.transactions.contract import (
    Answer,
    End,
    Event,
    FinishedHeard,
    ImageChanged,
    Ready,
    Reply,
    SendEnds,
    Tick,
    TopicsGone,
)
from penstock.core.transactions.views import Census
from penstock.core.types import TopicId
from penstock.errors import PenstockError
from penstock_broker.clock import Clock
from penstock_broker.logged.host import MachineHost
from penstock_broker.logged.log import PartitionLog
from penstock_broker.observability import EventLog

_events = EventLog("transactions")


class Ends(Protocol):
    """Notifies participants of how transactions ended (`links`)."""

    def send(self, end: End, stored: Callable[[], None]) -> None:
        """Calls `stored` once the participant has stored it, otherwise never."""


class Observer(Protocol):
    """For metrics (`metrics.TransactionMetrics`)."""

    def decided(self, ready: Ready) -> None:
        """A machine took a step."""

    def stored(self, ready: Ready, seconds: float) -> None:
        """The step is on all in-sync replicas, `seconds` after it was decided."""


class Coordinator(MachineHost[Event, Ready, Answer]):
    """See the module."""

    def __init__(
        self,
        log: PartitionLog,
        clock: Clock,
        config: TransactionConfig,
        ends: Ends,
        observer: Observer,
    ) -> None:
        """`observer` gets every Ready."""
        self.machine = TransactionCoordinator(config, clock.wall.look().ms - clock.now_ms())
        super().__init__(log, clock, self.machine, Tick(), _events)
        self._ends = ends
        self._observer = observer
        self._not_stored: deque[tuple[Ready, float]] = deque()
        """Decisions and their times, in order, until they are on all in-sync replicas."""

    def begin(self, now_ms: int) -> Ready:
        """Timers continue; Ends that may have been lost are sent."""
        return self.machine.start(now_ms)

    def decided(self, ready: Ready) -> None:
        """For the metrics of all coordinators here."""
        self._observer.decided(ready)
        if ready.ended and ready.outputs:  # a branch that nothing has joined ends without any
            self._not_stored.append((ready, self._clock.now_s()))

    @property
    def census(self) -> Census:
        """For metrics. A transaction is open until its end is on all in-sync replicas: a
        coordinator that can store nothing decides the same again and again."""
        found, now_s = self.machine.census, self._clock.now_s()
        ages_ms = [
            ended.open_ms + int((now_s - decided_s) * 1000)
            for ready, decided_s in self._not_stored
            for ended in ready.ended
        ]
        return replace(
            found,
            open=found.open + len(ages_ms),
            oldest_open_ms=max([found.oldest_open_ms, *ages_ms]),
        )

    def tell(self, ready: Ready) -> None:
        """Sends answers, and Ends to participants."""
        if self._not_stored and self._not_stored[0][0] is ready:
            _, decided_s = self._not_stored.popleft()
            self._observer.stored(ready, self._clock.now_s() - decided_s)
        for output in ready.outputs:
            match output:
                case Reply():
                    self.answer(output.request_id, output.answer)
                case SendEnds():
                    for end in output.entries:
                        self._ends.send(end, self._stored(end))
                case _:
                    assert_never(output)

    def _stored(self, end: End) -> Callable[[], None]:
        def stored() -> None:
            if self.serving:  # otherwise the next coordinator sends the End again
                self.handle(FinishedHeard(end.participant, end.producer_id, end.producer_epoch))

        return stored

    def ended(self, error: PenstockError) -> None:
        """Nothing to do: callers use `ask`, and the next coordinator notifies participants."""

    def image_changed(self, topic_ids: frozenset[TopicId], gone: Iterable[TopicId]) -> None:
        """A new image was applied: leaders may have moved. `gone`: topics that were deleted."""
        if self.serving:
            self.handle(ImageChanged(topic_ids))
        deleted = frozenset(gone)
        if deleted and self.serving:
            self.handle(TopicsGone(deleted))
