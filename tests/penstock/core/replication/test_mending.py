"""What may be done about a damaged replica, and what never (I33)."""

from dataclasses import replace

import pytest
from support.replica_driver import batch

from penstock.core.batch import BatchFlags
from penstock.core.replication.follower import BrokenLogError, UnreadableLogError
from penstock.core.replication.mending import (
    MENDED_MAX,
    donors,
    is_mendable,
    may_open_again,
    may_rebuild,
)
from penstock.core.types import NO_LEADER, BrokerId, LeaderEpoch, PartitionState
from penstock.errors import ClusterError

LOCAL, LEADER, THIRD, FOURTH = (BrokerId(one) for one in range(4))
LIVE = frozenset({LOCAL, LEADER, THIRD, FOURTH})
MARKED = PartitionState(
    leader=LEADER,
    leader_epoch=LeaderEpoch(4),
    isr=(LEADER,),
    replicas=(LOCAL, THIRD, LEADER),
    version=9,
    damaged=(LOCAL,),
)
HEADER = batch(1).header


def test_few_batches_are_mended_and_no_compacted_one() -> None:
    assert is_mendable([HEADER] * MENDED_MAX)
    assert not is_mendable([HEADER] * (MENDED_MAX + 1))
    assert not is_mendable([HEADER, replace(HEADER, flags=BatchFlags.COMPACTED)])


def test_the_leader_is_asked_first_then_whoever_is_there_in_sync_or_not() -> None:
    assert donors(MARKED, LOCAL, LIVE) == (LEADER, THIRD)
    assert donors(MARKED, LOCAL, LIVE - {LEADER}) == (THIRD,)
    assert donors(replace(MARKED, leader=LOCAL), LOCAL, LIVE) == (THIRD, LEADER)
    moving = replace(MARKED, leader=NO_LEADER, dropping=(FOURTH,))
    assert donors(moving, LOCAL, LIVE) == (THIRD, LEADER, FOURTH)


def test_a_log_is_given_up_once_the_mark_is_stored_and_somebody_sound_leads() -> None:
    assert may_rebuild(MARKED, LOCAL, LIVE)


@pytest.mark.parametrize(
    "state",
    [
        replace(MARKED, damaged=()),
        replace(MARKED, isr=(LEADER, LOCAL)),
        replace(MARKED, damaged=(LOCAL, LEADER)),
        replace(MARKED, leader=NO_LEADER),
        replace(MARKED, leader=LOCAL, isr=(LOCAL,)),
    ],
    ids=["not marked", "has a seat", "leader damaged", "no leader", "leads"],
)
def test_a_log_that_may_be_the_only_one_is_never_given_up(state: PartitionState) -> None:
    assert not may_rebuild(state, LOCAL, LIVE)


def test_a_log_is_not_given_up_for_a_leader_that_is_not_there() -> None:
    assert not may_rebuild(MARKED, LOCAL, LIVE - {LEADER})


def test_who_only_copies_waits_for_the_controller_to_begin_the_copy_again() -> None:
    """Its leader may have proposed the switch on what it had acknowledged; then it is the log."""
    copies = replace(MARKED, replicas=(LEADER, THIRD), adding=(LOCAL,), damaged=())
    assert not may_rebuild(copies, LOCAL, LIVE)


def test_a_log_that_contradicts_the_leaders_is_left_for_a_person() -> None:
    broken = BrokenLogError("epoch 3 ends at 7 here, at 9 there")
    assert not may_open_again(broken, MARKED, LOCAL, before=False)
    assert may_open_again(UnreadableLogError("CRC"), MARKED, LOCAL, before=True)
    assert may_open_again(None, MARKED, LOCAL, before=True)


def test_a_defect_may_stop_a_replica_twice_and_then_for_good() -> None:
    defect = ClusterError("an assertion")
    assert may_open_again(defect, MARKED, LOCAL, before=False)
    assert not may_open_again(defect, MARKED, LOCAL, before=True)
    assert not may_open_again(defect, replace(MARKED, leader=LOCAL), LOCAL, before=False)
