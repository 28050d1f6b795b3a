"""What a follower does: looks up the divergence, cuts, copies, acknowledges what is written."""

from typing import Any

import pytest
from support.replica_driver import Drive, Driver, refused, stored

from penstock.core.batch import Batch, BatchHeader
from penstock.core.replication import contract as c
from penstock.core.replication import contract_follower as fc
from penstock.core.replication import contract_leader as lc
from penstock.core.types import BrokerId, LeaderEpoch, Offset, ProducerId
from penstock.errors import ClusterError, ErrorCode

TWO = BrokerId(2)
LOG = {"epoch": 4, "epochs": ((1, 0), (3, 20), (4, 70)), "high_watermark": 15}


def batch(base: int, count: int = 1, *, epoch: int = 1, producer: int = -1) -> Batch:
    header = BatchHeader(
        count,
        0,
        0,
        0,
        0,
        producer_id=ProducerId(producer),
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=0 if producer >= 0 else -1,
        base_offset=Offset(base),
        leader_epoch=LeaderEpoch(epoch),
    )
    return Batch(header, b"x")


def start(leader_epoch: int, offset: int) -> fc.SendFollowStart:
    return fc.SendFollowStart(TWO, LeaderEpoch(leader_epoch), Offset(offset), version=1)


def ack(leader_epoch: int, written: int, synced: int) -> fc.SendAck:
    return fc.SendAck(TWO, LeaderEpoch(leader_epoch), Offset(written), Offset(synced))


def query(leader_epoch: int, last_epoch: int) -> fc.SendEpochQuery:
    return fc.SendEpochQuery(TWO, LeaderEpoch(leader_epoch), LeaderEpoch(last_epoch))


# ---------------------------------------------------------------- divergence


@pytest.mark.parametrize(
    ("answer_epoch", "answer_end", "cut"),
    [
        (4, 95, None),
        (4, 90, None),
        (4, 80, 80),
        (3, 60, 60),
        (3, 75, 70),
        (1, 18, 18),
    ],
)
def test_logs_are_cut_at_the_smaller_end_of_the_epoch_they_share(
    drive: Drive, answer_epoch: int, answer_end: int, cut: int | None
) -> None:
    driver = drive(90, **LOG)
    ready = driver.assign(2, epoch=5)
    assert ready.messages == (query(5, 4),)
    assert ready.role_changed
    driver.written(synced=True)
    ready = driver.answer_epoch(answer_epoch, answer_end, leader_epoch=5)
    assert ready.truncate_to == cut
    if cut is None:
        assert ready.messages == (start(5, 90), ack(5, 90, 90))
        return
    assert ready.messages == ()
    assert all(one.start_offset < cut for one in stored(ready).epochs)
    persist_id = ready.persist_id
    driver.do(c.Truncated(c.RecoveredLog(log_end_offset=Offset(cut), checkpoint=stored(ready))))
    driver.written(persist_id=persist_id)
    assert driver.ready.messages == (start(5, cut), ack(5, cut, cut))
    assert driver.marks.log_end_offset == cut


def test_the_outcome_of_the_cut_may_come_in_either_order(drive: Drive) -> None:
    driver = drive(90, **LOG)
    driver.assign(2, epoch=5)
    driver.written(synced=True)
    ready = driver.answer_epoch(4, 80, leader_epoch=5)
    assert driver.written().messages == ()
    driver.do(c.Truncated(c.RecoveredLog(log_end_offset=Offset(80), checkpoint=stored(ready))))
    assert driver.ready.messages == (start(5, 80), ack(5, 80, 80))


def test_the_look_up_is_repeated_until_the_epochs_agree(drive: Drive) -> None:
    # KIP-279: this log has epochs 1, 3, 4; the leader has 1 and 2, and never had 3 or 4.
    driver = drive(90, epoch=4, epochs=((1, 0), (3, 20), (4, 70)), high_watermark=5)
    driver.assign(2, epoch=5)
    driver.written(synced=True)
    ready = driver.answer_epoch(2, 30, leader_epoch=5)
    assert ready.truncate_to == 20, "epochs 3 and 4 are wrong, 1 is not known to be right"
    driver.do(c.Truncated(c.RecoveredLog(log_end_offset=Offset(20), checkpoint=stored(ready))))
    driver.written(persist_id=ready.persist_id)
    assert driver.ready.messages == (query(5, 1),)
    ready = driver.answer_epoch(1, 12, leader_epoch=5)
    assert ready.truncate_to == 12


def test_nothing_in_common_empties_the_log(drive: Drive) -> None:
    driver = drive(90, epoch=4, epochs=((3, 0),))
    driver.assign(2, epoch=5)
    driver.written(synced=True)
    assert driver.answer_epoch(-1, 0, leader_epoch=5).truncate_to == 0


def test_an_answer_to_an_older_question_is_asked_again(drive: Drive) -> None:
    driver = drive(90, **LOG)
    driver.assign(2, epoch=9)
    driver.written(synced=True)
    ready = driver.answer_epoch(7, 95, leader_epoch=9)
    assert ready.truncate_to is None
    assert ready.messages == (query(9, 4),)


def test_an_epoch_older_than_all_of_this_log_empties_it(drive: Drive) -> None:
    driver = drive(90, epoch=4, epochs=((1, 0), (4, 90)))
    driver.assign(2, epoch=5)
    driver.written(synced=True)
    ready = driver.answer_epoch(0, 0, leader_epoch=5)
    assert ready.truncate_to == 0


def test_nothing_below_the_high_watermark_is_cut_the_partition_stops(drive: Drive) -> None:
    driver = drive(90, **{**LOG, "high_watermark": 80})
    driver.assign(2, epoch=5)
    driver.written(synced=True)
    ready = driver.answer_epoch(3, 60, leader_epoch=5)
    assert ready.truncate_to is None
    assert ready.role_changed
    assert driver.machine.error is not None
    assert driver.machine.error.code is ErrorCode.DATA_CORRUPTED
    assert "up to offset 60, but offsets below 80 were committed" in driver.machine.error.message
    driver.produce()
    assert driver.outcomes() == [(1, -1, "NOT_LEADER")], "who leads has what it needs"
    ready = driver.do(lc.EpochQueried(TWO, LeaderEpoch(5), LeaderEpoch(1)))
    assert refused(ready) is driver.machine.error
    assert driver.do(c.Tick()) is c.NOTHING
    assert not driver.machine.wants_tick


def test_a_log_that_lost_unsynced_writes_does_not_vouch_for_its_high_watermark(
    drive: Drive,
) -> None:
    driver = drive(90, intact=False, **{**LOG, "high_watermark": 80})
    assert driver.marks.high_watermark == 0
    driver.assign(2, epoch=5)
    driver.written(synced=True)
    assert driver.answer_epoch(3, 60, leader_epoch=5).truncate_to == 60


def test_an_answer_waits_for_writes_in_flight(drive: Drive) -> None:
    driver = drive(90, **LOG)
    persist_id = driver.assign(2, epoch=5).persist_id
    assert driver.answer_epoch(4, 80, leader_epoch=5) is c.NOTHING
    ready = driver.written(persist_id=persist_id, synced=True)
    assert ready.truncate_to == 80


def test_answers_of_other_leaders_epochs_and_times_are_ignored(follower: Driver) -> None:
    assert follower.answer_epoch(-1, 0) is c.NOTHING, "it follows already"
    follower.do(fc.PeerConnected(TWO))
    assert follower.answer_epoch(-1, 0, leader_epoch=2) is c.NOTHING
    assert follower.answer_epoch(-1, 0, leader=3) is c.NOTHING
    assert follower.answer_epoch(-1, 0).messages != ()


# ---------------------------------------------------------------- reset by retention


def test_a_log_that_ends_before_the_leaders_start_begins_anew_there(drive: Drive) -> None:
    entry = c.ProducerEntry(
        producer_id=ProducerId(7),
        producer_epoch=0,
        batches=(c.SequencedBatch(0, 0, Offset(3)),),
        last_timestamp_ms=0,
    )
    driver = drive(90, producers=(entry,), **LOG)
    driver.assign(2, epoch=5)
    driver.written(synced=True)
    ready = driver.answer_epoch(4, 500, leader_epoch=5, start=200)
    assert ready.truncate_to == 0
    checkpoint = stored(ready)
    assert (checkpoint.log_start_offset, checkpoint.high_watermark) == (200, 200)
    assert checkpoint.epochs == ()
    assert driver.machine.producers == (), "what was known of producers ends before the gap"
    persist_id = ready.persist_id
    driver.do(
        c.Truncated(
            c.RecoveredLog(log_end_offset=Offset(200), checkpoint=checkpoint, producers=(entry,))
        )
    )
    driver.written(persist_id=persist_id)
    assert driver.ready.messages == (start(5, 200), ack(5, 200, 90))
    assert driver.machine.producers == ()
    driver.receive(batch(200, 5, epoch=4), epoch=5, high_watermark=205, start=200)
    assert driver.marks.high_watermark == 200
    driver.written()
    assert driver.marks.high_watermark == driver.marks.log_end_offset == 205


@pytest.mark.parametrize("log_end", [90, 40, 30])
def test_a_log_that_shares_no_epoch_with_a_leader_that_begins_behind_its_hw_begins_anew(
    drive: Drive, log_end: int
) -> None:
    """Epochs 5 and 6 began inside this log's last batch; retention took them from the leader."""
    driver = drive(log_end, epoch=4, epochs=((4, 0),), high_watermark=15)
    driver.assign(2, epoch=7)
    driver.written(synced=True)
    ready = driver.answer_epoch(-1, 40, leader_epoch=7, start=40)
    assert ready.truncate_to == 0
    assert (stored(ready).log_start_offset, stored(ready).high_watermark) == (40, 40)


def test_a_log_that_shares_no_epoch_keeps_what_was_committed_before_the_leaders_start(
    drive: Drive,
) -> None:
    driver = drive(90, epoch=4, epochs=((4, 0),), high_watermark=40)
    driver.assign(2, epoch=7)
    driver.written(synced=True)
    assert driver.answer_epoch(-1, 40, leader_epoch=7, start=40).truncate_to == 40
    assert stored(driver.ready).log_start_offset == 0


def reset_at_200(drive: Drive) -> Any:
    """A follower whose log began anew at 200, and which follows from there."""
    driver = drive(90, **LOG)
    driver.assign(2, epoch=5)
    driver.written(synced=True)
    ready = driver.answer_epoch(4, 500, leader_epoch=5, start=200)
    persist_id = ready.persist_id
    driver.do(c.Truncated(c.RecoveredLog(log_end_offset=Offset(200), checkpoint=stored(ready))))
    driver.written(persist_id=persist_id)
    return driver


def test_the_first_batch_of_a_log_that_began_anew_may_hold_its_start(drive: Drive) -> None:
    """Records were deleted up to an offset inside the leader's batch; batches are copied whole."""
    driver = reset_at_200(drive)
    ready = driver.receive(batch(195, 10, epoch=4), batch(205, 5, epoch=4), epoch=5, start=200)
    assert [one.base_offset for one in ready.append] == [195, 205]
    assert stored(ready).epochs == (c.EpochStart(LeaderEpoch(4), Offset(195)),)
    driver.written()
    assert driver.marks.log_end_offset == 210
    assert driver.marks.log_start_offset == 200


@pytest.mark.parametrize("base", [190, 201], ids=["before the start", "behind a gap"])
def test_a_batch_without_the_start_does_not_begin_a_log(drive: Drive, base: int) -> None:
    driver = reset_at_200(drive)
    ready = driver.receive(batch(base, 10, epoch=4), epoch=5, start=200)
    assert ready.append == ()
    assert ready.messages == (fc.SendFollowStop(TWO),)


def test_a_log_that_has_a_batch_takes_none_across_its_end(drive: Drive) -> None:
    driver = reset_at_200(drive)
    driver.receive(batch(200, 5, epoch=4), epoch=5, start=200)
    assert driver.receive(batch(203, 5, epoch=4), epoch=5, start=200).append == ()


def test_a_reset_that_fails_leaves_everything_as_it_was(drive: Drive) -> None:
    entry = c.ProducerEntry(
        producer_id=ProducerId(7),
        producer_epoch=0,
        batches=(c.SequencedBatch(0, 0, Offset(3)),),
        last_timestamp_ms=0,
    )
    driver = drive(90, producers=(entry,), **LOG)
    driver.assign(2, epoch=5)
    driver.written(synced=True)
    ready = driver.answer_epoch(4, 500, leader_epoch=5, start=200)
    driver.failed(ready.persist_id)
    assert driver.machine.producers == (entry,)
    assert driver.marks.log_end_offset == 90
    driver.now_ms += 100
    assert query(5, 4) in driver.do(c.Tick()).messages


# ---------------------------------------------------------------- logs that lost writes


def behind(drive: Drive, *, intact: bool, end: int = 38, epochs: Any = ((1, 0),)) -> Any:
    """A log [24, end) of epoch 1; its leader of epoch 3 lost everything from 15 on."""
    entry = c.ProducerEntry(
        producer_id=ProducerId(7),
        producer_epoch=0,
        batches=(c.SequencedBatch(0, 0, Offset(30)),),
        last_timestamp_ms=0,
    )
    driver = drive(
        end, epoch=1, start=24, high_watermark=30, epochs=epochs, producers=(entry,), intact=intact
    )
    driver.assign(2, epoch=3)
    driver.written(synced=True)
    return driver


@pytest.mark.parametrize(
    ("end", "epochs"),
    [(38, ((1, 0),)), (24, ((1, 0),)), (24, ()), (38, ((2, 7),)), (24, ((2, 7),))],
    ids=["full", "empty", "reset", "full-unknown-epoch", "empty-unknown-epoch"],
)
def test_a_log_that_lost_writes_begins_anew_with_a_leader_that_ends_before_it(
    drive: Drive, end: int, epochs: Any
) -> None:
    driver = behind(drive, intact=False, end=end, epochs=epochs)
    ready = driver.answer_epoch(1, 15, leader_epoch=3, start=4)
    assert ready.truncate_to == 4
    assert (stored(ready).log_start_offset, stored(ready).high_watermark) == (4, c.UNPROMISED)
    assert (stored(ready).leader_epoch, stored(ready).epochs) == (3, ())
    assert driver.machine.producers == ()
    persist_id = ready.persist_id
    driver.do(c.Truncated(c.RecoveredLog(log_end_offset=Offset(4), checkpoint=stored(ready))))
    driver.written(persist_id=persist_id)
    assert (stored(driver.ready).high_watermark, driver.ready.messages) == (4, ())
    assert driver.written().messages == (start(3, 4), ack(3, 4, 4))
    marks = driver.marks
    assert marks.log_start_offset == marks.high_watermark == marks.log_end_offset == 4


@pytest.mark.parametrize(
    ("end", "epochs"),
    [(38, ((1, 0),)), (30, ((1, 0),)), (30, ()), (38, ((2, 7),)), (24, ((2, 7),))],
)
def test_a_log_that_kept_everything_stops_at_a_leader_that_ends_before_it(
    drive: Drive, end: int, epochs: Any
) -> None:
    driver = behind(drive, intact=True, end=end, epochs=epochs)
    ready = driver.answer_epoch(1, 15, leader_epoch=3, start=4)
    assert ready.truncate_to is None
    assert driver.machine.error is not None
    assert driver.machine.error.code is ErrorCode.DATA_CORRUPTED


def test_a_log_that_lost_writes_counts_again_once_it_has_acknowledged_something(
    drive: Drive,
) -> None:
    driver = behind(drive, intact=False)
    driver.answer_epoch(1, 50, leader_epoch=3)
    assert driver.written().messages == (start(3, 38), ack(3, 38, 38))
    driver.assign(3, epoch=4, version=2)
    driver.written(synced=True)
    driver.answer_epoch(1, 15, leader_epoch=4, start=4, leader=3)
    assert driver.machine.error is not None
    assert driver.machine.error.code is ErrorCode.DATA_CORRUPTED


def test_that_nobody_counts_on_a_log_is_stored_until_it_acknowledges_something(
    drive: Drive,
) -> None:
    driver = drive(38, epoch=1, start=24, epochs=((1, 0),), intact=False)
    assert driver.machine.checkpoint.high_watermark == c.UNPROMISED
    assert stored(driver.assign(2, epoch=3)).high_watermark == c.UNPROMISED
    driver.written(synced=True)
    ready = driver.answer_epoch(1, 50, leader_epoch=3)
    assert (stored(ready).high_watermark, ready.persist_sync, ready.messages) == (24, False, ())
    assert driver.machine.checkpoint.high_watermark == 24
    assert driver.written().messages == (start(3, 38), ack(3, 38, 38))


def test_nobody_relies_on_a_log_as_long_as_it_cannot_be_stored_that_they_may(drive: Drive) -> None:
    driver = behind(drive, intact=False)
    ready = driver.answer_epoch(1, 50, leader_epoch=3)
    driver.failed(ready.persist_id)
    assert driver.machine.checkpoint.high_watermark == c.UNPROMISED
    driver.now_ms += 100
    assert driver.do(c.Tick()).messages == (query(3, 1),)
    assert stored(driver.answer_epoch(1, 50, leader_epoch=3)).high_watermark == 24


def test_a_stream_that_is_lost_meanwhile_is_followed_after_another_look_up(drive: Drive) -> None:
    driver = behind(drive, intact=False)
    promise = driver.answer_epoch(1, 50, leader_epoch=3).persist_id
    driver.do(c.PeerLost(TWO))
    driver.do(fc.PeerConnected(TWO))
    assert driver.written(persist_id=promise).messages == (query(3, 1),)
    assert driver.answer_epoch(1, 50, leader_epoch=3).messages == (start(3, 38), ack(3, 38, 38))


def test_that_a_log_is_missing_is_stored_until_it_has_followed_a_leader(drive: Drive) -> None:
    """Writes of the epochs in between do not hide it from the next run."""
    driver = drive(0, epoch=1, high_watermark=c.MISSING)
    assert stored(driver.assign(2, epoch=3)).high_watermark == c.MISSING
    driver.written(synced=True)
    assert stored(driver.answer_epoch(1, 50, leader_epoch=3)).high_watermark == 0
    assert driver.written().messages == (start(3, 0), ack(3, 0, 0))


def test_a_log_that_lost_writes_promises_again_when_it_leads(drive: Drive) -> None:
    driver = drive(38, epoch=1, start=24, epochs=((1, 0),), intact=False)
    assert stored(driver.assign(1, epoch=3, isr=(1,))).high_watermark == 24


def test_an_empty_log_asks_where_the_epoch_ends_that_its_start_is_from(drive: Drive) -> None:
    driver = drive(30, epoch=2, start=30, high_watermark=30)
    assert query(5, 2) in driver.assign(2, epoch=5).messages
    driver.written(synced=True)
    assert driver.answer_epoch(2, 30, leader_epoch=5).messages == (start(5, 30), ack(5, 30, 30))


def test_a_log_that_began_anew_asks_with_the_epoch_of_the_leader_it_began_with(
    drive: Drive,
) -> None:
    driver = behind(drive, intact=False)
    ready = driver.answer_epoch(1, 15, leader_epoch=3, start=4)
    driver.do(c.PeerLost(TWO))
    driver.do(c.Truncated(c.RecoveredLog(log_end_offset=Offset(4), checkpoint=stored(ready))))
    driver.written(persist_id=ready.persist_id)
    assert driver.ready.messages == (query(3, 3),)


# ---------------------------------------------------------------- copying


def test_only_what_is_written_is_acknowledged(follower: Driver) -> None:
    ready = follower.receive(batch(0, 3), batch(3, 2))
    assert ready.messages == ()
    assert [one.base_offset for one in ready.append] == [0, 3]
    ready = follower.written()
    assert ready.messages == (ack(1, 5, 0),)


def test_the_high_watermark_is_the_leaders_but_never_past_what_is_written(follower: Driver) -> None:
    follower.receive(batch(0, 3), high_watermark=2)
    assert follower.ready.high_watermark is None
    assert follower.written().high_watermark == 2
    follower.receive(high_watermark=3)
    assert follower.ready.high_watermark == 3
    follower.receive(high_watermark=1)
    assert follower.marks.high_watermark == 3


def test_the_first_batch_of_an_epoch_is_stored_with_the_epoch(follower: Driver) -> None:
    ready = follower.receive(batch(0, 3))
    assert [(one.epoch, one.start_offset) for one in stored(ready).epochs] == [(1, 0)]
    assert follower.receive(batch(3, 3)).checkpoint is None


def test_a_sync_that_someone_waits_for_is_done_once(follower: Driver) -> None:
    assert not follower.receive(batch(0, 3)).persist_sync
    ready = follower.receive(batch(3, 3), sync_through=6)
    assert ready.persist_sync
    assert follower.receive(sync_through=6) is c.NOTHING
    assert follower.do(c.Persisted(ready.persist_id, True)).messages == (ack(1, 6, 6),)
    assert not follower.receive(batch(6, 1), sync_through=6).persist_sync


def test_a_sync_of_what_is_written_already_needs_no_batch(follower: Driver) -> None:
    follower.receive(batch(0, 3))
    follower.written()
    ready = follower.receive(sync_through=3)
    assert ready.persist_sync
    assert ready.checkpoint is not None
    assert follower.written(synced=True).messages == (ack(1, 3, 3),)


def test_the_leaders_log_start_is_taken_over_as_far_as_it_is_committed(follower: Driver) -> None:
    follower.receive(batch(0, 3), batch(3, 3), high_watermark=6, start=3)
    assert follower.marks.log_start_offset == 0
    ready = follower.written()
    assert stored(ready).log_start_offset == 3
    assert follower.marks.log_start_offset == 3


@pytest.mark.parametrize(
    "batches",
    [
        (batch(4),),
        (batch(2),),
        (batch(3), batch(5)),
        (batch(3, epoch=0),),
        (batch(3, epoch=2),),
        (batch(3, epoch=1), batch(4, epoch=0)),
    ],
)
def test_what_does_not_continue_the_log_sends_the_follower_back_to_the_look_up(
    follower: Driver, batches: tuple[Batch, ...]
) -> None:
    follower.receive(batch(0, 3))
    follower.written()
    ready = follower.receive(*batches)
    assert ready.append == ()
    assert ready.messages == (fc.SendFollowStop(TWO),)
    assert follower.receive(batch(3)) is c.NOTHING, "still from the old feed"
    assert follower.machine.wants_tick
    follower.now_ms += 100
    assert follower.do(c.Tick()).messages == (query(1, 1),)


def test_batches_of_another_leader_or_epoch_are_ignored(follower: Driver) -> None:
    assert follower.receive(batch(0), epoch=2) is c.NOTHING
    assert follower.receive(batch(0), leader=3) is c.NOTHING


def test_a_failed_write_is_copied_again(follower: Driver) -> None:
    follower.receive(batch(0, 3, producer=7))
    first = follower.ready.persist_id
    follower.receive(batch(3, 2))
    ready = follower.failed(first)
    assert ready.messages == (fc.SendFollowStop(TWO),)
    assert follower.marks.log_end_offset == 0
    assert follower.machine.producers == ()
    follower.now_ms += 100
    ready = follower.do(c.Tick())
    assert ready.messages == (query(1, -1),)
    follower.answer_epoch(-1, 0)
    assert [one.base_offset for one in follower.receive(batch(0, 3)).append] == [0]


# ---------------------------------------------------------------- streams


def test_every_new_stream_starts_with_the_look_up(follower: Driver) -> None:
    follower.receive(batch(0, 3))
    follower.written()
    assert follower.do(c.PeerLost(TWO)) is c.NOTHING
    assert not follower.machine.wants_tick
    assert follower.receive(batch(3)) is c.NOTHING
    assert follower.do(fc.PeerConnected(TWO)).messages == (query(1, 1),)


def test_a_new_stream_waits_for_writes_in_flight(follower: Driver) -> None:
    follower.receive(batch(0, 3))
    persist_id = follower.ready.persist_id
    follower.do(c.PeerLost(TWO))
    assert follower.do(fc.PeerConnected(TWO)).messages == ()
    assert follower.written(persist_id=persist_id).messages == (query(1, 1),)


def test_a_cut_goes_on_without_a_stream_and_the_look_up_starts_over(drive: Drive) -> None:
    for lost in (c.PeerLost(TWO), fc.PeerConnected(TWO)):
        driver = drive(90, **LOG)
        driver.assign(2, epoch=5)
        driver.written(synced=True)
        ready = driver.answer_epoch(4, 80, leader_epoch=5)
        assert driver.do(lost) is c.NOTHING
        driver.do(c.Truncated(c.RecoveredLog(log_end_offset=Offset(80), checkpoint=stored(ready))))
        driver.written(persist_id=ready.persist_id)
        assert driver.ready.messages == (query(5, 4),)


def test_refusals_and_missing_answers_are_asked_again_after_a_pause(follower: Driver) -> None:
    follower.do(fc.PeerConnected(TWO))
    assert follower.do(fc.PeerRefused(BrokerId(3), ClusterError("no"))) is c.NOTHING
    assert follower.do(fc.PeerRefused(TWO, ClusterError("no"))) is c.NOTHING
    assert follower.do(c.Tick()) is c.NOTHING
    follower.now_ms += 100
    assert follower.do(c.Tick()).messages == (query(1, -1),)
    follower.now_ms += 1_999
    assert follower.do(c.Tick()) is c.NOTHING
    follower.now_ms += 1
    assert follower.do(c.Tick()).messages == (query(1, -1),)


def refused_ms(follower: Driver) -> int:
    """How long it waits after a refusal before it asks again."""
    follower.do(fc.PeerRefused(TWO, ClusterError("the disk is broken")))
    for waited in range(0, 60_000, 100):
        if follower.do(c.Tick()).messages:
            return waited
        follower.now_ms += 100
    raise AssertionError("it does not ask again")


def test_pauses_get_longer_while_the_log_gets_no_further(follower: Driver) -> None:
    waits = [refused_ms(follower) for _ in range(7)]
    assert waits == [100, 200, 400, 800, 1_600, 3_200, 3_200]
    follower.answer_epoch(-1, 0)
    follower.receive(batch(0, 3))
    follower.written()
    assert [refused_ms(follower), refused_ms(follower)] == [100, 200], "it had got further"
    follower.do(fc.PeerConnected(TWO))
    assert refused_ms(follower) == 100, "the leader may be another run"


def test_other_peers_do_not_matter(follower: Driver) -> None:
    assert follower.do(fc.PeerConnected(BrokerId(3))) is c.NOTHING
    assert follower.do(c.PeerLost(BrokerId(3))) is c.NOTHING
    assert follower.receive(batch(0)).append != ()


def test_a_stream_lost_while_the_disk_fails_stays_lost(follower: Driver) -> None:
    follower.receive(batch(0, 3))
    persist_id = follower.ready.persist_id
    follower.do(c.PeerLost(TWO))
    assert follower.failed(persist_id) is c.NOTHING
    follower.now_ms += 5_000
    assert all(not isinstance(one, fc.SendEpochQuery) for one in follower.do(c.Tick()).messages)


def test_an_idle_follower_wants_no_ticks(follower: Driver) -> None:
    assert not follower.machine.wants_tick
