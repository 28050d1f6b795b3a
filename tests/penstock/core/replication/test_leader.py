"""What a leader does: acknowledgements, the high watermark, ISR changes, failures of its disk."""

from collections.abc import Callable
from typing import Any

import pytest
from support.replica_driver import TOO_LARGE, Drive, Driver, refused, stored

from penstock.core.batch import Batch, BatchHeader
from penstock.core.replication import contract as c
from penstock.core.replication import contract_follower as fc
from penstock.core.replication import contract_leader as lc
from penstock.core.types import Acks, BrokerId, LeaderEpoch, Offset, ProducerId, Sync
from penstock.errors import ErrorCode, NotLeaderError, OffsetOutOfRangeError

TWO, THREE = BrokerId(2), BrokerId(3)
NONE, ONE, ALL = Acks.NONE, Acks.LEADER, Acks.ALL


# ---------------------------------------------------------------- acknowledgements


def test_acks_none_is_answered_at_once_without_an_offset(leader: Driver) -> None:
    ready = leader.produce(acks=NONE, sync=Sync.DISK)
    assert leader.outcomes() == [(1, -1, "ok")]
    assert not ready.persist_sync
    assert [one.base_offset for one in ready.append] == [0]


def test_acks_leader_waits_for_the_own_disk_only(leader: Driver) -> None:
    leader.produce(3, acks=ONE)
    assert leader.outcomes() == []
    leader.written()
    assert leader.outcomes() == [(1, 0, "ok")]
    assert leader.marks.high_watermark == 0


def test_acks_leader_with_disk_waits_for_the_sync(leader: Driver) -> None:
    first = leader.produce(acks=ONE, sync=Sync.DISK).persist_id
    assert leader.ready.persist_sync
    leader.written(persist_id=first)
    assert leader.outcomes() == []
    leader.produce(acks=ONE)
    leader.written(synced=True)
    assert sorted(leader.outcomes()) == [(1, 0, "ok"), (2, 1, "ok")]


def test_acks_all_waits_for_every_member_of_the_isr(leader: Driver) -> None:
    leader.produce(5)
    leader.written()
    leader.ack(2, 5)
    assert leader.outcomes() == []
    assert leader.marks.high_watermark == 0
    leader.ack(3, 5)
    assert leader.outcomes() == [(1, 0, "ok")]
    assert leader.ready.high_watermark == 5
    reply = leader.ready.replies[0]
    assert (reply.acks, reply.sync, reply.leader_epoch) == (ALL, Sync.OS, 1)


def test_acks_all_with_disk_waits_for_every_sync_and_asks_followers_for_theirs(
    leader: Driver,
) -> None:
    leader.produce(5, sync=Sync.DISK)
    assert leader.marks.sync_through == 5
    leader.written(synced=True)
    leader.ack(2, 5, synced=5)
    leader.ack(3, 5, synced=0)
    assert leader.marks.high_watermark == 5
    assert leader.outcomes() == []
    leader.ack(3, 5, synced=5)
    assert leader.outcomes() == [(1, 0, "ok")]
    assert leader.marks.sync_through == 0


def test_a_disk_acknowledgement_needs_a_large_enough_isr_even_when_committed(
    leader: Driver,
) -> None:
    leader.produce(5, sync=Sync.DISK)
    leader.written(synced=True)
    leader.ack(2, 5, synced=0)
    leader.ack(3, 5, synced=0)
    leader.assign(isr=(1,), version=2)
    assert leader.outcomes() == []
    leader.assign(isr=(1, 2), version=3)
    leader.ack(2, 5, synced=5)
    assert leader.outcomes() == [(1, 0, "ok")]


def test_replies_come_in_order_of_offsets_and_ride_on_one_ack(leader: Driver) -> None:
    for _ in range(3):
        leader.produce(2)
    leader.written()
    leader.ack(2, 6)
    leader.ack(3, 4)
    assert leader.outcomes() == [(1, 0, "ok"), (2, 2, "ok")]


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("expected_epoch", "code"),
    [
        (1, None),
        (0, None),
        (2, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_the_epoch_a_producer_names_is_checked(
    leader: Driver, expected_epoch: int, code: ErrorCode | None
) -> None:
    leader.produce(acks=NONE, expected_epoch=expected_epoch)
    error = leader.ready.replies[0].error
    assert (error.code if error else None) == code


def test_an_older_epoch_is_fenced_and_told_the_leader(leader: Driver) -> None:
    leader.assign(epoch=4, version=2)
    leader.produce(expected_epoch=1)
    error = leader.ready.replies[0].error
    assert isinstance(error, NotLeaderError)
    assert error.code is ErrorCode.FENCED_LEADER_EPOCH
    assert error.leader is not None
    assert (error.leader.broker_id, error.leader.leader_epoch) == (1, 4)


def test_with_too_few_in_sync_nothing_is_appended_for_acks_all(leader: Driver) -> None:
    leader.assign(isr=(1,), version=2)
    ready = leader.produce()
    assert leader.outcomes() == [(1, -1, "NOT_ENOUGH_REPLICAS")]
    assert ready.append == ()
    assert leader.marks.log_end_offset == 0
    leader.produce(acks=ONE)
    leader.written()
    assert leader.outcomes() == [(2, 0, "ok")]
    assert leader.marks.high_watermark == 0, "nothing is committed by a single replica"


def test_the_minimum_is_never_more_than_there_are_replicas(drive: Callable[..., Any]) -> None:
    alone = drive()
    alone.assign(isr=(1,), replicas=(1,), min_isr=2)
    alone.written(synced=True)
    alone.produce(3)
    alone.written()
    assert alone.outcomes() == [(1, 0, "ok")]
    assert alone.marks.high_watermark == 3


def test_the_number_of_waiting_requests_is_bounded(leader: Driver) -> None:
    leader.assign(pending_max=2)
    leader.produce()
    leader.produce()
    ready = leader.produce()
    assert leader.outcomes() == [(3, -1, "OVERLOADED")]
    assert ready.append == ()


def test_a_request_that_waits_too_long_has_an_unknown_outcome(leader: Driver) -> None:
    leader.produce(timeout_ms=500)
    leader.produce(timeout_ms=900)
    leader.written()
    assert leader.machine.wants_tick
    leader.now_ms += 499
    assert leader.do(c.Tick()).replies == ()
    leader.now_ms += 1
    leader.do(c.Tick())
    assert leader.outcomes() == [(1, -1, "REQUEST_TIMED_OUT")]
    leader.ack(2, 2)
    leader.ack(3, 2)
    assert leader.outcomes() == [(2, 1, "ok")], "the first was committed too, but is answered"


def test_a_leader_that_is_replaced_leaves_requests_with_an_unknown_outcome(leader: Driver) -> None:
    leader.produce()
    leader.written()
    ready = leader.assign(2, epoch=2, version=2)
    assert leader.outcomes() == [(1, -1, "NOT_LEADER")]
    assert ready.role_changed
    assert {feed.follower for feed in ready.feeds} == {TWO, THREE}
    assert all(feed.from_offset is None for feed in ready.feeds)
    leader.produce()
    error = leader.ready.replies[0].error
    assert isinstance(error, NotLeaderError)
    assert error.leader is not None
    assert error.leader.broker_id == 2


# ---------------------------------------------------------------- idempotence


def test_a_retry_is_acknowledged_only_when_the_original_may_be(leader: Driver) -> None:
    leader.produce(3, producer=7, sequence=0)
    leader.produce(3, producer=7, sequence=0)
    assert leader.ready.append == ()
    leader.written(persist_id=2)
    leader.ack(2, 3)
    assert leader.outcomes() == []
    leader.ack(3, 3)
    assert leader.outcomes() == [(1, 0, "ok"), (2, 0, "duplicate")]


def test_a_retry_of_what_is_committed_is_answered_at_once(leader: Driver) -> None:
    leader.produce(3, producer=7, sequence=0)
    leader.written()
    leader.ack(2, 3)
    leader.ack(3, 3)
    leader.produce(3, producer=7, sequence=0)
    assert leader.outcomes() == [(2, 0, "duplicate")]
    leader.produce(3, producer=7, sequence=0, acks=NONE)
    assert leader.outcomes() == [(3, -1, "ok")]


def test_a_retry_for_disk_syncs_what_was_only_written(leader: Driver) -> None:
    leader.produce(3, producer=7, sequence=0, acks=ONE)
    leader.written()
    ready = leader.produce(3, producer=7, sequence=0, acks=ONE, sync=Sync.DISK)
    assert ready.persist_sync
    assert ready.checkpoint is not None
    leader.written(synced=True)
    assert leader.outcomes() == [(2, 0, "duplicate")]


def test_what_the_settings_of_now_refuse_is_acknowledged_if_it_is_in_the_log(
    leader: Driver,
) -> None:
    """A retry, and max.message.bytes was lowered since."""
    leader.produce(3, producer=7, sequence=0)
    leader.written()
    leader.ack(2, 3)
    leader.ack(3, 3)
    leader.produce(3, producer=7, sequence=0, refusal=TOO_LARGE)
    assert leader.outcomes() == [(2, 0, "duplicate")]
    for sequence, outcome in ((3, "RECORD_TOO_LARGE"), (9, "OUT_OF_ORDER_SEQUENCE")):
        ready = leader.produce(3, producer=7, sequence=sequence, refusal=TOO_LARGE)
        assert ready.append == ()
        assert leader.outcomes()[0][2] == outcome
    leader.produce(refusal=TOO_LARGE)
    assert leader.outcomes()[0][2] == "RECORD_TOO_LARGE"


def test_who_does_not_lead_refuses_nothing_for_good(follower: Driver) -> None:
    """It may not have heard that the limit was raised."""
    follower.produce(producer=7, sequence=0, refusal=TOO_LARGE)
    assert follower.outcomes() == [(1, -1, "NOT_LEADER")]


def test_gaps_are_refused(leader: Driver) -> None:
    leader.produce(3, producer=7, sequence=5)
    assert leader.outcomes() == [(1, -1, "OUT_OF_ORDER_SEQUENCE")]


def test_a_new_leader_knows_the_producers_it_followed(follower: Driver) -> None:
    from_leader = [one.stamped(Offset(0), LeaderEpoch(1), 0) for one in _batches(7, 3)]
    follower.receive(*from_leader)
    follower.written()
    follower.assign(1, epoch=2, version=2)
    follower.written(synced=True)
    follower.produce(3, producer=7, sequence=0, acks=ONE)
    assert follower.outcomes() == [(1, 0, "duplicate")]
    assert [entry.producer_id for entry in follower.machine.producers] == [7]


def _batches(producer: int, count: int) -> list[Any]:
    header = BatchHeader(
        count, 0, 0, 0, 0, producer_id=ProducerId(producer), producer_epoch=0, base_sequence=0
    )
    return [Batch(header, b"")]


# ---------------------------------------------------------------- a failing disk


def test_a_full_disk_fails_what_waits_and_the_leader_goes_on(leader: Driver) -> None:
    first = leader.produce(2, producer=7, sequence=0).persist_id
    second = leader.produce(3, producer=7, sequence=2, acks=ONE).persist_id
    leader.produce(producer=8, sequence=0)
    leader.written(persist_id=first)
    leader.failed(second)
    assert leader.outcomes() == [(2, -1, "DISK_FULL"), (3, -1, "DISK_FULL")]
    assert leader.marks.is_leader
    assert leader.marks.log_end_offset == leader.marks.written_end == 2
    assert leader.written(persist_id=second + 1) is c.NOTHING, "a report of a dropped write"
    leader.produce(3, producer=7, sequence=2, acks=ONE)
    assert [one.base_offset for one in leader.ready.append] == [2], "as if it was never sent"
    leader.produce(producer=8, sequence=0, acks=NONE)
    assert leader.outcomes() == [(5, -1, "ok")]


def test_a_retry_of_a_batch_that_failed_fails_with_it(leader: Driver) -> None:
    first = leader.produce(2, producer=7, sequence=0).persist_id
    leader.produce(2, producer=7, sequence=0)
    leader.failed(first)
    assert leader.outcomes() == [(1, -1, "DISK_FULL"), (2, -1, "DISK_FULL")]


def test_a_checkpoint_that_failed_is_tried_again_later(drive: Callable[..., Any]) -> None:
    driver = drive()
    first = driver.assign().persist_id
    driver.failed(first)
    assert driver.machine.wants_tick
    driver.now_ms += 999
    assert driver.do(c.Tick()).checkpoint is None
    driver.now_ms += 1
    ready = driver.do(c.Tick())
    assert ready.persist_sync
    assert stored(ready).leader_epoch == 1


# ---------------------------------------------------------------- followers


def test_batches_are_not_written_before_the_checkpoint_of_their_epoch(
    drive: Callable[..., Any],
) -> None:
    """The checkpoint fails together with a batch that shares its write. Later the disk has room."""
    driver = drive()
    first = driver.assign().persist_id
    driver.produce(1)
    driver.failed(first)
    ready = driver.produce(1)
    assert [batch.base_offset for batch in ready.append] == [0]
    assert stored(ready).epochs[-1] == c.EpochStart(LeaderEpoch(1), Offset(0))
    assert ready.persist_sync
    driver.failed(ready.persist_id)
    assert driver.produce(1).checkpoint is not None
    assert driver.produce(1).checkpoint is None
    driver.now_ms += 60_000
    assert driver.do(c.Tick()).checkpoint is None


def test_a_follower_is_told_where_its_epoch_ends_and_fed_from_its_log_end(
    drive: Callable[..., Any],
) -> None:
    driver = drive(90, epoch=4, epochs=((1, 0), (3, 20), (4, 70)), high_watermark=60)
    driver.assign(epoch=5)
    driver.written(synced=True)
    ready = driver.do(lc.EpochQueried(TWO, LeaderEpoch(5), LeaderEpoch(3)))
    assert ready.messages == (
        lc.SendEpochAnswer(
            follower=TWO,
            leader_epoch=LeaderEpoch(5),
            epoch=LeaderEpoch(3),
            end_offset=Offset(70),
            log_start_offset=Offset(0),
        ),
    )
    ready = driver.do(lc.FollowStarted(TWO, LeaderEpoch(5), Offset(70)))
    assert ready.feeds == (lc.Feed(TWO, LeaderEpoch(5), Offset(70)),)
    again = driver.do(lc.EpochQueried(TWO, LeaderEpoch(5), LeaderEpoch(5)))
    assert again.feeds == (lc.Feed(TWO, LeaderEpoch(5), None),), "nothing old behind the answer"


def test_followers_of_other_epochs_and_strangers_are_refused(leader: Driver) -> None:
    leader.assign(epoch=3, version=2)
    leader.written(synced=True)
    ready = leader.do(lc.EpochQueried(TWO, LeaderEpoch(1), LeaderEpoch(-1)))
    assert refused(ready).code is ErrorCode.FENCED_LEADER_EPOCH
    ready = leader.do(lc.FollowStarted(TWO, LeaderEpoch(9), Offset(0)))
    assert refused(ready).code is ErrorCode.NOT_LEADER
    ready = leader.do(lc.FollowStarted(BrokerId(9), LeaderEpoch(3), Offset(0)))
    assert refused(ready).code is ErrorCode.INELIGIBLE_REPLICA


def test_a_follower_that_starts_outside_the_log_looks_up_again(leader: Driver) -> None:
    ready = leader.do(lc.FollowStarted(TWO, LeaderEpoch(1), Offset(5)))
    assert ready.feeds == (lc.Feed(TWO, LeaderEpoch(1), None),)
    assert isinstance(refused(ready), OffsetOutOfRangeError)


def test_a_query_that_comes_before_the_leader_knows_its_epoch_is_kept(drive: Drive) -> None:
    driver = drive()
    driver.assign(2)
    driver.written(synced=True)
    assert driver.do(lc.EpochQueried(TWO, LeaderEpoch(2), LeaderEpoch(1))).messages == ()
    assert driver.do(lc.EpochQueried(THREE, LeaderEpoch(3), LeaderEpoch(1))).messages == ()
    ready = driver.assign(1, epoch=2, version=2)
    answered = [one for one in ready.messages if isinstance(one, lc.SendEpochAnswer)]
    assert [one.follower for one in answered] == [TWO]
    ready = driver.assign(2, epoch=3, version=3)
    driver.written(persist_id=2, synced=True)
    refused = [one for one in driver.ready.messages if isinstance(one, lc.SendRefusal)]
    assert [one.follower for one in refused] == [THREE]


def test_a_kept_query_goes_with_its_stream(drive: Drive) -> None:
    driver = drive()
    driver.assign(2)
    driver.written(synced=True)
    driver.do(lc.EpochQueried(THREE, LeaderEpoch(2), LeaderEpoch(1)))
    driver.do(c.PeerLost(THREE))
    ready = driver.assign(1, epoch=2, version=2)
    assert [type(one) for one in ready.messages] == [fc.SendFollowStop]


def test_acks_of_another_epoch_or_without_a_stream_do_not_count(leader: Driver) -> None:
    leader.produce(5)
    leader.written()
    leader.ack(2, 5)
    assert leader.ack(3, 5, epoch=0) is c.NOTHING
    assert leader.ack(3, 6) is c.NOTHING, "more than the leader has"
    assert leader.do(c.PeerLost(THREE)).feeds == (lc.Feed(THREE, LeaderEpoch(1), None),)
    assert leader.ack(3, 5) is c.NOTHING
    assert leader.marks.high_watermark == 0
    leader.follow(3, 5)
    assert leader.marks.high_watermark == 5


def test_acks_to_an_earlier_leadership_do_not_count_in_the_next(leader: Driver) -> None:
    leader.produce(5)
    leader.written()
    leader.ack(2, 5)
    leader.assign(2, epoch=2, version=2)
    leader.written(synced=True)
    leader.assign(1, epoch=3, version=3)
    leader.written(synced=True)
    leader.follow(3, 5, epoch=3)
    assert leader.marks.high_watermark == 0
    leader.ack(2, 5, epoch=1)
    assert leader.marks.high_watermark == 0
    leader.follow(2, 5, epoch=3)
    assert leader.marks.high_watermark == 5


# ---------------------------------------------------------------- log start


def test_retention_moves_the_log_start_but_never_past_the_high_watermark(leader: Driver) -> None:
    leader.produce(5)
    leader.written()
    leader.ack(2, 5)
    leader.ack(3, 5)
    leader.produce(5)
    leader.written()
    ready = leader.do(lc.LogStartMoved(Offset(9)))
    assert stored(ready).log_start_offset == 5
    assert not ready.persist_sync, "it may come back after a power loss"
    assert leader.marks.log_start_offset == 5
    leader.written()
    assert leader.do(lc.LogStartMoved(Offset(3))) is c.NOTHING


def test_only_a_leader_moves_the_log_start(follower: Driver) -> None:
    assert follower.do(lc.LogStartMoved(Offset(1))) is c.NOTHING
