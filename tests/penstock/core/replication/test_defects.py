"""A defect anywhere in the machine stops the replica: nothing moves, everyone waiting is told."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
from support.defects import PlantedError, every_line
from support.replica_driver import Drive

from penstock.core.batch import Batch, BatchHeader
from penstock.core.replication import contract as c
from penstock.core.replication import contract_follower as fc
from penstock.core.replication import contract_leader as lc
from penstock.core.types import (
    TRANSACTIONAL_PRODUCER_BIT,
    Acks,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionState,
    ProducerId,
    Sync,
)
from penstock.errors import ClusterError, ErrorCode

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
EPOCH = LeaderEpoch(1)
BATCH = Batch(BatchHeader(3, 0, 0, 0, 0, leader_epoch=EPOCH), b"xyz")
NEW_REQUEST = 99
GLANCES = ("handle", "marks", "look", "bounds", "_glance")
"""What looks and decides nothing: a stop itself needs it."""


def state(*, leader: int = 1, epoch: int = 1, version: int = 2) -> PartitionState:
    return PartitionState(
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        isr=(ONE, TWO),
        replicas=(ONE, TWO, THREE),
        version=version,
    )


def produce() -> lc.ProduceRequested:
    return lc.ProduceRequested(
        request_id=NEW_REQUEST, batch=BATCH, acks=Acks.ALL, sync=Sync.DISK, deadline_ms=9_000
    )


def leading(drive: Drive) -> Any:
    """Four records are committed; requests 3 (written here) and 4 (not yet) wait."""
    driver = drive()
    driver.assign()
    driver.written(synced=True)
    driver.follow(2, 0)
    driver.follow(3, 0)
    for _ in range(3):
        driver.produce(2)
        driver.written()
    driver.ack(2, 4)
    driver.ack(3, 4)
    driver.produce(2, sync=Sync.DISK, timeout_ms=50)
    return driver


def joining(drive: Drive) -> Any:
    """As well, request 5 waits for its transaction to begin here."""
    driver = leading(drive)
    driver.transact()
    return driver


def ending() -> lc.EndRequested:
    return lc.EndRequested(
        request_id=NEW_REQUEST,
        producer_id=ProducerId(TRANSACTIONAL_PRODUCER_BIT + 7),
        producer_epoch=3,
        commit=False,
        timestamp_ms=0,
        deadline_ms=90_000,
        sync=Sync.DISK,
    )


def following(drive: Drive) -> Any:
    """Broker 1 follows 2, from the end of a log of five records, of which two are committed."""
    driver = drive(5, epoch=0, epochs=((0, 0),), high_watermark=2)
    driver.assign(2)
    driver.written(synced=True)
    return driver


def copying(drive: Drive) -> Any:
    driver = following(drive)
    driver.answer_epoch(0, 5)
    return driver


def cutting(drive: Drive) -> Any:
    driver = following(drive)
    driver.answer_epoch(0, 3)
    return driver


Scene = tuple[Callable[[Any], Any], c.Event]


def cut_log() -> c.RecoveredLog:
    starts = (c.EpochStart(epoch=LeaderEpoch(0), start_offset=Offset(0)),)
    checkpoint = c.Checkpoint(
        leader_epoch=EPOCH,
        high_watermark=Offset(2),
        log_start_offset=Offset(0),
        epochs=starts,
    )
    return c.RecoveredLog(log_end_offset=Offset(3), checkpoint=checkpoint)


SCENES: dict[type, list[Scene]] = {
    c.Assigned: [
        (leading, c.Assigned(state=state(), config=c.ReplicaConfig())),
        (leading, c.Assigned(state=state(leader=2, epoch=2), config=c.ReplicaConfig())),
        (copying, c.Assigned(state=state(epoch=2), config=c.ReplicaConfig())),
    ],
    lc.ProduceRequested: [(leading, produce()), (copying, produce())],
    lc.EndRequested: [(joining, ending()), (copying, ending())],
    lc.Joined: [(joining, lc.Joined(1)), (joining, lc.Joined(1, ClusterError("no")))],
    c.Persisted: [
        (leading, c.Persisted(persist_id=5, synced=True)),
        (cutting, c.Persisted(persist_id=2, synced=True)),
    ],
    c.PersistFailed: [
        (leading, c.PersistFailed(persist_id=5, error=ClusterError("x", ErrorCode.DISK_FULL)))
    ],
    c.Truncated: [(cutting, c.Truncated(log=cut_log()))],
    c.MarkersSwept: [(leading, c.MarkersSwept(Offset(6))), (copying, c.MarkersSwept(Offset(2)))],
    lc.LogStartMoved: [(leading, lc.LogStartMoved(log_start_offset=Offset(2)))],
    lc.EpochQueried: [
        (leading, lc.EpochQueried(follower=TWO, leader_epoch=EPOCH, last_epoch=EPOCH)),
        (copying, lc.EpochQueried(follower=TWO, leader_epoch=EPOCH, last_epoch=EPOCH)),
    ],
    lc.FollowStarted: [
        (leading, lc.FollowStarted(follower=TWO, leader_epoch=EPOCH, from_offset=Offset(4)))
    ],
    lc.FollowerAcked: [
        (
            leading,
            lc.FollowerAcked(
                follower=TWO, leader_epoch=EPOCH, written_end=Offset(6), synced_end=Offset(6)
            ),
        )
    ],
    c.PeerLost: [(leading, c.PeerLost(peer=TWO)), (copying, c.PeerLost(peer=TWO))],
    fc.PeerConnected: [(copying, fc.PeerConnected(peer=TWO))],
    fc.EpochAnswered: [
        (
            following,
            fc.EpochAnswered(
                leader=TWO,
                leader_epoch=EPOCH,
                epoch=LeaderEpoch(0),
                end_offset=Offset(3),
                log_start_offset=Offset(0),
            ),
        )
    ],
    fc.BatchesReceived: [
        (
            copying,
            fc.BatchesReceived(
                leader=TWO,
                leader_epoch=EPOCH,
                batches=(BATCH.stamped(Offset(5), EPOCH, 0),),
                high_watermark=Offset(4),
                log_start_offset=Offset(1),
                sync_through=Offset(8),
            ),
        )
    ],
    c.LogDamaged: [(leading, c.LogDamaged(ClusterError("no")))],
    c.LogMended: [(leading, c.LogMended())],
    c.ProducersExpired: [
        (leading, c.ProducersExpired(0, 0)),
        (following, c.ProducersExpired(0, 0)),
    ],
    fc.PeerRefused: [(copying, fc.PeerRefused(peer=TWO, error=ClusterError("no")))],
    lc.IsrAnswered: [(leading, lc.IsrAnswered(state=state()))],
    c.Tick: [(leading, c.Tick()), (following, c.Tick())],
}


WAITING: dict[Callable[[Any], Any], set[int]] = {leading: {3, 4}, joining: {3, 4, 5}}
"""Requests without an answer when the event comes."""


def test_every_event_has_its_scene() -> None:
    assert set(SCENES) == set(get_args(c.Event))


@pytest.mark.parametrize(
    ("scene", "event"),
    [pytest.param(*one, id=f"{kind.__name__}-{one[0].__name__}") for kind in SCENES
     for one in SCENES[kind]],
)  # fmt: skip
def test_a_defect_at_any_line_stops_the_replica_and_nothing_of_the_event_leaves(
    drive: Drive, scene: Callable[[Any], Any], event: c.Event
) -> None:
    for plant in every_line("replication", *GLANCES):
        driver = scene(drive)
        driver.now_ms += 60_000
        machine, before = driver.machine, driver.marks
        waiting = WAITING.get(scene, set())
        with plant:
            ready = machine.handle(event, driver.now_ms)
        if not plant.struck:
            assert machine.error is None
            continue
        assert ready.stopped is machine.error
        assert isinstance(ready.stopped.__cause__, PlantedError)
        check_nothing_left(ready)
        owed = waiting | asked(event)
        check_owed(event, ready, owed)
        check_nothing_moves(machine, before)


def asked(event: c.Event) -> set[int]:
    return {NEW_REQUEST} if isinstance(event, lc.ProduceRequested | lc.EndRequested) else set()


def check_nothing_left(ready: c.Ready) -> None:
    decided = (ready.truncate_to, ready.checkpoint, ready.isr_change, ready.high_watermark)
    assert (*decided, ready.stable_offset) == (None, None, None, None, None)
    assert (ready.append, ready.feeds, ready.persist_id) == ((), (), 0)
    assert (ready.joins, ready.aborted) == ((), ())
    assert all(isinstance(one, lc.SendRefusal | fc.SendFollowStop) for one in ready.messages)


def check_owed(event: c.Event, ready: c.Ready, owed: set[int]) -> None:
    assert {reply.request_id for reply in ready.replies} == owed
    assert len(ready.replies) == len(owed), "one answer each"
    assert ready.stopped is not None
    assert ready.stopped.code is ErrorCode.STORAGE_FAILED, "the outcome is unknown (I8)"
    assert all(reply.error is ready.stopped for reply in ready.replies)
    if isinstance(event, lc.EpochQueried | lc.FollowStarted):
        assert lc.SendRefusal(follower=event.follower, error=ready.stopped) in ready.messages


def check_nothing_moves(machine: Any, before: c.Marks) -> None:
    """Whatever comes now is refused: the machine is as it was before the event, for ever."""
    marks = machine.marks
    assert not marks.is_leader
    for name in (
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "written_end",
        "log_end_offset",
        "isr",
    ):
        assert getattr(marks, name) == getattr(before, name), name
    assert (marks.leader, marks.leader_epoch) == (before.leader, before.leader_epoch)
    assert not machine.wants_tick
    for scenes in SCENES.values():
        for _, event in scenes:
            ready = machine.handle(event, 100_000)
            assert machine.marks is marks
            assert ready.stopped is None, "it stops once"
            check_nothing_left(ready)
            assert {reply.request_id for reply in ready.replies} == asked(event)
            assert all(reply.error is machine.error for reply in ready.replies)


def test_what_a_stopped_leader_had_decided_before_is_not_taken_back(drive: Drive) -> None:
    driver = leading(drive)
    assert driver.marks.high_watermark == 4
    for plant in every_line("replication", *GLANCES):
        with plant:
            driver.machine.handle(c.Tick(), driver.now_ms)
        break
    assert driver.marks.high_watermark == 4
    driver.machine.handle(c.Persisted(persist_id=5, synced=True), driver.now_ms)
    assert driver.marks.high_watermark == 4, "a write that was under way moves nothing"
