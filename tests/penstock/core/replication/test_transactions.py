"""Transactions on a partition: who may begin here, what waits, and how each ends (I10, I12)."""

from dataclasses import replace
from typing import Any

import pytest
from support.replica_driver import TOO_LARGE, Drive, Driver

from penstock.core.batch import Batch, BatchFlags, build_marker
from penstock.core.replication import contract as c
from penstock.core.replication import contract_leader as lc
from penstock.core.replication.transactions import ENDS_MAX, LAST_EPOCH
from penstock.core.types import (
    NO_PRODUCER,
    TRANSACTIONAL_PRODUCER_BIT,
    Acks,
    LeaderEpoch,
    Offset,
    ProducerId,
    Sync,
)
from penstock.errors import ClusterError, ErrorCode

SEVEN = ProducerId(TRANSACTIONAL_PRODUCER_BIT + 7)
FENCED = ClusterError("another instance has taken over", ErrorCode.PRODUCER_FENCED)


def codes(driver: Driver) -> list[tuple[int, str]]:
    return [(request, word) for request, _, word in driver.outcomes()]


def appended(ready: c.Ready) -> list[tuple[int, int, int]]:
    """(base offset, producer epoch, flags) of every batch."""
    return [
        (one.base_offset, one.header.producer_epoch, int(one.header.flags)) for one in ready.append
    ]


@pytest.fixture
def opened(leader: Driver) -> Any:
    """A leader on which transaction 3 of producer 7 is open since offset 2; the HW is 5."""
    leader.produce(2)
    leader.commit()
    leader.transact(count=3)
    leader.joined()
    leader.commit()
    assert leader.outcomes() == [(2, 2, "ok")]
    assert (leader.marks.high_watermark, leader.marks.last_stable_offset) == (5, 2)
    return leader


# ---------------------------------------------------------------- begin


def test_the_first_batch_waits_until_the_coordinator_knows_of_the_partition(leader: Driver) -> None:
    ready = leader.transact(count=2)
    assert ready.joins == (lc.JoinRequest("billing", SEVEN, 3, 1),)
    assert (ready.append, ready.replies) == ((), ())
    assert leader.transact(2, count=2).joins == (), "the same guard"
    assert leader.transact(4).append == ()
    ready = leader.joined()
    assert appended(ready) == [(0, 3, 1), (2, 3, 1), (4, 3, 1)], "in order, in one write"
    assert (ready.persist_id, ready.joins) == (leader.machine._log.last_persist_id, ())
    leader.commit()
    assert leader.outcomes() == [(1, 0, "ok"), (2, 2, "ok"), (3, 4, "ok")]


def test_going_on_asks_nobody(opened: Driver) -> None:
    ready = opened.transact(3)
    assert (appended(ready), ready.joins) == ([(5, 3, 1)], ())
    opened.transact(0, count=3)
    assert opened.outcomes() == [(4, 2, "duplicate")]


def test_a_batch_that_is_not_the_first_begins_nothing(leader: Driver) -> None:
    ready = leader.transact(5)
    assert (ready.joins, codes(leader)) == ((), [(1, "OUT_OF_ORDER_SEQUENCE")])


def test_a_retry_behind_the_guard_lands_once(leader: Driver) -> None:
    leader.transact(count=2)
    leader.transact(count=2)
    assert appended(leader.joined()) == [(0, 3, 1)]
    leader.commit()
    assert leader.outcomes() == [(1, 0, "ok"), (2, 0, "duplicate")]


def test_a_refused_join_is_told_to_all_and_the_next_batch_asks_again(leader: Driver) -> None:
    leader.transact()
    leader.transact(1)
    ready = leader.joined(error=FENCED)
    assert [reply.error for reply in ready.replies] == [FENCED, FENCED]
    assert (ready.append, leader.marks.log_end_offset) == ((), 0)
    assert leader.joined().append == (), "its guard is gone"
    assert leader.transact().joins == (lc.JoinRequest("billing", SEVEN, 3, 2),)


def test_an_epoch_that_nobody_granted_disturbs_no_other(leader: Driver) -> None:
    leader.transact()
    assert leader.transact(epoch=9).joins[0].number == 2
    leader.joined(2, FENCED)
    assert codes(leader) == [(2, "PRODUCER_FENCED")]
    assert appended(leader.joined(1)) == [(0, 3, 1)]


def test_the_older_of_two_that_joined_hears_that_it_is_fenced(leader: Driver) -> None:
    leader.transact()
    leader.transact(epoch=4)
    leader.joined(2)
    leader.joined(1)
    assert codes(leader) == [(1, "PRODUCER_FENCED")]


def test_nothing_begins_while_the_producers_last_transaction_is_open(opened: Driver) -> None:
    assert opened.transact(epoch=4).joins[0].number == 2
    assert opened.joined(2).append == ()
    assert codes(opened) == [(3, "CONCURRENT_TRANSACTIONS")]
    assert "open here since offset 2" in str(opened.ready.replies[0].error)


@pytest.mark.parametrize(
    ("changes", "header", "message"),
    [
        ({"transactional_id": ""}, {}, "has no transactional id"),
        ({"acks": Acks.LEADER}, {}, "acks=LEADER"),
        ({}, {"flags": BatchFlags.NONE}, "flags 0x0"),
        ({}, {"flags": BatchFlags(3)}, "flags 0x3"),
        ({}, {"producer_id": ProducerId(7)}, "id 7, which no coordinator"),
        ({}, {"producer_epoch": LAST_EPOCH + 1}, "has epoch 2147483647"),
        ({}, {"producer_id": NO_PRODUCER, "flags": BatchFlags.NONE}, "flags 0x0"),
    ],
)
def test_what_belongs_to_a_transaction_says_so_everywhere(
    leader: Driver, changes: dict[str, Any], header: dict[str, Any], message: str
) -> None:
    leader.transact(count=2)
    request = lc.ProduceRequested(
        request_id=9,
        batch=Batch(
            replace(
                build_marker(SEVEN, 3, commit=True, timestamp_ms=0).header,
                **{"flags": BatchFlags.TRANSACTIONAL, "base_sequence": 0, **header},
            ),
            b"",
        ),
        acks=Acks.ALL,
        sync=Sync.OS,
        deadline_ms=9_000,
        transactional_id="billing",
    )
    ready = leader.do(replace(request, **changes))
    assert codes(leader) == [(9, "INVALID_REQUEST")]
    assert message in str(ready.replies[0].error)
    assert (ready.append, ready.joins) == ((), ())


def test_a_fenced_producer_hears_that_before_anything_else(opened: Driver) -> None:
    """Other errors are retried, or end a transaction that is over already (KAFKA-19690)."""
    opened.end()
    opened.assign(isr=(1,), version=2)
    opened.transact(99)
    assert codes(opened) == [(4, "PRODUCER_FENCED")]
    opened.transact(99, epoch=4)
    assert codes(opened) == [(5, "NOT_ENOUGH_REPLICAS")]


def test_what_changed_while_a_batch_waited_counts(leader: Driver) -> None:
    leader.transact()
    leader.assign(isr=(1,), version=2)
    assert leader.joined().append == ()
    assert codes(leader) == [(1, "NOT_ENOUGH_REPLICAS")]


def test_what_waits_for_a_coordinator_counts_as_waiting(leader: Driver) -> None:
    leader.assign(pending_max=2, version=2)
    leader.transact()
    leader.produce()
    leader.transact(1)
    assert codes(leader) == [(3, "OVERLOADED")]
    assert leader.machine.wants_tick


def test_a_deadline_takes_along_what_stands_behind(leader: Driver) -> None:
    """Without the batch before it none of these can land: they are tried again together."""
    leader.transact(timeout_ms=500)
    leader.transact(1, timeout_ms=100)
    leader.transact(2, timeout_ms=900)
    leader.transact(producer=8, timeout_ms=900)
    leader.now_ms += 99
    assert leader.do(c.Tick()).replies == ()
    leader.now_ms += 1
    leader.do(c.Tick())
    assert codes(leader) == [(2, "CONCURRENT_TRANSACTIONS"), (3, "CONCURRENT_TRANSACTIONS")]
    assert appended(leader.joined()) == [(0, 3, 1)], "the first one still waited"
    leader.now_ms += 800
    leader.do(c.Tick())
    assert codes(leader)[-1] == (4, "CONCURRENT_TRANSACTIONS")
    assert leader.joined(2).append == (), "nobody waits any more"


def test_what_waits_hears_when_the_leadership_ends(leader: Driver) -> None:
    leader.transact()
    leader.transact(1)
    leader.transact(producer=8)
    leader.assign(2, epoch=2, version=2)
    assert codes(leader) == [(1, "NOT_LEADER"), (2, "NOT_LEADER"), (3, "NOT_LEADER")]
    assert leader.joined().append == (), "nobody leads here"
    leader.written(persist_id=leader.machine._log.last_persist_id)
    leader.assign(1, epoch=3, version=3)
    leader.written(persist_id=leader.machine._log.last_persist_id)
    assert leader.transact().joins[0].number == 3, "numbers go on over leaderships"
    assert leader.joined(1).append == ()


# ---------------------------------------------------------------- end


def test_a_marker_is_answered_once_it_is_committed(opened: Driver) -> None:
    ready = opened.end()
    assert appended(ready) == [(5, 3, 0x0B)]
    assert (ready.append[0].header.max_timestamp_ms, ready.aborted) == (1_700_000_000_000, ())
    assert ready.replies == ()
    assert opened.marks.last_stable_offset == 2
    opened.commit()
    assert opened.outcomes() == [(3, 5, "ok")]
    assert (opened.ready.high_watermark, opened.ready.stable_offset) == (6, 6)


def test_an_abort_leaves_with_its_marker(opened: Driver) -> None:
    ready = opened.end(commit=False)
    assert appended(ready) == [(5, 3, 0x13)]
    (aborted,) = ready.aborted
    assert (aborted.marker_offset, aborted.first_offset, aborted.stable_offset) == (5, 2, 6)
    assert (aborted.producer_id, aborted.producer_epoch) == (SEVEN, 3)


def test_a_marker_is_appended_even_if_nothing_is_open(leader: Driver) -> None:
    """A leader that was deposed knows no better: "nothing open" would be a guess."""
    ready = leader.end(commit=False)
    assert (appended(ready), ready.aborted, ready.replies) == ([(0, 3, 0x13)], (), ())
    leader.commit()
    assert leader.outcomes() == [(1, 0, "ok")]


def test_a_repeated_end_waits_for_the_first_and_appends_nothing(opened: Driver) -> None:
    opened.end()
    ready = opened.end()
    assert (ready.append, ready.replies) == ((), ())
    opened.commit()
    assert opened.outcomes() == [(3, 5, "ok"), (4, 5, "duplicate")]
    opened.end(2)
    assert opened.outcomes() == [(5, 5, "duplicate")], "an older one too"


def test_a_repeated_end_is_known_in_the_next_transaction(opened: Driver) -> None:
    opened.end()
    opened.commit()
    opened.transact(epoch=4)
    opened.joined(2)
    opened.commit()
    opened.end(3)
    assert opened.outcomes() == [(5, 5, "duplicate")]
    assert [one.open_offset for one in opened.machine.open_transactions] == [6]


def test_an_end_whose_marker_nobody_remembers_waits_for_all_there_is(drive: Drive) -> None:
    entry = c.ProducerEntry(
        producer_id=SEVEN,
        producer_epoch=4,
        batches=(c.SequencedBatch(0, 0, Offset(3)),),
        last_timestamp_ms=0,
    )
    driver = drive(5, producers=(entry,))
    driver.assign()
    driver.written(synced=True)
    driver.follow(2, 4)
    driver.follow(3, 5)
    assert driver.end(3).append == ()
    assert driver.ready.replies == ()
    driver.ack(2, 5)
    assert driver.outcomes() == [(1, -1, "duplicate")]


def test_nothing_is_appended_behind_the_marker_that_a_join_was_asked_before(leader: Driver) -> None:
    """Asked to join, then aborted by timeout, then the late answer (KAFKA-14884)."""
    leader.transact()
    leader.transact(1)
    leader.transact(epoch=4)
    leader.transact(epoch=2)
    ready = leader.end(commit=False)
    assert appended(ready) == [(0, 3, 0x13)]
    assert codes(leader) == [(4, "PRODUCER_FENCED"), (1, "PRODUCER_FENCED"), (2, "PRODUCER_FENCED")]
    assert leader.joined(1).append == ()
    assert leader.joined(3).append == ()
    assert appended(leader.joined(2)) == [(1, 4, 1)], "the next transaction goes on"


def test_a_late_batch_of_an_ended_transaction_is_fenced(opened: Driver) -> None:
    opened.end()
    assert opened.transact(3).append == ()
    assert codes(opened) == [(4, "PRODUCER_FENCED")]


def test_an_end_that_cannot_be_replicated_is_refused_but_fences(leader: Driver) -> None:
    leader.transact()
    leader.assign(isr=(1,), version=2)
    assert leader.end().append == ()
    assert codes(leader) == [(1, "PRODUCER_FENCED"), (2, "NOT_ENOUGH_REPLICAS")]


def test_ends_are_let_in_when_produce_requests_are_not(leader: Driver) -> None:
    leader.assign(pending_max=1, version=2)
    leader.produce()
    assert len(leader.end().append) == 1
    leader.assign(pending_max=2 - ENDS_MAX, version=3)
    leader.end(producer=8)
    assert codes(leader) == [(3, "OVERLOADED")]


def test_an_end_goes_to_the_leader(leader: Driver, follower: Driver) -> None:
    follower.end()
    assert codes(follower) == [(1, "NOT_LEADER")]
    leader.end(expected_epoch=9)
    assert codes(leader) == [(1, "UNKNOWN_LEADER_EPOCH")]


@pytest.mark.parametrize(
    ("producer", "epoch"),
    [(7 - TRANSACTIONAL_PRODUCER_BIT, 3), (7, -1), (7, LAST_EPOCH + 1)],
)
def test_an_end_names_a_transaction(leader: Driver, producer: int, epoch: int) -> None:
    leader.end(epoch, producer=producer)
    assert codes(leader) == [(1, "INVALID_REQUEST")]


def test_a_marker_can_be_asked_to_be_on_disk(opened: Driver) -> None:
    ready = opened.end(sync=Sync.DISK)
    assert ready.persist_sync
    opened.commit()
    assert opened.outcomes() == []
    ready = opened.end(sync=Sync.DISK)
    assert (ready.persist_sync, ready.append) == (True, ())
    opened.written(synced=True, persist_id=ready.persist_id)
    assert opened.outcomes() == [(3, 5, "ok"), (4, 5, "duplicate")]


def test_an_end_that_waits_too_long_has_an_unknown_outcome(opened: Driver) -> None:
    opened.end(timeout_ms=50)
    opened.now_ms += 50
    opened.do(c.Tick())
    assert codes(opened) == [(3, "REQUEST_TIMED_OUT")]


# ---------------------------------------------------------------- failures, other leaders


def test_a_failed_write_undoes_what_it_began_and_what_it_ended(opened: Driver) -> None:
    marker = opened.end(commit=False).persist_id
    opened.transact(epoch=4)
    opened.joined(2)
    assert opened.machine.open_transactions[0].open_offset == 6
    opened.failed(marker)
    assert codes(opened) == [(3, "DISK_FULL"), (4, "DISK_FULL")]
    assert [one.open_offset for one in opened.machine.open_transactions] == [2]
    assert [one.number for one in opened.transact(3).joins] == [3], "the coordinator had decided"
    opened.joined(3)
    assert opened.outcomes() == [], "it is open again"
    ready = opened.end(commit=False)
    assert [one.first_offset for one in ready.aborted] == [2]
    opened.commit()
    assert opened.marks.last_stable_offset == 7


def test_a_new_leader_goes_on_with_what_is_open(drive: Drive) -> None:
    entry = c.ProducerEntry(
        producer_id=SEVEN,
        producer_epoch=3,
        batches=(c.SequencedBatch(0, 0, Offset(3)),),
        last_timestamp_ms=0,
        open_offset=Offset(3),
    )
    driver = drive(5, producers=(entry,), high_watermark=5)
    assert driver.marks.last_stable_offset == 3, "before any header is seen"
    driver.assign()
    driver.written(synced=True)
    ready = driver.transact(1)
    assert (ready.append, ready.joins) == ((), (lc.JoinRequest("billing", SEVEN, 3, 1),))
    driver.transact(2)
    assert appended(driver.joined()) == [(5, 3, 1), (6, 3, 1)], "it asked once, in this leadership"
    ready = driver.transact(3)
    assert (appended(ready), ready.joins) == ([(7, 3, 1)], ())


# ---------------------------------------------------------------- claims of others


def test_another_transactional_id_adds_nothing_to_an_open_transaction(opened: Driver) -> None:
    ready = opened.transact(3, transactional_id="thief")
    assert (ready.append, ready.joins) == ((), (lc.JoinRequest("thief", SEVEN, 3, 2),))
    assert appended(opened.transact(3)) == [(5, 3, 1)], "the owner does not notice"
    ready = opened.joined(2, FENCED)
    assert (ready.append, codes(opened)) == ((), [(3, "PRODUCER_FENCED")])
    assert appended(opened.transact(4)) == [(6, 3, 1)]


def test_another_transactional_id_does_not_stand_in_the_way(leader: Driver) -> None:
    leader.transact(transactional_id="thief")
    assert leader.transact().joins == (lc.JoinRequest("billing", SEVEN, 3, 2),)
    leader.joined(1, FENCED)
    assert codes(leader) == [(1, "PRODUCER_FENCED")]
    assert appended(leader.joined(2)) == [(0, 3, 1)]


def test_a_follower_knows_what_its_leader_knows(follower: Driver) -> None:
    header = replace(
        build_marker(SEVEN, 3, commit=True, timestamp_ms=0).header,
        flags=BatchFlags.TRANSACTIONAL,
        base_sequence=0,
    )
    data = Batch(header, b"x").stamped(Offset(0), LeaderEpoch(1), 0)
    marker = build_marker(SEVEN, 3, commit=False, timestamp_ms=0)
    follower.receive(data)
    follower.written()
    follower.receive(high_watermark=1)
    assert (follower.ready.high_watermark, follower.ready.stable_offset) == (1, None)
    ready = follower.receive(marker.stamped(Offset(1), LeaderEpoch(1), 0), high_watermark=2)
    assert [(one.first_offset, one.marker_offset) for one in ready.aborted] == [(0, 1)]
    ready = follower.written()
    assert (ready.high_watermark, ready.stable_offset) == (2, 2)


def test_the_log_start_stops_at_the_stable_offset(opened: Driver) -> None:
    opened.do(lc.LogStartMoved(Offset(4)))
    assert opened.marks.log_start_offset == 2
    opened.end()
    opened.commit()
    opened.do(lc.LogStartMoved(Offset(4)))
    assert opened.marks.log_start_offset == 4


def test_what_the_settings_of_now_refuse_does_not_join_a_transaction(leader: Driver) -> None:
    ready = leader.transact(refusal=TOO_LARGE)
    assert (ready.joins, codes(leader)) == ((), [(1, "RECORD_TOO_LARGE")])


def test_a_retry_in_a_transaction_is_acknowledged_whatever_the_settings_are(
    opened: Driver,
) -> None:
    opened.transact(count=3, refusal=TOO_LARGE)
    assert [word for _, word in codes(opened)][-1] == "duplicate"
    opened.transact(3, refusal=TOO_LARGE)
    assert [word for _, word in codes(opened)][-1] == "RECORD_TOO_LARGE"


def test_idempotent_producers_are_asked_nothing(leader: Driver) -> None:
    ready = leader.produce(2, producer=7, sequence=0)
    assert (len(ready.append), ready.joins, ready.aborted) == (1, (), ())
    leader.commit()
    assert (leader.ready.high_watermark, leader.ready.stable_offset) == (2, 2)


@pytest.mark.parametrize("count", [1, 3])
def test_a_duplicate_behind_a_guard_may_want_a_sync_of_its_own(leader: Driver, count: int) -> None:
    for _ in range(count):
        leader.transact(sync=Sync.DISK)
    ready = leader.joined()
    assert (len(ready.append), ready.persist_sync) == (1, True)
    leader.written(synced=True, persist_id=ready.persist_id)
    leader.ack(2, 1, synced=1)
    leader.ack(3, 1, synced=1)
    assert [word for _, word in codes(leader)] == ["ok"] + ["duplicate"] * (count - 1)
