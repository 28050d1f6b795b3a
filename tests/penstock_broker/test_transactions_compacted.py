"""`__transactions` is compacted on three real brokers, all are killed -9: nothing is forgotten.

What expires by the clock: `transactions/test_compacted_log.py`.
"""

import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.cluster import PATIENT, Cluster
from support.metrics import scrape
from support.transaction_wire import TransactionalProducer, again
from support.waiting import wait_until
from support.wire import Wire

from penstock.client import Admin, BatchRun, Producer, TransactionDescription
from penstock.core.transactions.config import TRANSACTIONS_TOPIC
from penstock.proto.v1 import admin_pb2

PARTITIONS = 2
SETTINGS = {
    "log.cleaner.backoff.ms": "50",
    "transactions.topic.partitions": str(PARTITIONS),
}
IDS = 8
TURNS = 8


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, brokers=3, broker_config=SETTINGS, controller_config=PATIENT) as running:
        running.create_topic("t", partitions=1)
        running.create_topic("away", assignment=[[2]])
        yield running


def begin(cluster: Cluster) -> list[TransactionalProducer]:
    """Producers of many ids, each with several transactions behind it."""
    patient = {"transaction_timeout_ms": 900_000}
    producers = [TransactionalProducer(cluster, f"app-{n}", **patient) for n in range(IDS)]
    for producer in producers:
        producer.init()
    for turn in range(TURNS):
        for number, producer in enumerate(producers):
            producer.send("t", b"%d.%d" % (number, turn))
            producer.end(commit=turn % 2 == 0, wait_visible_ms=0)
    return producers


def commit_batch(cluster: Cluster, application: str, batch: int) -> bool:
    """By a batch engine with one task; False = the batch was in."""
    with Producer(cluster.bootstrap, transactional_id=application) as producer:
        branches = producer.branches()
        run = BatchRun(application, "query", str(uuid.uuid4()), batch)
        branch = branches.begin(run, 0, 0)
        if branch is None:
            return False
        branches.send_columns("t", [b"row"])
        branches.hand_over()
        branches.commit_batch(run, 1, [branch])
        return True


def is_compacted(cluster: Cluster, broker_id: int) -> bool:
    """The broker has removed most records ever written to its logs of the internal topic."""
    request = admin_pb2.DescribeLogsRequest(topics=[TRANSACTIONS_TOPIC])
    with Wire(cluster.brokers[broker_id].address) as wire:
        logs = wire.call(wire.admin.DescribeLogs, request).logs
    removed = scrape(cluster.metrics_ports[broker_id])["penstock_compaction_records_removed_total"]
    return removed > sum(log.log_end_offset for log in logs) / 2


def described(admin: Admin) -> list[TransactionDescription]:
    ids = [f"app-{number}" for number in range(IDS)]
    return again(lambda: [admin.describe_transaction(one) for one in ids], what="all are loaded")


def finishing(admin: Admin) -> set[str]:
    """Who has yet to hear how a transaction ended."""
    branches = [branch for one in described(admin) for branch in one.branches]
    return {one.participant for branch in branches for one in branch.finishing}


def state(admin: Admin) -> Any:
    """All that coordinators tell, but not who they are.

    A participant that has heard is told again if its coordinator dies before that was written,
    within a second: only the one that is away is sure to be finishing.
    """
    found = []
    for one in described(admin):
        branches = tuple(
            replace(b, finishing=tuple(f for f in b.finishing if f.participant == "away/0"))
            for b in one.branches
        )
        found.append(replace(one, coordinator=-1, branches=branches))
    return found, admin.list_ledgers()


def test_compaction_and_the_death_of_every_broker_change_nothing(cluster: Cluster) -> None:
    producers = begin(cluster)
    for batch in range(TURNS):
        assert commit_batch(cluster, "kept", batch)
        assert commit_batch(cluster, "forgotten", batch)
    with Admin(cluster.bootstrap) as admin:
        assert admin.forget_ledger("forgotten")
        committing, aborting, opened = producers[:3]
        committing.send("away", b"committed")
        aborting.send("away", b"aborted")
        opened.send("t", b"open")
        cluster.brokers[2].kill()
        committing.end(commit=True, wait_visible_ms=0)
        aborting.end(commit=False, wait_visible_ms=0)
        wait_until(lambda: finishing(admin) == {"away/0"}, what="all others have heard")
        for broker_id in (0, 1):
            wait_until(partial(is_compacted, cluster, broker_id), what="it is compacted")
        before = state(admin)
        assert [one.application_id for one in before[1]] == ["kept"]
        for broker_id in (0, 1):
            cluster.brokers[broker_id].kill()
        for broker_id in (0, 1):
            cluster.brokers[broker_id].start()
        cluster.wait_alive({0, 1})
        assert state(admin) == before
        cluster.brokers[2].start()
        wait_until(lambda: finishing(admin) == set(), what="what was decided is told")
    opened.send("t", b"and on")
    assert opened.end(commit=True).visible
    cluster.wait_leaders("away")
    with Wire(cluster.brokers[2].address) as wire:
        assert wire.read_all("away") == [b"committed"]
    assert not commit_batch(cluster, "kept", TURNS - 1), "it is known to be in"
    assert commit_batch(cluster, "forgotten", 0), "nothing of it is known"
