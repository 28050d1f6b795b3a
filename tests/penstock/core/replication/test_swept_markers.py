"""A replica that was away until compaction took the markers it lacks copies everything anew."""

from dataclasses import replace
from typing import Any

import pytest
from support.replica_driver import Drive, Driver, batch

from penstock.core.replication import contract as c
from penstock.core.replication import contract_follower as fc
from penstock.core.replication import contract_leader as lc
from penstock.core.types import (
    TRANSACTIONAL_PRODUCER_BIT,
    BrokerId,
    LeaderEpoch,
    Offset,
    ProducerId,
)
from penstock.errors import ClusterError, ErrorCode, OffsetOutOfRangeError, OffsetRange

TWO, THREE = BrokerId(2), BrokerId(3)
OPEN = c.ProducerEntry(
    producer_id=ProducerId(TRANSACTIONAL_PRODUCER_BIT + 7),
    producer_epoch=3,
    batches=(c.SequencedBatch(0, 0, Offset(4)),),
    last_timestamp_ms=0,
    open_offset=Offset(4),
)
EMPTY = c.Checkpoint(LeaderEpoch(2), Offset(0), Offset(0), ())
EMPTIED = replace(EMPTY, high_watermark=c.UNPROMISED)


def swept_ends(ready: c.Ready) -> list[int]:
    """Of the answers to epoch queries: all that it sends."""
    answers = [one for one in ready.messages if isinstance(one, lc.SendEpochAnswer)]
    assert len(answers) == len(ready.messages)
    return [one.swept_end for one in answers]


def away(drive: Drive, *producers: c.ProducerEntry) -> Any:
    """Broker 1 comes back with ten records, of which it knows seven to be committed."""
    driver = drive(10, epoch=1, epochs=((1, 0),), high_watermark=7, producers=producers)
    driver.assign(2, epoch=2)
    driver.written(synced=True)
    return driver


def start(offset: int) -> fc.SendFollowStart:
    return fc.SendFollowStart(TWO, LeaderEpoch(2), Offset(offset), version=1)


def test_a_log_whose_open_transaction_may_have_lost_its_marker_begins_anew(drive: Drive) -> None:
    driver = away(drive, OPEN)
    ready = driver.answer_epoch(1, 40, leader_epoch=2, swept_end=11)
    assert (ready.truncate_to, ready.checkpoint, ready.messages) == (0, EMPTIED, ())
    persist_id = ready.persist_id
    driver.do(c.Truncated(c.RecoveredLog(log_end_offset=Offset(0), checkpoint=EMPTIED)))
    assert driver.written(persist_id=persist_id).checkpoint == EMPTY
    ready = driver.written()
    assert ready.messages[0] == start(0)
    assert driver.marks.last_stable_offset == 0
    assert driver.machine.open_transactions == ()


@pytest.mark.parametrize(("producers", "swept_end"), [((OPEN,), 10), ((), 11), ((OPEN,), 0)])
def test_a_log_that_lacks_no_marker_goes_on(
    drive: Drive, producers: tuple[c.ProducerEntry, ...], swept_end: int
) -> None:
    driver = away(drive, *producers)
    ready = driver.answer_epoch(1, 40, leader_epoch=2, swept_end=swept_end)
    assert (ready.truncate_to, ready.messages[0]) == (None, start(10))


def test_a_log_that_is_cut_first_is_looked_at_then(drive: Drive) -> None:
    """The cut may open a transaction again whose marker it takes away."""
    driver = away(drive)
    ready = driver.answer_epoch(1, 8, leader_epoch=2, swept_end=30)
    assert ready.truncate_to == 8
    persist_id, checkpoint = ready.persist_id, ready.checkpoint
    assert checkpoint is not None
    driver.do(
        c.Truncated(
            c.RecoveredLog(log_end_offset=Offset(8), checkpoint=checkpoint, producers=(OPEN,))
        )
    )
    ready = driver.written(persist_id=persist_id)
    assert (ready.truncate_to, ready.checkpoint) == (0, EMPTIED)


def test_a_leader_tells_what_it_swept(drive: Drive) -> None:
    log = c.RecoveredLog(
        log_end_offset=Offset(9), checkpoint=EMPTY, producers=(), swept_end=Offset(5)
    )
    driver = drive()
    driver.machine._log._load(log, 0)
    driver.assign()
    driver.written(synced=True)
    driver.do(lc.EpochQueried(TWO, LeaderEpoch(1), LeaderEpoch(-1)))
    assert swept_ends(driver.ready) == [5]
    driver.do(c.MarkersSwept(Offset(8)))
    driver.do(c.MarkersSwept(Offset(6)))
    driver.do(lc.EpochQueried(TWO, LeaderEpoch(1), LeaderEpoch(-1)))
    assert swept_ends(driver.ready) == [8]


def test_a_follower_that_copies_while_markers_go_has_to_ask_again(leader: Driver) -> None:
    """Else it would copy data with its markers still to come, and then find them gone."""
    leader.produce(4)
    leader.written()
    leader.ack(2, 4)
    ready = leader.do(c.MarkersSwept(Offset(4)))
    assert ready.feeds == (lc.Feed(THREE, LeaderEpoch(1), None),)
    (refusal,) = ready.messages
    assert isinstance(refusal, lc.SendRefusal)
    assert (refusal.follower, refusal.error.code) == (THREE, ErrorCode.OFFSET_OUT_OF_RANGE)
    assert isinstance(refusal.error, OffsetOutOfRangeError)
    assert refusal.error.valid == OffsetRange(Offset(0), Offset(4))
    assert leader.do(c.MarkersSwept(Offset(4))).feeds == (), "it does not follow"


def test_a_follower_remembers_what_it_swept_for_when_it_leads(follower: Driver) -> None:
    follower.receive(batch(3, epoch=1))
    follower.written(synced=True)
    assert follower.do(c.MarkersSwept(Offset(3))) == c.NOTHING
    follower.assign(1, epoch=2, version=2)
    follower.written(synced=True, persist_id=follower.machine._log.last_persist_id)
    follower.do(lc.EpochQueried(TWO, LeaderEpoch(2), LeaderEpoch(-1)))
    assert swept_ends(follower.ready) == [3]


def test_a_follower_tells_of_markers_that_its_leader_had_swept_when_it_leads(drive: Drive) -> None:
    """It has copied the data without them, and has never swept any itself."""
    driver = away(drive)
    ready = driver.answer_epoch(1, 40, leader_epoch=2, swept_end=30)
    assert (ready.swept_end, ready.messages[0]) == (30, start(10))
    assert ready.persist_id
    driver.written(synced=True)
    driver.receive(batch(25, base=10, epoch=2), epoch=2)
    driver.written(synced=True)
    driver.assign(1, epoch=3, version=3)
    driver.written(synced=True, persist_id=driver.machine._log.last_persist_id)
    driver.do(lc.EpochQueried(THREE, LeaderEpoch(3), LeaderEpoch(-1)))
    assert swept_ends(driver.ready) == [30]


def test_it_is_stored_again_if_the_disk_was_full(drive: Drive) -> None:
    driver = away(drive)
    ready = driver.answer_epoch(1, 40, leader_epoch=2, swept_end=30)
    driver.do(c.PersistFailed(ready.persist_id, ClusterError("full", ErrorCode.DISK_FULL)))
    driver.now_ms += 1_000
    driver.do(c.Tick())
    driver.written()
    driver.now_ms += 1_000
    driver.do(c.Tick())
    ready = driver.answer_epoch(1, 40, leader_epoch=2, swept_end=30)
    assert (ready.swept_end, ready.messages[0]) == (30, start(10))


def test_a_follower_that_has_all_the_markers_need_not_tell(drive: Drive) -> None:
    driver = away(drive)
    ready = driver.answer_epoch(1, 40, leader_epoch=2, swept_end=10)
    assert (ready.swept_end, ready.persist_id) == (None, 0)


def test_a_follower_that_was_answered_before_markers_went_has_to_ask_again(leader: Driver) -> None:
    """The answer was on its way when the pass began: it says nothing of them."""
    leader.produce(9)
    leader.written()
    leader.do(lc.EpochQueried(TWO, LeaderEpoch(1), LeaderEpoch(1)))
    leader.do(c.MarkersSwept(Offset(5)))
    ready = leader.do(lc.FollowStarted(TWO, LeaderEpoch(1), Offset(4)))
    assert ready.feeds == ()
    (refusal,) = ready.messages
    assert isinstance(refusal, lc.SendRefusal)
    assert (refusal.follower, refusal.error.code) == (TWO, ErrorCode.OFFSET_OUT_OF_RANGE)
    leader.do(lc.EpochQueried(TWO, LeaderEpoch(1), LeaderEpoch(1)))
    ready = leader.do(lc.FollowStarted(TWO, LeaderEpoch(1), Offset(4)))
    assert ready.feeds == (lc.Feed(TWO, LeaderEpoch(1), Offset(4)),)


def test_a_follower_goes_by_the_first_answer_also_if_it_has_asked_twice(leader: Driver) -> None:
    """Markers went between the two answers, and only the second one says so: it is ignored."""
    leader.produce(9)
    leader.written()
    leader.do(lc.EpochQueried(TWO, LeaderEpoch(1), LeaderEpoch(1)))
    leader.do(c.MarkersSwept(Offset(5)))
    leader.do(lc.EpochQueried(TWO, LeaderEpoch(1), LeaderEpoch(1)))
    ready = leader.do(lc.FollowStarted(TWO, LeaderEpoch(1), Offset(4)))
    assert ready.feeds == ()
    (refusal,) = ready.messages
    assert isinstance(refusal, lc.SendRefusal)
    assert (refusal.follower, refusal.error.code) == (TWO, ErrorCode.OFFSET_OUT_OF_RANGE)
    leader.do(lc.EpochQueried(TWO, LeaderEpoch(1), LeaderEpoch(1)))
    ready = leader.do(lc.FollowStarted(TWO, LeaderEpoch(1), Offset(4)))
    assert ready.feeds == (lc.Feed(TWO, LeaderEpoch(1), Offset(4)),)


def test_one_that_lacks_none_of_them_follows_at_once(leader: Driver) -> None:
    leader.produce(9)
    leader.written()
    leader.do(lc.EpochQueried(TWO, LeaderEpoch(1), LeaderEpoch(1)))
    leader.do(c.MarkersSwept(Offset(5)))
    ready = leader.do(lc.FollowStarted(TWO, LeaderEpoch(1), Offset(5)))
    assert ready.feeds == (lc.Feed(TWO, LeaderEpoch(1), Offset(5)),)


def test_who_leads_before_it_has_copied_what_was_swept_tells_no_more_than_it_has(
    drive: Drive,
) -> None:
    """By an unclean election. Members of its ISR with a new transaction must not begin anew."""
    driver = drive()
    log = c.RecoveredLog(log_end_offset=Offset(9), checkpoint=EMPTY, swept_end=Offset(40))
    driver.machine._log._load(log, 0)
    driver.assign(1, epoch=3)
    driver.written(synced=True)
    driver.do(lc.EpochQueried(TWO, LeaderEpoch(3), LeaderEpoch(2)))
    assert swept_ends(driver.ready) == [9]


@pytest.mark.parametrize("leader", [1, 2], ids=["it leads", "it follows another"])
def test_who_was_to_copy_more_of_a_swept_log_says_so_no_more_in_the_next_epoch(
    drive: Drive, leader: int
) -> None:
    """From the next one it copies all of the markers."""
    driver = away(drive)
    assert driver.answer_epoch(1, 40, leader_epoch=2, swept_end=30).swept_end == 30
    driver.written(synced=True)
    ready = driver.assign(leader, epoch=3, version=3)
    assert (ready.persist_id > 0, ready.swept_end) == (True, 10)
    driver.do(c.PersistFailed(ready.persist_id, ClusterError("full", ErrorCode.DISK_FULL)))
    driver.now_ms += 1_000
    ready = driver.do(c.Tick())
    assert (ready.persist_id > 0, ready.swept_end) == (True, 10), "stored again"
