"""Truncation of a compacted log that lost writes.

A store cuts a compacted batch off whole, and the follower goes on where its log really ends. What
is cut off may have superseded records before it: then the log is copied anew.
"""

from dataclasses import replace
from typing import Any

import pytest
from support.replica_driver import Drive, Driver, batch, recovered

from penstock.core.batch import BatchFlags
from penstock.core.replication import contract as c
from penstock.core.replication import contract_follower as fc
from penstock.core.replication.follower import BrokenLogError
from penstock.core.types import BrokerId, LeaderEpoch, Offset

TWO = BrokerId(2)


def compacted(compacted_end: int, end: int, **fields: Any) -> Driver:
    """Broker 1 over a log in which records are gone that others below an offset superseded."""
    return Driver(replace(recovered(end, **fields), compacted_end=Offset(compacted_end)))


def test_a_log_that_was_cut_further_than_asked_is_copied_from_there(drive: Drive) -> None:
    log = {"epoch": 4, "epochs": ((1, 0), (3, 20), (4, 70)), "high_watermark": 80}
    driver = drive(90, intact=False, **log)
    driver.assign(2, epoch=5)
    driver.written(synced=True)
    assert driver.answer_epoch(4, 80, leader_epoch=5).truncate_to == 80
    persist_id = driver.ready.persist_id
    starts = tuple(c.EpochStart(LeaderEpoch(e), Offset(at)) for e, at in ((1, 0), (3, 20), (4, 70)))
    stored = c.Checkpoint(LeaderEpoch(5), Offset(0), Offset(0), starts)
    driver.do(c.Truncated(c.RecoveredLog(log_end_offset=Offset(60), checkpoint=stored)))
    driver.written(persist_id=persist_id)
    ready = driver.written()
    assert ready.messages == (
        fc.SendFollowStart(TWO, LeaderEpoch(5), Offset(60), 1),
        fc.SendAck(TWO, LeaderEpoch(5), Offset(60), Offset(60)),
    )
    assert driver.machine.checkpoint.epochs == starts[:2], "no record of epoch 4 is left"


def test_what_was_cut_off_is_synced_again(drive: Drive) -> None:
    """A broker with `truncate_what_superseded` planted did not: seed 40 with `--blackouts`."""
    driver = drive(90, intact=False, epoch=4, epochs=((1, 0), (3, 20)), high_watermark=80)
    driver.assign(2, epoch=5)
    driver.written(synced=True)
    driver.assign(2, epoch=6, version=2)
    driver.written(synced=True)
    assert driver.answer_epoch(3, 80, leader_epoch=6).truncate_to == 80
    persist_id = driver.ready.persist_id
    starts = (c.EpochStart(LeaderEpoch(1), Offset(0)),)
    stored = c.Checkpoint(LeaderEpoch(6), Offset(0), Offset(0), starts)
    driver.do(c.Truncated(c.RecoveredLog(log_end_offset=Offset(60), checkpoint=stored)))
    driver.written(persist_id=persist_id)
    driver.written()
    ready = driver.receive(batch(20, base=60, epoch=3), epoch=6, sync_through=80)
    assert ready.persist_sync


@pytest.mark.parametrize(
    ("intact", "compacted_end", "end", "truncate_to"),
    [
        (False, 81, 80, 0),
        (False, 90, 90, None),
        (False, 80, 80, 80),
        (False, 0, 80, 80),
        (False, 91, 90, 0),
        (True, 80, 80, 80),
    ],
    ids=[
        "lost writes",
        "nothing to cut",
        "nothing that superseded any",
        "not compacted",
        "not copied as far",
        "only what nobody has committed",
    ],
)
def test_a_compacted_log_is_not_cut_where_it_may_lack_what_was_superseded(
    *, intact: bool, compacted_end: int, end: int, truncate_to: int | None
) -> None:
    epochs = ((1, 0), (3, 20), (4, 70))
    watermark = 75 if intact else c.UNPROMISED
    driver = compacted(compacted_end, 90, epoch=4, epochs=epochs, high_watermark=watermark)
    driver.assign(2, epoch=5)
    driver.written(synced=True)
    ready = driver.answer_epoch(4, end, leader_epoch=5)
    assert ready.truncate_to == truncate_to
    if truncate_to == 0:
        assert ready.checkpoint == c.Checkpoint(LeaderEpoch(5), c.UNPROMISED, Offset(0), ())


def test_what_a_pass_superseded_was_committed_whatever_is_stored_of_that() -> None:
    """The high watermark is stored once a second: a kill right after a pass leaves an older one."""
    driver = compacted(80, 90, epoch=4, epochs=((4, 0),), high_watermark=40)
    assert driver.marks.high_watermark == 80
    driver.assign(2, epoch=5)
    driver.written(synced=True)
    error = driver.answer_epoch(4, 60, leader_epoch=5).stopped
    assert isinstance(error, BrokenLogError)
    assert "only up to offset 60, but offsets below 80 were committed" in error.message


def test_nothing_was_committed_past_the_end_of_a_log() -> None:
    driver = compacted(80, 60, epoch=4, epochs=((4, 0),), high_watermark=40)
    assert driver.marks.high_watermark == 60


def test_a_follower_stores_how_far_what_it_copies_was_superseded(follower: Driver) -> None:
    ready = follower.receive(batch(3, epoch=1), epoch=1, high_watermark=40)
    assert ready.compacted_end is None
    whole = batch(2, base=3, epoch=1)
    part = replace(whole, header=replace(whole.header, flags=BatchFlags.COMPACTED))
    assert follower.receive(part, epoch=1, high_watermark=50).compacted_end == 50


def test_a_leader_that_lost_writes_knows_of_no_watermark(follower: Driver) -> None:
    """Until it has followers again. Stored as 0, it would lower what was known."""
    whole = batch(2, epoch=1)
    part = replace(whole, header=replace(whole.header, flags=BatchFlags.COMPACTED))
    assert follower.receive(part, epoch=1, high_watermark=0).compacted_end == 2


# ---------------------------------------------------------------- a part of a compacted log


def part_of(compacted_end: int, end: int) -> Driver:
    """Broker 1, which did not lose power, has copied a part of a compacted log in epoch 4."""
    return compacted(compacted_end, end, epoch=4, epochs=((1, 0), (3, 20)), high_watermark=end)


def test_a_part_of_a_compacted_log_goes_on_once_its_leader_has_the_rest() -> None:
    driver = part_of(80, 40)
    driver.assign(2, epoch=5)
    assert driver.ready.checkpoint is not None
    assert driver.ready.checkpoint.high_watermark == c.UNPROMISED, "unknown to a run after this one"
    driver.written(synced=True)
    asked = fc.SendEpochQuery(TWO, LeaderEpoch(5), LeaderEpoch(4))
    assert driver.answer_epoch(3, 60, leader_epoch=5).messages == (asked,)
    ready = driver.answer_epoch(4, 80, leader_epoch=5)
    assert ready.truncate_to is None
    assert ready.checkpoint is not None
    assert ready.checkpoint.high_watermark == 40
    assert driver.written().messages[0] == fc.SendFollowStart(TWO, LeaderEpoch(5), Offset(40), 1)


def test_a_part_is_copied_again_if_its_leader_has_lost_the_rest() -> None:
    """What it lost had superseded records that it still has, and that are gone here."""
    driver = part_of(80, 40)
    driver.assign(2, epoch=5)
    driver.written(synced=True)
    driver.answer_epoch(3, 60, leader_epoch=5)
    ready = driver.answer_epoch(4, 79, leader_epoch=5)
    assert ready.truncate_to == 0
    assert ready.checkpoint == c.Checkpoint(LeaderEpoch(5), c.UNPROMISED, Offset(0), ())


def test_a_part_is_not_checked_again_in_the_same_epoch() -> None:
    driver = part_of(80, 40)
    driver.assign(2, epoch=4)
    ready = driver.answer_epoch(3, 60, leader_epoch=4)
    assert ready.messages[0] == fc.SendFollowStart(TWO, LeaderEpoch(4), Offset(40), 1)


def test_a_part_that_met_another_epoch_before_a_restart_is_copied_again() -> None:
    """Which epoch it was copied in is no longer known."""
    epochs = ((1, 0), (3, 20))
    driver = compacted(80, 40, epoch=5, epochs=epochs, high_watermark=c.UNPROMISED)
    driver.assign(2, epoch=5)
    assert driver.answer_epoch(3, 60, leader_epoch=5).truncate_to == 0


def test_what_is_copied_makes_a_part_of_a_log(follower: Driver) -> None:
    whole = batch(2, epoch=1)
    part = replace(whole, header=replace(whole.header, flags=BatchFlags.COMPACTED))
    follower.receive(part, epoch=1, high_watermark=50)
    follower.written()
    follower.assign(2, epoch=2, version=2)
    assert follower.ready.checkpoint is not None
    assert follower.ready.checkpoint.high_watermark == c.UNPROMISED


def test_who_has_promised_again_and_knows_no_watermark_is_not_cut_either() -> None:
    """Its next leader has lost more than the one before."""
    epochs = ((1, 0), (4, 70))
    driver = compacted(85, 90, epoch=4, epochs=epochs, high_watermark=c.UNPROMISED)
    driver.assign(2, epoch=5)
    driver.written(synced=True)
    driver.answer_epoch(4, 95, leader_epoch=5)
    driver.written()
    assert driver.machine.checkpoint.high_watermark == 0, "promised"
    driver.assign(2, epoch=6, version=2)
    driver.written(synced=True)
    assert driver.answer_epoch(4, 80, leader_epoch=6).truncate_to == 0


def test_who_leads_a_part_has_all_there_is() -> None:
    driver = part_of(80, 40)
    driver.assign(1, epoch=5)
    driver.written(synced=True)
    driver.assign(2, epoch=6, version=2)
    driver.written(synced=True)
    ready = driver.answer_epoch(3, 40, leader_epoch=6)
    assert isinstance(ready.messages[0], fc.SendFollowStart)
