"""A broker dies at each write of a transaction, or has no room for it: what was told is so (I11).

    join ─▶ data ─▶ decision ─▶ marker ─▶ finished      before the write, or just after it

The victim coordinates the producer and leads one of its two partitions; it dies by itself at the
write (`support.faulty_child`) and comes back. What the producer was told is what readers see, the
same producer goes on, and nothing stays open or unfinished. Disks fill up by word of the test, too.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.cluster import Cluster
from support.faults import POINTS, Faults
from support.waiting import wait_until
from support.wire import Wire

from penstock.client import Admin, Consumer, Producer, TopicPartition, TransactionState
from penstock.core.transactions.config import TRANSACTIONS_TOPIC, coordinator_partition
from penstock.errors import ErrorCode, PenstockError

NEARLY_FULL_BYTES = 512 << 20
"""Less than the reserve (`conftest.py`), so that records are refused; more than the store needs."""
ENDS = ("decision", "marker")
CASES = [
    (point, when, how)
    for point in POINTS
    for when in ("before", "after")
    for how in (("commit", "abort") if point in ENDS else ("commit",))
]


def transact(producer: Producer, topic: str, value: bytes, how: str) -> str:
    """One transaction over both partitions; raises TransactionError if it was told otherwise."""
    transaction = producer.transaction()
    transaction.begin()
    for partition in (0, 1):
        transaction.send(topic, value, partition=partition).result(60)
    if how == "commit":
        transaction.commit()
    else:
        transaction.abort()
    return how


def wait_at_rest(admin: Admin, name: str) -> None:
    """Until nothing is open and everybody has heard."""

    def at_rest() -> bool:
        (branch,) = admin.describe_transaction(name).branches
        return branch.state is TransactionState.IDLE and not branch.finishing

    wait_until(at_rest, what="nothing is open or unfinished")


def read_to_the_end(cluster: Cluster, topic: str) -> dict[int, list[bytes | None]]:
    """What a read_committed reader gets of both partitions, up to the record "end"."""
    seen: dict[int, list[bytes | None]] = {0: [], 1: []}
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, partition) for partition in seen])

        def all_there() -> bool:
            for batch in consumer.poll(0.5):
                seen[batch.partition] += [record.value for record in batch.records()]
            return all(values[-1:] == [b"end"] for values in seen.values())

        wait_until(all_there, what="both partitions are read to the end")
    return seen


@pytest.mark.parametrize(("point", "when", "how"), CASES, ids=lambda word: word)
def test_what_was_told_is_so_wherever_a_broker_dies(
    faulty: tuple[Cluster, list[Faults]], point: str, when: str, how: str
) -> None:
    cluster, faults = faulty
    name = f"{point}-{when}-{how}"
    victim = coordinator_of(cluster, name)
    others = [broker_id for broker_id in cluster.brokers if broker_id != victim]
    cluster.create_topic(name, assignment=[[victim, *others], [*reversed(others), victim]])
    broker = cluster.brokers[victim]
    with (
        Producer(cluster.bootstrap, transactional_id=name) as producer,
        Admin(cluster.bootstrap) as admin,
        ThreadPoolExecutor(1) as thread,
    ):
        transact(producer, name, b"begin", "commit")
        wait_at_rest(admin, name)  # or the marker that is met might be its
        faults[victim].die_at(point, when)
        told = thread.submit(transact, producer, name, b"value", how)
        assert broker.wait_end() == -9
        faults[victim].heal()
        broker.start()
        assert told.result(timeout=180) == how
        transact(producer, name, b"end", "commit")
        value = [b"value"] if how == "commit" else []
        expected = [b"begin", *value, b"end"]
        assert read_to_the_end(cluster, name) == {0: expected, 1: expected}
        wait_at_rest(admin, name)


def coordinator_of(cluster: Cluster, name: str) -> int:
    info = cluster.topic(TRANSACTIONS_TOPIC)
    assert info is not None
    return cluster.leader(TRANSACTIONS_TOPIC, coordinator_partition(name, len(info.partitions)))


def refusal(cluster: Cluster, topic: str) -> ErrorCode | None:
    """Why the leader of partition 0 takes no record now, as it says itself."""
    with Wire(cluster.brokers[cluster.leader(topic)].address) as wire:
        try:
            wire.produce(topic, [b"plain"])
        except PenstockError as error:
            return error.code
    return None


def test_a_disk_that_fills_up_before_the_markers_delays_them_and_nobody_else(
    faulty: tuple[Cluster, list[Faults]],
) -> None:
    """The store takes nothing at all: the decision stands, the marker comes when there is room."""
    cluster, faults = faulty
    name = "full"
    coordinator = coordinator_of(cluster, name)
    full, roomy = (broker_id for broker_id in cluster.brokers if broker_id != coordinator)
    cluster.create_topic("on-full", assignment=[[full], [full]])
    cluster.create_topic("full-probe", assignment=[[full]])
    cluster.create_topic("on-roomy", assignment=[[roomy], [roomy]])
    with (
        Producer(cluster.bootstrap, transactional_id=name) as producer,
        Admin(cluster.bootstrap) as admin,
    ):
        held = producer.transaction()
        held.begin()
        for partition in (0, 1):
            held.send("on-full", b"value", partition=partition).result(30)
        faults[full].free_bytes(0)
        wait_until(
            lambda: refusal(cluster, "full-probe") is ErrorCode.DISK_FULL, what="the disk is full"
        )
        held.commit()
        transact(producer, "on-roomy", b"meanwhile", "commit")
        transact(producer, "on-roomy", b"end", "commit")
        seen = [b"meanwhile", b"end"]
        assert read_to_the_end(cluster, "on-roomy") == {0: seen, 1: seen}, "the id goes on"
        (branch,) = admin.describe_transaction(name).branches
        waiting = {one.participant for one in branch.finishing}
        assert {"on-full/0", "on-full/1"} <= waiting, "and it can be seen who has yet to hear"
        held_back = admin.partition_transactions(TopicPartition("on-full", 0))
        assert held_back.last_stable_offset == 0, "nothing is visible, and nothing is lost"
        faults[full].heal()
        wait_until(lambda: refusal(cluster, "full-probe") is None, what="the disk has room again")
        wait_at_rest(admin, name)
        transact(producer, "on-full", b"end", "commit")
        seen = [b"value", b"end"]
        assert read_to_the_end(cluster, "on-full") == {0: seen, 1: seen}


def test_a_marker_is_taken_while_a_nearly_full_disk_refuses_records(
    faulty: tuple[Cluster, list[Faults]],
) -> None:
    """There is room for 100 bytes, and without the marker every reader would stand still."""
    cluster, faults = faulty
    name = "nearly-full"
    coordinator = coordinator_of(cluster, name)
    full = next(broker_id for broker_id in cluster.brokers if broker_id != coordinator)
    cluster.create_topic(name, assignment=[[full], [full]])
    cluster.create_topic("nearly-full-probe", assignment=[[full]])
    with Producer(cluster.bootstrap, transactional_id=name) as producer:
        held = producer.transaction()
        held.begin()
        for partition in (0, 1):
            held.send(name, b"end", partition=partition).result(30)
        faults[full].free_bytes(NEARLY_FULL_BYTES)
        wait_until(
            lambda: refusal(cluster, "nearly-full-probe") is ErrorCode.DISK_FULL,
            what="records refused",
        )
        held.commit(wait_visible=True, timeout_s=120)
        assert read_to_the_end(cluster, name) == {0: [b"end"], 1: [b"end"]}
        assert refusal(cluster, "nearly-full-probe") is ErrorCode.DISK_FULL
        faults[full].heal()
        wait_until(
            lambda: refusal(cluster, "nearly-full-probe") is None, what="the disk has room again"
        )
