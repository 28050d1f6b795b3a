"""Volumes of brokers that were let go: deleted if the spec says so, never one that is needed."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.operator_world import NAMES, World, advance, desired, settled

from penstock.core.manifest.objects import WhenScaledDown
from penstock.core.types import TopicPartition
from penstock_operator.model import Observed, PartitionState, Plan, Wait
from penstock_operator.move_model import DrainStage
from penstock_operator.names import EMPTIED
from penstock_operator.objects import DesiredCluster, Section
from penstock_operator.plan import plan_cluster
from penstock_operator.status import cluster_status
from penstock_operator.volume_model import DropClaim, MarkClaim
from penstock_operator.volumes import claim_state

DELETING = "DeletingVolume"
GONE = TopicPartition("gone", 0)


def wish(brokers: int, **changes: Any) -> DesiredCluster:
    """With volumes that go with their brokers."""
    return desired(brokers, **{"spec_when_scaled_down": WhenScaledDown.DELETE, **changes})


def keeping(brokers: int) -> DesiredCluster:
    return wish(brokers, spec_when_scaled_down=WhenScaledDown.RETAIN)


def passes(world: World, wanted: DesiredCluster, steps: int = 300) -> Iterator[Plan]:
    """Until nothing is left to do."""
    for _ in range(steps):
        plan = advance(world, wanted)
        yield plan
        if plan.is_idle:
            return
    raise AssertionError(f"it never ends: {plan.waits}")


def run(world: World, wanted: DesiredCluster) -> list[Plan]:
    return [*passes(world, wanted)]


def deletions(plan: Plan) -> list[DropClaim]:
    return [each for each in plan.actions if isinstance(each, DropClaim)]


def marked(plan: Plan) -> list[tuple[int, bool]]:
    return [(each.broker_id, each.emptied) for each in plan.actions if isinstance(each, MarkClaim)]


def let_go(brokers: int = 4) -> World:
    """The last broker is gone, and its claim marked; nobody has deleted that yet."""
    world, wanted = settled(wish(brokers), partitions=0), wish(brokers - 1)
    for _ in range(300):
        if deletions(plan_cluster(wanted, world.observed())):
            return world
        advance(world, wanted)
    raise AssertionError("its volume never goes")


def told(plan: Plan) -> Wait:
    (found,) = (wait for wait in plan.waits if wait.reason == DELETING)
    return found


def test_a_volume_goes_with_its_broker_and_after_it() -> None:  # I34
    world = settled(wish(5), partitions=10)
    stages: list[DrainStage] = []
    for plan in passes(world, wish(3)):
        stages += [one.stage for one in plan.drains if one.broker_id == 4]
        for broker_id, _ in marked(plan):
            assert broker_id in world.alive, "it is marked while it can still be asked"
    assert sorted(world.claims) == [0, 1, 2]
    assert sorted(world.dropped) == [3, 4]
    order = [*dict.fromkeys(stages)]
    assert order[-3:] == [DrainStage.PROVING, DrainStage.STOPPING, DrainStage.DELETING_VOLUME]
    assert plan_cluster(wish(3), world.observed()).is_idle


def test_a_volume_stays_unless_the_spec_says_otherwise() -> None:
    world = settled(desired(5), partitions=10)
    before = dict(world.claims)
    assert not [mark for plan in run(world, desired(3)) for mark in marked(plan)]
    assert world.claims == before


def test_delete_counts_for_brokers_that_leave_from_then_on() -> None:
    world = settled(desired(5), partitions=0)
    run(world, keeping(4))
    run(world, wish(3))
    assert sorted(world.claims) == [0, 1, 2, 4], "nobody can say any more what is on volume 4"


def test_a_volume_whose_broker_never_registered_stays() -> None:
    world = settled(wish(3), partitions=0)
    pod = world.pod(3, world.pods[0].template_hash, ready=False, trouble="no room")
    world.pods[3], world.claims[3] = pod, world.claim(3, 10 << 30)
    run(world, wish(3))
    assert (sorted(world.pods), sorted(world.claims)) == ([0, 1, 2], [0, 1, 2, 3])


@pytest.mark.parametrize("takes_back", [False, True])
def test_a_volume_of_a_broker_that_was_given_up_by_name_stays(takes_back: bool) -> None:
    """Also if the annotation goes before the broker is forgotten, as a GitOps tool has it."""
    world = settled(wish(4), partitions=0)
    world.pods[3] = replace(world.pods[3], ready=False, trouble="its node is gone")
    world.alive.discard(3)
    by_name = wish(3, forget_broker=3)
    for _ in range(300):
        if world.objects["StatefulSet", NAMES.broker]["spec"]["replicas"] == 3:
            break
        advance(world, by_name)
    run(world, wish(3) if takes_back else by_name)
    assert (3 in world.claims, world.registered) == (True, {0, 1, 2})


def test_a_volume_stays_whose_pod_somebody_else_has_taken_away() -> None:
    world = settled(wish(4), partitions=0)
    world.logs, world.unfaithful = {3: {GONE}}, {3}
    world.objects["StatefulSet", NAMES.broker]["spec"]["replicas"] = 3
    del world.pods[3]
    world.alive.discard(3)
    run(world, wish(3))
    assert (3 in world.claims, world.registered) == (True, {0, 1, 2})


def test_another_claim_of_that_name_is_not_marked() -> None:
    def claim(uid: str) -> dict[str, Any]:
        annotations = {EMPTIED: "the-uid-of-then"}
        metadata = {"name": "data-3", "uid": uid, "annotations": annotations}
        storage = {"resources": {"requests": {"storage": "1Gi"}}}
        return {"metadata": {**metadata, "resourceVersion": "7"}, "spec": storage}

    seen = claim_state(3, claim("the-uid-of-then"), expandable=False)
    assert (seen.emptied, seen.version) == (True, "7")
    assert not claim_state(3, claim("another"), expandable=False).emptied, "as after a restore"


def test_a_mark_is_taken_off_before_the_broker_is_used_again() -> None:
    world = let_go()
    plan = plan_cluster(wish(4), world.observed())
    assert marked(plan) == [(3, False)]
    for action in plan.actions:
        world.carry_out(action)
    made = world.objects["StatefulSet", NAMES.broker]["spec"]["replicas"]
    assert made == 3, "the broker does not start while its claim may go"
    run(world, wish(4))
    assert 3 in world.registered
    assert not world.claims[3].emptied


def test_a_mark_is_taken_off_under_retain_and_the_claim_stays() -> None:
    world = let_go()
    run(world, keeping(3))
    run(world, wish(3))
    assert 3 in world.claims
    assert (world.claims[3].emptied, world.registered) == (False, {0, 1, 2})


def test_a_mark_stays_while_it_is_not_known_what_the_spec_says_of_volumes() -> None:
    world = let_go()
    unclear = replace(keeping(3), unknown=frozenset({Section.STORAGE}))
    assert not marked(plan_cluster(unclear, world.observed()))
    assert not deletions(plan_cluster(unclear, world.observed()))


def test_a_mark_is_taken_off_a_broker_that_runs_and_is_no_longer_empty() -> None:
    world = settled(wish(4), partitions=0)
    for plan in passes(world, wish(3)):
        if marked(plan):
            break
    world.logs, world.unfaithful = {3: {GONE}}, {3}
    assert marked(plan_cluster(wish(3), world.observed())) == [(3, False)]


@pytest.mark.parametrize("harm", ["alive", "named", "shall have", "silent", "moves unknown"])
def test_a_claim_stays_while_anybody_may_need_it(harm: str) -> None:
    world = let_go()
    match harm:
        case "alive":
            world.alive.add(3)
        case "named":
            world.partitions = [PartitionState("t", 0, 0, (0, 3), (0,), 1)]
        case "shall have":
            world.partitions = [PartitionState("t", 0, 0, (0, 1), (0, 1), 1)]
            world.targets = {TopicPartition("t", 0): (0, 3)}
        case "silent":
            world.reachable = False
    seen: Observed = world.observed()
    if harm == "moves unknown":
        seen = replace(seen, moves=None)
    assert not deletions(plan_cluster(wish(3), seen))


def test_a_claim_stays_while_a_pod_has_it_whatever_else_is_said() -> None:
    world = let_go()
    world.pods[3] = replace(world.pod(3, "", ready=False), terminating=True)
    plan = plan_cluster(wish(3), world.observed())
    assert not deletions(plan)
    assert [one.stage for one in plan.drains] == [DrainStage.STOPPING]


def test_a_broker_whose_volume_goes_while_another_stops_is_shown_once() -> None:
    world = let_go()
    world.pods[4] = replace(world.pod(4, "", ready=False), terminating=True)
    plan = plan_cluster(wish(3), world.observed())
    assert [(one.broker_id, one.stage) for one in plan.drains] == [
        (3, DrainStage.DELETING_VOLUME),
        (4, DrainStage.STOPPING),
    ]


@pytest.mark.parametrize("kind", ["PersistentVolumeClaim", "Pod", "StatefulSet"])
def test_nothing_is_deleted_while_it_is_not_known_what_there_is(kind: str) -> None:
    world = let_go()
    assert deletions(plan_cluster(wish(3), world.observed()))
    world.unknown = {kind: "no answer"}
    assert not deletions(plan_cluster(wish(3), world.observed()))


def test_a_broker_stays_while_its_claim_cannot_be_marked() -> None:
    world = settled(wish(4), partitions=0)
    world.unknown = {"PersistentVolumeClaim": "no answer"}
    for _ in range(20):
        advance(world, wish(3))
    assert sorted(world.pods) == [0, 1, 2, 3]
    world.unknown = {}
    run(world, wish(3))
    assert sorted(world.claims) == [0, 1, 2]


def test_a_paused_cluster_deletes_nothing() -> None:
    world = let_go()
    assert plan_cluster(wish(3, paused=True), world.observed()).actions == ()


def test_a_cluster_that_sleeps_deletes_nothing_and_goes_on_when_it_wakes() -> None:
    world = settled(wish(3), partitions=0)
    asleep = wish(3, spec_hibernate=True)
    for plan in passes(world, asleep):
        world.remember(plan)
    assert not world.pods
    world.claims[3] = replace(world.claim(3, 10 << 30), emptied=True)
    world.registered.add(3)
    for _ in range(10):
        world.remember(advance(world, asleep))
    assert 3 in world.claims
    for _ in range(300):
        world.remember(advance(world, wish(3)))
    assert sorted(world.claims) == [0, 1, 2]


def test_a_claim_that_is_already_going_is_waited_for() -> None:
    world = let_go()
    world.claims[3] = replace(world.claims[3], deleting=True)
    plan = plan_cluster(wish(3), world.observed())
    assert plan.actions == ()
    assert told(plan).message == f"claim {NAMES.claim(3)} of broker 3 is being deleted"


def test_the_status_shows_the_volume_that_goes() -> None:
    world = let_go()
    seen = world.observed()
    plan = plan_cluster(wish(3), seen)
    now = "2026-01-01T00:10:00Z"
    status = cluster_status(wish(3), seen, plan, {}, now)
    assert status["drains"] == [
        {"broker": 3, "state": "DeletingVolume", "replicas": 0, "since": now}
    ]
    reconciling = next(one for one in status["conditions"] if one["type"] == "Reconciling")
    assert (reconciling["status"], reconciling["reason"]) == ("True", DELETING)


@st.composite
def changes_of_mind(draw: st.DrawFn) -> tuple[World, list[tuple[DesiredCluster, int]]]:
    """A world, and wishes, each with the number of passes that it stands for."""
    brokers = draw(st.integers(2, 5))
    world = settled(wish(brokers), draw(st.integers(0, 2**16)), 0)
    for at in range(draw(st.integers(0, 4))):
        replicas = tuple(draw(st.permutations(range(brokers)))[:1])
        world.partitions.append(PartitionState("t", at, replicas[0], replicas, replicas, 1))
    policies = st.sampled_from([WhenScaledDown.DELETE, WhenScaledDown.RETAIN])
    wishes = st.tuples(
        st.builds(
            lambda count, policy: wish(count, spec_when_scaled_down=policy),
            st.integers(1, brokers),
            policies,
        ),
        st.integers(1, 25),
    )
    return world, draw(st.lists(wishes, min_size=1, max_size=4))


@given(changes_of_mind(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_volume_goes_that_holds_anything_or_is_wanted(
    drawn: tuple[World, list[tuple[DesiredCluster, int]]], replaced: bool
) -> None:  # I34
    world, wishes = drawn
    for wanted, steps in wishes:
        for step in range(steps):
            before = list(world.dropped)
            uids = {each: claim.uid for each, claim in world.claims.items()}
            plan = advance(world, wanted)
            gone = world.dropped[len(before) :]
            assert all(each >= wanted.spec.brokers for each in gone)
            assert not gone or wanted.spec.when_scaled_down is WhenScaledDown.DELETE
            assert all(uids[one.broker_id] == one.claim_uid for one in deletions(plan))
            if replaced and step == steps // 2:  # somebody restores a claim from a backup
                for each in [each for each in world.claims if each not in world.pods]:
                    world.claims[each] = world.claim(each, 10 << 30)
    last = wishes[-1][0]
    run(world, last)
    assert world.lost == set()
    assert set(range(last.spec.brokers)) <= set(world.claims)
    assert not any(world.claims[each].emptied for each in range(last.spec.brokers))
    run(world, wish(1))
    assert all(not claim.emptied for claim in world.claims.values()), "what is marked goes"
