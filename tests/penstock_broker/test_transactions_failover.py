"""Transactions when brokers die: what was decided is told everywhere, nothing is half (I11).

Every broker here is killed with -9.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from support.cluster import PATIENT, Cluster
from support.transaction_wire import TransactionalProducer, partition_transactions
from support.waiting import wait_until
from support.wire import Wire

from penstock.core.records import decode_batch
from penstock.errors import PenstockError
from penstock.proto.v1 import transaction_pb2 as pb
from penstock.rpc.batches import batch_from_wire

LONG = {"transaction_timeout_ms": 900_000}
"""Longer than brokers take to start on a crowded machine."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, brokers=3, controller_config=PATIENT) as running:
        yield running


def values(wire: Wire, topic: str) -> list[bytes]:
    """What a reader sees who asks for nothing else than what is committed."""
    found: list[bytes] = []
    offset = 0
    while batches := wire.fetch(topic, offset).batches:
        for message in batches:
            batch = batch_from_wire(message)
            found += [value or b"" for value in decode_batch(batch).values()]
            offset = batch.next_offset
    return found


def ended(cluster: Cluster, topic: str, end: int) -> bool:
    """Nothing is open, and everything up to `end`, marker included, is stable."""
    try:
        found = partition_transactions(cluster, topic)
    except PenstockError:
        return False
    return not found.open and found.last_stable_offset == found.high_watermark == end


@pytest.mark.parametrize("commit", [True, False])
def test_a_coordinator_killed_between_decision_and_markers_is_finished_by_the_next(
    cluster: Cluster, *, commit: bool
) -> None:
    producer = TransactionalProducer(cluster, "app", **LONG).init()
    coordinator = producer.coordinator()
    away = (coordinator + 1) % 3
    cluster.create_topic("gone", assignment=[[away]])
    cluster.create_topic("here", partitions=1)
    producer.send("gone", b"a", b"b")
    producer.send("here", b"c")
    cluster.brokers[away].kill()
    decided = producer.end(commit=commit, wait_visible_ms=0)
    assert (decided.next_producer_epoch, decided.visible) == (1, False)
    (branch,) = producer.description().branches
    assert branch.state == pb.TRANSACTION_STATE_IDLE
    cluster.brokers[coordinator].kill()
    cluster.brokers[away].start()
    wait_until(lambda: ended(cluster, "gone", 3), what="the marker is there", timeout_s=60)
    wait_until(lambda: ended(cluster, "here", 2), what="the other marker too", timeout_s=60)
    (branch,) = producer.description().branches
    outcome = pb.TRANSACTION_OUTCOME_COMMITTED if commit else pb.TRANSACTION_OUTCOME_ABORTED
    assert (branch.last_epoch, branch.last_outcome) == (0, outcome)
    producer.epoch = 0
    assert producer.end(commit=commit).next_producer_epoch == 1, "told again, as it was decided"
    producer.send("gone", b"next")
    assert producer.end(commit=True, wait_visible_ms=60_000).visible


def test_an_open_transaction_survives_its_coordinator_and_its_partitions_leader(
    cluster: Cluster,
) -> None:
    producer = TransactionalProducer(cluster, "app", **LONG).init()
    coordinator = producer.coordinator()
    leader = (coordinator + 1) % 3
    cluster.create_topic("t", assignment=[[leader, (leader + 1) % 3, coordinator]])
    producer.send("t", b"a")
    cluster.brokers[leader].kill()
    assert producer.send("t", b"b") == 1, "the next leader knows the transaction from its log"
    cluster.brokers[leader].start()
    cluster.wait_alive({0, 1, 2})
    cluster.brokers[coordinator].kill()
    answer = producer.end(commit=True, wait_visible_ms=60_000)
    assert (answer.next_producer_epoch, answer.visible) == (1, True)
    wait_until(lambda: ended(cluster, "t", 3), what="it has ended on the partition")
    cluster.brokers[coordinator].start()


def test_a_transaction_whose_producer_dies_ends_with_its_timeout_on_whoever_coordinates(
    cluster: Cluster,
) -> None:
    producer = TransactionalProducer(cluster, "app", transaction_timeout_ms=3_000).init()
    cluster.create_topic("t", partitions=1)
    producer.send("t", b"a")
    cluster.brokers[producer.coordinator()].kill()
    wait_until(lambda: ended(cluster, "t", 2), what="it is aborted", timeout_s=60)
    (branch,) = producer.description().branches
    assert branch.last_reason == pb.TRANSACTION_END_REASON_TIMEOUT


def test_transactions_go_on_while_every_broker_is_restarted(cluster: Cluster) -> None:
    """Committed ones are there as a whole, aborted ones not at all."""
    topics = ("left", "right")
    for topic in topics:
        cluster.create_topic(topic, partitions=1)
    producer = TransactionalProducer(cluster, "app", **LONG).init()
    committed = []
    for number in range(24):
        if number % 8 == 4:
            broker = cluster.brokers[number // 8]
            assert broker.stop() == 0
            broker.start()
        value = b"%d" % number
        for topic in topics:
            producer.send(topic, value)
        commit = number % 3 != 0
        producer.end(commit=commit, wait_visible_ms=0)
        if commit:
            committed.append(value)
    for topic in topics:
        wait_until(partial(ended, cluster, topic, 2 * 24), what=f"all is told to {topic}")
        with Wire(cluster.brokers[cluster.leader(topic)].address) as wire:
            assert values(wire, topic) == committed
    for broker_id in cluster.brokers:
        assert "Traceback" not in (cluster.path / f"broker-{broker_id}.log").read_text()
