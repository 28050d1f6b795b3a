"""Another image shows itself on one broker before the others get it (`spec.upgrade.soak`)."""

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.operator_world import World, advance, desired, settled

from penstock_operator.model import Plan, RestartPod
from penstock_operator.objects import DesiredCluster
from penstock_operator.objects.broker import template_hash
from penstock_operator.plan import plan_cluster
from penstock_operator.plan.soak import SOAKING
from penstock_operator.plan.upgrade import upgrade_of
from penstock_operator.report import _is_ready
from penstock_operator.status import cluster_status

SOAK_S = 3_600
SETTING = {"log.retention.check.interval.ms": "1000"}


def wish(**changes: Any) -> DesiredCluster:
    return desired(**{"image": "b", "spec_soak_s": SOAK_S, **changes})


WISH = wish()


def outdated_world(brokers: int = 3, seed: int = 1) -> World:
    """Settled with image `a`, a day ago."""
    world = settled(desired(brokers, image="a"), seed)
    world.fresh.clear()
    world.seconds += 86_400
    return world


def restarted(plan: Plan) -> list[int]:
    return [each.broker_id for each in plan.actions if isinstance(each, RestartPod)]


def said(plan: Plan) -> str:
    return next((wait.message for wait in plan.waits if wait.reason == SOAKING), "")


def until_it_soaks(world: World, wanted: DesiredCluster = WISH) -> Plan:
    for _ in range(200):
        plan = advance(world, wanted)
        if said(plan) and len(plan.waits) == 1:
            return plan
    raise AssertionError(plan_cluster(wanted, world.observed()))


def to_the_end(world: World, wanted: DesiredCluster = WISH) -> list[int]:
    """Who restarted, in order, until nothing is left to do."""
    taken: list[int] = []
    for _ in range(300):
        plan = advance(world, wanted)
        if plan.is_idle:
            return taken
        taken += restarted(plan)
    raise AssertionError(plan_cluster(wanted, world.observed()))


def runs(world: World) -> list[str]:
    return [pod.image for _, pod in sorted(world.pods.items())]


def test_the_first_broker_shows_an_image_for_so_long_before_the_others_get_it() -> None:
    world = outdated_world()
    until_it_soaks(world)
    assert runs(world) == ["b", "a", "a"]
    since = world.pods[0].ready_since
    begun = (datetime.fromisoformat(world.at) - datetime.fromisoformat(since)).total_seconds()
    world.seconds += SOAK_S - begun - 1
    plan = plan_cluster(WISH, world.observed())
    assert (plan.actions, len(plan.waits)) == ((), 1)
    world.seconds += 1
    assert said(plan_cluster(WISH, world.observed())) == ""
    assert to_the_end(world) == [1, 2], "once is enough"


def test_without_the_field_nobody_waits() -> None:
    assert to_the_end(outdated_world(), wish(spec_soak_s=0)) == [0, 1, 2]


def test_the_status_says_until_when_and_what_ends_it_sooner_and_is_written_once() -> None:
    world = outdated_world()
    plan = until_it_soaks(world)
    since = world.pods[0].ready_since
    until = f"{since[:11]}{int(since[11:13]) + 1:02}{since[13:]}"
    assert said(plan) == (
        f"2 of 3 brokers must restart, in 2 steps; broker 0 runs b since {since}; the others "
        f"follow at {until} if it stays ready, as spec.upgrade.soak says. Sooner: lower or remove "
        "that field"
    )
    observed = world.observed()
    first = cluster_status(WISH, observed, plan, {}, world.at)
    assert (first["phase"], _is_ready(first)) == ("Rolling", True)
    (moving,) = [each for each in first["conditions"] if each["type"] == "Reconciling"]
    assert (moving["status"], moving["reason"]) == ("True", "Soaking")
    world.seconds += 600
    later = plan_cluster(WISH, world.observed())
    assert cluster_status(WISH, world.observed(), later, first, world.at) == first


@pytest.mark.parametrize("soak_s", [0, 60])
def test_a_shorter_field_ends_it_sooner_and_restarts_nothing_by_itself(soak_s: int) -> None:
    world = outdated_world()
    until_it_soaks(world)
    world.seconds += 60
    sooner = wish(spec_soak_s=soak_s)
    assert template_hash(sooner) == template_hash(WISH)
    assert to_the_end(world, sooner) == [1, 2]


def test_a_broker_that_was_not_ready_begins_again() -> None:
    world = outdated_world()
    until_it_soaks(world)
    world.seconds += SOAK_S - 10
    world.pods[0] = replace(world.pods[0], ready_since=world.at)  # its container was restarted
    world.seconds += SOAK_S - 1
    assert said(plan_cluster(WISH, world.observed()))
    world.seconds += 1
    assert to_the_end(world) == [1, 2]


def test_a_setting_is_no_other_image() -> None:
    world = outdated_world()
    assert to_the_end(world, wish(image="a", spec_config=SETTING)) == [0, 1, 2]


def test_a_setting_that_is_changed_meanwhile_begins_it_again() -> None:
    """It restarts the broker that showed the image."""
    world = outdated_world()
    until_it_soaks(world)
    world.seconds += SOAK_S - 60
    changed = wish(spec_config=SETTING)
    for _ in range(20):
        advance(world, changed)
    until_it_soaks(world, changed)
    world.seconds += SOAK_S - 60
    assert said(plan_cluster(changed, world.observed()))
    world.seconds += 60
    assert to_the_end(world, changed) == [1, 2]


def test_a_broker_that_has_shown_the_image_for_so_long_counts_whatever_its_template() -> None:
    world = outdated_world()
    world.pods[1] = replace(world.pods[1], image="b")  # it was evicted, and came back with it
    until_it_soaks(world, wish(spec_soak_s=2 * 86_400))
    assert runs(world) == ["b", "b", "a"]
    for _ in range(10):
        if taken := restarted(advance(world, WISH)):
            break
    assert taken == [1], "it runs since yesterday"


def test_whoever_goes_back_to_what_the_others_run_does_not_wait() -> None:
    world = outdated_world()
    until_it_soaks(world)
    assert to_the_end(world, wish(image="a")) == [0]
    assert runs(world) == ["a", "a", "a"]


def test_an_image_that_is_bad_stays_on_one_broker_and_can_be_taken_back() -> None:
    world = outdated_world()
    until_it_soaks(world)
    world.pods[0] = replace(world.pods[0], ready=False, ready_since="", trouble="OOMKilled")
    world.alive.discard(0)
    world.seconds += 10 * SOAK_S
    assert restarted(plan_cluster(WISH, world.observed())) == []
    back = wish(image="a")
    for _ in range(20):
        if restarted(plan := advance(world, back)):
            break
    assert restarted(plan) == [0], "it is not running: at once"


def force(world: World) -> DesiredCluster:
    return replace(WISH, force_roll=1, force_roll_pod=world.pods[1].uid)


def a_broken_one(world: World) -> DesiredCluster:
    world.pods[1] = replace(world.pods[1], ready=False, ready_since="", trouble="Evicted")
    world.alive.discard(1)
    return WISH


@pytest.mark.parametrize("repair", [force, a_broken_one])
def test_no_repair_waits_for_it(repair: Callable[[World], DesiredCluster]) -> None:
    world = outdated_world()
    until_it_soaks(world)
    wanted = repair(world)
    assert restarted(plan_cluster(wanted, world.observed())) == [1]


def test_another_release_under_the_same_name_is_news_too() -> None:
    """The template changes, and the image that its name stands for was replaced."""
    world = outdated_world()
    wanted = wish(image="a", spec_config=SETTING)
    for _ in range(200):
        if restarted(advance(world, wanted)):
            world.versions = {0: "2"}
        if world.pods[0].template_hash == template_hash(wanted) and world.alive == {0, 1, 2}:
            break
    plan = until_it_soaks(world, wanted)
    assert runs(world) == ["a", "a", "a"]
    assert restarted(plan) == []
    unknown = replace(world.observed(), moves=None)
    assert said(plan_cluster(wanted, unknown)) == "", "nobody says that it is another one"
    world.versions |= {1: "", 2: ""}
    assert said(plan_cluster(wanted, world.observed())) == "", "nor do they"
    world.versions = {0: "2"}
    world.seconds += SOAK_S
    assert to_the_end(world, wanted) == [1, 2]


def test_an_image_that_a_webhook_has_changed_on_all_pods_is_compared_with_theirs() -> None:
    def through_a_mirror(world: World) -> None:
        for at, pod in world.pods.items():
            if "/" not in pod.image:
                world.pods[at] = replace(pod, image=f"mirror/{pod.image}")

    world, taken = outdated_world(), list[int]()
    wanted = wish(image="a", spec_config=SETTING)
    for _ in range(300):
        through_a_mirror(world)
        taken += restarted(advance(world, wanted))
    assert taken == [0, 1, 2], "a setting does not wait"
    for _ in range(300):
        through_a_mirror(world)
        taken += restarted(advance(world, wish(spec_config=SETTING)))
    world.seconds += SOAK_S
    for _ in range(300):
        through_a_mirror(world)
        taken += restarted(advance(world, wish(spec_config=SETTING)))
    assert taken == [0, 1, 2, 0, 1, 2], "an image ends waiting"


def test_a_single_broker_waits_for_nobody() -> None:
    one = wish(brokers=1)
    assert to_the_end(outdated_world(1), one) == [0]


def test_the_cluster_grows_meanwhile() -> None:
    world = outdated_world()
    until_it_soaks(world)
    more = wish(brokers=4)
    for _ in range(30):
        advance(world, more)
    assert 3 in world.alive
    assert runs(world) == ["b", "a", "a", "b"]


def test_the_time_it_takes_is_part_of_what_an_upgrade_offers() -> None:
    world = settled(desired())
    world.pods = {at: replace(pod, start_s=40) for at, pod in world.pods.items()}

    def minutes(soak_s: int) -> int | None:
        newer = replace(desired(spec_soak_s=soak_s), image="penstock-broker:2")
        offered = upgrade_of(newer, world.observed())
        assert offered is not None
        assert offered.ahead is not None
        return offered.ahead.minutes

    assert (minutes(0), minutes(5_430)) == (3, 94)


@given(st.integers(0, 2**16), st.integers(2, 6), st.integers(1, 90), st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_others_never_get_an_image_that_has_not_been_ready_for_so_long(
    seed: int, brokers: int, soak_s: int, dies: bool
) -> None:
    """Wherever the operator ends, and it ends. What is remembered is in the pods alone."""
    world = outdated_world(brokers, seed)
    wanted = wish(brokers=brokers, spec_soak_s=soak_s)
    draw = random.Random(seed)
    for _ in range(1_500):
        plan = plan_cluster(wanted, world.observed())
        if plan.is_idle:
            break
        acts = draw.randint(0, len(plan.actions)) if dies else len(plan.actions)
        for action in plan.actions[:acts]:
            if isinstance(action, RestartPod):
                new = [pod.ready_since for pod in world.pods.values() if pod.image == "b"]
                now = datetime.fromisoformat(world.at)
                shown = [now - datetime.fromisoformat(each) for each in new if each]
                assert not new or max(shown).total_seconds() >= soak_s
            world.carry_out(action)
        world.go_on()
        if draw.random() < 0.02:
            at = draw.randrange(brokers)
            if world.pods.get(at) is not None and world.pods[at].ready:
                world.pods[at] = replace(world.pods[at], ready_since=world.at)
    else:
        raise AssertionError(plan)
    assert runs(world) == ["b"] * brokers
