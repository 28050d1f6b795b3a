"""Moving replicas, simulated, and what its checks tell apart. Planted bugs: `test_simulation`."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from penstock.core.batch import Batch, BatchHeader
from penstock.core.control import move_contract as mc
from penstock.core.control.documents import (
    FORMAT_MOVES,
    TopicDocument,
    encode_topic,
    topic_key,
)
from penstock.core.control.partition import PartitionDocument
from penstock.core.control.storage import StoredText
from penstock.core.replication import contract as rc
from penstock.core.types import (
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    Offset,
    PartitionState,
    ProducerId,
    ReplicaKey,
)
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.store.interface import PartitionWrite
from penstock_sim.moving import Mover
from penstock_sim.scheduler import RuleError
from penstock_sim.world import TOPIC, TOPIC_ID, World, simulate

KEY = ReplicaKey(TOPIC_ID, 0)


def test_replicas_move_while_everything_breaks() -> None:
    histories = [simulate(seed, moves=True) for seed in range(40)]
    for history in histories:
        assert history.violation is None, (history.seed, history.violation)
    assert sum(history.moves for history in histories) > 50
    assert sum(history.cancels for history in histories) > 10
    assert sum(history.drops for history in histories) > 50


# ---------------------------------------------------------------- documents written by hand


def members(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, brokers))


def partition(
    *,
    version: int,
    replicas: Sequence[int] = (1, 2, 3),
    isr: Sequence[int] = (1, 2, 3),
    target: Sequence[int] = (),
    adding: Sequence[int] = (),
    dropping: Sequence[int] = (),
) -> PartitionDocument:
    state = PartitionState(
        leader=BrokerId(1),
        leader_epoch=LeaderEpoch(1),
        isr=members(*isr),
        replicas=members(*replicas),
        version=version,
        adding=members(*adding),
        dropping=members(*dropping),
    )
    return PartitionDocument(state, target=members(*target))


COPYING = partition(version=2, target=(1, 2, 4), adding=(4,))
SWITCHED = partition(version=3, replicas=(1, 2, 4), isr=(1, 2, 4), dropping=(3,))


class Cluster:
    """Four brokers; the first three have a partition with one batch that is committed."""

    def __init__(self) -> None:
        self.world = World(1, brokers=4, moves=True)
        self.world.scheduler.random.seed(1)
        self.checks = self.world.checks
        assert self.world.mover is not None
        self.mover: Mover = self.world.mover
        self.mover._wanted[KEY] = {members(1, 2, 3)}
        self.world.keys = [KEY]
        self.world.names = {TOPIC_ID: TOPIC}
        self.version = 0
        self.store(partition(version=1))
        for broker in (1, 2, 3):
            self.write(broker, sync=True)
        self.checks.canon(KEY).extend(BATCH, "b1")

    def asked(self, *target: int) -> None:
        self.mover.asked[KEY].add(members(*target))
        self.mover._wanted[KEY].add(members(*target))

    def store(self, changed: PartitionDocument) -> None:
        """A write to the store."""
        topic = self.topic(changed)
        text = StoredText(encode_topic(topic), str(self.version))
        self.world.meta.documents[topic_key(TOPIC)] = text
        self.checks.metadata_changed(topic)

    def topic(self, changed: PartitionDocument) -> TopicDocument:
        self.version += 1
        return TopicDocument(
            name=TOPIC,
            topic_id=TOPIC_ID,
            controller_epoch=ControllerEpoch(1),
            metadata_version=self.version,
            configs={},
            partitions=(changed,),
            format=FORMAT_MOVES,
        )

    def write(self, broker_id: int, *, sync: bool) -> None:
        """The broker has the batch, in its page cache or on its disk."""
        broker = self.world.brokers[BrokerId(broker_id)]
        write = PartitionWrite(broker.disk.open_slot(KEY), batches=(BATCH,))
        broker.disk.write([write], sync=sync)
        self.checks.written(broker, [write])


HEADER = BatchHeader(
    record_count=5,
    first_timestamp_ms=0,
    max_timestamp_ms=0,
    uncompressed_bytes=0,
    crc=0,
    producer_id=ProducerId(7),
    producer_epoch=0,
    base_sequence=0,
    base_offset=Offset(0),
    leader_epoch=LeaderEpoch(1),
)
BATCH = Batch(HEADER, b"x")


@pytest.fixture
def copying() -> Cluster:
    """Broker 4 has a copy of all that is committed, and is to replace broker 3."""
    cluster = Cluster()
    cluster.asked(1, 2, 4)
    cluster.store(COPYING)
    cluster.write(4, sync=True)
    return cluster


def test_a_copy_that_is_on_disk_may_become_a_member(copying: Cluster) -> None:
    copying.store(SWITCHED)
    assert copying.checks.moving.switches == 1


def test_a_copy_that_only_a_page_cache_has_becomes_no_member() -> None:
    cluster = Cluster()
    cluster.asked(1, 2, 4)
    cluster.store(COPYING)
    cluster.write(4, sync=False)
    with pytest.raises(RuleError, match=r"I29: b4 becomes a member .* with 0 synced, not 5"):
        cluster.store(SWITCHED)


def test_a_copy_that_lacks_a_record_becomes_no_member() -> None:
    cluster = Cluster()
    cluster.asked(1, 2, 4)
    cluster.store(COPYING)
    with pytest.raises(RuleError, match=r"I5: b4 joined the ISR or ELR"):
        cluster.store(SWITCHED)


@pytest.mark.parametrize(
    ("switched", "told"),
    [
        (replace(SWITCHED.state, isr=members(1, 4)), "I29: .* in sync, 3 are promised"),
        (replace(SWITCHED.state, isr=members(1, 2)), "I29: .* in sync, 3 are promised"),
        (replace(SWITCHED.state, dropping=()), "I30: b3 has data"),
        (replace(SWITCHED.state, dropping=members(3, 4)), "I29: somebody is in two places"),
        (replace(SWITCHED.state, replicas=members(2, 1, 4)), "I31: nobody asked for"),
    ],
    ids=["fewer in sync", "the new one is not in sync", "data is forgotten", "twice", "not asked"],
)
def test_no_switch_leaves_less_than_there_was(
    copying: Cluster, switched: PartitionState, told: str
) -> None:
    with pytest.raises(RuleError, match=told):
        copying.store(PartitionDocument(switched))


def test_nobody_becomes_a_member_who_was_never_to_be_one(copying: Cluster) -> None:
    copying.mover._cancels.add(KEY)
    copying.store(partition(version=3, dropping=(4,)))
    with pytest.raises(RuleError, match=r"I29: \{4\} never copied"):
        copying.store(partition(version=4, replicas=(1, 2, 4), isr=(1, 2, 4), dropping=(3,)))


def test_a_copy_does_not_count() -> None:
    cluster = Cluster()
    cluster.asked(1, 2, 4)
    cluster.store(COPYING)
    cluster.write(4, sync=True)
    with pytest.raises(RuleError, match=r"I29: somebody counts who has no replica"):
        cluster.store(partition(version=3, adding=(4,), target=(1, 2, 4), isr=(1, 2, 3, 4)))


@pytest.mark.parametrize("isr", [(1, 2, 3), (1, 2, 3, 4)])
def test_a_leader_counts_no_copy(copying: Cluster, isr: tuple[int, ...]) -> None:
    broker = copying.world.brokers[BrokerId(1)]
    marks = rc.Marks(
        is_leader=True,
        leader=broker.id,
        leader_epoch=LeaderEpoch(1),
        log_start_offset=Offset(0),
        last_stable_offset=Offset(0),
        high_watermark=Offset(0),
        written_end=Offset(0),
        log_end_offset=Offset(0),
        sync_through=Offset(0),
        isr=members(*isr),
    )
    if 4 not in isr:
        copying.checks.moving.check_copies(broker, COPYING.state, marks)
        return
    with pytest.raises(RuleError, match=r"I29: b1 leads with"):
        copying.checks.moving.check_copies(broker, COPYING.state, marks)


def test_no_journal_switches(copying: Cluster) -> None:
    copying.checks._journaled = True
    with pytest.raises(RuleError, match=r"I30: a journal gives .* the replicas \(1, 2, 4\)"):
        copying.checks.metadata_changed(copying.topic(SWITCHED))


# ---------------------------------------------------------------- what is dropped


def test_a_broker_drops_what_it_was_told_to_drop_once_it_cannot_forget_it(copying: Cluster) -> None:
    copying.store(SWITCHED)
    broker = copying.world.brokers[BrokerId(3)]
    with pytest.raises(RuleError, match=r"I30: b3 drops .* and would know only 0 after a crash"):
        copying.checks.moving.dropped(broker, KEY)
    broker.directory.remember_metadata(ControllerEpoch(1), copying.version)
    copying.checks.moving.dropped(broker, KEY)


def test_a_broker_that_is_not_named_drops_nothing(copying: Cluster) -> None:
    copying.store(SWITCHED)
    broker = copying.world.brokers[BrokerId(2)]
    broker.directory.remember_metadata(ControllerEpoch(1), copying.version)
    with pytest.raises(RuleError, match=r"I30: b2 drops its data"):
        copying.checks.moving.dropped(broker, KEY)


def test_nobody_is_taken_for_empty_who_has_data(copying: Cluster) -> None:
    copying.store(SWITCHED)
    with pytest.raises(RuleError, match=r"I30: b3 has data"):
        copying.store(partition(version=4, replicas=(1, 2, 4), isr=(1, 2, 4)))


@pytest.mark.parametrize(
    ("left", "told"),
    [
        (COPYING, "I31: a move has not ended"),
        (SWITCHED, "I31: a move has not ended"),
        (partition(version=4, replicas=(1, 2, 4)), "I30: b3 has data"),
        (partition(version=4), "I30: b4 has data"),
    ],
)
def test_at_the_end_nothing_of_a_move_is_left(
    copying: Cluster, left: PartitionDocument, told: str
) -> None:
    assert copying.checks.moving.left_over(KEY, left).startswith(told)


def test_a_settled_partition_has_nothing_left_over() -> None:
    assert Cluster().checks.moving.left_over(KEY, partition(version=1)) == ""


# ---------------------------------------------------------------- what was asked for


def test_a_cancel_restores_exactly_what_was(copying: Cluster) -> None:
    cancelled = partition(version=3, dropping=(4,))
    with pytest.raises(RuleError, match="I31: nobody cancelled"):
        copying.store(cancelled)


def test_a_target_that_was_cancelled_does_not_come_back(copying: Cluster) -> None:
    copying.mover._cancels.add(KEY)
    copying.mover._wanted[KEY] = {members(1, 2, 3)}
    copying.store(partition(version=3, dropping=(4,)))
    with pytest.raises(RuleError, match=r"I31: nobody wants .* on \(1, 2, 4\) any more"):
        copying.store(partition(version=4, target=(1, 2, 4), dropping=(4,)))


def test_a_cancel_changes_no_isr(copying: Cluster) -> None:
    copying.mover._cancels.add(KEY)
    with pytest.raises(RuleError, match="I31: a cancel changed more than the move"):
        copying.store(partition(version=3, isr=(1, 2), dropping=(4,)))


def outcome(*, replicas: Sequence[int], target: Sequence[int] = ()) -> mc.ReplicasAltered:
    """Of a request for the brokers 1, 2 and 4."""
    change = mc.ReplicaChange(topic=TOPIC, partition=0, target=members(1, 2, 4))
    found = mc.ReplicaOutcome(change=change, replicas=members(*replicas), target=members(*target))
    return mc.ReplicasAltered((found,))


@pytest.mark.parametrize(
    ("answer", "allowed"),
    [
        (outcome(replicas=(1, 2, 3), target=(1, 2, 4)), {members(1, 2, 4)}),
        (outcome(replicas=(1, 2, 4)), {members(1, 2, 4)}),
        (ClusterError("no", ErrorCode.MOVES_PAUSED), {members(1, 2, 3)}),
        (
            ClusterError("unknown", ErrorCode.CONTROLLER_UNAVAILABLE),
            {members(1, 2, 3), members(1, 2, 4)},
        ),
        (None, {members(1, 2, 3), members(1, 2, 4)}),
    ],
    ids=["accepted", "done", "refused", "unknown", "no answer"],
)
def test_an_answer_says_what_must_come_of_a_request(
    answer: object, allowed: set[tuple[BrokerId, ...]]
) -> None:
    cluster = Cluster()
    cluster.mover._waiting[KEY] = (1, members(1, 2, 4))
    cluster.mover._answered(1, [KEY], answer)
    assert cluster.mover._wanted[KEY] == allowed
    cluster.mover._wanted[KEY] = {members(1, 2, 4)}
    with pytest.raises(RuleError, match=r"I31: .* is on \(1, 2, 3\), wanted was"):
        cluster.mover.check_end()


def test_a_request_without_an_answer_at_the_end_was_done_or_not() -> None:
    cluster = Cluster()
    cluster.mover._wanted[KEY] = {members(1, 2, 4)}
    cluster.mover._waiting[KEY] = (1, members(1, 2, 3))
    cluster.mover.check_end()


def test_an_answer_that_accepts_something_else_is_no_answer() -> None:
    cluster = Cluster()
    cluster.mover._waiting[KEY] = (1, members(1, 2, 4))
    with pytest.raises(RuleError, match=r"I31: .* says that it is accepted"):
        cluster.mover._answered(1, [KEY], outcome(replicas=(1, 2, 3)))
