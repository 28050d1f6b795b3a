"""A store cuts a compacted batch off whole: the follower goes on where its log really ends."""

from support.replica_driver import Drive

from penstock.core.replication import contract as c
from penstock.core.replication import contract_follower as fc
from penstock.core.types import BrokerId, LeaderEpoch, Offset

TWO = BrokerId(2)


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
