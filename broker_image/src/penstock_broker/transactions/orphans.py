"""Ends transactions of participants here that no coordinator knows, or that have ended elsewhere.

    partitions led, groups coordinated here ─▶ Orphans.due ─▶ every broker that coordinates
        ─▶ endings ─▶ End, as if their coordinator had sent it

Which transactions, and when: `penstock.core.transactions.orphans`. After the answers, the state is
checked again: if leaders of `__transactions` moved meanwhile, the answers are incomplete; a
transaction that has ended is left alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from penstock.core.transactions.contract import End
from penstock.core.transactions.orphans import (
    Answer,
    OpenHere,
    Orphans,
    Transaction,
    endings,
)
from penstock.core.types import BrokerId
from penstock.errors import PenstockError
from penstock_broker.clock import Clock
from penstock_broker.observability import EventLog

FIND_MAX: Final = 1_000
"""How many transactions are asked about at once; others follow when these have ended."""
_INTERVAL_MAX_S: Final = 60.0
_events = EventLog("transactions")


class Coordinators(Protocol):
    """All transaction coordinators of the cluster (`links.TransactionLinks`)."""

    def coordinator_brokers(self) -> Mapping[int, int]: ...
    async def find(self, transactions: frozenset[Transaction], broker_id: BrokerId) -> Answer:
        """Raises PenstockError."""


class Participants(Protocol):
    """All participants on this broker (`here.Here`)."""

    def open_here(self) -> Iterable[OpenHere]: ...
    async def end(self, entries: Sequence[End]) -> Sequence[PenstockError | None]:
        """Has them store how transactions ended; one result per entry, None: done."""


class OrphanSweep:
    """See the module."""

    def __init__(
        self,
        participants: Participants,
        coordinators: Coordinators,
        clock: Clock,
        *,
        age_ms: int,
        grace_ms: int,
    ) -> None:
        """`age_ms`: a transaction open for longer than this is asked about.

        `grace_ms`, the part of it beyond the longest timeout, determines how often to check.
        """
        self._participants = participants
        self._coordinators = coordinators
        self._clock = clock
        self._interval_s = min(_INTERVAL_MAX_S, grace_ms / 4_000)
        self._orphans = Orphans(age_ms)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._clock.sleep(self._interval_s)
            try:
                await self.sweep()
            except Exception as error:  # noqa: BLE001 - a sweep must never end a broker
                _events.defect("cannot look for orphaned transactions", error)

    async def sweep(self) -> None:
        """Checks once, and ends the transactions found."""
        now_open = self._participants.open_here()
        due = self._orphans.due(now_open, self._clock.now_ms())[:FIND_MAX]
        if not due:
            return
        before = self._coordinators.coordinator_brokers()
        answers = await self._ask(frozenset(one.transaction for one in due), before)
        if self._coordinators.coordinator_brokers() != before:
            return  # the next sweep asks again
        still_open = set(self._participants.open_here())
        found = endings(due, before, answers)
        await self._end({one: commit for one, commit in found.items() if one in still_open})

    async def _ask(
        self, transactions: frozenset[Transaction], leaders: Mapping[int, int]
    ) -> dict[int, Answer]:
        """Answers by broker id; no broker is asked while a partition has no leader."""
        answers: dict[int, Answer] = {}
        brokers = set(leaders.values())
        if min(brokers, default=-1) < 0:
            return {}
        for broker_id in sorted(brokers):
            try:
                answers[broker_id] = await self._coordinators.find(
                    transactions, BrokerId(broker_id)
                )
            except PenstockError as error:
                _events.info("a coordinator does not answer", broker=broker_id, reason=error)
                return {}
        return answers

    async def _end(self, found: Mapping[OpenHere, bool]) -> None:
        """All at once: one that cannot store it now does not delay the others."""
        results = await self._participants.end([_end(one, found[one]) for one in found])
        for (one, commit), error in zip(found.items(), results, strict=True):
            who = str(one.participant)
            producer_id, epoch = one.transaction
            if error is not None:
                _events.info("a lost transaction is not ended yet", participant=who, reason=error)
                continue
            _events.warning(
                "ended a transaction that was lost",
                participant=who,
                producer_id=producer_id,
                producer_epoch=epoch,
                commit=commit,
            )


def _end(one: OpenHere, commit: bool) -> End:
    producer_id, epoch = one.transaction
    return End(
        participant=one.participant,
        producer_id=producer_id,
        producer_epoch=epoch,
        commit=commit,
        transactional_id="",
    )
