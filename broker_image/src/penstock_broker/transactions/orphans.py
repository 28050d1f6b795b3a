"""Ends transactions on partitions led here that no coordinator knows: asks, decides, appends.

    partitions led here ─▶ Orphans.due ─▶ every broker that coordinates ─▶ orphaned ─▶ Markers.end

Which ones, and when: `penstock.core.transactions.orphans`. After the answers the world is looked at
again: leaders of `__transactions` that moved meanwhile make them incomplete, and a transaction that
has ended is left alone.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from penstock.core.transactions.contract import End
from penstock.core.transactions.orphans import (
    Answer,
    OpenHere,
    Orphans,
    Transaction,
    orphaned,
)
from penstock.core.transactions.records import PartitionParticipant
from penstock.core.types import BrokerId
from penstock.errors import PenstockError
from penstock_broker.clock import Clock
from penstock_broker.observability import EventLog

FIND_MAX: Final = 1_000
"""Transactions that are asked about at once; the others have their turn when these have ended."""
_INTERVAL_MAX_S: Final = 60.0
_events = EventLog("transactions")


class Coordinators(Protocol):
    """Whoever coordinates (`links.TransactionLinks`)."""

    def coordinator_brokers(self) -> Mapping[int, int]: ...
    async def find(self, transactions: frozenset[Transaction], broker_id: BrokerId) -> Answer:
        """Raises PenstockError."""


class Ender(Protocol):
    """Appends markers (`partitions.Markers`)."""

    async def end(self, participant: PartitionParticipant, end: End) -> None:
        """Raises PenstockError."""


class OrphanSweep:
    """See the module."""

    def __init__(
        self,
        now_open: Callable[[], Iterable[OpenHere]],
        coordinators: Coordinators,
        markers: Ender,
        clock: Clock,
        *,
        age_ms: int,
        grace_ms: int,
    ) -> None:
        """`now_open`: on partitions led here. `age_ms`: asked about once open for so long.

        `grace_ms`, the part of it beyond the longest timeout, says how often to look.
        """
        self._now_open = now_open
        self._coordinators = coordinators
        self._markers = markers
        self._clock = clock
        self._interval_s = min(_INTERVAL_MAX_S, grace_ms / 4_000)
        self._orphans = Orphans(age_ms)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._clock.sleep(self._interval_s)
            try:
                await self.sweep()
            except Exception as error:  # noqa: BLE001 - a sweep must never end a broker
                _events.defect("transactions that nobody knows are not looked for", error)

    async def sweep(self) -> None:
        """One look, and what follows from it."""
        due = self._orphans.due(self._now_open(), self._clock.now_ms())[:FIND_MAX]
        if not due:
            return
        before = self._coordinators.coordinator_brokers()
        answers = await self._ask(frozenset(one.transaction for one in due), before)
        if self._coordinators.coordinator_brokers() != before:
            return  # the next sweep asks again
        still_open = set(self._now_open())
        for one in orphaned(due, before, answers):
            if one in still_open:
                await self._end(one)

    async def _ask(
        self, transactions: frozenset[Transaction], leaders: Mapping[int, int]
    ) -> dict[int, Answer]:
        """By broker id; nobody is asked while a partition has no leader."""
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
                _events.info("a coordinator cannot be asked", broker=broker_id, reason=error)
                return {}
        return answers

    async def _end(self, one: OpenHere) -> None:
        producer_id, epoch = one.transaction
        participant = PartitionParticipant(one.where.topic_id, one.where.partition)
        try:
            await self._markers.end(
                participant,
                End(
                    participant=participant,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    commit=False,
                    transactional_id="",
                ),
            )
        except PenstockError as error:
            _events.info("a transaction is not ended yet", partition=str(one.where), reason=error)
            return
        _events.warning(
            "aborted a transaction that no coordinator knows",
            partition=str(one.where),
            producer_id=producer_id,
            producer_epoch=epoch,
        )
