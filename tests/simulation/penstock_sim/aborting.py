"""An operator who lists transactions and aborts some: `penstock txn list`, `penstock txn abort`.

        list ─▶ one that is open, or was seen before ─▶ AbortTransaction ─▶ how many ─▶ maybe again
                                                            └ lost: asked again; copies arrive late

An abort names an id, and an epoch or none (-1: any open transaction). With an epoch, it ends that
transaction or nothing: most late ones name a transaction that has ended. The answer to the operator
is checked against the committed log of `__transactions` (I11); that the producer is told, and that
readers see nothing of it, is checked as for every other aborted transaction.

Choices come from a generator of its own; calls use the network like all others.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.transactions import contract as tc
from penstock.core.transactions.contract_views import (
    Listed,
    ListedTransaction,
    ListRequested,
    TransactionState,
)
from penstock.core.transactions.records import BranchKey, BranchRecord, EndReason, LastEnd
from penstock.errors import ErrorCode, PenstockError
from penstock_sim.process import Process
from penstock_sim.scheduler import BASE_TIME_MS, RATE, RuleError
from penstock_sim.transactions import LATE_MS

if TYPE_CHECKING:
    from penstock_sim.transactional import Who
    from penstock_sim.world import World

_NODE: Final = 790
_ANY: Final = -1
_UNKNOWN: Final = "no-such-id"
_REMEMBERS: Final = 40
_THINKS_MS: Final = (0.01, 3, 30, 200)
_ON_ITS_WAY_MS: Final = LATE_MS + 100
"""A copy of the call may arrive for this long after an answer."""


@dataclass(slots=True, eq=False)
class Order:
    """An abort. `seen`: the transaction as the operator saw it; None: the id is made up.

    epoch: of the transaction, -1 = any open one. until_ms: when its last copy has arrived; None: it
    is not answered. told: how many were aborted, None: not answered, or refused.
    """

    transactional_id: str
    epoch: int
    seen: ListedTransaction | None
    sent_ms: int
    until_ms: int | None = None
    told: int | None = None

    def allows(self, transactional_id: str, end: LastEnd) -> bool:
        """Whether this order may have ended that."""
        time_ms = (end.time_ms - BASE_TIME_MS) / RATE
        is_named = self.transactional_id == transactional_id and self.epoch in {_ANY, end.epoch}
        in_time = self.until_ms is None or time_ms <= self.until_ms
        return is_named and self.sent_ms <= time_ms and in_time


class AbortChecks:
    """Checks all orders of a history. `hit`: what operators aborted, by the committed log, and
    when."""

    def __init__(self, world: World) -> None:
        self.orders: list[Order] = []
        self.hit: dict[Who, tuple[str, LastEnd]] = {}
        self._world = world

    def branch_changed(self, key: BranchKey, now: BranchRecord) -> None:
        """The next record of a branch is committed."""
        end = now.last
        if end is None or end.reason is not EndReason.OPERATOR:
            return
        who = (end.producer_id, end.epoch)
        if who in self.hit:
            return
        self.hit[who] = (key.transactional_id, end)
        if not any(order.allows(key.transactional_id, end) for order in self.orders):
            raise RuleError(
                f"I11: {who} of {key.transactional_id!r} was aborted by an operator, who asked for "
                f"no such thing at that time: {self.orders[-3:]}"
            )

    def told(self, order: Order, count: int) -> None:
        """The operator gets the number aborted; the transaction it saw open must have ended."""
        order.told = count
        checks = self._world.transaction_checks
        if checks.void:
            return
        hit = [
            who
            for who, (transactional_id, end) in self.hit.items()
            if order.allows(transactional_id, end)
        ]
        if count > len(hit):
            raise RuleError(f"I11: {order} is told to have aborted {count}, by the log it is {hit}")
        seen = order.seen
        if seen is None or seen.state is not TransactionState.OPEN:
            return
        who = (seen.producer_id, seen.producer_epoch)
        if order.epoch in {_ANY, seen.producer_epoch} and who not in checks.outcomes:
            raise RuleError(f"I11: {order} is answered, and {who} is open still")

    def refused(self, order: Order, error: PenstockError) -> None:
        """The operator is told that there is no such transaction."""
        if self._world.transaction_checks.void:
            return
        if error.code is not ErrorCode.UNKNOWN_TRANSACTIONAL_ID or order.seen is not None:
            raise RuleError(f"I11: {order} hears {error.code.name}: {error}")

    def check_end(self) -> None:
        """What was aborted stays aborted; every order was answered."""
        outcomes = self._world.transaction_checks.outcomes
        for who, (transactional_id, _) in self.hit.items():
            if outcomes.get(who) is not False:
                raise RuleError(f"I11: {who} of {transactional_id!r} was aborted by an operator")
        silent = [order for order in self.orders if order.until_ms is None]
        if silent:
            raise RuleError(f"I24: {silent} were never answered")


class Operator(Process):
    """One person; asks until there is an answer."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "operator", _NODE)
        self.checks = AbortChecks(world)
        self._random = world.scheduler.generator(self.name)
        self._pace_ms = self._random.choice((20, 60, 150))
        self._memory: deque[ListedTransaction] = deque(maxlen=_REMEMBERS)
        self._busy = 0

    def start(self) -> None:
        """Lists transactions now and then."""
        self._later(self._random.uniform(0.2, 1.8) * self._pace_ms, self._look)

    def unsettled(self) -> str:
        """Why it is not done yet; "" = all its orders are answered."""
        return f"the operator waits for {self._busy} answers" if self._busy else ""

    # ------------------------------------------------------------ looking

    def _look(self) -> None:
        if not self.world.chaotic:
            return
        self.start()
        states = self._random.choice((frozenset({TransactionState.OPEN}), frozenset()))
        older_than_ms = self._random.choice((0, 0, 40))
        self._busy += 1
        self._ask(
            lambda number: ListRequested(number, states, older_than_ms),
            self._listed,
        )

    def _listed(self, answer: Listed | PenstockError) -> None:
        self._busy -= 1
        if isinstance(answer, PenstockError):
            raise RuleError(f"I16: {self.name} hears {answer.code.name}: {answer}")
        self._choose(answer.transactions)
        self._memory.extend(answer.transactions)

    def _choose(self, listed: tuple[ListedTransaction, ...]) -> None:
        """One that is open now; or an earlier one, usually ended; or one that does not exist."""
        is_open = [one for one in listed if one.state is TransactionState.OPEN]
        kind = self._random.random()
        if kind < 0.03:
            self._think(_UNKNOWN, _ANY, None)
        elif kind < 0.35 and self._memory:
            self._abort_seen(self._random.choice(self._memory), _ANY if kind < 0.06 else None)
        elif is_open:
            self._abort_seen(self._random.choice(is_open), _ANY if kind > 0.85 else None)

    def _abort_seen(self, seen: ListedTransaction, epoch: int | None) -> None:
        named = seen.producer_epoch if epoch is None else epoch
        self._think(seen.transactional_id, named, seen)

    def _think(self, transactional_id: str, epoch: int, seen: ListedTransaction | None) -> None:
        self._busy += 1
        pause_ms = self._random.choice(_THINKS_MS)
        self._later(pause_ms, self._abort, transactional_id, epoch, seen)

    # ------------------------------------------------------------ stepping in

    def _abort(self, transactional_id: str, epoch: int, seen: ListedTransaction | None) -> None:
        order = Order(transactional_id, epoch, seen, self.world.scheduler.now_ms)
        self.checks.orders.append(order)
        self.world.scheduler.note(self.name, "aborts", transactional_id, epoch)
        self._ask(
            lambda number: tc.AbortRequested(
                request_id=number,
                transactional_id=transactional_id,
                producer_epoch=epoch,
                comment=self.name,
            ),
            lambda answer: self._answered(order, answer),
        )

    def _answered(self, order: Order, answer: tc.Aborted | PenstockError) -> None:
        self._busy -= 1
        order.until_ms = self.world.scheduler.now_ms + _ON_ITS_WAY_MS
        if isinstance(answer, PenstockError):
            self.checks.refused(order, answer)
            return
        self.checks.told(order, answer.count)
        if self.world.chaotic and self._random.random() < 0.25:
            self._think(order.transactional_id, order.epoch, order.seen)
