"""A controller's shell around `JournaledDocuments`, and the brokers that keep its journals.

One operation on the documents at a time, as the production shell's thread does; `hold` beside it.
Every question takes time; the store's and the brokers' answers come, come late or never.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.core.control.journal.contract import (
    AskKeep,
    AskPromises,
    Holders,
    Journal,
    Kept,
    Promises,
    ReadStore,
)
from penstock.core.control.journal.holder import JournalHolder
from penstock.core.control.journal.proposer import JournaledDocuments, Steps
from penstock.core.control.storage import StoreUnavailableError
from penstock.core.defect import raise_defect
from penstock.core.types import BrokerId
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock_sim.controller import SimController
    from penstock_sim.world import World

PATIENCE_MS: Final = 60
"""How long a controller waits for the brokers' answers about its journal."""
Done = Callable[[Any], None]


class JournalShell:
    """Runs operations; `done` gets the result, or the PenstockError that was raised."""

    def __init__(self, controller: SimController) -> None:
        self.documents = JournaledDocuments()
        self._controller = controller
        self._world = controller.world
        self._life = controller.life
        self._queue: deque[tuple[Callable[[], Steps[Any]], Done]] = deque()
        self._busy = False

    def run(self, begin: Callable[[], Steps[Any]], done: Done) -> None:
        """After what runs already."""
        self._queue.append((begin, done))
        if not self._busy:
            self._next()

    def run_beside(self, steps: Steps[Any], done: Done) -> None:
        """At once: `hold`."""
        self._advance(steps, None, done)

    def _next(self) -> None:
        self._busy = bool(self._queue)
        if not self._busy:
            return
        begin, done = self._queue.popleft()

        def ended(result: Any) -> None:
            done(result)
            self._next()

        self._advance(begin(), None, ended)

    def _advance(self, steps: Steps[Any], answer: Any, done: Done) -> None:
        if not self._controller.is_alive(self._life):
            return
        try:
            ask = steps.throw(answer) if isinstance(answer, PenstockError) else steps.send(answer)
        except StopIteration as result:
            done(result.value)
            return
        except PenstockError as error:
            raise_defect(self.documents.error)
            done(error)
            return

        def answered(found: Any) -> None:
            self._advance(steps, found, done)

        scheduler = self._world.scheduler
        match ask:
            case ReadStore():
                scheduler.after(scheduler.between(1, 15), self._read, answered)
            case AskPromises() | AskKeep():
                Round(self._world, self._controller.id, ask, answered)
            case _:
                writes = [change for stage in ask.stages for change in stage]
                scheduler.after(
                    scheduler.between(1, 10), self._controller.carry_out, writes, answered
                )

    def _read(self, answered: Done) -> None:
        meta = self._world.meta
        if self._controller.id in meta.away:
            answered(StoreUnavailableError("away"))
        else:
            answered(meta.texts())


class Round:
    """One question to all holders; answered once, as soon as a majority or a refusal decides."""

    def __init__(
        self, world: World, controller: int, ask: AskPromises | AskKeep, answered: Done
    ) -> None:
        self._world = world
        self._controller = controller
        self._holders = ask.holders
        self._answered: Done | None = answered
        self._ask = ask
        self._journals: list[Journal] = []
        for broker in ask.holders.brokers:
            keeper = world.brokers[broker.broker_id].keeper
            world.net.call(controller, broker.broker_id, self._deliver, keeper)
        world.scheduler.after(PATIENCE_MS, self._decide, False)

    def _deliver(self, keeper: JournalKeeper) -> None:
        respond = keeper.answer(self._ask)
        if respond is not None:
            self._world.net.call(keeper.broker_id, self._controller, self._hear, respond)

    def _hear(self, answer: Journal | bool) -> None:
        if isinstance(answer, Journal):
            self._journals.append(answer)
        if not isinstance(answer, Journal) or len(self._journals) >= self._holders.majority:
            self._decide(not isinstance(answer, Journal))

    def _decide(self, refused: bool) -> None:
        answered, self._answered = self._answered, None
        if answered is None:
            return
        if isinstance(self._ask, AskPromises):
            answered(Promises(self._journals, refused))
        else:
            answered(Kept(len(self._journals), refused))


class JournalKeeper:
    """A broker's part: its state is synced before it answers, and survives everything."""

    def __init__(self, world: World, broker_id: BrokerId) -> None:
        self.world = world
        self.broker_id = broker_id
        self.holder = JournalHolder()

    def answer(self, ask: AskPromises | AskKeep) -> Journal | bool | None:
        """What it keeps, False: refused, None: the broker is down."""
        broker = self.world.brokers[self.broker_id]
        if not broker.up:
            return None
        if isinstance(ask, AskPromises):
            epoch, after = ask.epoch, self.holder.promise(ask.epoch)
        else:
            epoch, after = ask.journal.controller_epoch, self.holder.keep(ask.journal)
        if after is None:
            return False
        self.holder = after
        broker.session.leave_older_than(epoch)
        if isinstance(ask, AskKeep):
            self.world.checks.journal_kept(self.broker_id, ask.holders, ask.journal)
        return after.journal


class JournalCounts:
    """Which journals a majority has kept at some time: from then on they count."""

    def __init__(self) -> None:
        self._keepers: dict[tuple[int, int], set[int]] = {}

    def kept(self, broker: BrokerId, holders: Holders, journal: Journal) -> bool:
        """This broker's is the one that makes the majority."""
        keepers = self._keepers.setdefault(journal.number, set())
        before = len(keepers)
        keepers.add(int(broker))
        return before < len(keepers) == len(holders.brokers) // 2 + 1
