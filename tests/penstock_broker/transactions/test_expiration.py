"""How long a broker keeps ids and ledgers that nobody uses: its settings, and no others."""

from pathlib import Path

import pytest
from support.local_broker import LocalBroker, local_broker, topic_info
from support.waiting import wait_until_async

from penstock.core.transactions import contract as c
from penstock.core.transactions.config import TRANSACTIONS_TOPIC
from penstock.core.transactions.records import Attempt
from penstock.core.types import TRANSACTIONAL_PRODUCER_BIT, ProducerId
from penstock.errors import PenstockError
from penstock_broker.broker import process
from penstock_broker.clock import SystemClock
from penstock_broker.transactions.coordinator import Coordinator

HOUR_MS = 3_600_000
SETTINGS = (
    f"transactional.id.expiration.ms={HOUR_MS}",
    f"ledger.expiration.ms={3 * HOUR_MS}",
)


class AheadClock(SystemClock):
    """The system's time, moved on by the test."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


async def coordinator_of(broker: LocalBroker) -> Coordinator:
    def found() -> Coordinator | None:
        try:
            return broker.process._coordination.transactions.find("app")
        except PenstockError:
            return None

    coordinator = await wait_until_async(found, what="the coordinator serves")
    assert coordinator is not None
    return coordinator


async def commit_first_batch(coordinator: Coordinator, application: str, number: int) -> None:
    """`number` makes its producer id."""
    producer_id = ProducerId(TRANSACTIONAL_PRODUCER_BIT | number)
    begun = await coordinator.ask(
        lambda request_id: c.BeginBranchRequested(
            request_id=request_id,
            application_id=application,
            checkpoint="query",
            attempt=Attempt("run", 0, 0, 0),
            fresh_producer_id=producer_id,
        )
    )
    assert isinstance(begun, c.BranchBegun)
    await coordinator.ask(
        lambda request_id: c.CommitBatchRequested(
            request_id=request_id,
            application_id=application,
            checkpoint="query",
            run="run",
            batch=0,
            rows=0,
            branches=((begun.branch, begun.producer_epoch),),
        )
    )


async def test_ids_and_ledgers_are_kept_for_as_long_as_the_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = AheadClock()
    monkeypatch.setattr(process, "SystemClock", lambda: clock)
    async with local_broker(tmp_path, *SETTINGS) as broker:
        await broker.apply(topic_info(TRANSACTIONS_TOPIC))
        coordinator = await coordinator_of(broker)
        await commit_first_batch(coordinator, "first", 1)

        def kept() -> tuple[set[str], set[str]]:
            return set(coordinator.machine.holders), set(coordinator.machine.ledgers)

        assert kept() == ({"first"}, {"first"})
        clock.ahead_ms = 2 * HOUR_MS
        await wait_until_async(lambda: kept() != ({"first"}, {"first"}), what="something expires")
        assert kept() == (set(), {"first"}), "the id's time is over, the ledger's is not"
        await commit_first_batch(coordinator, "second", 2)
        clock.ahead_ms = 4 * HOUR_MS
        await wait_until_async(lambda: not kept()[0], what="the second id expires")
        assert kept()[1] == {"second"}, "looked at in one sweep: the first one's time is over"
