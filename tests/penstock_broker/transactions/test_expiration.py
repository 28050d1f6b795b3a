"""How long a broker keeps ids and ledgers that nobody uses: as its settings say, each its own."""

from pathlib import Path

import pytest
from support.coordinating import AheadClock, coordinator_of
from support.local_broker import local_broker, topic_info
from support.waiting import wait_until_async

from penstock.core.transactions.config import TRANSACTIONS_TOPIC
from penstock_broker.broker import process

HOUR_MS = 3_600_000
SETTINGS = (
    f"transactional.id.expiration.ms={HOUR_MS}",
    f"ledger.expiration.ms={3 * HOUR_MS}",
)


async def test_ids_and_ledgers_are_kept_for_as_long_as_the_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = AheadClock()
    monkeypatch.setattr(process, "SystemClock", lambda: clock)
    async with local_broker(tmp_path, *SETTINGS) as broker:
        await broker.apply(topic_info(TRANSACTIONS_TOPIC))
        calls = await coordinator_of(broker)
        await calls.commit_batch("first", 0)

        def kept() -> tuple[set[str], set[str]]:
            return set(calls.machine.holders), set(calls.machine.ledgers)

        assert kept() == ({"first"}, {"first"})
        clock.ahead_ms = 2 * HOUR_MS
        await wait_until_async(lambda: kept() != ({"first"}, {"first"}), what="something expires")
        assert kept() == (set(), {"first"}), "the id's time is over, the ledger's is not"
        await calls.commit_batch("second", 0)
        clock.ahead_ms = 4 * HOUR_MS
        await wait_until_async(lambda: not kept()[0], what="the second id expires")
        assert kept()[1] == {"second"}, "looked at in one sweep: the first one's time is over"
