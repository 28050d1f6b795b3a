"""A metadata store that may be away: changes are kept by the brokers meanwhile.

ControllerRuntime ──▶ JournaledStore ──▶ the store (Kubernetes)
                         │ core.control.journal.proposer decides
                         └──▶ JournalHolders: the brokers' JournalService
"""

from collections.abc import Mapping, Sequence
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
from penstock_broker.controller.metadata_store.interface import Change, MetadataStore, StoredText
from penstock_broker.observability import EventLog

_R = TypeVar("_R")
_events = EventLog("metadata-store")


class JournalCalls(Protocol):
    """Asks the brokers. Blocks, bounded in time; several threads may call."""

    def promise(self, ask: AskPromises) -> Promises: ...
    def keep(self, ask: AskKeep) -> Kept: ...
    def close(self) -> None: ...


class JournaledStore:
    """See the seam for threads and errors. Owns `store` and `holders`."""

    def __init__(
        self, store: MetadataStore, holders: JournalCalls, takeover_min_brokers: int = 0
    ) -> None:
        """`takeover_min_brokers`: who must answer at a take-over; 0 = a majority."""
        self._store = store
        self._holders = holders
        self._documents = JournaledDocuments(takeover_min_brokers)

    @property
    def detached(self) -> bool:
        """See the seam."""
        return self._documents.detached

    def begin_take_over(self) -> None:
        """See the seam."""
        self._documents.begin_take_over()

    def read_all(self) -> dict[str, StoredText]:
        """See the seam. When taking over: after a majority of the brokers said what they keep."""
        return self._drive(self._documents.read())

    def write(self, stages: Sequence[Sequence[Change]]) -> Mapping[str, str]:
        """See the seam. While the store is away: durable with a majority of the brokers."""
        return self._drive(self._documents.write(stages))

    def acquire_lease(self, holder: str, duration_ms: int) -> bool:
        """See the seam."""
        held = self._store.acquire_lease(holder, duration_ms)
        self._documents.lease_answered()
        return held

    def hold(self) -> bool:
        """See the seam: True while a majority of the brokers follows no newer controller."""
        return self._drive(self._documents.hold())

    def release_lease(self, holder: str) -> None:
        """See the seam."""
        self._store.release_lease(holder)

    def close(self) -> None:
        """Closes what it owns."""
        self._holders.close()
        self._store.close()

    def _drive(self, steps: Steps[_R]) -> _R:
        """Answers question after question; what this raises is raised in `steps`."""
        was_detached, was_stopped = self.detached, self._documents.error is not None
        try:
            ask = next(steps)
            while True:
                try:
                    answer = self._answer(ask)
                except Exception as error:  # noqa: BLE001 - a defect must end `steps` too
                    ask = steps.throw(error)
                else:
                    ask = steps.send(answer)
        except StopIteration as done:
            if self.detached and not was_detached:
                _events.warning("the metadata store is away: brokers keep the changes")
            result: _R = done.value
            return result
        finally:
            why = self._documents.error
            if why is not None and not was_stopped:
                _events.defect("journal stopped", why.__cause__ or why, reason=why.message)

    def _answer(self, ask: Ask) -> object:
        match ask:
            case ReadStore():
                return self._store.read_all()
            case AskPromises():
                return self._holders.promise(ask)
            case AskKeep():
                return self._holders.keep(ask)
            case _:
                return self._store.write(ask.stages)
