"""Moves of replicas when they are least welcome: the receiver's disk fills up, or more is written
than may be copied. Clients go on, and moves end by themselves, once they can (I31, I32)."""

import time
from collections.abc import Iterator

import pytest
from support.cluster import PATIENT, Cluster
from support.commands_of_pages import told
from support.faults import Faults
from support.live_moves import (
    BROKERS,
    Began,
    assert_kept_where_described,
    begin,
    fill,
    has_moved,
    open_moves,
    wait_copying,
    wait_ended,
    wait_replicas,
)
from support.load import MakeLoad, assert_nothing_noticed
from support.waiting import wait_until

from penstock.client import Admin, MoveState, ReplicaMove, TopicPartition

RECEIVER = 3
RESERVE_BYTES = 1 << 30
BATCHES = 128
"""Of each partition, to be copied: 2 MB, four messages."""
SLOW_BYTES_PER_SECOND = 50_000
RECORD_BYTES = 1_024


@pytest.fixture(scope="module")
def module_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One more broker than replicas; the disk of the last one is what a test says."""
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(
        folder,
        brokers=BROKERS,
        controller_config=PATIENT,
        broker_config={"disk.reserve.bytes": str(RESERVE_BYTES)},
        start=False,
    ) as cluster:
        _disk(cluster)
        cluster.start()
        yield cluster


@pytest.fixture
def disk(cluster: Cluster) -> Iterator[Faults]:
    """Of the receiver; well again when the test has ended."""
    disk = _disk(cluster)
    yield disk
    disk.heal()


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    """The throttle is what it was when the test has ended."""
    with Admin(cluster.bootstrap) as admin:
        yield admin
        admin.alter_throttle(None)


def _disk(cluster: Cluster) -> Faults:
    return Faults(cluster.brokers[RECEIVER], cluster.path / "disk")


NEARLY_FULL = RESERVE_BYTES * 3 // 2
"""It takes writes, and no copies."""
FULL = 0
ELSEWHERE = [[0, 1, 2], [1, 2, 0]]
AT_THE_RECEIVER = [[RECEIVER, 0, 1], [2, RECEIVER, 0]]


@pytest.mark.parametrize(
    ("free_bytes", "staying"),
    [(NEARLY_FULL, AT_THE_RECEIVER), (FULL, [[0, 1, 2], [2, 0, 1]])],
    ids=["nearly full", "full"],
)
def test_a_move_to_a_full_disk_waits_and_writes_go_on(
    cluster: Cluster,
    admin: Admin,
    make_load: MakeLoad,
    disk: Faults,
    free_bytes: int,
    staying: list[list[int]],
) -> None:
    """Also at the broker whose disk it is, as long as that takes writes."""
    load = make_load(partitions=4)
    fill(cluster, load, BATCHES, assignment=[*ELSEWHERE, *staying])
    topic = load.config.topic
    with load:
        cluster.wait_in_sync(topic)
        admin.alter_throttle(SLOW_BYTES_PER_SECOND)
        began = move_elsewhere(admin, topic)
        wait_until(lambda: len(lefts(admin, topic)) == len(ELSEWHERE), what="both are copied")
        disk.free_bytes(free_bytes)
        words = f"the disk of broker {RECEIVER}, which is nearly full"

        def held() -> bool:
            moves = open_moves(admin, topic).values()
            return [copy.limited_by for one in moves for copy in one.copies] == [words, words]

        wait_until(held, what="both wait for the disk, and say so")
        assert words in told(cluster, "penstock partitions status")
        why = told(cluster, "penstock why", code=1 if free_bytes < RESERVE_BYTES else 0)
        assert f"the disk of broker {RECEIVER} is nearly full" in why
        admin.alter_throttle(None)
        load.wait_writing()
        left = lefts(admin, topic)
        load.wait_writing()
        moves = open_moves(admin, topic)
        assert {at: one.state for at, one in moves.items()} == {
            0: MoveState.COPYING,
            1: MoveState.COPYING,
        }
        assert all(lefts(admin, topic)[at] >= before for at, before in left.items())

        disk.heal()
        wait_ended(admin, topic)
        wait_replicas(
            admin,
            topic,
            lambda one: one.partition not in began or has_moved(began, one),
            "both have moved",
        )
        cluster.wait_in_sync(topic)
        load.wait_writing()
        assert_kept_where_described(cluster, admin, topic)
        assert_nothing_noticed(load.judge())


def move_elsewhere(admin: Admin, topic: str) -> Began:
    """The receiver replaces the leader of partition 0, and the last replica of partition 1."""
    found = {}
    moves = []
    for partition in admin.describe_topics([topic])[topic].partitions[: len(ELSEWHERE)]:
        leaving = partition.replicas[2 * partition.partition]
        target = tuple(RECEIVER if one == leaving else one for one in partition.replicas)
        where = TopicPartition(topic, partition.partition)
        moves.append(ReplicaMove(where, target=target, expected=partition.replicas))
        found[partition.partition] = partition, leaving, RECEIVER
    assert [one.error for one in admin.alter_replicas(moves)] == [None] * len(moves)
    return found


def lefts(admin: Admin, topic: str) -> dict[int, int]:
    """Bytes to copy of each partition that is copied now, and whose leader has said it."""
    return {at: one.bytes_left for at, one in open_moves(admin, topic).items() if one.bytes_left}


def test_a_move_ends_though_more_is_written_than_may_be_copied(
    cluster: Cluster, admin: Admin, make_load: MakeLoad
) -> None:
    """The throttle counts what was there before, not what is written meanwhile."""
    load = make_load(partitions=2, record_bytes=RECORD_BYTES, rate=1_000)
    fill(cluster, load, BATCHES // 2)
    topic = load.config.topic
    with load:
        cluster.wait_in_sync(topic)
        admin.alter_throttle(SLOW_BYTES_PER_SECOND)
        began = begin(admin, topic)
        wait_copying(admin, topic)
        written, since_s = dict(load.watch.ends), time.monotonic()
        wait_ended(admin, topic)
        seconds = time.monotonic() - since_s
        rates = {at: (load.watch.ends[at] - written[at]) * RECORD_BYTES / seconds for at in written}
        print(f"{seconds:.0f} s, bytes written per second: {rates}")
        assert min(rates.values()) > SLOW_BYTES_PER_SECOND
        wait_replicas(admin, topic, lambda one: has_moved(began, one), "all have moved")
        cluster.wait_in_sync(topic)
        load.wait_writing()
        assert_kept_where_described(cluster, admin, topic)
        assert_nothing_noticed(load.judge())
