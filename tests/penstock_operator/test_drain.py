"""Scaling down: brokers that go are emptied first, and nothing goes that is not proven empty."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.operator_world import NAMES, World, advance, copying, desired, settled, where_of

from penstock.client import (
    AsyncAdmin,
    Cordon,
    LogDescription,
    MovesDescription,
    OrphanedLog,
    ReplicaMove,
    TopicDescription,
)
from penstock.client.model import PartitionLog
from penstock.core.manifest.objects import WhenScaledDown
from penstock.core.types import MoveReason, TopicPartition
from penstock_operator.model import (
    Apply,
    CordonBrokers,
    ForgetBroker,
    MoveReplicas,
    Observed,
    PartitionState,
    Plan,
    Severity,
    Wait,
)
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan import plan_cluster
from penstock_operator.plan.waves import WAVE
from penstock_operator.proofs import PROOF_S, Proofs, is_empty, read_moves
from penstock_operator.volume_model import DropClaim

OURS = Cordon(placement=True, leadership=True, why="scaling down to 3 brokers", by="operator")
THEIRS = Cordon(placement=True, leadership=False, why="a bad disk", by="penstock broker")
T0 = TopicPartition("t", 0)


def run(world: World, wish: DesiredCluster, steps: int = 300) -> Plan:
    """Until nothing is left to do; the last plan."""
    plan = Plan()
    for _ in range(steps):
        plan = advance(world, wish)
        if plan.is_idle:
            break
    return plan


def wait_of(plan: Plan, reason: str) -> Wait:
    found = [wait for wait in plan.waits if wait.reason == reason]
    assert found, plan.waits
    return found[0]


def asked(plan: Plan) -> list[CordonBrokers | MoveReplicas]:
    """What the controller is asked to do."""
    return [each for each in plan.actions if isinstance(each, CordonBrokers | MoveReplicas)]


def brokers_of(world: World) -> set[int]:
    return {broker_id for each in world.partitions for broker_id in each.replicas}


def test_brokers_that_go_are_emptied_and_then_stopped() -> None:  # I34
    world = settled(desired(brokers=5), partitions=10)
    assert brokers_of(world) == {0, 1, 2, 3, 4}
    first = plan_cluster(desired(brokers=3), world.observed())
    (cordon,) = asked(first)
    assert isinstance(cordon, CordonBrokers)
    assert {each.broker_id for each in cordon.changes} == {3, 4}
    assert {each.directory_id for each in cordon.changes} == {"directory-3", "directory-4"}
    assert run(world, desired(brokers=3)).is_idle
    assert sorted(world.pods) == [0, 1, 2]
    assert brokers_of(world) == {0, 1, 2}
    assert all(len(each.replicas) == 3 and each.is_full for each in world.partitions)
    assert (world.registered, world.cordons, world.lost) == ({0, 1, 2}, {}, set())
    assert {3, 4} <= set(world.claims), "the volumes stay"


def test_it_says_how_much_is_left() -> None:
    world = settled(desired(brokers=4), partitions=8)
    held = sum(3 in each.replicas for each in world.partitions)
    plan = plan_cluster(desired(brokers=3), world.observed())
    told = wait_of(plan, "Draining")
    assert told.message == (
        f"scaling down to 3: broker 3 has {held} replicas left, 0 of them moving"
    )
    assert told.severity is Severity.PROGRESS


def sized(world: World, size: int) -> Observed:
    """What is seen, with replicas of this size."""
    seen = world.observed()
    assert seen.moves is not None
    assert seen.moves.seen is not None
    known = seen.moves.seen
    parts = tuple(replace(one, size_bytes=size) for one in known.facts.partitions)
    facts = replace(known.facts, partitions=parts)
    return replace(seen, moves=replace(seen.moves, seen=replace(known, facts=facts)))


def two_moves() -> World:
    """Broker 3 is to go; of its two replicas one is copied, and the other waits for its turn."""
    world = settled(desired(brokers=4), partitions=0)
    world.partitions = [PartitionState("t", at, 3, (3, 0), (3, 0), 1) for at in range(2)]
    world.cordons = {3: OURS}
    world.targets = {T0: (1, 0), TopicPartition("t", 1): (2, 0)}
    return world


def test_it_says_how_many_bytes_are_left_how_fast_and_how_long() -> None:
    world, wish = two_moves(), desired(brokers=3)
    waiting = wait_of(plan_cluster(wish, sized(world, 6 << 30)), "Draining").message
    assert waiting.endswith("2 replicas left, 2 of them moving, 12 GiB to copy"), "nothing copied"
    world.copies = {T0: (copying(1, left=3 << 30, rate=40 << 20),)}
    plan = plan_cluster(wish, sized(world, 6 << 30))
    assert wait_of(plan, "Draining").message == (
        "scaling down to 3: broker 3 has 2 replicas left, 2 of them moving, 9 GiB at 40 MiB/s, "
        "about 4 min"
    )
    (state,) = plan.drains
    assert (state.bytes_left, state.bytes_per_second) == (9 << 30, 40 << 20)


def test_a_partition_that_leaves_two_brokers_counts_once_for_each_of_them() -> None:
    world, wish = settled(desired(brokers=5), partitions=0), desired(brokers=3)
    world.partitions = [PartitionState("t", 0, 3, (3, 4, 0), (3, 4, 0), 1)]
    world.cordons = {3: OURS, 4: OURS}
    world.targets = {T0: (1, 2, 0)}
    queued = plan_cluster(wish, sized(world, 6 << 30))
    assert [one.bytes_left for one in queued.drains] == [6 << 30] * 2
    world.copies = {T0: tuple(copying(at, left=4 << 30, rate=40 << 20) for at in (1, 2))}
    copied = plan_cluster(wish, sized(world, 6 << 30))
    assert [one.bytes_left for one in copied.drains] == [4 << 30] * 2, "not what both have left"
    assert [one.bytes_per_second for one in copied.drains] == [40 << 20] * 2


def test_a_drain_ends_when_the_broker_that_receives_most_has_it_all() -> None:
    world, wish = two_moves(), desired(brokers=3)
    world.copies = {
        T0: (copying(1, left=1 << 30, rate=10 << 20),),
        TopicPartition("t", 1): (copying(2, left=5 << 30, rate=10 << 20),),
    }
    plan = plan_cluster(wish, sized(world, 6 << 30))
    (state,) = plan.drains
    assert state.seconds_left == 512, "6 GiB at 20 MiB/s would be 308"
    assert wait_of(plan, "Draining").message.endswith(", 6 GiB at 20 MiB/s, about 9 min")
    world.partitions[1] = replace(world.partitions[1], replicas=(0, 1), isr=(0, 1))
    world.targets[TopicPartition("t", 1)] = (2, 1)
    (state,) = plan_cluster(wish, sized(world, 6 << 30)).drains
    assert state.seconds_left == 103, "who receives nothing of it does not count"


def test_an_event_is_not_written_for_each_byte() -> None:
    world, wish = two_moves(), desired(brokers=2)
    world.copies = {T0: (copying(1, left=3 << 30, rate=40 << 20),)}
    world.partitions = [replace(one, replicas=(3, 0)) for one in world.partitions]
    world.alive.discard(2)
    world.pods[2] = replace(world.pods[2], ready=False, trouble="ImagePullBackOff: no such image")
    world.targets = {T0: (1, 0)}
    told = wait_of(plan_cluster(wish, sized(world, 6 << 30)), "Draining")
    assert told.severity is Severity.BLOCKED, "each new text of it is an Event"
    assert "broker 2 does not answer" in told.message
    assert "broker 3 has 2 replicas left, 1 of them moving;" in f"{told.message};"
    assert "GiB" not in told.message


def test_what_does_not_fit_does_not_begin() -> None:
    world = settled(desired(brokers=3), partitions=4)
    plan = plan_cluster(desired(brokers=2), world.observed())
    blocked = wait_of(plan, "DrainBlocked")
    assert blocked.severity is Severity.BLOCKED
    assert "2 brokers may be used, and these topics need more: t (3 replicas)" in blocked.message
    assert "set spec.brokers to 3" in blocked.message
    assert not asked(plan)
    run(world, desired(brokers=2), steps=20)
    assert (sorted(world.pods), world.cordons, world.targets) == ([0, 1, 2], {}, {})


def test_the_first_format_is_finalized_before_anything_moves() -> None:
    world = settled(desired(brokers=4), partitions=8)
    world.format = 1
    plan = plan_cluster(desired(brokers=3), world.observed())
    blocked = wait_of(plan, "DrainBlocked")
    assert "penstock cluster finalize" in blocked.message
    assert blocked.severity is Severity.BLOCKED
    assert not asked(plan)
    world.partitions = [each for each in world.partitions if 3 not in each.replicas]
    assert run(world, desired(brokers=3)).is_idle, "what is empty goes, as it did before"
    assert sorted(world.pods) == [0, 1, 2]


DELETE: dict[str, Any] = {"spec_when_scaled_down": WhenScaledDown.DELETE}


def test_volumes_of_brokers_that_were_emptied_go_if_they_shall() -> None:
    world = settled(desired(brokers=5, **DELETE), partitions=10)
    kept = {at: claim for at, claim in world.claims.items() if at < 3}
    for _ in range(300):
        plan = advance(world, desired(brokers=3, **DELETE))
        dropped = [one.broker_id for one in plan.actions if isinstance(one, DropClaim)]
        assert not set(dropped) & brokers_of(world), "nobody needs what is on it"
        if plan.is_idle:
            break
    assert world.claims == kept
    assert (world.registered, world.lost) == ({0, 1, 2}, set())
    assert run(world, desired(brokers=5, **DELETE)).is_idle
    assert sorted(world.claims) == [0, 1, 2, 3, 4], "others are made"


def test_an_operator_that_restarts_still_knows_which_volumes_go() -> None:
    """The registration goes last, and only once the claim is gone."""
    world = settled(desired(brokers=4, **DELETE), partitions=0)
    wish = desired(brokers=3, **DELETE)
    for _ in range(300):
        if any(isinstance(one, DropClaim) for one in plan_cluster(wish, world.observed()).actions):
            break
        advance(world, wish)
    world.claims[3] = replace(world.claims[3], deleting=True)
    run(world, wish, steps=30)
    assert (sorted(world.pods), 3 in world.registered) == ([0, 1, 2], True)
    del world.claims[3]
    assert run(world, wish).is_idle
    assert world.registered == {0, 1, 2}


def test_a_volume_that_nobody_has_proven_empty_stays() -> None:
    """Of a broker that was let go by name; and one that no broker was registered with, which may be
    of a Cluster that was deleted before."""
    world = settled(desired(brokers=4, **DELETE), partitions=0)
    world.claims[4] = replace(world.claims[3], broker_id=4, name="data-4", uid="another")
    world.pods[3] = replace(world.pods[3], ready=False, trouble="its node is gone")
    world.alive.discard(3)
    wish = desired(brokers=3, forget_broker=3, **DELETE)
    assert run(world, wish).is_idle
    assert world.registered == {0, 1, 2}
    assert {3, 4} <= set(world.claims)


@pytest.mark.parametrize("unknown", ["Pod", "PersistentVolumeClaim"])
def test_no_broker_is_forgotten_while_it_is_not_known_what_goes_with_it(unknown: str) -> None:
    world = settled(desired(brokers=4, **DELETE), partitions=0)
    wish = desired(brokers=3, **DELETE)
    plan = Plan()
    for _ in range(300):
        plan = plan_cluster(wish, world.observed())
        if any(isinstance(one, DropClaim) for one in plan.actions):
            break
        advance(world, wish)
    assert [type(one) for one in plan.actions] == [DropClaim]
    world.unknown[unknown] = "forbidden"
    assert not plan_cluster(wish, world.observed()).actions


def test_a_broker_that_lists_a_log_stays_whatever_the_documents_say() -> None:
    world = settled(desired(brokers=4), partitions=0)
    world.unfaithful = {3}
    plan = Plan()
    for _ in range(12):
        world.logs = {3: {T0}}
        plan = advance(world, desired(brokers=3))
    assert "broker 3 has 1 former replicas to delete" in wait_of(plan, "ProvingEmpty").message
    assert sorted(world.pods) == [0, 1, 2, 3]
    assert run(world, desired(brokers=3)).is_idle
    assert sorted(world.pods) == [0, 1, 2]


def test_the_command_is_named_that_drops_what_nobody_else_will() -> None:
    world = settled(desired(brokers=4), partitions=0)
    world.unfaithful = {3}
    for _ in range(12):
        world.logs = {3: {T0}}
        advance(world, desired(brokers=3))
    world.logs = {3: {T0}}
    seen, wish = world.observed(), desired(brokers=3)
    assert seen.moves is not None
    said = []
    for orphans in ({3: 1}, {3: 0}):
        moves = replace(seen.moves, orphans=orphans)
        plan = plan_cluster(wish, replace(seen, moves=moves))
        said.append(wait_of(plan, "ProvingEmpty").message)
    assert "broker 3 has 1 logs of topics that the cluster does not know, and keeps" in said[0]
    assert "until: penstock broker drop-orphans 3" in said[0]
    assert "broker 3 has 1 former replicas to delete" in said[1], "a moment after they were moved"


class Listing:
    """An admin of a cluster whose broker 3 lists a log and an orphan."""

    def __init__(self, moving: MovesDescription) -> None:
        self._moving = moving

    async def describe_moves(self) -> MovesDescription:
        return self._moving

    async def describe_topics(self) -> dict[str, TopicDescription]:
        return {}

    async def describe_logs(self, broker_ids: Sequence[int]) -> list[LogDescription]:
        log = PartitionLog(
            topic="t", topic_id="id", partition=0, is_leader=False, leader_epoch=1,
            log_start_offset=0, high_watermark=0, log_end_offset=0, size_bytes=9,
        )  # fmt: skip
        empty = [LogDescription(one, (), 1, 2) for one in broker_ids if one != 3]
        return [*empty, LogDescription(3, (log,), 1, 2, (OrphanedLog("gone", 0, 9),))]


async def test_orphans_count_as_logs_and_are_told_apart() -> None:
    world = settled(desired(brokers=4), partitions=0)
    admin = cast("AsyncAdmin", Listing(world.moves().moving))
    found = await read_moves(admin, (3,), Proofs())
    assert found.logs == {0: 0, 1: 0, 2: 0, 3: 2}
    assert found.orphans == {0: 0, 1: 0, 2: 0, 3: 1}


def test_the_highest_goes_while_others_are_still_emptied() -> None:
    world = settled(desired(brokers=5), partitions=0)
    replicas = (3, 0, 1)
    world.cordons = {3: OURS, 4: OURS}
    for _ in range(20):
        world.partitions = [PartitionState("t", 0, 3, replicas, replicas, 2)]
        world.logs = {}
        advance(world, desired(brokers=3))
    assert sorted(world.pods) == [0, 1, 2, 3]
    assert world.lost == set()


def test_a_broker_that_does_not_answer_goes_only_by_name() -> None:
    world = settled(desired(brokers=4), partitions=0)
    world.pods[3] = replace(world.pods[3], ready=False, trouble="its node is gone")
    world.alive.discard(3)
    wish = desired(brokers=3)
    plan = run(world, wish, steps=20)
    told = wait_of(plan, "ProvingEmpty")
    assert told.severity is Severity.BLOCKED
    assert 'penstock.dev/forget-broker: "3"' in told.message
    assert sorted(world.pods) == [0, 1, 2, 3]
    assert run(world, replace(wish, forget_broker=3)).is_idle
    assert (sorted(world.pods), world.registered) == ([0, 1, 2], {0, 1, 2})


def test_a_broker_whose_replicas_are_needed_does_not_go_by_name() -> None:
    world = settled(desired(brokers=4), partitions=0)
    world.partitions = [PartitionState("t", 0, -1, (3,), (3,), 1)]
    world.pods[3] = replace(world.pods[3], ready=False, trouble="its node is gone")
    world.alive.discard(3)
    run(world, desired(brokers=3, forget_broker=3), steps=20)
    assert sorted(world.pods) == [0, 1, 2, 3]
    assert 3 in world.registered


def test_a_broker_whose_pod_is_away_is_not_unregistered_before_it_was_let_go() -> None:
    world = settled(desired(brokers=4), partitions=0)
    del world.pods[3]
    world.alive.discard(3)
    plan = plan_cluster(desired(brokers=3), world.observed())
    assert not [each for each in plan.actions if isinstance(each, ForgetBroker)]


def test_a_broker_that_never_registered_is_let_go() -> None:
    world = settled(desired(brokers=3))
    pod = world.pod(3, world.pods[0].template_hash, ready=False, trouble="no room")
    world.pods[3] = pod
    assert run(world, desired(brokers=3)).is_idle
    assert sorted(world.pods) == [0, 1, 2]


def test_a_cancelled_drain_ends_its_moves_and_lifts_only_its_own_cordons() -> None:
    world = settled(desired(brokers=5), partitions=0)
    for at, replicas in enumerate([(3, 0, 1), (4, 0, 1), (3, 1, 2)]):
        world.partitions.append(PartitionState("t", at, replicas[0], replicas, replicas, 2))
    mine, manual = where_of(world.partitions[0]), where_of(world.partitions[2])
    world.cordons = {3: OURS, 4: THEIRS}
    world.targets = {mine: (2, 0, 1), manual: (0, 1, 2)}
    world.reasons = {manual: MoveReason.MANUAL}
    wish = desired(brokers=5)
    plan = plan_cluster(wish, world.observed())
    assert plan.actions == (MoveReplicas((ReplicaMove(mine, topic_id="id"),)),)
    world.carry_out(plan.actions[0])
    assert world.targets == {manual: (0, 1, 2)}
    (lift,) = plan_cluster(wish, world.observed()).actions
    world.carry_out(lift)
    assert world.cordons == {4: THEIRS}
    assert plan_cluster(wish, world.observed()).is_idle


def test_a_person_s_cordon_of_leaderships_is_widened_and_stays_theirs() -> None:
    world = settled(desired(brokers=4), partitions=4)
    world.cordons = {3: Cordon(placement=False, leadership=True, why="slow", by="somebody")}
    for action in plan_cluster(desired(brokers=3), world.observed()).actions:
        world.carry_out(action)
    assert world.cordons[3] == Cordon(placement=True, leadership=True, why="slow", by="somebody")


def test_moves_of_a_topic_come_in_waves() -> None:
    world = settled(desired(brokers=4), partitions=0)
    for at in range(WAVE + 100):
        world.partitions.append(PartitionState("t", at, 3, (3,), (3,), 1))
    world.cordons = {3: OURS}
    wish = desired(brokers=3)
    (wave,) = plan_cluster(wish, world.observed()).actions
    assert isinstance(wave, MoveReplicas)
    assert len(wave.moves) == WAVE
    world.carry_out(wave)
    assert plan_cluster(wish, world.observed()).actions == ()

    def end(moves: int) -> None:
        for where in [*world.targets][:moves]:
            del world.targets[where]
            at = where.partition
            world.partitions[at] = PartitionState("t", at, 0, (0,), (0,), 1)

    end(100)
    assert plan_cluster(wish, world.observed()).actions == (), "half a wave is planned at once"
    end(WAVE // 2 - 100)
    (more,) = plan_cluster(wish, world.observed()).actions
    assert isinstance(more, MoveReplicas)
    assert len(more.moves) == 100
    assert not {each.where for each in more.moves} & set(world.targets)


def test_nothing_begins_while_decisions_are_journaled() -> None:
    world = settled(desired(brokers=4), partitions=4)
    seen = world.observed()
    assert seen.moves is not None
    moving = replace(seen.moves.moving, paused=True)
    plan = plan_cluster(desired(brokers=3), replace(seen, moves=replace(seen.moves, moving=moving)))
    assert "MovesWait" in {each.reason for each in plan.waits}
    assert plan.actions == ()


def test_a_controller_that_does_not_say_what_moves_holds_up_scaling_down() -> None:
    world = settled(desired(brokers=4), partitions=0)
    seen = replace(world.observed(), moves=None, moves_problem="unknown method")
    plan = plan_cluster(desired(brokers=3), seen)
    assert "unknown method" in wait_of(plan, "BrokersDoNotAnswer").message
    assert plan.actions == ()


def test_a_set_that_was_made_smaller_by_hand_is_put_back_while_replicas_are_there() -> None:
    world = settled(desired(brokers=4), partitions=8)
    world.objects["StatefulSet", NAMES.broker]["spec"]["replicas"] = 3
    world.pods[3] = replace(world.pods[3], terminating=True, ready=False)
    world.alive.discard(3)
    advance(world, desired(brokers=3))
    assert world.objects["StatefulSet", NAMES.broker]["spec"]["replicas"] == 4


# ── Fewer are made than have records ──────────────────────────────────────────────────────────


def pairs(brokers: int) -> World:
    """Each broker shares a partition with the next, and the last has one alone."""
    world = settled(desired(brokers=brokers), partitions=0)
    for at in range(brokers):
        both = (at, (at + 1) % brokers)
        world.partitions.append(PartitionState("t", at, at, both, both, 1))
    world.partitions.append(
        PartitionState("alone", 0, brokers - 1, (brokers - 1,), (brokers - 1,), 1)
    )
    return world


def stop(world: World, *brokers: int) -> None:
    """Their pods are gone, and who is left leads."""
    for broker_id in brokers:
        world.pods.pop(broker_id, None)
        world.alive.discard(broker_id)
    for at, each in enumerate(world.partitions):
        isr = tuple(one for one in each.isr if one in world.alive) or each.isr
        leader = next((one for one in isr if one in world.alive), -1)
        world.partitions[at] = replace(each, isr=isr, leader=leader)


def forgotten_by(world: World, how: str) -> None:
    """Fewer brokers are made than have records."""
    if how == "made smaller":
        world.objects["StatefulSet", NAMES.broker]["spec"]["replicas"] = 3
        stop(world, *range(3, len(world.pods)))
    elif how == "deleted":
        del world.objects["StatefulSet", NAMES.broker]
        stop(world, *world.pods.copy())
    else:
        world.objects.clear()
        stop(world, *world.pods.copy())


def with_majority(world: World, wish: DesiredCluster, steps: int = 300) -> Plan:
    """As `run`; a controller takes over once most of the registered brokers run."""
    plan = Plan()
    for _ in range(steps):
        world.reachable = len(world.alive) > len(world.registered) // 2
        plan = advance(world, wish)
        if plan.is_idle:
            break
    return plan


@pytest.mark.parametrize("brokers", [5, 7])
@pytest.mark.parametrize("how", ["made smaller", "deleted", "made again"])
def test_brokers_with_records_are_started_and_emptied_before_they_go(
    how: str, brokers: int
) -> None:
    world = pairs(brokers)
    for _ in range(3):
        advance(world, desired(brokers=3))  # a drain has begun
    world.targets.clear()
    forgotten_by(world, how)
    assert with_majority(world, desired(brokers=3)).is_idle
    assert sorted(world.pods) == sorted(world.registered) == [0, 1, 2]
    assert brokers_of(world) == {0, 1, 2}
    assert (world.lost, world.fresh) == (set(), set())
    assert all(each.leader in world.alive for each in world.partitions)


def test_a_volume_that_was_emptied_and_kept_starts_nobody() -> None:
    world, wish = pairs(5), desired(brokers=3)
    assert run(world, wish).is_idle
    assert set(world.claims) == {0, 1, 2, 3, 4}
    assert not any(claim.emptied for claim in world.claims.values())
    forgotten_by(world, "made again")
    for _ in range(100):
        advance(world, wish)
        assert world.objects["StatefulSet", NAMES.broker]["spec"]["replicas"] == 3


def test_a_cluster_that_is_made_again_asleep_wakes_with_all_that_have_records() -> None:
    world = pairs(7)
    forgotten_by(world, "made again")
    with_majority(world, desired(brokers=3, spec_hibernate=True), steps=30)
    assert not world.pods
    assert with_majority(world, desired(brokers=3)).is_idle
    assert sorted(world.pods) == [0, 1, 2]
    assert brokers_of(world) == {0, 1, 2}
    assert world.lost == set()


def test_a_broker_that_has_replicas_and_no_volume_waits_for_a_person() -> None:
    world = pairs(5)
    forgotten_by(world, "made smaller")
    del world.claims[3], world.claims[4]
    for _ in range(10):
        plan = advance(world, desired(brokers=3))
    told = wait_of(plan, "BrokerNotStarted")
    assert told.severity is Severity.BLOCKED
    assert told.message == (
        "broker 3 has 2 replicas and is not started, and claim data-flights-broker-3 is gone: set "
        "spec.brokers to 4 to start it, or give them to others: penstock broker drain 3"
    )
    assert sorted(world.pods) == [0, 1, 2]
    world.unknown = {"PersistentVolumeClaim": "forbidden"}
    plan = advance(world, desired(brokers=3))
    assert "BrokerNotStarted" not in {wait.reason for wait in plan.waits}, "it is not known"


def test_what_answers_did_not_ask_about_is_read_first() -> None:
    """A second look sees brokers that the first one did not know of."""
    world = pairs(5)
    forgotten_by(world, "made smaller")
    seen = world.observed()
    assert seen.moves is not None
    plan = plan_cluster(desired(brokers=3), replace(seen, moves=replace(seen.moves, seen=None)))
    assert "in the next pass" in wait_of(plan, "BrokersDoNotAnswer").message


def test_a_broker_is_empty_only_if_all_answers_say_so() -> None:
    world = settled(desired(brokers=4), partitions=0)
    world.cordons = {3: OURS}
    seen = world.moves()
    assert is_empty(seen, 3)
    assert not is_empty(replace(seen, moving=replace(seen.moving, paused=True)), 3)
    assert not is_empty(replace(seen, logs={**seen.logs, 3: 1}), 3)
    assert not is_empty(replace(seen, logs={}), 3), "it did not say"
    world.cordons = {3: Cordon(placement=False, leadership=True)}
    assert not is_empty(world.moves(), 3), "something may land there"
    world.format = 1
    assert is_empty(world.moves(), 3), "there are no cordons"
    world.format, world.cordons = 2, {3: OURS}
    world.alive.discard(3)
    assert not is_empty(replace(world.moves(), logs={3: 0}), 3)
    world.alive.add(3)
    world.partitions = [PartitionState("t", 0, 0, (0, 1), (0, 1), 1)]
    assert is_empty(world.moves(), 3)
    world.targets = {T0: (0, 3)}
    assert not is_empty(world.moves(), 3), "it shall get a replica"
    assert replace(world.moves(), seen=None).needs(3), "moves alone say so, too"
    world.targets, world.logs = {}, {3: {T0}}
    assert not is_empty(replace(world.moves(), logs={3: 0}), 3), "it has not reported its deletion"


def test_a_proof_takes_two_looks_at_the_same_directory() -> None:
    now = [0.0]
    proofs = Proofs(lambda: now[0])
    assert proofs.proven({3: "a", 4: "b"}) == frozenset()
    now[0] += PROOF_S / 2
    assert proofs.proven({3: "a"}) == frozenset()
    now[0] += PROOF_S / 2
    assert proofs.proven({3: "a", 4: "b"}) == {3}, "broker 4 was not empty in between"
    assert proofs.proven({3: "other", 4: "b"}) == frozenset()
    now[0] += PROOF_S
    assert proofs.proven({3: "other", 4: "b"}) == {3, 4}


@st.composite
def drains(draw: st.DrawFn) -> tuple[World, int, int | None, int]:
    """A world, brokers wanted, brokers wanted after that (None: it is not cancelled), and when."""
    brokers = draw(st.integers(2, 6))
    factor = draw(st.integers(1, min(3, brokers - 1)))
    world = settled(desired(brokers=brokers), draw(st.integers(0, 2**16)), 0)
    for at in range(draw(st.integers(0, 8))):
        replicas = tuple(draw(st.permutations(range(brokers)))[:factor])
        world.partitions.append(PartitionState("t", at, replicas[0], replicas, replicas, 1))
    for broker_id in draw(st.sets(st.integers(0, brokers - 1))):
        world.logs[broker_id] = {TopicPartition("gone", 0)}
    world.unfaithful = set(range(brokers))
    wanted = draw(st.integers(factor, brokers - 1))
    then = draw(st.one_of(st.none(), st.integers(wanted, brokers)))
    return world, wanted, then, draw(st.integers(1, 25))


@given(drains(), st.sets(st.integers(0, 5)))
@settings(max_examples=60, deadline=None)
def test_a_drain_ends_loses_nothing_and_leaves_no_cordon(
    drain: tuple[World, int, int | None, int], cordoned: set[int]
) -> None:  # I34
    world, wanted, then, when = drain
    factors = [len(each.replicas) for each in world.partitions]
    theirs = {each: THEIRS for each in cordoned & world.registered if each >= wanted}
    world.cordons = dict(theirs)
    for _ in range(when):
        advance(world, desired(brokers=wanted))
    last = wanted if then is None else then
    plan = run(world, desired(brokers=last))
    assert plan.is_idle, plan
    assert sorted(world.pods) == list(range(last))
    assert world.lost == set()
    assert [len(each.replicas) for each in world.partitions] == factors
    assert brokers_of(world) <= set(range(last))
    assert all(each.by != "operator" for each in world.cordons.values())
    assert all(world.cordons.get(each, THEIRS) == THEIRS for each in theirs)


@pytest.mark.parametrize("kind", ["Pod", "StatefulSet"])
def test_nothing_is_drained_while_it_is_not_known_what_there_is(kind: str) -> None:
    world = settled(desired(brokers=4), partitions=4)
    world.unknown = {kind: "no answer"}
    assert not asked(plan_cluster(desired(brokers=3), world.observed()))


@pytest.mark.parametrize("taken_back", [False, True])
def test_a_broker_is_forgotten_though_others_change_the_statefulset(taken_back: bool) -> None:
    """Who adds a variable, or changes each time what we apply, as a webhook may."""
    world, wish = settled(desired(brokers=4)), desired(brokers=3)
    applied = 0
    for _ in range(300):
        pod = world.objects["StatefulSet", NAMES.broker]["spec"]["template"]["spec"]
        if taken_back:
            pod["terminationGracePeriodSeconds"] = 31
        else:
            env = pod["containers"][0]["env"]
            pod["containers"][0]["env"] = [one for one in env if one["name"] != "FOO"]
            pod["containers"][0]["env"].append({"name": "FOO", "value": "bar"})
        plan = advance(world, wish)
        applied += sum(isinstance(each, Apply) for each in plan.actions)
    assert world.registered == {0, 1, 2}
    assert taken_back or (plan.is_idle and applied < 10), "it comes to rest"
