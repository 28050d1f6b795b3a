"""Replicas move under load while processes that take part are killed: nothing is lost, no client
notices, and every move ends or is taken back without a trace.

Copies are throttled to less than what is written, so that a move takes some seconds (I31: the
throttle counts the backlog only, so it ends nevertheless).
"""

from collections.abc import Iterator
from typing import Any

import pytest
from support.cluster import PATIENT, Cluster
from support.live_moves import (
    BROKERS,
    SMALL_MESSAGES,
    Began,
    assert_kept_where_described,
    begin,
    fill,
    has_moved,
    open_moves,
    outside,
    partitions,
    wait_copying,
    wait_ended,
    wait_replicas,
)
from support.load import Load, MakeLoad, assert_nothing_noticed
from support.waiting import wait_until

from penstock.client import Admin, MoveState, PartitionDescription, ReplicaMove, TopicPartition
from penstock.errors import ErrorCode

COPY_BYTES_PER_SECOND = "200000"
"""About what the load writes per second, of which each broker gets three quarters."""
BATCHES_TO_COPY = 256
"""Of each partition: 4 MB."""
SLOW_BYTES_PER_SECOND = 6_000
"""A batch in three seconds, so that leaders say that it is copied before the next one is."""
ROUNDS = 20
"""A move may be quicker than who cancels it, on a crowded machine."""


@pytest.fixture(scope="module")
def module_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One more broker than replicas, so that each partition can go somewhere."""
    with Cluster(
        tmp_path_factory.mktemp("cluster"),
        brokers=BROKERS,
        controller_config=PATIENT,
        broker_config={"replica.copy.bytes.per.second": COPY_BYTES_PER_SECOND, **SMALL_MESSAGES},
    ) as cluster:
        yield cluster


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    """The throttle is what it was when the test has ended."""
    with Admin(cluster.bootstrap) as admin:
        yield admin
        admin.alter_throttle(None)


@pytest.mark.parametrize("who", ["leader", "joining", "leaving", "controller"])
def test_partitions_move_while_a_process_that_takes_part_is_killed(
    cluster: Cluster, admin: Admin, load: Load, who: str
) -> None:
    topic = load.config.topic
    cluster.wait_in_sync(topic)
    began = begin(admin, topic)
    before, leaving, joining = began[wait_copying(admin, topic)]
    victims: dict[str, Any] = {
        "leader": cluster.brokers[before.leader],
        "leaving": cluster.brokers[leaving],
        "joining": cluster.brokers[joining],
        "controller": cluster.controller,
    }
    victims[who].kill()
    victims[who].start(wait=False)
    victims[who].wait_serving()
    cluster.wait_controller()
    wait_ended(admin, topic)

    wait_replicas(admin, topic, lambda one: has_moved(began, one), "all have moved")
    cluster.wait_in_sync(topic)
    load.wait_writing()
    assert_kept_where_described(cluster, admin, topic)
    assert_nothing_noticed(load.judge())


def test_cancelled_moves_leave_the_replicas_as_they_were(
    cluster: Cluster, admin: Admin, load: Load
) -> None:
    """Some have ended by then: these stay, and the answer says so."""
    topic = load.config.topic
    cluster.wait_in_sync(topic)
    admin.alter_throttle(1)  # not all can have ended, however long the test stands still
    began = begin(admin, topic)
    wait_copying(admin, topic)
    moves = [ReplicaMove(TopicPartition(topic, at)) for at in began]
    outcomes = {one.where.partition: one for one in admin.alter_replicas(moves)}
    admin.alter_throttle(None)
    wait_ended(admin, topic)
    cancelled = {at for at, one in outcomes.items() if one.error is None}
    assert cancelled

    def is_as_told(partition: PartitionDescription) -> bool:
        before, _, joined = began[partition.partition]
        if partition.partition in cancelled:
            return partition.replicas == before.replicas
        return joined in partition.replicas

    wait_replicas(admin, topic, is_as_told, "cancelled moves have left no trace")
    cluster.wait_in_sync(topic)
    assert_kept_where_described(cluster, admin, topic)
    assert_nothing_noticed(load.judge())


class CancelAt:
    """Cancels each move of a topic once so much of it is copied.

    Leaders say every two seconds how much is left. So the throttle follows what is left until
    there: two thirds of that in two seconds, and a batch of it in the end.
    """

    def __init__(self, admin: Admin, topic: str, share: float) -> None:
        self._admin = admin
        self._topic = topic
        self._share = share
        self._sizes: dict[int, int] = {}
        self._asked: set[int] = set()
        self.cancelled: dict[int, float] = {}
        """By partition that was cancelled in time: the share that was copied."""

    def begin(self) -> Began:
        """Moves every partition; of those that have ended before they could be cancelled, too."""
        self._admin.alter_throttle(1)
        self._sizes, self._asked, self.cancelled = {}, set(), {}
        return begin(self._admin, self._topic)

    def wait(self) -> None:
        """Until every move has ended or was cancelled."""
        wait_until(self._look, what="all moves have ended or were cancelled", timeout_s=240)
        self._admin.alter_throttle(None)

    def _look(self) -> bool:
        moves = {at: one for at, one in open_moves(self._admin, self._topic).items() if one.target}
        to_go = []
        for at, move in moves.items():
            left = move.bytes_left
            if left is None or at in self._asked or not self._sizes.setdefault(at, left):
                continue
            size = self._sizes[at]
            if left <= size * (1 - self._share):
                self._cancel(at, 1 - left / size)
            else:
                to_go.append(left - size * (1 - self._share))
        if to_go:
            self._admin.alter_throttle(max(int(min(to_go)) // 3, SLOW_BYTES_PER_SECOND))
        return not moves

    def _cancel(self, at: int, copied: float) -> None:
        self._asked.add(at)
        [outcome] = self._admin.alter_replicas([ReplicaMove(TopicPartition(self._topic, at))])
        if outcome.error is None:
            self.cancelled[at] = copied
        else:
            assert outcome.error.code is ErrorCode.NO_MOVE


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_move_that_is_cancelled_on_its_way_leaves_no_trace(
    cluster: Cluster, admin: Admin, make_load: MakeLoad, share: float
) -> None:
    load = make_load(partitions=3)
    fill(cluster, load, BATCHES_TO_COPY)
    topic = load.config.topic
    with load:
        cluster.wait_in_sync(topic)
        cancelling = CancelAt(admin, topic, share)
        for _ in range(ROUNDS):
            began = cancelling.begin()
            cancelling.wait()
            wait_ended(admin, topic)

            def is_as_told(partition: PartitionDescription) -> bool:
                before, left, joined = began[partition.partition]  # noqa: B023 - called at once
                if partition.partition in cancelling.cancelled:
                    return partition.replicas == before.replicas
                return joined in partition.replicas and left not in partition.replicas

            wait_replicas(admin, topic, is_as_told, "what was cancelled stays, the rest has moved")
            if cancelling.cancelled:
                break
        print(f"cancelled at {cancelling.cancelled}")
        assert cancelling.cancelled
        cluster.wait_in_sync(topic)
        assert_kept_where_described(cluster, admin, topic)
        assert_nothing_noticed(load.judge())


def test_a_move_that_is_cancelled_behind_its_switch_has_happened(
    cluster: Cluster, admin: Admin, load: Load
) -> None:
    topic = load.config.topic
    cluster.wait_in_sync(topic)
    began = begin(admin, topic)

    def switched() -> list[int]:
        moves = open_moves(admin, topic)
        return [at for at in began if at not in moves or not moves[at].target]

    at = wait_until(switched, what="a partition has moved", timeout_s=120)[0]
    [outcome] = admin.alter_replicas([ReplicaMove(TopicPartition(topic, at))])
    assert outcome.error is not None
    assert outcome.error.code is ErrorCode.NO_MOVE
    wait_ended(admin, topic)
    wait_replicas(admin, topic, lambda one: has_moved(began, one), "all have moved")
    cluster.wait_in_sync(topic)
    assert_kept_where_described(cluster, admin, topic)
    assert_nothing_noticed(load.judge())


def test_a_topic_of_one_replica_gets_three_and_then_two(
    cluster: Cluster, admin: Admin, make_load: MakeLoad
) -> None:
    """With two, every other partition has lost its leader."""
    configs = {"min.insync.replicas": "1", "retention.ms": "-1"}
    with make_load(replication_factor=1, topic_configs=configs) as load:
        topic = load.config.topic
        for factor in (3, 2):
            moves = [
                ReplicaMove(TopicPartition(topic, one.partition), target, one.replicas)
                for one in partitions(admin, topic)
                if (target := with_factor(one, factor))
            ]
            outcomes = admin.alter_replicas(moves, change_factor=True)
            assert [one.error for one in outcomes] == [None] * load.config.partitions
            wait_ended(admin, topic)
            wanted = {(one.where.partition, one.target) for one in moves}

            def has_them(partition: PartitionDescription) -> bool:
                return (partition.partition, partition.replicas) in wanted  # noqa: B023

            wait_replicas(admin, topic, has_them, f"all have {factor} replicas")
            cluster.wait_in_sync(topic)
            load.wait_writing()
        assert_kept_where_described(cluster, admin, topic)
        assert_nothing_noticed(load.judge())


def with_factor(partition: PartitionDescription, factor: int) -> tuple[int, ...]:
    """Fewer: without the first, or the last replica."""
    if factor < len(partition.replicas):
        first = partition.partition % 2
        return partition.replicas[first : first + factor]
    others = (one for one in range(BROKERS) if one not in partition.replicas)
    return (*partition.replicas, *others)[:factor]


def test_a_dead_broker_is_drained_and_what_it_still_stores_goes_when_it_is_back(
    cluster: Cluster, admin: Admin, load: Load
) -> None:
    topic = load.config.topic
    cluster.wait_in_sync(topic)
    cluster.brokers[0].kill()
    load.wait_writing()
    moves = [
        ReplicaMove(
            TopicPartition(topic, one.partition),
            target=tuple(outside(one) if at == 0 else at for at in one.replicas),
            expected=one.replicas,
        )
        for one in partitions(admin, topic)
        if 0 in one.replicas
    ]
    assert moves
    assert {one.error for one in admin.alter_replicas(moves)} == {None}

    def only_dropping() -> bool:
        found = open_moves(admin, topic).values()
        return all(one.state is MoveState.SETTLED for one in found)

    wait_until(only_dropping, what="others have its replicas", timeout_s=120)
    wait_replicas(admin, topic, lambda one: 0 not in one.replicas, "broker 0 has no replica")
    assert {one.dropping for one in open_moves(admin, topic).values()} == {(0,)}
    cluster.brokers[0].start(wait=False)
    cluster.brokers[0].wait_serving()
    wait_ended(admin, topic)
    assert_kept_where_described(cluster, admin, topic)
    assert_nothing_noticed(load.judge())
