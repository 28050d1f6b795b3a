"""Moving replicas: every row of the table in ADR 64, on a machine."""

from dataclasses import replace

import pytest
from support.controller_world import World
from support.moving import (
    alter,
    cancel,
    caught_up,
    change,
    copying,
    document,
    dropped,
    ids,
    move,
    moving_world,
    refused,
    report,
)

from penstock.core.control import contract as c
from penstock.core.control import move_contract as m
from penstock.core.control import move_requests
from penstock.core.control.documents import decode_topic, topic_key
from penstock.core.limits import REPLICA_CHANGES_MAX
from penstock.core.types import BrokerId, LeaderEpoch, MoveReason, ReplicaKey, TopicId
from penstock.errors import Applied, ErrorCode, PenstockError

QUEUED, COPYING, SETTLED = m.MoveState.QUEUED, m.MoveState.COPYING, m.MoveState.SETTLED


# ---------------------------------------------------------------- asked for


def test_a_move_is_queued_with_its_target_and_nothing_else_changes() -> None:
    world = moving_world()
    before = document(world).state
    outcome = move(world, 3, 1, 2, why=MoveReason.DRAIN)
    assert outcome.error is None
    assert (outcome.state, outcome.replicas, outcome.target) == (
        QUEUED, ids(0, 1, 2), ids(3, 1, 2)
    )  # fmt: skip
    found = document(world)
    assert (found.state, found.target, found.why) == (before, ids(3, 1, 2), MoveReason.DRAIN)


def test_the_same_replicas_in_another_order_are_settled_at_once() -> None:
    world = moving_world(min_insync_replicas="3")
    world.alter_isr(0, (0, 2))
    outcome = move(world, 2, 1, 0)
    assert (outcome.state, outcome.target) == (SETTLED, ())
    found = document(world)
    assert found.state.replicas == ids(2, 1, 0)
    assert (found.state.isr, found.elr, found.state.leader) == (ids(2, 0), ids(1), 0)
    assert move(world, 2, 1, 0).error is None
    assert document(world) == found, "nothing is left to do"


def test_a_smaller_set_is_switched_to_at_once_if_enough_of_it_is_in_sync() -> None:
    world = moving_world()
    outcome = move(world, 1, 2, change_factor=True)
    assert (outcome.state, outcome.replicas) == (SETTLED, ids(1, 2))
    state = document(world).state
    assert (state.replicas, state.isr, state.dropping) == (ids(1, 2), ids(1, 2), ids(0))
    assert (state.leader, state.leader_epoch) == (1, 2)


def test_a_smaller_set_waits_until_enough_of_it_is_in_sync() -> None:
    world = moving_world()
    world.alter_isr(0, (0,))
    outcome = move(world, 1, 2, change_factor=True)
    assert (outcome.state, outcome.replicas) == (QUEUED, ids(0, 1, 2))
    world.pass_time(2_100)
    assert document(world).state.replicas == ids(0, 1, 2)
    world.alter_isr(0, (0, 1))
    world.pass_time(1_100)
    assert document(world).state.replicas == ids(0, 1, 2), "two are in sync, so two must stay"
    world.alter_isr(0, (0, 1, 2))
    world.pass_time(1_100)
    state = document(world).state
    assert (state.replicas, state.leader, state.leader_epoch) == (ids(1, 2), 1, 2)
    assert document(world).target == ()


def test_the_same_target_again_changes_nothing_whatever_is_expected() -> None:
    world = moving_world()
    copying(world, 3, 1, 2)
    before = document(world)
    again = alter(world, change(world, 3, 1, 2, expected=ids(4))).outcomes[0]
    assert (again.error, again.state) == (None, COPYING)
    assert document(world) == before


def test_that_there_is_nothing_to_do_is_what_the_store_says() -> None:
    """A former controller has stored another order beside the take-over of this one."""
    world = moving_world()
    text, version = world.documents.texts[topic_key("t")]
    topic = decode_topic(text, topic_key("t"))
    (stored,) = topic.partitions
    state = replace(stored.state, replicas=ids(2, 1, 0), version=stored.state.version + 1)
    partitions = (replace(stored, state=state),)
    late = replace(topic, partitions=partitions, metadata_version=topic.metadata_version + 1)
    assert world.documents.write(((c.PutTopic(late, version),),))
    outcome = move(world, 0, 1, 2)
    assert (outcome.error, outcome.replicas) == (None, ids(0, 1, 2))
    text, _ = world.documents.texts[topic_key("t")]
    assert decode_topic(text, topic_key("t")).partitions[0].state.replicas == ids(0, 1, 2)


@pytest.mark.parametrize(
    ("fields", "code", "mention"),
    [
        ({"topic": "u"}, ErrorCode.UNKNOWN_TOPIC, "'u'"),
        ({"topic_id": TopicId("other")}, ErrorCode.TOPIC_ID_MISMATCH, "other"),
        ({"partition": 1}, ErrorCode.UNKNOWN_PARTITION, "0 to 0"),
        ({"expected": ids(0, 1)}, ErrorCode.STALE_PARTITION_VERSION, "but has 0, 1, 2;"),
        ({"target": ids(3, 3, 1)}, ErrorCode.INVALID_REQUEST, "twice"),
        ({"target": ids(3, 1, 9)}, ErrorCode.INVALID_REQUEST, "on 9, which"),
        ({"target": ids(3, 1)}, ErrorCode.INVALID_REPLICATION_FACTOR, "change_factor"),
        ({"target": ()}, ErrorCode.INVALID_REPLICATION_FACTOR, "change_factor"),
        ({"cancel": True}, ErrorCode.INVALID_REQUEST, "send one of them"),
    ],
)
def test_a_move_that_cannot_be_is_refused_alone(
    fields: dict[str, object], code: ErrorCode, mention: str
) -> None:
    world = moving_world()
    good = change(world, 3, 1, 2)
    result = alter(world, replace(good, **fields))  # type: ignore[arg-type]
    assert mention in refused(result.outcomes[0].error, code)
    assert not document(world).target


def test_a_partition_named_twice_is_not_moved() -> None:
    world = moving_world()
    outcomes = alter(world, change(world, 3, 1, 2), change(world, 4, 1, 2)).outcomes
    for outcome in outcomes:
        assert "twice" in refused(outcome.error, ErrorCode.INVALID_REQUEST)
        assert outcome.replicas == ids(0, 1, 2)
    assert not document(world).target


def test_a_target_below_the_set_min_isr_is_refused() -> None:
    world = moving_world(min_insync_replicas="2")
    outcome = move(world, 1, change_factor=True)
    assert "fewer than the 2" in refused(outcome.error, ErrorCode.INVALID_REPLICATION_FACTOR)
    plain = moving_world()
    assert move(plain, 1, change_factor=True).error is None
    assert refused(move(plain, change_factor=True).error, ErrorCode.INVALID_REPLICATION_FACTOR)


def test_min_isr_cannot_be_set_above_what_a_move_leaves() -> None:
    world = moving_world()
    world.alter_isr(0, (0,))
    move(world, 1, 2, change_factor=True)
    outcome = world.ask(c.AlterConfigs, topic="t", set_configs={"min.insync.replicas": "3"})
    assert "2 replicas" in refused(outcome, ErrorCode.INVALID_CONFIG)


def test_a_request_for_too_many_partitions_is_refused() -> None:
    world = moving_world()
    many = (change(world, 3, 1, 2),) * (REPLICA_CHANGES_MAX + 1)
    outcome = world.ask(m.AlterReplicas, changes=many)
    assert "split it" in refused(outcome, ErrorCode.INVALID_REQUEST)


def test_a_topic_has_a_limit_of_open_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move_requests, "OPEN_MOVES_MAX", 2)
    world = moving_world()
    world.create("u", assignment=(ids(0, 1, 2),) * 4)

    def of(partition: int, *target: int) -> m.ReplicaChange:
        return change(world, *target, topic="u", partition=partition)

    first = alter(world, of(0, 3, 1, 2)).outcomes
    second = alter(world, of(1, 3, 1, 2), of(2, 3, 1, 2)).outcomes
    assert [one.error for one in (*first, second[0])] == [None, None]
    assert "'u' has 2 moves" in refused(second[1].error, ErrorCode.QUEUE_FULL)
    assert (second[1].state, second[1].target) == (SETTLED, ())
    assert alter(world, of(1, 4, 1, 2)).outcomes[0].error is None, "it has one already"
    assert alter(world, of(3, 2, 1, 0)).outcomes[0].error is None, "only another order"


def test_a_plan_can_be_tried_without_effect() -> None:
    world = moving_world()
    writes, events = world.writes, world.events()
    outcome = move(world, 3, 1, 2, validate_only=True)
    assert (outcome.error, outcome.state, outcome.target) == (None, QUEUED, ids(3, 1, 2))
    assert move(world, 1, 2, change_factor=True, validate_only=True).replicas == ids(1, 2)
    assert (world.writes, world.events()) == (writes, events)


def test_nothing_is_moved_before_the_cluster_is_finalized() -> None:
    world = moving_world()
    assert isinstance(world.ask(m.Finalize, to=1), m.FormatChosen)
    outcome = world.ask(m.AlterReplicas, changes=(change(world, 3, 1, 2),))
    assert "penstock cluster finalize" in refused(outcome, ErrorCode.FORMAT_TOO_OLD)


# ---------------------------------------------------------------- copying, and the switch


def test_new_brokers_copy_outside_the_isr_and_then_everything_is_switched_at_once() -> None:
    world = moving_world()
    copying(world, 3, 4, 2)
    state = document(world).state
    assert (state.replicas, state.isr, state.adding) == (ids(0, 1, 2), ids(0, 1, 2), ids(3, 4))
    writes = world.writes
    outcome = caught_up(world)
    assert outcome.error is None
    assert world.writes == writes + 1
    found = document(world)
    assert outcome.state == found.state
    assert found.state.replicas == ids(3, 4, 2)
    assert found.state.isr == ids(3, 4, 2)
    assert (found.state.leader, found.state.leader_epoch) == (3, 2)
    assert (found.state.adding, found.state.dropping) == ((), ids(0, 1))
    assert (found.target, found.why) == ((), None)


def test_a_leader_that_stays_a_replica_stays_the_leader_in_its_epoch() -> None:
    world = moving_world()
    copying(world, 3, 0, 2)
    assert caught_up(world).error is None
    assert world.state() == (0, 1, ids(3, 0, 2))


def test_a_larger_factor_is_reached_in_one_step() -> None:
    world = moving_world(replicas=(0,), min_insync_replicas="1")
    copying(world, 0, 1, 2, change_factor=True)
    assert caught_up(world).error is None
    assert world.state() == (0, 1, ids(0, 1, 2))
    assert document(world).state.dropping == ()


def test_who_lost_unsynced_data_is_no_candidate_any_more_after_the_switch() -> None:
    """From then on records are committed that it does not have."""
    world = moving_world()
    for broker in (2, 1, 0):
        world.kill(broker)
    world.register(1, run=2, data_intact=False)
    world.register(0, run=2)
    assert (document(world).state.isr, document(world).lossy) == (ids(0), ids(1))
    copying(world, 3, 0, 1)
    assert caught_up(world).error is None
    assert (document(world).state.isr, document(world).lossy) == (ids(3, 0), ())


def test_a_member_that_lags_in_both_sets_does_not_block_the_switch() -> None:
    world = moving_world()
    world.kill(2)
    copying(world, 3, 1, 2)
    assert caught_up(world).error is None
    assert document(world).state.replicas == ids(3, 1, 2)
    assert world.state() == (3, 2, ids(3, 1))


def test_no_switch_leaves_fewer_copies_in_sync_than_there_are() -> None:
    world = moving_world()
    world.alter_isr(0, (0, 1))
    copying(world, 3, 2, 4)
    outcome = world.alter_isr(0, (0, 3, 4))
    assert outcome.error is None, "two of the target, as many as before"
    lagging = moving_world(replicas=(0, 1, 2))
    copying(lagging, 3, 1, 2)
    outcome = lagging.alter_isr(0, (0, 3))
    assert "only 3 would be in sync, 3 must be" in refused(outcome.error, ErrorCode.MOVE_WAITS)


def test_no_switch_goes_below_min_isr() -> None:
    world = moving_world(min_insync_replicas="2")
    world.alter_isr(0, (0,))
    copying(world, 3, 1, 2)
    outcome = caught_up(world)
    assert "only 3 would be in sync, 2 must be" in refused(outcome.error, ErrorCode.MOVE_WAITS)
    assert world.alter_isr(0, (0, 1, 3)).error is None
    assert document(world).state.isr == ids(3, 1)


def test_what_forbids_the_switch_does_not_keep_a_lagging_member_in_the_isr() -> None:
    """Planted bug 36: to refuse the whole proposal would stop the high watermark."""
    world = moving_world()
    copying(world, 3, 1, 4)
    world.kill(4)
    outcome = world.alter_isr(0, (0, 1, 3, 4))
    assert "brokers 4 have no session" in refused(outcome.error, ErrorCode.MOVE_WAITS)
    assert outcome.state is not None
    assert outcome.state.isr == ids(0, 1)
    assert (outcome.state.replicas, outcome.state.adding) == (ids(0, 1, 2), ids(3, 4))


def test_a_proposal_that_had_to_wait_is_stale_even_if_it_changed_nothing() -> None:
    """It may still be under way when the leader has given it up."""
    world = moving_world()
    copying(world, 3, 1, 4)
    version = document(world).state.version
    world.kill(4)
    refused(caught_up(world).error, ErrorCode.MOVE_WAITS)
    world.register(4, run=2)
    again = world.alter_isr(0, (0, 1, 2, 3, 4), version=version)
    refused(again.error, ErrorCode.MOVE_WAITS)
    assert document(world).state.replicas == ids(0, 1, 2)
    late = world.alter_isr(0, (0, 1, 2, 3, 4), version=version - 1)
    refused(late.error, ErrorCode.STALE_PARTITION_VERSION)
    assert caught_up(world).error is None
    assert document(world).state.replicas == ids(3, 1, 4)


def test_a_new_broker_that_shuts_down_forbids_the_switch() -> None:
    world = moving_world()
    copying(world, 3, 1, 2)
    stream = world.streams[3]
    world.step(c.HeartbeatReceived(stream_id=stream, metadata_version=0, wants_stop=True))
    assert "brokers 3 have" in refused(caught_up(world).error, ErrorCode.MOVE_WAITS)


def test_somebody_of_the_target_must_be_able_to_lead() -> None:
    world = moving_world()
    world.alter_isr(0, (0,))
    assert move(world, 0, change_factor=True).error is None
    assert document(world).state.replicas == ids(0)
    other = moving_world()
    other.alter_isr(0, (0,))
    stream = other.streams[0]
    move(other, 1, change_factor=True)
    other.step(c.HeartbeatReceived(stream_id=stream, metadata_version=0, wants_stop=True))
    outcome = move(other, 0, change_factor=True)
    assert outcome.state is QUEUED
    other.pass_time(1_100)
    assert document(other).state.replicas == ids(0, 1, 2), "the only one in sync shuts down"


@pytest.mark.parametrize("isr", [(0, 1, 2, 3), (0, 1, 2, 3, 4, 4), (0, 3, 4, 9), (1, 3, 4)])
def test_those_that_copy_join_only_as_a_whole(isr: tuple[int, ...]) -> None:
    world = moving_world()
    copying(world, 3, 4, 2)
    refused(world.alter_isr(0, isr).error, ErrorCode.INVALID_REQUEST)


def test_an_isr_without_the_copies_is_stored_as_always() -> None:
    world = moving_world()
    copying(world, 3, 1, 2)
    assert world.alter_isr(0, (0, 1)).error is None
    assert world.alter_isr(0, (0, 1, 2)).error is None
    assert document(world).state.adding == ids(3)


def test_a_switch_whose_answer_was_lost_is_answered_again() -> None:
    world = moving_world()
    copying(world, 0, 3, 2)
    version = document(world).state.version
    assert caught_up(world).error is None
    again = world.alter_isr(0, (0, 1, 2, 3), version=version)
    assert again.error is None
    assert again.state == document(world).state


def test_a_switch_whose_write_is_unanswered_is_found_in_the_store() -> None:
    for passed in (True, False):
        world = moving_world()
        copying(world, 0, 3, 2)
        found = world.topic()
        isr = c.IsrChange(
            topic_id=found.topic_id,
            partition=0,
            leader_epoch=LeaderEpoch(1),
            version=found.partitions[0].state.version,
            isr=ids(0, 1, 2, 3),
        )
        world.hold_writes = True
        world.step(c.AlterIsr(
            request_id=77, cluster_id="", broker_id=BrokerId(0), broker_session=world.session(0),
            controller_epoch=world.machine.epoch, changes=(isr,),
        ))  # fmt: skip
        assert world.held is not None
        assert world.held.stored_only
        world.finish_held(passed=passed, answered=False)
        result = world.replies[77]
        assert isinstance(result, c.IsrAltered)
        assert result.outcomes[0].error is None
        assert document(world).state.replicas == ids(0, 3, 2)
        assert document(world).state.version == isr.version + 1


# ---------------------------------------------------------------- another target, or none


def test_with_another_target_who_copies_for_both_goes_on() -> None:
    world = moving_world(brokers=6)
    world.alter_isr(0, (0, 2))
    copying(world, 3, 4, 2)
    outcome = move(world, 5, 4, 2)
    assert (outcome.error, outcome.state) == (None, COPYING)
    state = document(world).state
    assert (state.adding, state.dropping) == (ids(4), ids(3))
    waits = refused(caught_up(world).error, ErrorCode.MOVE_WAITS)
    assert "brokers 5 have not begun to copy" in waits
    world.pass_time(1_100)
    assert document(world).state.adding == ids(5, 4)
    assert caught_up(world).error is None
    assert document(world).state.dropping == ids(3, 0, 1)


def test_a_target_that_needs_no_copy_ends_the_copies() -> None:
    world = moving_world()
    copying(world, 3, 4, 2)
    assert move(world, 2, 1, change_factor=True).state is SETTLED
    state = document(world).state
    assert (state.replicas, state.adding) == (ids(2, 1), ())
    assert set(state.dropping) == {0, 3, 4}


def test_the_present_replicas_as_target_end_the_move() -> None:
    world = moving_world()
    copying(world, 3, 1, 2)
    assert move(world, 1, 0, 2).state is SETTLED
    state = document(world).state
    assert (state.replicas, state.adding, state.dropping) == (ids(1, 0, 2), (), ids(3))
    move(world, 4, 0, 2)
    before = document(world).state
    assert move(world, 1, 0, 2).state is SETTLED
    assert (document(world).target, document(world).state) == ((), before)


def test_cancel_restores_exactly_what_was() -> None:
    world = moving_world()
    before = document(world)
    move(world, 3, 1, 2)
    assert cancel(world).error is None
    assert document(world) == before
    copying(world, 3, 1, 2)
    outcome = cancel(world)
    assert (outcome.error, outcome.state, outcome.replicas) == (None, SETTLED, ids(0, 1, 2))
    after = document(world)
    assert (after.state.replicas, after.state.isr, after.elr) == (
        before.state.replicas, before.state.isr, before.elr
    )  # fmt: skip
    assert (after.state.adding, after.state.dropping, after.target) == ((), ids(3), ())


def test_after_the_switch_there_is_nothing_to_cancel() -> None:
    world = moving_world()
    copying(world, 3, 1, 2)
    caught_up(world)
    outcome = cancel(world)
    assert "replicas are 3, 1, 2" in refused(outcome.error, ErrorCode.NO_MOVE)
    assert document(world).state.replicas == ids(3, 1, 2)


def test_a_cancel_whose_write_is_unanswered_is_not_refused_when_it_was_done() -> None:
    for passed in (True, False):
        world = moving_world()
        copying(world, 3, 1, 2)
        wanted = m.ReplicaChange(topic="t", partition=0, cancel=True)
        world.hold_writes = True
        world.step(m.AlterReplicas(request_id=77, cluster_id="", changes=(wanted,)))
        world.finish_held(passed=passed, answered=False)
        result = world.replies[77]
        assert isinstance(result, m.ReplicasAltered)
        assert result.outcomes[0].error is None
        assert document(world).state.dropping == ids(3)


def test_a_move_whose_write_is_unanswered_knows_its_own_effect() -> None:
    for passed in (True, False):
        world = moving_world()
        world.hold_writes = True
        wanted = change(world, 1, 2)
        world.step(
            m.AlterReplicas(request_id=77, cluster_id="", changes=(wanted,), change_factor=True)
        )
        world.finish_held(passed=passed, answered=False)
        result = world.replies[77]
        assert isinstance(result, m.ReplicasAltered)
        assert result.outcomes[0].error is None
        assert result.outcomes[0].replicas == ids(1, 2)


def test_a_late_activation_does_not_undo_a_cancel() -> None:
    """Planted bug 14: a deposed controller begins the copying when another has cancelled it."""
    world = moving_world()
    move(world, 3, 1, 2)
    world.hold_writes = True
    world.pass_time(1_100)
    held = world.held
    assert held is not None
    successor = World(world.documents).start()
    successor.register_all(*range(5))
    assert cancel(successor).error is None
    assert world.documents.write(held.writes) is None, "a conflict"
    assert document(successor).state.adding == ()


# ---------------------------------------------------------------- deaths


def test_the_leader_dies_while_others_copy_and_the_next_one_goes_on() -> None:
    world = moving_world()
    copying(world, 3, 1, 2)
    world.kill(0)
    state = document(world).state
    assert (state.leader, state.leader_epoch, state.adding) == (1, 2, ids(3))
    assert caught_up(world).error is None
    assert document(world).state.replicas == ids(3, 1, 2)


def test_who_only_copies_is_never_elected_not_even_uncleanly() -> None:
    """Planted bug 11."""
    world = moving_world(replicas=(0,), unclean_leader_election_enable="true")
    copying(world, 3)
    world.kill(0)
    assert document(world).state.leader == -1
    world.pass_time(3_000)
    assert document(world).state.leader == -1


def test_without_a_leader_no_copying_begins_and_nothing_is_switched() -> None:
    world = moving_world(replicas=(0, 1), min_insync_replicas="1")
    world.alter_isr(0, (0,))
    world.kill(0)
    move(world, 3, 1)
    world.pass_time(2_100)
    assert document(world).state.adding == ()
    assert move(world, 1, change_factor=True).state is QUEUED
    world.pass_time(2_100)
    assert document(world).state.replicas == ids(0, 1)
    world.register(0, run=2)
    move(world, 3, 1)
    world.pass_time(1_100)
    assert document(world).state.adding == ids(3)


def test_a_broker_that_copies_may_die_and_come_back() -> None:
    world = moving_world()
    copying(world, 3, 1, 2)
    version = document(world).state.version
    world.kill(3)
    world.register(3, run=2)
    state = document(world).state
    assert (state.adding, state.version) == (ids(3), version), "it has all that it said it has"
    assert caught_up(world).error is None


@pytest.mark.parametrize("directory", ["dir-3", "another"])
def test_what_a_broker_had_copied_before_it_lost_data_does_not_count(directory: str) -> None:
    """Planted bug 5, KIP-903: a proposal on its former acknowledgements is stale."""
    world = moving_world()
    copying(world, 3, 1, 2)
    version = document(world).state.version
    world.kill(3)
    world.register(3, run=2, data_intact=False, directory_id=directory)
    refused(world.alter_isr(0, (0, 1, 2, 3), version=version).error, ErrorCode.MOVE_WAITS)
    assert document(world).state.replicas == ids(0, 1, 2)
    assert document(world).state.adding == ids(3)


def test_no_copying_begins_on_a_broker_that_is_away() -> None:
    world = moving_world()
    world.kill(4)
    move(world, 3, 4, 2)
    world.pass_time(2_100)
    assert document(world).state.adding == ()
    world.register(4, run=2)
    world.pass_time(1_100)
    assert document(world).state.adding == ids(3, 4)


# ---------------------------------------------------------------- dropping


def test_a_former_replica_is_named_until_it_says_that_its_data_is_gone() -> None:
    world = moving_world()
    copying(world, 3, 1, 2)
    caught_up(world)
    version = document(world).state.version
    dropped(world, 0)
    state = document(world).state
    assert (state.dropping, state.version) == ((), version + 1)
    assert "replica dropped" in world.events()
    writes = world.writes
    dropped(world, 0)
    dropped(world, 4)
    assert world.writes == writes, "nobody asks for that"


def test_a_late_report_does_not_stand_for_a_copy_that_began_since() -> None:
    world = moving_world()
    copying(world, 3, 1, 2)
    cancel(world)
    found = world.topic()
    late = m.DroppedReplica(found.topic_id, 0, found.partitions[0].state.version)
    dropped(world, 3)
    copying(world, 3, 1, 2)
    cancel(world)
    report(world, 3, dropped=(late,))
    assert document(world).state.dropping == ids(3)
    dropped(world, 3)
    assert document(world).state.dropping == ()


def test_a_report_about_what_is_unknown_changes_nothing() -> None:
    world = moving_world()
    writes = world.writes
    unknown = (ReplicaKey(TopicId("no"), 0), ReplicaKey(world.topic().topic_id, 5))
    gone = tuple(m.DroppedReplica(key.topic_id, key.partition, 1) for key in unknown)
    report(world, 3, dropped=gone, damaged=unknown, sound=unknown)
    assert world.writes == writes


def test_a_report_of_a_former_session_is_refused() -> None:
    world = moving_world()
    outcome = world.ask(m.ReportReplicas, broker_id=BrokerId(3), broker_session=1)
    refused(outcome, ErrorCode.STALE_BROKER_SESSION)


def test_a_broker_copies_again_only_when_it_has_deleted_what_it_had() -> None:
    world = moving_world()
    copying(world, 3, 1, 2)
    cancel(world)
    assert move(world, 3, 1, 2).state is QUEUED
    world.pass_time(2_100)
    assert document(world).state.adding == ()
    dropped(world, 3)
    world.pass_time(1_100)
    assert document(world).state.adding == ids(3)


def test_with_another_directory_there_is_nothing_to_delete_with_the_same_there_is() -> None:
    """Planted bug 15."""
    world = moving_world()
    copying(world, 3, 1, 2)
    caught_up(world)
    world.kill(0)
    world.register(0, run=2, data_intact=False)
    assert document(world).state.dropping == ids(0)
    world.kill(0)
    version = document(world).state.version
    world.register(0, run=3, directory_id="another")
    assert document(world).state.dropping == ()
    assert document(world).state.version == version + 1


def test_a_broker_is_unregistered_when_it_neither_has_nor_shall_get_a_replica() -> None:
    world = moving_world(replicas=(0, 1))
    outcome = world.ask(c.UnregisterBroker, broker_id=BrokerId(2))
    assert "has a session" in refused(outcome, ErrorCode.INVALID_REQUEST)
    world.kill(2)
    outcome = world.ask(c.UnregisterBroker, broker_id=BrokerId(0))
    refused(outcome, ErrorCode.INVALID_REQUEST)
    move(world, 2, 1)
    outcome = world.ask(c.UnregisterBroker, broker_id=BrokerId(2))
    assert "shall get a replica of t/0" in refused(outcome, ErrorCode.INVALID_REQUEST)
    cancel(world)
    copying(world, 3, 1)
    caught_up(world)
    world.kill(0)
    outcome = world.ask(c.UnregisterBroker, broker_id=BrokerId(0), directory_id="old")
    assert "dir-0" in refused(outcome, ErrorCode.INVALID_REQUEST)
    assert world.ask(c.UnregisterBroker, broker_id=BrokerId(0), directory_id="dir-0") == c.Done()
    assert document(world).state.dropping == ()
    assert BrokerId(0) not in world.cluster().brokers
    writes = world.writes
    assert world.ask(c.UnregisterBroker, broker_id=BrokerId(0), directory_id="dir-0") == c.Done()
    assert world.writes == writes


# ---------------------------------------------------------------- the journal


def test_a_report_is_answered_as_stored_only_if_nothing_is_in_a_journal() -> None:
    world = moving_world()
    for journaling in (False, True, False):
        world.step(c.StoreState(journaling=journaling))
        outcome = world.ask(
            m.ReportReplicas, broker_id=BrokerId(1), broker_session=world.session(1)
        )
        assert isinstance(outcome, m.ReplicasReported)
        assert outcome.stored is not journaling


def test_while_decisions_are_journaled_nothing_begins_ends_or_is_dropped() -> None:
    """L6, planted bug 9."""
    world = moving_world()
    copying(world, 3, 1, 2)
    caught_up(world)
    copying(world, 4, 1, 2)
    world.create("u", assignment=(ids(0, 1, 2),))
    alter(world, change(world, 3, 1, 2, topic="u"))
    world.step(c.StoreState(journaling=True))
    before = document(world).state
    world.pass_time(2_100)
    assert document(world, topic="u").state.adding == ()
    outcome = caught_up(world)
    assert "store is unavailable" in refused(outcome.error, ErrorCode.MOVE_WAITS)
    assert document(world).state == replace(before, version=before.version + 1)
    dropped(world, 0)
    assert document(world).state.dropping == ids(0)
    for wanted in (change(world, 1, 2, 3), m.ReplicaChange(topic="t", partition=0, cancel=True)):
        refused(world.ask(m.AlterReplicas, changes=(wanted,)), ErrorCode.MOVES_PAUSED)
    assert world.alter_isr(3, (3, 1)).error is None, "the ISR changes as always"
    world.step(c.StoreState(journaling=False))
    world.pass_time(1_100)
    assert document(world, topic="u").state.adding == ids(3)
    dropped(world, 0)
    assert document(world).state.dropping == ()
    assert world.alter_isr(3, (3, 1, 2, 4)).error is None
    assert document(world).state.replicas == ids(4, 1, 2)


def test_what_may_be_stored_is_not_refused_as_if_it_were_not() -> None:
    """The store becomes unavailable while a move is written to it: seed 201 of the simulator."""
    world = moving_world()
    world.hold_writes = True
    wanted = (change(world, 3, 1, 2),)
    world.step(m.AlterReplicas(request_id=88, cluster_id="", changes=wanted))
    world.step(c.StoreState(journaling=True))
    world.finish_held(passed=True, answered=False)
    error = world.replies[88]
    assert "may have been stored before" in refused(error, ErrorCode.CONTROLLER_UNAVAILABLE)
    assert isinstance(error, PenstockError)
    assert error.applied is Applied.MAYBE


def test_what_was_never_sent_is_refused_for_sure() -> None:
    """Brokers stand in for the store between the decision and its write."""
    world = moving_world()
    world.hold_writes = True
    wanted = (change(world, 3, 1, 2),)
    world.step(m.AlterReplicas(request_id=88, cluster_id="", changes=wanted))
    world.step(c.StoreState(journaling=True))
    world.withhold()
    error = world.replies[88]
    refused(error, ErrorCode.MOVES_PAUSED)
    assert isinstance(error, PenstockError)
    assert error.applied is Applied.NO
    assert document(world).target == ()


def test_every_write_with_a_move_in_it_must_reach_the_store_itself() -> None:
    world = moving_world()
    seen: list[bool] = []

    def held(event: c.Event) -> None:
        world.hold_writes = True
        world.step(event)
        assert world.held is not None
        seen.append(world.held.stored_only)
        world.finish_held(passed=True, answered=True)

    def asked(*target: int) -> m.AlterReplicas:
        return m.AlterReplicas(
            request_id=world.new_id(), cluster_id="", changes=(change(world, *target),)
        )

    held(asked(3, 1, 2))
    world.now_ms += 1_100
    held(c.Tick())
    assert document(world).state.adding == ids(3)
    caught_up(world)
    found = world.topic()
    gone = m.DroppedReplica(found.topic_id, 0, found.partitions[0].state.version)
    held(
        m.ReportReplicas(
            request_id=world.new_id(),
            cluster_id="",
            broker_id=BrokerId(0),
            broker_session=world.session(0),
            dropped=(gone,),
        )
    )
    assert seen == [True, True, True]
    held(c.AllocateProducerIds(world.new_id(), "", BrokerId(1), world.session(1)))
    assert seen[-1] is False
