"""Liveness, elections, clean stops, and brokers that come back with or without their data."""

from typing import Any

import pytest
from support.controller_world import World

from penstock.core.control import ControlConfig
from penstock.core.control import contract as c
from penstock.core.control.partition import PartitionDocument
from penstock.core.types import BrokerId
from penstock.errors import ErrorCode


def code(error: object) -> ErrorCode:
    found = getattr(error, "code", None)
    assert isinstance(found, ErrorCode), error
    return found


def doc(world: World) -> PartitionDocument:
    partition: PartitionDocument = world.topic().partitions[0]
    return partition


# ---------------------------------------------------------------- liveness


def test_a_killed_leader_is_replaced_after_the_grace(three: World) -> None:
    three.step(c.StreamClosed(three.streams.pop(0)))
    three.pass_time(250)
    assert three.state() == (0, 1, (0, 1, 2)), "within the grace nothing moves"
    three.pass_time(100)
    assert three.state() == (1, 2, (1, 2))


def test_a_broker_whose_stream_breaks_for_a_moment_keeps_its_leaderships(three: World) -> None:
    three.step(c.StreamClosed(three.streams.pop(0)))
    three.pass_time(200)
    three.register(0)
    three.pass_time(3_000)
    assert three.state() == (0, 1, (0, 1, 2))


def test_a_frozen_broker_is_dead_after_the_session_timeout(three: World) -> None:
    frozen = three.streams.pop(0)
    three.pass_time(three.config.session_timeout_ms - 100)
    assert three.state()[0] == 0
    three.pass_time(150)
    assert three.state() == (1, 2, (1, 2))
    assert code(three.refusal(frozen)) is ErrorCode.STALE_BROKER_SESSION


def test_time_in_which_the_controller_stood_still_is_not_held_against_brokers(three: World) -> None:
    three.pass_time(100)
    three.now_ms += 60_000
    three.step(c.Tick())
    three.pass_time(500)
    assert three.state() == (0, 1, (0, 1, 2))


def test_what_breaks_after_a_pause_of_the_controller_is_noticed_in_time(three: World) -> None:
    three.pass_time(100)
    three.now_ms += 60_000
    three.step(c.HeartbeatReceived(stream_id=three.streams[1], metadata_version=0))
    three.step(c.StreamClosed(three.streams.pop(0)))
    three.step(c.Tick())
    three.pass_time(three.config.session_timeout_ms + 50)
    assert three.state() == (1, 2, (1, 2))
    three.streams.pop(1)
    three.pass_time(three.config.session_timeout_ms + 100)
    assert three.state()[0] == 2


def test_brokers_that_left_a_paused_controller_have_time_to_find_it_again(three: World) -> None:
    three.pass_time(100)
    three.now_ms += 5_000
    three.step(c.StreamClosed(three.streams.pop(0)))
    three.step(c.Tick())
    three.pass_time(three.config.session_grace_ms + 300)
    assert three.state() == (0, 1, (0, 1, 2)), "broker 0 is between two attempts"
    three.register(0)
    three.pass_time(3_000)
    assert three.state() == (0, 1, (0, 1, 2))


def test_a_pause_too_short_for_brokers_to_leave_changes_no_limit(three: World) -> None:
    three.pass_time(100)
    three.now_ms += three.config.tick_gap_ms + 50
    three.step(c.Tick())
    three.step(c.StreamClosed(three.streams.pop(0)))
    three.pass_time(three.config.session_grace_ms + 50)
    assert three.state() == (1, 2, (1, 2))


def test_a_broker_that_leaves_before_its_registration_is_durable_is_soon_dead(world: World) -> None:
    world.hold_writes = True
    stream = world.register(0)
    world.step(c.HeartbeatReceived(stream_id=stream, metadata_version=0))
    assert stream not in world.messages, "it is waiting, not refused"
    world.step(c.StreamClosed(stream))
    world.finish_held(passed=True, answered=True)
    assert stream not in world.messages
    assert world.cluster().brokers[BrokerId(0)].alive
    world.pass_time(400)
    assert not world.cluster().brokers[BrokerId(0)].alive


def test_dead_followers_leave_the_isr_and_the_leader_epoch_stays(three: World) -> None:
    three.kill(2)
    assert three.state() == (0, 1, (0, 1))
    assert doc(three).elr == ()


def test_the_death_of_a_broker_with_many_partitions_is_one_write(world: World) -> None:
    world.register_all(0, 1, 2)
    for name in ("a", "b", "c"):
        world.create(name, partitions=300, replication_factor=3)
    before = world.writes
    world.kill(0)
    assert world.writes == before + 1
    summary = world.machine.summary()
    assert summary.leaders[BrokerId(0)] == 0
    assert sum(summary.leaders.values()) == 900
    assert summary.offline_partitions == 0
    assert summary.under_replicated_partitions == 900


def test_a_heartbeat_on_a_stream_without_session_is_refused(world: World) -> None:
    world.step(c.HeartbeatReceived(stream_id=99, metadata_version=0))
    assert code(world.refusal(99)) is ErrorCode.STALE_BROKER_SESSION


# ---------------------------------------------------------------- elections


def test_a_partition_without_live_isr_waits_and_returns_with_the_next_epoch(three: World) -> None:
    three.kill(1)
    three.kill(2)
    assert three.state() == (0, 1, (0,))
    three.kill(0)
    assert three.state() == (-1, 2, (0,))
    three.register(0, run=2)
    assert three.state() == (0, 3, (0,))


def test_members_that_left_below_min_isr_may_still_lead(three: World) -> None:
    three.kill(2)
    three.kill(1)
    assert doc(three).elr == (1,), "2 left while two remained, so it may lack committed records"
    three.kill(0)
    three.register(2, run=2)
    assert three.state()[0] == -1
    three.register(1, run=2)
    assert three.state() == (1, 3, (1,))
    assert doc(three).elr == (0,)


def test_all_members_dying_together_are_equal_candidates(three: World) -> None:
    for broker_id in (0, 1, 2):
        three.step(c.StreamClosed(three.streams.pop(broker_id)))
    three.pass_time(400)
    assert three.state() == (-1, 2, (0, 1, 2))
    three.register(1, run=2)
    assert three.state() == (1, 3, (1,))
    assert doc(three).elr == (0, 2)


def test_unclean_election_only_where_it_is_enabled(world: World) -> None:
    world.register_all(0, 1)
    unclean = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    world.create("t", partitions=1, replication_factor=2, configs=unclean)
    world.create("u", partitions=1, replication_factor=2, configs={"min.insync.replicas": "1"})
    for topic in ("t", "u"):
        leader = world.state(topic=topic)[0]
        assert world.alter_isr(leader, (leader,), topic).error is None
    leaders = {topic: world.state(topic=topic)[0] for topic in ("t", "u")}
    world.kill(leaders["t"])
    other = 1 - leaders["t"]
    assert world.state(topic="t") == (other, 2, (other,))
    assert any(d.severity is c.Severity.ERROR for d in world.decisions)
    if leaders["u"] == leaders["t"]:
        assert world.state(topic="u")[0] == -1


def test_enabling_unclean_election_elects_at_once(world: World) -> None:
    world.register_all(0, 1)
    world.create("t", partitions=1, replication_factor=2, configs={"min.insync.replicas": "1"})
    leader = world.state()[0]
    assert world.alter_isr(leader, (leader,)).error is None
    world.kill(leader)
    assert world.state() == (-1, 2, (leader,))
    world.ask(
        c.AlterConfigs,
        topic="t",
        set_configs={"unclean.leader.election.enable": "true"},
        unset_configs=(),
    )
    other = 1 - leader
    assert world.state() == (other, 3, (other,))


# ---------------------------------------------------------------- coming back


def test_a_restarted_leader_gets_a_new_epoch_even_if_nobody_noticed(three: World) -> None:
    three.register(0, run=2)
    assert three.state() == (1, 2, (1, 2))


def test_a_follower_that_lost_data_loses_its_seat_before_it_counts_as_live(three: World) -> None:
    three.register(2, run=2, data_intact=False)
    assert three.state() == (0, 1, (0, 1))
    assert doc(three).elr == ()


def test_a_lossy_broker_is_not_removed_again_when_it_reconnects(three: World) -> None:
    three.register(2, run=2, data_intact=False)
    assert three.alter_isr(0, (0, 1, 2)).error is None
    three.register(2, run=2, data_intact=False)
    assert three.state() == (0, 1, (0, 1, 2))


def test_a_lossy_member_of_the_elr_is_never_elected_while_a_better_one_may_return(
    three: World,
) -> None:
    three.kill(2)
    three.kill(1)
    three.kill(0)
    three.register(1, run=2, data_intact=False)
    three.pass_time(5_000)
    assert three.state()[0] == -1
    assert doc(three).lossy == (1,)
    three.register(0, run=2)
    assert three.state()[0] == 0
    assert doc(three).lossy == (1,), "alone, the leader commits nothing: min.insync.replicas is 2"
    assert three.alter_isr(0, (0, 1)).error is None
    assert doc(three).lossy == ()


def test_a_lossy_member_leads_if_who_led_alone_after_it_comes_back_with_another_disk(
    three: World,
) -> None:
    for broker in (2, 1, 0):
        three.kill(broker)
    three.register(1, run=2, data_intact=False)
    three.register(0, run=2)
    three.register(2, run=2, data_intact=False)
    assert three.state()[0] == 0
    assert three.state()[2] == (0,)
    three.kill(0)
    three.register(0, run=3, directory_id="another disk")
    leader, _, isr = three.state()
    assert (leader, isr) == (1, (1,)), "nobody has more, and nothing was committed meanwhile"
    assert [d for d in three.decisions if d.severity is c.Severity.ERROR]


def test_when_every_holder_lost_unsynced_data_one_of_them_leads_loudly(three: World) -> None:
    three.kill(0)
    three.kill(1)
    three.kill(2)
    three.register(1, run=2, data_intact=False)
    assert three.state()[0] == -1
    three.register(2, run=2, data_intact=False)
    assert three.state()[0] == 2, "it kept its seat longest"
    loud = [d for d in three.decisions if d.severity is c.Severity.ERROR]
    assert loud
    assert loud[-1].fields["how"] == "last replica standing, unsynced records may be lost"


def test_an_empty_disk_is_never_an_empty_topic(world: World) -> None:
    world.register(0)
    world.create(partitions=1, replication_factor=1)
    world.kill(0)
    world.register(0, run=2, directory_id="another disk")
    world.pass_time(10_000)
    assert world.state()[0] == -1
    assert world.state()[2] == ()


def test_a_single_lossy_replica_leads_again(world: World) -> None:
    world.register(0)
    world.create(partitions=1, replication_factor=1)
    world.kill(0)
    world.register(0, run=2, data_intact=False)
    assert world.state()[0] == 0


def test_data_loss_makes_isr_proposals_of_before_stale(three: World) -> None:
    three.kill(2)
    version = doc(three).state.version
    three.register(2, run=2, data_intact=False)
    outcome = three.alter_isr(0, (0, 1, 2), version=version)
    assert code(outcome.error) is ErrorCode.STALE_PARTITION_VERSION


# ---------------------------------------------------------------- registration


def test_a_second_directory_under_a_live_id_is_refused(three: World) -> None:
    stream = three.register(1, run=9, directory_id="a copy")
    error = three.refusal(stream)
    assert code(error) is ErrorCode.BROKER_ID_IN_USE
    assert "1" in str(error)
    assert three.state() == (0, 1, (0, 1, 2))


def test_a_second_directory_right_after_a_break_is_asked_to_wait(three: World) -> None:
    three.step(c.StreamClosed(three.streams.pop(1)))
    stream = three.register(1, run=9, directory_id="a copy")
    assert code(three.refusal(stream)) is ErrorCode.CONTROLLER_UNAVAILABLE


def test_another_directory_under_a_dead_id_starts_empty_handed(three: World) -> None:
    three.kill(1)
    three.register(1, run=9, directory_id="new disk", data_intact=True)
    assert three.state() == (0, 1, (0, 2))
    assert three.cluster().brokers[BrokerId(1)].directory_id == "new disk"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"cluster_id": "other"}, ErrorCode.CLUSTER_ID_MISMATCH),
        ({"seen_controller_epoch": 7}, ErrorCode.STALE_CONTROLLER_EPOCH),
        ({"seen_metadata_version": 10_000}, ErrorCode.STALE_CONTROLLER_EPOCH),
        ({"host": ""}, ErrorCode.INVALID_REQUEST),
        ({"port": 0}, ErrorCode.INVALID_REQUEST),
        ({"incarnation": ""}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_registrations_that_cannot_be_right_are_refused(
    world: World, changes: dict[str, Any], expected: ErrorCode
) -> None:
    stream = world.register(5, **changes)
    assert code(world.refusal(stream)) is expected
    assert BrokerId(5) not in world.cluster().brokers


def test_a_second_stream_of_the_same_run_takes_the_place_of_the_first(three: World) -> None:
    old = three.streams[0]
    new = three.register(0)
    assert code(three.refusal(old)) is ErrorCode.STALE_BROKER_SESSION
    three.step(c.StreamClosed(old))
    three.pass_time(3_000)
    assert three.state() == (0, 1, (0, 1, 2))
    assert three.streams[0] == new


# ---------------------------------------------------------------- stopping


def may_stop(world: World, stream_id: int) -> bool:
    return any(
        isinstance(message, c.HeartbeatAnswered) and message.may_stop
        for message in world.messages.get(stream_id, [])
    )


def test_a_stopping_broker_may_stop_once_its_leaderships_are_durably_elsewhere(
    three: World,
) -> None:
    stream = three.streams[0]
    three.hold_writes = True
    three.step(c.HeartbeatReceived(stream_id=stream, metadata_version=0, wants_stop=True))
    three.step(c.HeartbeatReceived(stream_id=stream, metadata_version=0, wants_stop=True))
    assert not may_stop(three, stream)
    three.finish_held(passed=True, answered=True)
    assert may_stop(three, stream), "said without waiting for the next heartbeat"
    assert three.state() == (1, 2, (1, 2))


def test_a_stopping_broker_that_is_the_last_member_may_stop_anyway(three: World) -> None:
    three.kill(1)
    three.kill(2)
    stream = three.streams[0]
    three.step(c.HeartbeatReceived(stream_id=stream, metadata_version=0, wants_stop=True))
    assert may_stop(three, stream)
    assert three.state() == (0, 1, (0,))


def test_a_stopping_broker_may_not_join_an_isr(three: World) -> None:
    three.alter_isr(0, (0, 1))
    three.step(c.HeartbeatReceived(stream_id=three.streams[2], metadata_version=0, wants_stop=True))
    outcome = three.alter_isr(0, (0, 1, 2))
    assert code(outcome.error) is ErrorCode.INELIGIBLE_REPLICA


def test_a_stopped_broker_is_gone_without_grace(three: World) -> None:
    stream = three.streams.pop(0)
    three.step(c.HeartbeatReceived(stream_id=stream, metadata_version=0, wants_stop=True))
    three.step(c.StreamClosed(stream))
    three.step(c.Tick())
    assert not three.cluster().brokers[BrokerId(0)].alive


# ---------------------------------------------------------------- preferred leaders


def test_leadership_returns_to_the_preferred_replica_after_a_while(three: World) -> None:
    three.kill(0)
    assert three.state()[0] == 1
    three.register(0, run=2)
    assert three.alter_isr(1, (0, 1, 2)).error is None
    three.pass_time(three.config.preferred_leader_interval_ms - 200)
    assert three.state()[0] == 1, "not before it has been back for one interval"
    three.pass_time(three.config.preferred_leader_interval_ms + 200)
    assert three.state() == (0, 3, (0, 1, 2))


def test_leadership_does_not_return_to_a_broker_that_was_asked_to_give_it_away(
    three: World,
) -> None:
    result = three.ask(c.ElectLeaders, partitions=(), away_from=BrokerId(0))
    assert result == c.LeadersMoved(1)
    assert three.state() == (1, 2, (0, 1, 2))
    three.pass_time(4 * three.config.preferred_leader_interval_ms)
    assert three.state()[0] == 1
    three.pass_time(three.config.away_hold_ms)
    assert three.state()[0] == 0


def test_returning_leaders_is_rate_limited(make_world: type[World]) -> None:
    world = make_world(config=ControlConfig(preferred_leader_moves=10)).start()
    world.register_all(0, 1)
    world.create(partitions=60, replication_factor=2)
    world.ask(c.ElectLeaders, partitions=(), away_from=BrokerId(0))
    assert world.machine.summary().leaders == {0: 0, 1: 60}
    session = world.machine.sessions.get(BrokerId(0))
    assert session is not None
    session.held_until_ms = 0
    world.pass_time(world.config.preferred_leader_interval_ms + 100)
    assert world.machine.summary().leaders[BrokerId(0)] == 10


def test_what_is_said_of_a_registration_names_the_broker_where_it_is_and_its_data(
    world: World,
) -> None:
    world.register(4, rack="r", data_intact=False)
    (said,) = (one for one in world.decisions if one.event == "broker registered")
    assert said.fields == {
        "broker": 4,
        "address": "127.0.0.1:7004",
        "rack": "r",
        "incarnation": "run-4-1",
        "new_run": True,
        "data_intact": False,
    }


def test_many_elections_are_told_one_by_one_up_to_a_limit_and_then_counted(world: World) -> None:
    world.register_all(0, 1)
    world.create("wide", partitions=60, replication_factor=2)
    world.decisions.clear()
    world.kill(0)
    (rest,) = (one for one in world.decisions if one.event.endswith("more of the same"))
    (settled,) = (one for one in world.decisions if one.event == "leaders settled")
    assert rest.severity is c.Severity.INFO
    told = [one for one in world.decisions if f"{one.event}: more of the same" == rest.event]
    (elected,) = settled.fields["elections"].values()  # type: ignore[attr-defined]
    assert len(told) + int(str(rest.fields["count"])) == elected == 30
