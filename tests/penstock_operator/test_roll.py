"""Brokers restart together only where no partition notices more than one of them (I25)."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from support.operator_world import NAMES, World, advance, desired, settled

from penstock.core.manifest.upkeep import Parallel
from penstock.core.types import TopicPartition
from penstock_operator.model import (
    Action,
    Apply,
    MoveLeaders,
    Observed,
    PartitionState,
    Plan,
    RestartPod,
)
from penstock_operator.objects import DesiredCluster
from penstock_operator.objects.broker import template_hash
from penstock_operator.plan import plan_cluster
from penstock_operator.plan.gates import is_serving, led_elsewhere
from penstock_operator.plan.outlook import outlook
from penstock_operator.plan.roll import plan_roll
from penstock_operator.plan.roll_groups import sharing

ALL = Parallel(percent=100)


def wish_for(brokers: int, most: Parallel = ALL) -> DesiredCluster:
    return desired(brokers=brokers, image="b", spec_max_parallel=most)


def outdated_world(
    brokers: int, partitions: Sequence[PartitionState], racks: int = 0, seed: int = 1
) -> World:
    """Settled with image `a`: every broker must restart to have `b`."""
    world = settled(desired(brokers=brokers, image="a"), seed, partitions=0)
    world.partitions = list(partitions)
    world.fresh.clear()
    if racks:
        world.broker_racks = {each: f"rack-{each % racks}" for each in range(brokers)}
    return world


def ready_to_roll(world: World, wish: DesiredCluster, *updated: int) -> World:
    """The controllers and the StatefulSet have the new template already, and of the pods those that
    are named: the next one is not the first."""
    partitions, world.partitions = world.partitions, []
    world.partitions = [part(0, *range(wish.spec.brokers))]
    world.partitions[0] = replace(world.partitions[0], isr=())  # nobody may go
    for _ in range(30):
        for action in plan_cluster(wish, world.observed()).actions:
            world.carry_out(action)
        world._controllers()
    world.partitions = partitions
    for broker_id in updated:
        pod = world.pods[broker_id]
        world.pods[broker_id] = replace(pod, template_hash=template_hash(wish))
    return world


def part(at: int, *replicas: int, min_isr: int = 1) -> PartitionState:
    return PartitionState("t", at, replicas[0], replicas, replicas, min_isr)


def one_per_rack(brokers: int, racks: int, count: int = 12) -> list[PartitionState]:
    """Partitions with a replica in each rack."""
    per_rack = brokers // racks
    return [
        part(at, *(rack + racks * ((at + rack) % per_rack) for rack in range(racks)), min_isr=2)
        for at in range(count)
    ]


def restarted(plan: Plan) -> list[int]:
    return [each.broker_id for each in plan.actions if isinstance(each, RestartPod)]


def led_away(plan: Plan) -> list[int]:
    return [each.broker_id for each in plan.actions if isinstance(each, MoveLeaders)]


def rounds(world: World, wish: DesiredCluster, steps: int = 400) -> list[list[int]]:
    """Which brokers restarted together, one list after the other, until nothing is left to do."""
    taken: list[list[int]] = []
    for _ in range(steps):
        plan = advance(world, wish)
        if plan.is_idle:
            return taken
        if found := restarted(plan):
            taken.append(found)
    raise AssertionError(plan_cluster(wish, world.observed()))


# ── What people see ───────────────────────────────────────────────────────────────────────────


def test_nine_brokers_in_three_racks_take_four_steps_and_the_first_goes_alone() -> None:
    world = outdated_world(9, one_per_rack(9, 3), racks=3)
    wish = wish_for(9, Parallel(brokers=3))
    assert rounds(world, wish) == [[0], [1, 4, 7], [2, 5, 8], [3, 6]]


def test_no_broker_restarts_before_the_controllers_have_their_template() -> None:
    """A quota or a policy may refuse their Deployment, while that of before runs on."""
    world = outdated_world(3, [part(0, 0, 1, 2, min_isr=2)])
    wish = wish_for(3)
    before = [pod.uid for pod in world.pods.values()]
    for _ in range(40):
        plan = plan_cluster(wish, world.observed())
        for action in plan.actions:
            refused = isinstance(action, Apply) and action.object["kind"] == "Deployment"
            if not refused:
                world.carry_out(action)
        world.go_on()
    assert [pod.uid for pod in world.pods.values()] == before
    assert "ControllersRolling" in {wait.reason for wait in plan.waits}
    world.pods[1] = replace(world.pods[1], ready=False, trouble="CrashLoopBackOff")
    world.alive.discard(1)
    assert restarted(plan_cluster(wish, world.observed())) == [1], "it serves nobody"
    assert rounds(world, wish) == [[1], [0], [2]]


def test_nothing_is_evicted_while_the_roll_takes_a_broker() -> None:
    world = outdated_world(3, [part(0, 0, 1, 2), part(1, 1, 2, 0)])
    wish = wish_for(3)
    budget = "PodDisruptionBudget", NAMES.broker
    ready_to_roll(world, wish, 1)
    world.objects[budget]["spec"]["maxUnavailable"] = 1
    leading = plan_cluster(wish, world.observed())
    assert (led_away(leading), restarted(leading)) == ([0], [])
    for action in leading.actions:
        world.carry_out(action)
    assert world.objects[budget]["spec"]["maxUnavailable"] == 0
    taking = plan_cluster(wish, world.observed())
    assert restarted(taking) == [0]
    assert [each for each in taking.actions if isinstance(each, Apply)] == [], "it stays at none"
    world.objects[budget]["spec"]["maxUnavailable"] = 1
    lowered, taken = plan_cluster(wish, world.observed()).actions
    assert isinstance(lowered, Apply), "first, so that it holds before the broker stops"
    assert isinstance(taken, RestartPod)
    rounds(world, wish)
    assert world.objects[budget]["spec"]["maxUnavailable"] == 1


def test_by_default_a_small_cluster_rolls_one_by_one() -> None:
    world = outdated_world(6, one_per_rack(6, 3), racks=3)
    assert rounds(world, wish_for(6, Parallel())) == [[each] for each in range(6)]


def test_without_racks_those_that_share_no_partition_go_together() -> None:
    world = outdated_world(6, [part(0, 0, 1), part(1, 2, 3), part(2, 4, 5)])
    assert rounds(world, wish_for(6)) == [[0], [1, 2, 4], [3, 5]]


def test_racks_are_not_mixed_even_where_nothing_is_shared() -> None:
    world = outdated_world(4, [part(0, 0, 1), part(1, 2, 3)], racks=2)
    assert rounds(world, wish_for(4)) == [[0], [1, 3], [2]]


def test_a_bad_template_takes_down_one_broker() -> None:
    world = outdated_world(6, [])
    wish = wish_for(6)
    for _ in range(60):
        for action in plan_cluster(wish, world.observed()).actions:
            world.carry_out(action)
        world.go_on()
        for broker_id, pod in world.pods.items():
            if pod.template_hash == template_hash(wish) and not pod.terminating:
                world.pods[broker_id] = replace(pod, ready=False, trouble="ImagePullBackOff")
                world.alive.discard(broker_id)
    assert [at for at, pod in world.pods.items() if not pod.ready] == [0]


def test_a_partition_without_a_replica_to_spare_lets_its_brokers_go_alone() -> None:
    """By its own settings: min ISR 2 of two replicas, or a single replica."""
    world = outdated_world(6, [part(0, 0, 1, min_isr=2), part(1, 2), part(2, 5, 3)])
    wish = wish_for(6)
    ready_to_roll(world, wish, 5)
    assert rounds(world, wish) == [[0], [1], [2], [3, 4]]


def test_a_partition_that_lags_holds_up_its_brokers_and_no_others() -> None:
    world = outdated_world(4, [part(0, 0, 1), part(1, 2, 3)])
    wish = wish_for(4)
    world.partitions[0] = replace(world.partitions[0], isr=(1,), leader=1)
    assert led_away(plan_cluster(wish, ready_to_roll(world, wish).observed())) == [2]


def test_who_has_restarted_must_be_in_sync_before_the_next_goes() -> None:
    """Even if the next one has none of its partitions: it may be the template that is wrong."""
    world = outdated_world(4, [part(0, 0, 1), part(1, 2, 3)])
    wish = wish_for(4)
    world.partitions[0] = replace(world.partitions[0], isr=(1,), leader=1)
    plan = plan_cluster(wish, ready_to_roll(world, wish, 0).observed())
    assert restarted(plan) == led_away(plan) == []
    assert any(wait.message.endswith("waiting until replicas catch up: t-0") for wait in plan.waits)


def test_while_all_lag_the_roll_says_what_it_waits_for() -> None:
    world = outdated_world(2, [part(0, 0, 1)])
    wish = wish_for(2)
    world.partitions[0] = replace(world.partitions[0], isr=(1,), leader=1)
    plan = plan_cluster(wish, ready_to_roll(world, wish).observed())
    assert restarted(plan) == led_away(plan) == []
    said = [wait.message for wait in plan.waits if wait.reason == "CatchingUp"]
    assert "2 of 2 brokers must restart, in 2 steps; waiting until replicas catch up: t-0" in said


def test_a_replica_whose_broker_has_no_session_counts_as_out_of_sync() -> None:
    """The ISR still names it: that takes the controller a moment."""
    world = outdated_world(2, [part(0, 0, 1, 9)])
    wish = wish_for(2)
    plan = plan_cluster(wish, ready_to_roll(world, wish).observed())
    assert restarted(plan) == led_away(plan) == []


def test_leaderships_leave_all_of_a_group_before_any_of_it_stops() -> None:
    world = outdated_world(6, [part(0, 0, 1), part(1, 4, 3), part(2, 5, 0)], racks=3)
    wish = wish_for(6, Parallel(brokers=2))
    ready_to_roll(world, wish, 0, 3)
    plan = plan_cluster(wish, world.observed())
    assert (led_away(plan), restarted(plan)) == ([4], []), "broker 1 waits for it"
    for action in plan.actions:
        world.carry_out(action)
    assert restarted(plan_cluster(wish, world.observed())) == [1, 4]


def test_who_gets_a_partition_that_moves_does_not_go_with_those_that_have_it() -> None:
    """It may switch at any moment: to brokers 0 and 2, which both were about to stop."""
    world = outdated_world(4, [part(0, 3, 0)])
    wish = wish_for(4)
    ready_to_roll(world, wish, 3)
    assert restarted(plan_cluster(wish, world.observed())) == [0, 1, 2]
    unknown = replace(world.observed(), moves=None)
    assert restarted(plan_cluster(wish, unknown)) == [0], "it is not known what moves"
    world.targets[TopicPartition("t", 0)] = (3, 2)
    assert restarted(plan_cluster(wish, world.observed())) == [0, 1]


def test_who_follows_in_a_group_goes_only_while_what_was_seen_is_fresh() -> None:
    world = outdated_world(4, [])
    wish = wish_for(4)
    plan = plan_cluster(wish, ready_to_roll(world, wish, 3).observed())
    followers = [each.follows for each in plan.actions if isinstance(each, RestartPod)]
    assert followers == [False, True, True]


def test_the_steps_and_the_time_they_take_are_told() -> None:
    world = outdated_world(9, one_per_rack(9, 3), racks=3)
    wish = wish_for(9, Parallel(brokers=3))
    assert str(outlook(wish, world.observed(), range(9), is_first=True)) == "in 4 steps"
    world.pods = {at: replace(pod, start_s=40) for at, pod in world.pods.items()}
    world.pods[0] = replace(world.pods[0], start_s=86_400)  # it was ready before
    ahead = outlook(wish, world.observed(), range(9), is_first=True)
    assert ahead is not None
    assert ahead.groups == ((0,), (1, 4, 7), (2, 5, 8), (3, 6))
    assert str(ahead) == "in 4 steps, about 3 min"
    said = [
        wait.message for wait in plan_cluster(wish, ready_to_roll(world, wish).observed()).waits
    ]
    assert any(one.startswith("9 of 9 brokers must restart, in 4 steps, about 3") for one in said)


# ── Over generated clusters ───────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Case:
    """A cluster whose brokers have to restart."""

    brokers: int
    racks: int
    partitions: tuple[PartitionState, ...]
    most: Parallel
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    brokers = draw(st.integers(1, 9))
    partitions = []
    for at in range(draw(st.integers(0, 10))):
        replicas = draw(st.permutations(range(brokers)))[: draw(st.integers(1, min(3, brokers)))]
        partitions.append(part(at, *replicas, min_isr=draw(st.integers(1, len(replicas)))))
    share = st.builds(Parallel, percent=st.integers(1, 100))
    count = st.builds(Parallel, brokers=st.integers(1, 9))
    return Case(
        brokers=brokers,
        racks=draw(st.integers(0, 4)),
        partitions=tuple(partitions),
        most=draw(st.one_of(share, count)),
        seed=draw(st.integers(0, 2**16)),
    )


@given(cases(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_partition_misses_two_replicas_wherever_the_operator_dies(
    case: Case, dies: bool
) -> None:
    """I25, and it ends. `dies`: the operator may end behind each of its acts, and a new one starts
    from what is there."""
    world = outdated_world(case.brokers, case.partitions, case.racks, case.seed)
    wish = wish_for(case.brokers, case.most)
    draw = random.Random(case.seed)
    for _ in range(1_000):
        plan = plan_cluster(wish, world.observed())
        if plan.is_idle:
            break
        acts = draw.randint(0, len(plan.actions)) if dies else len(plan.actions)
        for action in plan.actions[:acts]:
            if isinstance(action, RestartPod):
                check_restart(world, action, case, template_hash(wish))
            world.carry_out(action)
        world.go_on()
    else:
        raise AssertionError(plan)
    assert {pod.template_hash for pod in world.pods.values()} == {template_hash(wish)}


def check_restart(world: World, action: RestartPod, case: Case, newest: str) -> None:
    """Whoever is down now is down by the operator's hand: nothing else stops brokers here."""
    going = action.broker_id
    down = set(range(case.brokers)) - world.alive
    assert len(down) < case.most.of(case.brokers)
    assert len({world.broker_racks.get(each, "") for each in {going, *down}}) == 1
    new = [at for at, pod in world.pods.items() if pod.template_hash == newest]
    assert new or not down, "the first one goes alone"
    for each in world.partitions:
        if going in each.replicas:
            assert each.is_full, each
            assert not down & set(each.replicas), f"{each} misses {down} and {going}"
            others = len(each.isr) - 1
            spare = others >= max(1, each.min_isr)
            assert spare or not down, f"{each} has none to spare, and {down} are down"
            assert each.leader != going or not others, "it leads what others could"


def one_by_one(observed: Observed, wish: DesiredCluster, newest: str) -> tuple[Action, ...]:
    """The roll as it was: the first by id, when all replicas of all partitions are in sync."""
    facts = observed.brokers
    assert facts is not None
    outdated = [
        pod
        for _, pod in sorted(observed.pods.items())
        if pod.template_hash != newest and not pod.terminating
    ]
    serves = all(is_serving(observed.pods.get(at), facts) for at in range(wish.spec.brokers))
    if not outdated or not serves or facts.not_full:
        return ()
    pod = outdated[0]
    if led_elsewhere(facts, pod.broker_id):
        return (MoveLeaders(pod.broker_id),)
    return (RestartPod(pod.broker_id, pod.name, pod.uid, "its template has changed"),)


@given(cases())
@settings(max_examples=30, deadline=None)
def test_one_at_a_time_is_what_it_was(case: Case) -> None:
    """Wherever all replicas are in sync; where some are not, others may go now."""
    world = outdated_world(case.brokers, case.partitions, case.racks, case.seed)
    wish = wish_for(case.brokers, Parallel(brokers=1))
    newest = template_hash(wish)
    compared = 0
    for _ in range(600):
        observed = world.observed()
        plan = plan_cluster(wish, observed)
        if plan.is_idle:
            break
        facts = observed.brokers
        rolled_out = "ControllersNotReady" not in {wait.reason for wait in plan.waits}
        if rolled_out and facts is not None and not facts.not_full:
            found, _ = plan_roll(wish, observed, newest)
            assert found == one_by_one(observed, wish, newest)
            compared += bool(found)
        for action in plan.actions:
            world.carry_out(action)
        world.go_on()
    assert compared >= case.brokers


@given(cases())
@settings(max_examples=200, deadline=None)
def test_all_go_exactly_once_in_groups_that_share_nothing(case: Case) -> None:
    world = World(random.Random(case.seed), registered=set(range(case.brokers)))
    world.partitions = list(case.partitions)
    together = sharing(world.facts(), (), case.most.of(case.brokers))
    groups = together.groups(range(case.brokers), is_first=True)
    assert sorted(each for group in groups for each in group) == list(range(case.brokers))
    assert len(groups[0]) == 1
    for group in groups:
        for each in case.partitions:
            assert len(set(group) & set(each.replicas)) <= 1
