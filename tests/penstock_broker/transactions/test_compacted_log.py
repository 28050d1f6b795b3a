"""A coordinator that was loaded from a compacted log knows what the one before it knew (I16).

Real RocksDB, real compaction; every key of the internal topic has been written many times, some
were removed by null values.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.coordinating import AheadClock, Calls, Transaction, coordinator_of
from support.local_broker import LocalBroker, local_broker, topic_info
from support.transaction_world import durable
from support.waiting import wait_until_async

from penstock.core.records import decode_batch
from penstock.core.transactions import contract as c
from penstock.core.transactions.config import TRANSACTIONS_TOPIC
from penstock.core.transactions.contract_views import DescribeRequested
from penstock.core.transactions.records import Participant, PartitionParticipant
from penstock.core.types import Offset, ReplicaKey, TopicId
from penstock.errors import ErrorCode, PenstockError
from penstock_broker.broker import process

DAY_MS = 86_400_000
IDS = 30
TRANSACTIONS = 4
HERE = PartitionParticipant(TopicId("id-here"), 0)
AWAY = PartitionParticipant(TopicId("id-away"), 0)
"""Of a topic that nobody leads at first: whoever ended a transaction there is finishing."""


async def lead(broker: LocalBroker, *, away: int, retention_ms: int, epoch: int = 1) -> Calls:
    """Gives the broker all partitions; the leader of the one that is away may be nobody, -1."""
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": str(retention_ms),
    }
    await broker.apply(
        topic_info(TRANSACTIONS_TOPIC, topic_id="id-x", epoch=epoch, configs=configs),
        topic_info("here", topic_id="id-here", epoch=epoch),
        topic_info("away", topic_id="id-away", leader=away, epoch=epoch),
    )
    return await coordinator_of(broker)


async def run_ids(calls: Calls, kind: str) -> dict[str, Transaction]:
    """Transactions of many ids, one after the other; the next one of each."""
    last: dict[str, Transaction] = {}
    for number in range(IDS):
        name = f"{kind}-{number}"
        who = await calls.init(name)
        for turn in range(TRANSACTIONS):
            await calls.join(name, who, HERE)
            commit = (number + turn) % 2 == 0
            who = await calls.end(name, who, commit=commit, wait_visible_ms=20_000)
        last[name] = who
    return last


async def write_history(calls: Calls, clock: AheadClock) -> None:
    """Ids that expired, came again, are finishing, open; ledgers that are kept, forgotten."""
    await run_ids(calls, "old")
    for application in ("kept", "forgotten", "again"):
        for batch in range(TRANSACTIONS):
            await calls.commit_batch(application, batch)
    clock.ahead_ms += 8 * DAY_MS
    await wait_until_async(lambda: not calls.machine.holders, what="all ids have expired")
    for name, who in (await run_ids(calls, "live")).items():
        kind = int(name.removeprefix("live-")) % 3
        if kind > 0:
            await calls.join(name, who, HERE)
            await calls.join(name, who, AWAY)
        if kind == 2:
            await calls.end(name, who, commit=True)
    await calls.init("old-0")
    await calls.commit_batch("kept", TRANSACTIONS)
    for application in ("forgotten", "again"):
        await calls.ask(c.ForgetLedgerRequested, application_id=application)
    await calls.commit_batch("again", 0)


async def records(broker: LocalBroker) -> list[tuple[bytes | None, bytes | None]]:
    """Key and value of all that is in the internal topic's log."""
    replica = broker.process._replicas.by_key[ReplicaKey(TopicId("id-x"), 0)]
    found: list[tuple[bytes | None, bytes | None]] = []
    offset = Offset(0)
    while True:
        batches = await asyncio.to_thread(
            broker.process._seams.store.read,
            replica.slot,
            offset,
            2**20,
            replica.marks.high_watermark,
        )
        if not batches:
            return found
        for batch in batches:
            columns = decode_batch(batch)
            found += zip(columns.keys(), columns.values(), strict=True)
        offset = batches[-1].next_offset


def finishing(calls: Calls) -> set[tuple[str, Participant]]:
    """Ids, and who has yet to hear of an end, as recorded."""
    return {
        (name, participant)
        for name, holder in calls.machine.holders.items()
        for branch in holder.branches.values()
        for participant in branch.record.finishing
    }


async def compacted(broker: LocalBroker, *, with_nulls: bool) -> None:
    """Waits until each key has one record; without null values but the newest few, if so asked."""

    async def is_compact() -> bool:
        found = await records(broker)
        nulls = sum(value is None for _, value in found)
        return len({key for key, _ in found}) == len(found) and (with_nulls or nulls == 0)

    await wait_until_async(is_compact, what="the log is compacted")


@pytest.mark.parametrize("retention_ms", [DAY_MS, 0], ids=["null values there", "and gone"])
async def test_state_from_a_compacted_log_is_the_state_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retention_ms: int
) -> None:
    clock = AheadClock()
    monkeypatch.setattr(process, "SystemClock", lambda: clock)
    waiting = {(f"live-{number}", AWAY) for number in range(2, IDS, 3)}
    async with local_broker(tmp_path, "log.cleaner.backoff.ms=20") as broker:
        calls = await lead(broker, away=-1, retention_ms=retention_ms)
        await write_history(calls, clock)
        await wait_until_async(lambda: finishing(calls) == waiting, what="all others have heard")
        await compacted(broker, with_nulls=retention_ms > 0)
        before = durable(calls.machine)
        left = dict(await records(broker))
        expired = [key for key, value in left.items() if key and b'"old-1"' in key]
        assert len(expired) == (2 if retention_ms else 0), "its id and its branch"
    async with local_broker(tmp_path, "log.cleaner.backoff.ms=20") as broker:
        calls = await lead(broker, away=-1, retention_ms=retention_ms, epoch=2)
        assert durable(calls.machine) == before
        await check_loaded(calls)
        await lead(broker, away=0, retention_ms=retention_ms, epoch=3)
        calls = await coordinator_of(broker)
        await wait_until_async(lambda: not finishing(calls), what="what was decided is told")


async def check_loaded(calls: Calls) -> None:
    """What a loaded coordinator says of ids and ledgers that are there, or gone."""
    assert set(calls.machine.holders) == {
        "old-0",
        "kept",
        "again",
        *(f"live-{number}" for number in range(IDS)),
    }
    assert {name: one.batch for name, one in calls.machine.ledgers.items()} == {
        "kept": TRANSACTIONS,
        "again": 0,
    }
    assert (await calls.begin("kept", TRANSACTIONS)).already_committed
    assert not (await calls.begin("forgotten", 0, "another query")).already_committed
    with pytest.raises(PenstockError) as gone:
        await calls.ask(DescribeRequested, transactional_id="old-1")
    assert gone.value.code is ErrorCode.UNKNOWN_TRANSACTIONAL_ID
    opened: Any = calls.machine.holders["live-1"].branches[0].record
    assert opened.is_open
    assert opened.joined == {HERE, AWAY}
