"""A metadata store that can be unavailable: brokers keep the changes meanwhile.

ControllerRuntime ──▶ JournaledStore ──▶ the store (Kubernetes)
                         │ core.control.journal.proposer decides
                         └──▶ JournalHolders: the brokers' JournalService
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from penstock.core.control.journal.contract import (
    Ask,
    AskKeep,
    AskPromises,
    Kept,
    Promises,
    ReadStore,
)
from penstock.core.control.journal.proposer import JournaledDocuments, Steps
from penstock.errors import PenstockError
from penstock_broker.controller.metadata_store.interface import (
    Change,
    MetadataStore,
    StoredText,
    StoreUnavailableError,
)
from penstock_broker.observability import EventLog

_R = TypeVar("_R")
_events = EventLog("metadata-store")


class JournalHolders(Protocol):
    """Calls the brokers. Bounded in time; two callers may use it at once."""

    async def promise(self, ask: AskPromises) -> Promises: ...
    async def keep(self, ask: AskKeep) -> Kept: ...


class JournaledStore:
    """See the seam for errors. `hold` runs beside calls about documents."""

    def __init__(
        self, store: MetadataStore, holders: JournalHolders, takeover_min_brokers: int = 0
    ) -> None:
        """`takeover_min_brokers`: how many must answer at a take-over; 0 = a majority."""
        self._store = store
        self._holders = holders
        self._documents = JournaledDocuments(takeover_min_brokers)
        self._one_at_a_time = asyncio.Lock()

    @property
    def detached(self) -> bool:
        """See the seam."""
        return self._documents.detached

    @property
    def journaling(self) -> bool:
        """See the seam."""
        return self._documents.journaling

    async def read_all(self, *, take_over: bool = False) -> dict[str, StoredText]:
        """See the seam. A take-over first gets the journals of a majority of the brokers."""
        async with self._one_at_a_time:
            if take_over:
                self._documents.begin_take_over()
            return await self._drive(self._documents.read())

    async def write(self, stages: Sequence[Sequence[Change]]) -> Mapping[str, str]:
        """See the seam. While the store is unavailable: durable on a majority of the brokers."""
        async with self._one_at_a_time:
            return await self._drive(self._documents.write(stages))

    async def acquire_lease(self, holder: str, duration_ms: int) -> bool:
        """See the seam."""
        held = await self._store.acquire_lease(holder, duration_ms)
        self._documents.lease_answered()
        return held

    async def hold(self) -> bool:
        """See the seam: True while a majority of the brokers follows no newer controller."""
        return await self._drive(self._documents.hold())

    async def release_lease(self, holder: str) -> None:
        """See the seam."""
        await self._store.release_lease(holder)

    async def _drive(self, steps: Steps[_R]) -> _R:
        """Answers one question of `steps` after another; an error is raised in `steps`."""
        was_detached, was_stopped = self.detached, self._documents.error is not None
        distrusted = self._documents.distrusted
        try:
            ask = next(steps)
            while True:
                try:
                    answer = await self._answer(ask)
                except asyncio.CancelledError:
                    _leave_unanswered(steps)
                    raise
                except Exception as error:  # noqa: BLE001 - a defect must end `steps` too
                    ask = steps.throw(error)
                else:
                    ask = steps.send(answer)
        except StopIteration as done:
            if self.detached and not was_detached:
                _events.warning("the metadata store is unavailable: brokers keep the changes")
            result: _R = done.value
            return result
        finally:
            for broker, reason in self._documents.distrusted.items():
                if distrusted.get(broker) != reason:
                    _events.error("a broker's journal is not adopted", broker=broker, reason=reason)
            why = self._documents.error
            if why is not None and not was_stopped:
                _events.defect("journal stopped", why.__cause__ or why, reason=why.message)

    async def _answer(self, ask: Ask) -> object:
        match ask:
            case ReadStore():
                return await self._store.read_all()
            case AskPromises():
                return await self._holders.promise(ask)
            case AskKeep():
                return await self._holders.keep(ask)
            case _:
                return await self._store.write(ask.stages)


def _leave_unanswered(steps: Steps[_R]) -> None:
    """The caller has gone, but a requested write may still succeed: its outcome is unknown."""
    with suppress(PenstockError, StopIteration):
        steps.throw(StoreUnavailableError("cancelled before there was an answer"))
    steps.close()
