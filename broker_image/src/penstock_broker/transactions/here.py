"""Joins and Ends that other brokers, and this one, send to this broker.

    join ─▶ the id's coordinator, led here ─▶ answered once all in-sync replicas have it
    end ──▶ leader of the partition, here ──▶ its marker is on all in-sync replicas
         └▶ coordinator of the group, here ─▶ its record of the outcome is, too

One result per entry, in order; an entry that waits does not delay the others. A refusal is
retriable if the caller may succeed with another leader, or here later.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from penstock.core.groups.contract import SendAbort, TransactionEnded
from penstock.core.transactions.contract import AbortRequested, End, JoinRequested
from penstock.core.transactions.contract_views import FindRequested, Found
from penstock.core.transactions.orphans import Answer, OpenHere, Transaction
from penstock.core.transactions.records import EndReason, GroupParticipant, PartitionParticipant
from penstock.errors import PenstockError
from penstock_broker.groups.coordinators import Coordinators as GroupCoordinators
from penstock_broker.transactions.coordinators import Coordinators

_E = TypeVar("_E")
Results = list[PenstockError | None]
"""One per entry; None: done."""


class Partitions(Protocol):
    """Transactions on partitions led here (`partitions.Markers`)."""

    def open_here(self) -> Iterable[OpenHere]: ...
    async def end(self, participant: PartitionParticipant, end: End) -> None:
        """Returns once the marker is below the high watermark. Raises PenstockError."""


class Here:
    """See the module. `refusal` says why this broker accepts no writes now, or None."""

    def __init__(
        self,
        coordinators: Coordinators,
        groups: GroupCoordinators,
        partitions: Partitions,
        refusal: Callable[[], PenstockError | None],
    ) -> None:
        self._coordinators = coordinators
        self._groups = groups
        self._partitions = partitions
        self._refusal = refusal

    async def join(self, entries: Sequence[JoinRequested]) -> Results:
        """Has participants join their transactions; `request_id` is assigned here."""
        return await _each(entries, self._join)

    async def end(self, entries: Sequence[End]) -> Results:
        """Has participants store how transactions ended."""
        return await _each(entries, self._end)

    async def abort(self, abort: SendAbort) -> None:
        """Aborts the transaction of a group member that left. Raises PenstockError."""
        coordinator = self._coordinators.find(abort.transactional_id)
        self._coordinators.writable(coordinator, self._refusal())
        await coordinator.ask(
            lambda number: AbortRequested(
                request_id=number,
                transactional_id=abort.transactional_id,
                reason=EndReason.MEMBER_GONE,
                comment=abort.reason,
            )
        )

    async def find(self, transactions: frozenset[Transaction]) -> Answer:
        """What the coordinators here know; the answer omits partitions that cannot tell now."""
        partitions: set[int] = set()
        known: set[Transaction] = set()
        ended: dict[Transaction, bool] = {}
        for coordinator in self._coordinators.led:
            try:
                self._coordinators.writable(coordinator, self._refusal())
                found = await coordinator.ask(lambda number: FindRequested(number, transactions))
            except PenstockError:
                continue
            assert isinstance(found, Found)
            partitions.add(coordinator.partition)
            known |= found.known
            ended.update(found.ended)
        return Answer(frozenset(partitions), frozenset(known), ended)

    def open_here(self) -> Iterator[OpenHere]:
        """The open transactions of participants here: partitions led, groups coordinated."""
        yield from self._partitions.open_here()
        for coordinator in self._groups.led:
            if coordinator.serving:
                for key, record in coordinator.machine.open_transactions:
                    where = GroupParticipant(key.group_id)
                    yield OpenHere(where, (key.producer_id, record.producer_epoch))

    async def _join(self, entry: JoinRequested) -> None:
        coordinator = self._coordinators.find(entry.transactional_id)
        self._coordinators.writable(coordinator, self._refusal())
        await coordinator.ask(lambda number: replace(entry, request_id=number))

    async def _end(self, entry: End) -> None:
        if not isinstance(entry.participant, GroupParticipant):
            await self._partitions.end(entry.participant, entry)
            return
        group_id = entry.participant.group_id
        coordinator = self._groups.find(group_id)
        self._groups.writable(coordinator, self._refusal())
        await coordinator.ask(
            lambda number: TransactionEnded(
                request_id=number,
                group_id=group_id,
                transactional_id=entry.transactional_id,
                producer_id=entry.producer_id,
                producer_epoch=entry.producer_epoch,
                commit=entry.commit,
            )
        )


async def _each(entries: Sequence[_E], act: Callable[[_E], Awaitable[None]]) -> Results:
    """Runs all at once, so that they share appends."""
    results: Results = [None] * len(entries)

    async def one(index: int) -> None:
        try:
            await act(entries[index])
        except PenstockError as error:
            results[index] = error

    if len(entries) == 1:
        await one(0)
        return results
    async with asyncio.TaskGroup() as tasks:
        for index in range(len(entries)):
            tasks.create_task(partial(one, index)())
    return results
