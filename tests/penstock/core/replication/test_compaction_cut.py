"""Truncation of a compacted log that lost writes.

A store cuts a compacted batch off whole, and the follower goes on where its log really ends. What
is cut off may have superseded records before it: then the log is copied anew.
"""

import pytest
from support.replica_driver import Drive

from penstock.core.replication import contract as c
from penstock.core.replication import contract_follower as fc
from penstock.core.types import BrokerId, LeaderEpoch, Offset, PartitionState

ME, TWO = BrokerId(1), BrokerId(2)


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


@pytest.mark.parametrize(
    ("intact", "compacts", "end", "truncate_to"),
    [
        (False, True, 80, 0),
        (False, True, 90, None),
        (False, False, 80, 80),
        (True, True, 80, 80),
    ],
    ids=["lost writes", "nothing to cut", "not compacted", "only what nobody has committed"],
)
def test_a_compacted_log_is_not_cut_where_it_may_lack_what_was_superseded(
    drive: Drive, *, intact: bool, compacts: bool, end: int, truncate_to: int | None
) -> None:
    epochs = ((1, 0), (3, 20), (4, 70))
    watermark = {"high_watermark": 75} if intact else {}
    driver = drive(90, intact=intact, epoch=4, epochs=epochs, **watermark)
    members = (ME, TWO)
    state = PartitionState(
        leader=TWO, leader_epoch=LeaderEpoch(5), isr=(TWO,), replicas=members, version=1
    )
    driver.do(c.Assigned(state, c.ReplicaConfig(compacts=compacts)))
    driver.written(synced=True)
    ready = driver.answer_epoch(4, end, leader_epoch=5)
    assert ready.truncate_to == truncate_to
    if truncate_to == 0:
        assert ready.checkpoint == c.Checkpoint(LeaderEpoch(5), c.UNPROMISED, Offset(0), ())
