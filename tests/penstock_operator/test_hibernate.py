"""A Cluster goes to sleep and wakes: in which order, what is waited for, and what is left alone."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.operator_world import NAMES, World, desired, settled

from penstock.core.manifest.objects import SecurityMode
from penstock_operator.clock import now_text
from penstock_operator.hibernation_model import Hibernate, Record, Stage
from penstock_operator.model import Apply, OrphanSet, Plan, RestartPod, Severity
from penstock_operator.names import ASLEEP
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan import plan_cluster
from penstock_operator.plan.hibernate import REST_S, RETURN_S
from penstock_operator.status import cluster_status, hibernation_row

AWAKE = desired()
ASLEEP_WISH = desired(spec_hibernate=True)


def step(world: World, wish: DesiredCluster) -> Plan:
    """One pass, and a second of the world."""
    plan = plan_cluster(wish, world.observed())
    for action in plan.actions:
        world.carry_out(action)
    world.remember(plan)
    world.go_on()
    return plan


def run(
    world: World, wish: DesiredCluster, until: Callable[[Plan], bool], steps: int = 300
) -> list[Plan]:
    plans: list[Plan] = []
    for _ in range(steps):
        plans.append(step(world, wish))
        if until(plans[-1]):
            return plans
    raise AssertionError(f"still {plans[-1].hibernation}: {[w.message for w in plans[-1].waits]}")


def is_at(stage: Stage) -> Callable[[Plan], bool]:
    return lambda plan: (plan.hibernation or Record()).stage is stage


def asleep(world: World) -> World:
    run(world, ASLEEP_WISH, lambda plan: is_at(Stage.HIBERNATED)(plan) and plan.is_idle)
    return world


def made(world: World) -> tuple[int, int]:
    """Brokers and controllers that are to run."""
    brokers = world.objects["StatefulSet", NAMES.broker]["spec"]["replicas"]
    return brokers, world.objects["Deployment", NAMES.controller]["spec"]["replicas"]


def reasons(plan: Plan) -> set[str]:
    return {wait.reason for wait in plan.waits}


def stages(plans: list[Plan]) -> list[Stage]:
    found = [(plan.hibernation or Record()).stage for plan in plans]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("seed", range(5))
def test_it_sleeps_and_wakes_as_it_was(seed: int) -> None:
    world = settled(AWAKE)
    world.random = random.Random(seed)
    before = list(world.partitions)
    claims = dict(world.claims)
    plans = run(world, ASLEEP_WISH, lambda plan: is_at(Stage.HIBERNATED)(plan) and plan.is_idle)
    assert stages(plans) == [Stage.HIBERNATING, Stage.STOPPING, Stage.HIBERNATED]
    assert made(world) == (0, 0)
    assert (world.pods, world.claims) == ({}, claims)
    assert world.hibernating, "it is the controller's word that nobody is elected at wake"
    assert ("Service", NAMES.bootstrap) in world.objects
    plans = run(world, AWAKE, lambda plan: is_at(Stage.AWAKE)(plan) and plan.is_idle)
    assert stages(plans) == [Stage.STARTING, Stage.WAKING, Stage.AWAKE]
    assert made(world) == (3, 2)
    assert not world.hibernating
    assert [one.isr for one in world.partitions] == [one.isr for one in before]
    assert plan_cluster(AWAKE, world.observed()).is_idle


def test_brokers_stop_before_controllers_and_start_after_them() -> None:
    world = settled(AWAKE)
    for _ in range(100):
        step(world, ASLEEP_WISH)
        brokers, controllers = made(world)
        assert controllers or not (brokers or world.pods)
        if not controllers:
            break
    asleep(world)
    for _ in range(100):
        available = world.objects["Deployment", NAMES.controller]["status"]["availableReplicas"]
        step(world, AWAKE)
        brokers, _ = made(world)
        assert not brokers or available, "no broker before a controller"
        if brokers:
            break
    assert made(world)[0] == 3


def test_writes_are_refused_first_and_brokers_stop_only_once_all_is_at_rest() -> None:
    world = settled(AWAKE)
    first = step(world, ASLEEP_WISH)
    assert [a for a in first.actions if isinstance(a, Hibernate)] == [Hibernate(hibernating=True)]
    assert made(world) == (3, 2)
    world.unquiet = "orders-0: 3 records are not on all replicas yet"
    for _ in range(20):
        plan = step(world, ASLEEP_WISH)
        assert made(world) == (3, 2)
        assert world.unquiet in plan.waits[0].message
    world.unquiet = ""
    step(world, ASLEEP_WISH)
    assert made(world) == (0, 2)
    assert world.objects["StatefulSet", NAMES.broker]["metadata"]["annotations"][ASLEEP] == "3"


def test_a_cluster_that_does_not_come_to_rest_is_given_back() -> None:
    world = settled(AWAKE)
    step(world, ASLEEP_WISH)
    world.unquiet = "orders-0: replicas [2] are not in sync"
    world.seconds += REST_S - 2
    assert is_at(Stage.HIBERNATING)(step(world, ASLEEP_WISH))
    world.seconds += 2
    plan = step(world, ASLEEP_WISH)
    assert [(w.reason, w.severity) for w in plan.waits] == [("HibernateBlocked", Severity.BLOCKED)]
    assert "orders-0" in plan.waits[0].message
    step(world, ASLEEP_WISH)
    assert not world.hibernating, "writes are allowed again"
    world.unquiet = ""
    for _ in range(5):
        plan = step(world, ASLEEP_WISH)
        assert reasons(plan) == {"HibernateBlocked"}, "until the spec changes"
        assert plan.actions == ()
        assert plan.resting is None, "it serves"
    asleep_again = replace(ASLEEP_WISH, generation=2)
    run(world, asleep_again, is_at(Stage.HIBERNATED))
    assert made(world) == (0, 0)


def test_a_wake_that_was_asked_for_is_seen_before_brokers_stop() -> None:
    """The controller keeps it while the metadata store is away, and stores it afterwards."""
    world = settled(AWAKE)
    step(world, ASLEEP_WISH)
    world.unquiet = "orders-0: replicas [2] are not in sync"
    world.seconds += REST_S
    step(world, ASLEEP_WISH)
    world.unquiet = ""
    wishes = [
        (replace(ASLEEP_WISH, generation=2), True),
        (replace(AWAKE, generation=3), False),
        (replace(ASLEEP_WISH, generation=4), False),
        (replace(ASLEEP_WISH, generation=4), True),
        (replace(ASLEEP_WISH, generation=4), True),
    ]
    for wish, world.reachable in wishes:
        world.hibernating = True
        assert is_at(Stage.BLOCKED)(step(world, wish))
        assert made(world) == (3, 2)
    assert not world.hibernating, "it is asked for until it is seen"
    plans = run(world, replace(ASLEEP_WISH, generation=4), is_at(Stage.HIBERNATED))
    assert Hibernate(hibernating=True) in plans[0].actions


def test_a_moment_without_a_controller_gives_it_no_more_time_to_come_to_rest() -> None:
    world = settled(AWAKE)
    step(world, ASLEEP_WISH)
    world.unquiet = "orders-0: replicas [2] are not in sync"
    began = world.seconds
    while world.hibernating and world.seconds - began < 2 * REST_S:
        world.reachable = int(world.seconds) % 60 != 0
        step(world, ASLEEP_WISH)
    assert REST_S <= world.seconds - began <= REST_S + 5


def test_a_cluster_that_does_not_know_how_to_sleep_is_given_back() -> None:
    """An older release refuses the call; rolls, drains and lost volumes must not wait for it."""
    world = settled(AWAKE)
    for _ in range(int(REST_S) + 10):
        plan = step(world, ASLEEP_WISH)
        world.hibernating = False
    assert is_at(Stage.BLOCKED)(plan)
    assert not any(isinstance(action, Hibernate) for action in plan.actions)
    (wait,) = (wait for wait in plan.waits if wait.reason == "HibernateBlocked")
    assert "older release" in wait.message
    newer = desired(spec_hibernate=True, image="penstock-broker:2")
    plans = run(world, newer, lambda plan: any(isinstance(a, RestartPod) for a in plan.actions))
    assert plans


def test_a_drain_goes_first() -> None:
    world = settled(desired(brokers=4))
    down = desired(brokers=3, spec_hibernate=True)
    plan = step(world, down)
    assert {"Hibernating", "Draining"} & reasons(plan)
    assert not world.hibernating
    run(world, down, is_at(Stage.HIBERNATING))
    assert made(world) == (3, 2)
    assert not world.lost
    run(world, down, is_at(Stage.HIBERNATED))


def test_a_roll_is_left_to_the_wake() -> None:
    world = settled(AWAKE)
    other = desired(image="penstock-broker:2")
    wish = desired(image="penstock-broker:2", spec_hibernate=True)
    plans = run(world, wish, is_at(Stage.HIBERNATED))
    restarts = [a for plan in plans for a in plan.actions if isinstance(a, RestartPod)]
    assert len(restarts) <= 1, "one may have begun"
    run(world, other, lambda plan: is_at(Stage.AWAKE)(plan) and plan.is_idle)
    assert made(world) == (3, 2)


def test_what_is_broken_is_waited_for() -> None:
    world = settled(AWAKE)
    world.partitions = [replace(each, isr=each.isr[:2]) for each in world.partitions]
    plan = plan_cluster(ASLEEP_WISH, world.observed())
    assert "catch up" in next(w.message for w in plan.waits if w.reason == "Hibernating")
    assert not any(isinstance(action, Hibernate) for action in plan.actions)
    world.reachable = False
    plan = plan_cluster(ASLEEP_WISH, world.observed())
    assert "no route" in next(w.message for w in plan.waits if w.reason == "Hibernating")


def test_it_does_not_begin_while_a_claim_is_deleted_that_only_its_pod_keeps() -> None:
    world = settled(AWAKE)
    world.claims[1] = replace(world.claims[1], deleting=True)
    for _ in range(60):
        plan = step(world, ASLEEP_WISH)
    assert (world.hibernating, made(world)) == (False, (3, 2))
    blocked = next(wait for wait in plan.waits if wait.reason == "HibernateBlocked")
    assert blocked.severity is Severity.BLOCKED
    assert blocked.message.startswith(
        "cannot hibernate: claim data-flights-broker-1 is being deleted, and the records of "
        "broker 1 go with it when its pod stops"
    )
    world.unknown = {"PersistentVolumeClaim": "forbidden"}
    world.claims[1] = replace(world.claims[1], deleting=False)
    for _ in range(60):
        plan = step(world, ASLEEP_WISH)
    assert not world.hibernating, "it is not known whether one is deleted"
    world.unknown = {}
    run(world, ASLEEP_WISH, is_at(Stage.HIBERNATED))


def test_no_broker_stops_when_a_claim_is_deleted_on_the_way_to_sleep() -> None:
    world = settled(AWAKE)
    world.unquiet = "a write is open"
    run(world, ASLEEP_WISH, is_at(Stage.HIBERNATING))
    world.claims[1] = replace(world.claims[1], deleting=True)
    world.unquiet = ""
    step(world, ASLEEP_WISH)
    plan = step(world, ASLEEP_WISH)
    told = next(wait for wait in plan.waits if wait.reason == "Hibernating")
    assert told.severity is Severity.BLOCKED
    assert "claim data-flights-broker-1 is being deleted" in told.message
    world.seconds += REST_S
    run(world, ASLEEP_WISH, is_at(Stage.BLOCKED))
    run(world, ASLEEP_WISH, lambda _: not world.hibernating)
    assert made(world) == (3, 2)


def test_it_does_not_begin_while_a_loss_is_accepted_for_a_broker_that_runs() -> None:
    """Days later, at wake, a node that is slow to come would have the volume given up."""
    world = settled(AWAKE)
    world.request = "1:accept-loss"
    plan = step(world, replace(ASLEEP_WISH, replace_volume=world.request))
    assert "accepts that records of broker 1 are lost" in plan.waits[0].message
    assert world.request.startswith(f"1:accept-loss@{world.claims[1].uid}@")
    bound = world.request
    while world.request:
        assert not world.hibernating
        step(world, replace(ASLEEP_WISH, replace_volume=world.request))
    run(world, ASLEEP_WISH, is_at(Stage.HIBERNATED))
    while not world.pods:
        step(world, AWAKE)
    world.alive.clear()
    for broker_id, pod in world.pods.items():
        world.pods[broker_id] = replace(pod, ready=False, trouble="it cannot be scheduled")
    step(world, replace(AWAKE, replace_volume=bound))
    assert not world.replaced, "nor one of an operator that let it sleep"


def test_no_broker_stops_when_a_loss_is_accepted_on_the_way_to_sleep() -> None:
    world = settled(AWAKE)
    world.unquiet = "a write is open"
    run(world, ASLEEP_WISH, is_at(Stage.HIBERNATING))
    world.unquiet = ""
    step(world, replace(ASLEEP_WISH, replace_volume="1:accept-loss"))
    plan = step(world, replace(ASLEEP_WISH, replace_volume="1:accept-loss"))
    assert is_at(Stage.HIBERNATING)(plan)
    assert "accepts that records of broker 1 are lost" in plan.waits[0].message
    run(world, ASLEEP_WISH, is_at(Stage.HIBERNATED))


def test_an_older_format_says_what_to_do() -> None:
    world = settled(AWAKE)
    world.format = 1
    plan = plan_cluster(ASLEEP_WISH, world.observed())
    blocked = next(w for w in plan.waits if w.reason == "HibernateBlocked")
    assert "penstock cluster finalize" in blocked.message
    assert blocked.severity is Severity.BLOCKED


def test_a_new_cluster_can_begin_asleep() -> None:
    world = World(random.Random(1))
    asleep(world)
    assert made(world) == (0, 0)
    run(world, AWAKE, lambda plan: is_at(Stage.AWAKE)(plan) and plan.is_idle)
    assert made(world) == (3, 2)


def test_a_single_controller_is_not_ready_before_a_majority_of_the_brokers_runs() -> None:
    """It takes over then (ADR 29), so brokers must not wait for it."""
    awake, wish = desired(controllers=1), desired(controllers=1, spec_hibernate=True)
    world = settled(awake)
    run(world, wish, lambda plan: is_at(Stage.HIBERNATED)(plan) and plan.is_idle)

    def is_awake(plan: Plan) -> bool:
        status = world.objects["Deployment", NAMES.controller].get("status", {})
        if len(world.alive) < 2:
            status["availableReplicas"] = 0
            world.reachable = False
        else:
            world.reachable = True
        return is_at(Stage.AWAKE)(plan) and plan.is_idle

    run(world, awake, is_awake)
    assert made(world) == (3, 1)


def test_volumes_that_were_lost_while_it_slept_are_replaced_on_request() -> None:
    """With most of them gone, nobody takes over, and it would start for ever."""
    world = asleep(settled(AWAKE))
    run(world, AWAKE, is_at(Stage.STARTING))
    while not world.pods:
        step(world, AWAKE)
    gone = {1: world.claims[1].uid, 2: world.claims[2].uid}

    def nobody_takes_over() -> None:
        for broker_id, uid in gone.items():
            if world.claims[broker_id].uid == uid:
                world.alive.discard(broker_id)
                world.pods[broker_id] = replace(
                    world.pods[broker_id], ready=False, trouble="it cannot be scheduled"
                )
        world.alive.clear()

    for _ in range(5):
        nobody_takes_over()
        plan = step(world, AWAKE)
        assert is_at(Stage.STARTING)(plan)
    world.request = f"1:accept-loss@{gone[1]}@{world.at}"
    nobody_takes_over()
    world.pods[0] = replace(world.pods[0], ready=False)
    step(world, replace(AWAKE, replace_volume=world.request))
    assert world.replaced == [1]


def test_changes_while_asleep_take_effect_at_wake() -> None:
    world = asleep(settled(AWAKE))
    larger = desired(brokers=4, spec_hibernate=True, spec_storage_size="20Gi")
    plans = run(world, larger, lambda plan: plan.is_idle)
    assert not any(isinstance(a, OrphanSet) for plan in plans for a in plan.actions)
    assert made(world) == (0, 0)
    awake = desired(brokers=4, spec_storage_size="20Gi")
    run(world, awake, lambda plan: is_at(Stage.AWAKE)(plan) and plan.is_idle)
    assert made(world) == (4, 2)


@pytest.mark.parametrize("before", [SecurityMode.DISABLED, SecurityMode.MIGRATE])
def test_sleep_is_no_way_around_the_gate_to_strict(before: SecurityMode) -> None:
    """Clients that use plaintext are there again at wake."""
    world = settled(desired(spec_security=before))
    wish = desired(spec_security=before, spec_hibernate=True)
    run(world, wish, lambda plan: is_at(Stage.HIBERNATED)(plan) and plan.is_idle)
    for hibernate in (True, True, False):
        step(world, desired(spec_security=SecurityMode.STRICT, spec_hibernate=hibernate))
    live = world.objects["StatefulSet", NAMES.broker]
    assert SecurityMode.of_pod(live["spec"]["template"]) is SecurityMode.MIGRATE


def test_fewer_brokers_while_asleep_are_emptied_at_wake() -> None:
    """All that hold replicas have to come back first."""
    world = settled(desired(brokers=4))
    wish = desired(brokers=4, spec_hibernate=True)
    run(world, wish, lambda plan: is_at(Stage.HIBERNATED)(plan) and plan.is_idle)
    world.lost.clear()
    run(world, desired(brokers=3), is_at(Stage.WAKING))
    assert made(world)[0] == 4
    run(world, desired(brokers=3), lambda plan: is_at(Stage.AWAKE)(plan) and plan.is_idle)
    assert made(world)[0] == 3
    assert not world.lost


def test_a_broker_that_does_not_come_back_is_waited_for_a_minute() -> None:
    world = asleep(settled(AWAKE))
    run(world, AWAKE, is_at(Stage.STARTING))
    while not is_at(Stage.WAKING)(step(world, AWAKE)):
        world.alive -= {2}
        world.pods.pop(2, None)
    began = world.seconds
    while world.hibernating:
        world.alive -= {2}
        world.pods.pop(2, None)
        step(world, AWAKE)
    assert RETURN_S <= world.seconds - began <= RETURN_S + 5


def test_a_moment_without_a_controller_while_it_wakes_changes_nothing() -> None:
    """To sleep again it wakes first: nobody leads, so it would not come to rest."""
    world = asleep(settled(AWAKE))
    run(world, AWAKE, is_at(Stage.STARTING))
    while not is_at(Stage.WAKING)(step(world, AWAKE)):
        world.alive -= {2}
        world.pods.pop(2, None)
    for reachable in (False, True):
        world.reachable = reachable
        world.alive -= {2}
        world.pods.pop(2, None)
        assert is_at(Stage.WAKING)(step(world, ASLEEP_WISH))
    run(world, ASLEEP_WISH, is_at(Stage.HIBERNATED))


def test_one_that_changes_its_mind_on_the_way() -> None:
    world = settled(AWAKE)
    step(world, ASLEEP_WISH)
    assert world.hibernating
    run(world, AWAKE, lambda plan: is_at(Stage.AWAKE)(plan) and plan.is_idle, steps=10)
    assert not world.hibernating
    assert made(world) == (3, 2)
    asleep(world)
    run(world, AWAKE, is_at(Stage.STARTING))
    asleep(world)
    run(world, AWAKE, is_at(Stage.WAKING))
    run(world, ASLEEP_WISH, is_at(Stage.HIBERNATED))


@pytest.mark.parametrize("kind", ["StatefulSet", "Pod"])
def test_what_cannot_be_read_wakes_nothing(kind: str) -> None:  # I28
    world = asleep(settled(AWAKE))
    world.unknown = {kind: "timed out"}
    for wish in (ASLEEP_WISH, AWAKE):
        step(world, wish)
        assert made(world) == (0, 0)
    world.unknown = {}
    plan = step(world, ASLEEP_WISH)
    assert plan.is_idle


def test_another_operator_goes_on_at_any_point() -> None:
    """The status may be older than what was done: only the objects count."""
    world = settled(AWAKE)
    for _ in range(40):
        step(world, ASLEEP_WISH)
        world.record = Record()
    assert made(world) == (0, 0)
    for number in range(40):
        step(world, AWAKE)
        if number % 2:
            world.record = Record()
    assert made(world) == (3, 2)
    assert not world.hibernating


@pytest.mark.parametrize("taken_back", [True, False], ids=["taken back", "blocked"])
def test_the_status_says_that_it_wakes_before_a_controller_is_told(taken_back: bool) -> None:
    """Who ends after it has asked leaves a wake that may be stored at any time: the next one has
    to know."""
    world = settled(AWAKE)
    step(world, ASLEEP_WISH)
    assert world.hibernating
    world.unquiet = "orders-0: replicas [2] are not in sync"
    world.seconds += 0 if taken_back else REST_S
    wish = AWAKE if taken_back else ASLEEP_WISH
    plan = plan_cluster(wish, world.observed())
    assert not any(isinstance(action, Hibernate) for action in plan.actions)
    world.remember(plan)
    assert Hibernate(hibernating=False) in plan_cluster(ASLEEP_WISH, world.observed()).actions


def test_nobody_writes_to_a_cluster_that_sleeps() -> None:
    world = asleep(settled(AWAKE))
    plan = plan_cluster(ASLEEP_WISH, world.observed())
    assert not any(isinstance(action, Apply) for action in plan.actions)
    assert plan.is_idle
    now = now_text()
    status = cluster_status(ASLEEP_WISH, world.observed(), plan, {}, now)
    assert status["phase"] == "Hibernated"
    ready, reconciling, stalled = status["conditions"][:3]
    assert (ready["status"], ready["reason"]) == ("False", "Hibernated")
    assert "spec.hibernate: false" in ready["message"]
    assert (reconciling["status"], stalled["status"]) == ("False", "False")
    assert status["hibernation"]["state"] == "Hibernated"
    again = cluster_status(ASLEEP_WISH, world.observed(), plan, status, now)
    assert again == status


def test_the_status_forgets_the_wake() -> None:
    """What a pass does not mention stays in the status."""
    world = asleep(settled(AWAKE))
    plans = run(world, AWAKE, is_at(Stage.AWAKE))
    assert is_at(Stage.WAKING)(plans[-2])
    row = hibernation_row(plans[-1], {"hibernation": {"state": "Waking"}}, "now")
    assert row["hibernation"]["state"] == ""


def test_a_cluster_that_never_slept_says_nothing_of_it() -> None:
    world = settled(AWAKE)
    plan = plan_cluster(AWAKE, world.observed())
    assert "hibernation" not in cluster_status(AWAKE, world.observed(), plan, {}, now_text())
