"""The coordinator of transactions of a `LocalBroker`: its own time, and requests in a line each.

Requests go to the host, as the services' do: an answer comes once all it builds on is stored.
"""

from itertools import count
from typing import Any

from support.local_broker import LocalBroker
from support.waiting import wait_until_async

from penstock.core.transactions import contract as c
from penstock.core.transactions.records import Attempt, Participant
from penstock.core.types import TRANSACTIONAL_PRODUCER_BIT, ProducerId
from penstock.errors import PenstockError
from penstock_broker.clock import SystemClock
from penstock_broker.transactions.coordinator import Coordinator

Transaction = tuple[ProducerId, int]
_PRODUCERS = count(1)


class AheadClock(SystemClock):
    """The system's time, moved on by the test."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


class Calls:
    """Requests to a coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.machine = coordinator.machine

    async def ask(self, make: Any, **fields: Any) -> Any:
        """Raises PenstockError."""
        return await self.coordinator.ask(lambda number: make(request_id=number, **fields))

    async def init(self, name: str) -> Transaction:
        answer = await self.ask(
            c.InitRequested,
            transactional_id=name,
            instance_id="",
            fresh_producer_id=_fresh(),
            timeout_ms=900_000,
        )
        return answer.producer_id, answer.producer_epoch

    async def join(self, name: str, who: Transaction, participant: Participant) -> None:
        await self.ask(
            c.JoinRequested,
            transactional_id=name,
            producer_id=who[0],
            producer_epoch=who[1],
            participant=participant,
        )

    async def end(
        self, name: str, who: Transaction, *, commit: bool, wait_visible_ms: int = 0
    ) -> Transaction:
        """The next one."""
        answer = await self.ask(
            c.EndRequested,
            transactional_id=name,
            producer_id=who[0],
            producer_epoch=who[1],
            commit=commit,
            wait_visible_ms=wait_visible_ms,
        )
        return answer.producer_id, answer.producer_epoch

    async def begin(self, application: str, batch: int, checkpoint: str = "query") -> c.BranchBegun:
        """The first attempt of the first task of a batch."""
        answer = await self.ask(
            c.BeginBranchRequested,
            application_id=application,
            checkpoint=checkpoint,
            attempt=Attempt(f"run {batch}", batch, 0, 0),
            fresh_producer_id=_fresh(),
        )
        assert isinstance(answer, c.BranchBegun)
        return answer

    async def commit_batch(self, application: str, batch: int) -> None:
        """A batch of one task that wrote nothing."""
        begun = await self.begin(application, batch)
        await self.ask(
            c.CommitBatchRequested,
            application_id=application,
            checkpoint="query",
            run=f"run {batch}",
            batch=batch,
            rows=0,
            branches=((begun.branch, begun.producer_epoch),),
        )


async def coordinator_of(broker: LocalBroker) -> Calls:
    """Of any id, once it serves: the internal topic has one partition."""

    def found() -> Coordinator | None:
        try:
            return broker.process._coordination.transactions.find("any")
        except PenstockError:
            return None

    coordinator = await wait_until_async(found, what="the coordinator serves")
    assert coordinator is not None
    return Calls(coordinator)


def _fresh() -> ProducerId:
    return ProducerId(TRANSACTIONAL_PRODUCER_BIT | next(_PRODUCERS))
