"""An upgrade that is not finalized: what is said of it, and when the operator does it by itself."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.operator_world import NAMES, World, desired, settled

from penstock.core.manifest.upkeep import FinalizePolicy
from penstock_operator.format_model import FORMAT_PENDING, FinalizeFormat, FormatPending, FormatSaid
from penstock_operator.model import Apply, Observed, Plan
from penstock_operator.objects import DesiredCluster, Section
from penstock_operator.plan import plan_cluster
from penstock_operator.plan.finalize import FINALIZED_AFTER
from penstock_operator.status import cluster_status

HOUR_S = FINALIZED_AFTER / timedelta(seconds=1)
MANUAL = desired()
ONE_IMAGE = "brokers and controllers have to run one image"


def wish(**changes: Any) -> DesiredCluster:
    return desired(**{"spec_finalize": FinalizePolicy.AUTOMATIC, **changes})


AUTOMATIC = wish()


def upgraded() -> World:
    """All run a release that reads format 2, and format 1 is stored."""
    world = settled(MANUAL)
    world.format = 1
    return world


def step(world: World, wanted: DesiredCluster, seconds: float = 0.0) -> Plan:
    """A pass of an operator that knows nothing but the status."""
    world.seconds += seconds
    plan = plan_cluster(wanted, world.observed())
    for action in plan.actions:
        world.carry_out(action)
    world.remember(plan)
    return plan


def finalizes(plan: Plan) -> bool:
    return any(isinstance(each, FinalizeFormat) for each in plan.actions)


def told(plan: Plan) -> FormatPending:
    assert plan.format is not None
    return plan.format


def shown(
    wanted: DesiredCluster, observed: Observed, before: dict[str, Any], now: str
) -> dict[str, Any]:
    return cluster_status(wanted, observed, plan_cluster(wanted, observed), before, now)


def pending_of(status: dict[str, Any]) -> dict[str, Any]:
    found: list[dict[str, Any]] = [
        each for each in status["conditions"] if each["type"] == FORMAT_PENDING
    ]
    return found[0] if found else {}


def test_it_is_finalized_an_hour_after_the_upgrade_was_complete() -> None:
    world = upgraded()
    assert not finalizes(step(world, AUTOMATIC))
    assert not finalizes(step(world, AUTOMATIC, HOUR_S - 1))
    assert world.format == 1
    assert finalizes(step(world, AUTOMATIC, 1))
    assert world.format == 2
    last = step(world, AUTOMATIC)
    assert (told(last).holds, told(last).reason) == (False, "NewestFormat")
    assert step(world, AUTOMATIC) == Plan(), "a plan for what matches its spec is empty"


def test_the_way_back_is_not_closed_by_the_pass_that_takes_it() -> None:
    """The hour passes while nobody acts; then the release before is wanted again."""
    world = upgraded()
    step(world, AUTOMATIC)
    step(world, wish(paused=True), 2 * HOUR_S)
    back = wish(image="penstock-broker:0")
    plan = step(world, back)
    assert not finalizes(plan)
    assert (told(plan).holds, told(plan).reason) == (False, "UpgradeNotComplete")
    assert "have to get the image that is wanted now" in told(plan).message
    assert any(isinstance(each, Apply) for each in plan.actions)


def test_it_is_left_to_a_person_unless_the_spec_says_otherwise() -> None:
    world = upgraded()
    step(world, MANUAL)
    plan = step(world, MANUAL, 100 * HOUR_S)
    assert (plan.actions, plan.waits) == ((), ()), "nothing waits for it"
    assert told(plan).message == (
        "the stored metadata has format 1, and could have 2: every broker and controller runs a "
        "release that reads it. What is new in it is refused, and the release before can be "
        "started again, until somebody finalizes: kubectl penstock cluster finalize"
    )


def two_releases(world: World) -> None:
    world.versions = {1: "2"}


def one_does_not_read_it(world: World) -> None:
    world.reads = {1: (1,)}


def a_pod_is_outdated(world: World) -> None:
    world.pods[1] = replace(world.pods[1], template_hash="of-before")


def controllers_roll(world: World) -> None:
    world.objects["Deployment", NAMES.controller]["status"]["updatedReplicas"] = 1


def a_controller_of_before_is_left(world: World) -> None:
    world.objects["Deployment", NAMES.controller]["status"]["replicas"] = 3


def controllers_are_not_seen_yet(world: World) -> None:
    world.objects["Deployment", NAMES.controller]["status"]["observedGeneration"] = 0


def controllers_run_another_image(world: World) -> None:
    (container,) = world.objects["Deployment", NAMES.controller]["spec"]["template"]["spec"][
        "containers"
    ]
    container["image"] = "penstock-broker:2"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (two_releases, "all brokers have to run one release, not 1 and 2"),
        (one_does_not_read_it, "another release is needed: broker 1 does not read it"),
        (a_pod_is_outdated, "broker 1 has to restart"),
        (controllers_roll, "the controllers have to restart"),
        (a_controller_of_before_is_left, "the controllers have to restart"),
        (controllers_are_not_seen_yet, "the controllers have to restart"),
        (
            controllers_run_another_image,
            f"{ONE_IMAGE}, not penstock-broker:1 and penstock-broker:2",
        ),
    ],
)
def test_while_the_upgrade_goes_on_the_hour_does_not_begin_and_it_begins_again_after(
    change: Callable[[World], None], why: str
) -> None:
    world = upgraded()
    step(world, AUTOMATIC)
    world.seconds += 2 * HOUR_S
    whole = (world.observed(), dict(world.versions), dict(world.reads))
    change(world)
    plan = plan_cluster(AUTOMATIC, world.observed())
    world.remember(plan)
    assert not finalizes(plan)
    assert (told(plan).holds, told(plan).reason) == (False, "UpgradeNotComplete")
    assert told(plan).message == (
        f"the stored metadata has format 1, and could have 2; first {why}"
    )
    seen, world.versions, world.reads = whole
    world.objects, world.pods = dict(seen.objects), dict(seen.pods)
    assert not finalizes(step(world, AUTOMATIC)), "the hour begins again"
    assert finalizes(step(world, AUTOMATIC, HOUR_S))


def a_broker_is_dead(world: World) -> None:
    world.alive.discard(1)


def a_broker_has_not_registered_again(world: World) -> None:
    world.versions = {1: ""}


def a_pod_is_not_ready(world: World) -> None:
    world.pods[1] = replace(world.pods[1], ready=False)


def a_former_broker_is_still_registered(world: World) -> None:
    world.registered.add(7)


@pytest.mark.parametrize(
    ("change", "who"),
    [
        (a_broker_is_dead, "broker 1, which does not serve"),
        (a_broker_has_not_registered_again, "broker 1, which does not serve"),
        (a_pod_is_not_ready, "broker 1, which does not serve"),
        (a_former_broker_is_still_registered, "broker 7, which does not serve"),
    ],
)
def test_it_waits_for_a_broker_that_is_away_and_the_hour_goes_on(
    change: Callable[[World], None], who: str
) -> None:
    world = upgraded()
    step(world, AUTOMATIC)
    before = (set(world.alive), dict(world.pods), set(world.registered))
    change(world)
    plan = step(world, AUTOMATIC, HOUR_S)
    assert not finalizes(plan)
    assert told(plan).message.endswith(f"It waits for {who}")
    world.versions = {}
    world.alive, world.pods, world.registered = before
    assert finalizes(step(world, AUTOMATIC))


def test_it_waits_for_the_metadata_store() -> None:
    world = upgraded()
    step(world, AUTOMATIC)
    world.seconds += HOUR_S
    seen = world.observed()
    assert seen.moves is not None
    moving = replace(seen.moves.moving, paused=True)
    plan = plan_cluster(AUTOMATIC, replace(seen, moves=replace(seen.moves, moving=moving)))
    assert not finalizes(plan)
    assert told(plan).message.endswith("It waits for the metadata store, which is unavailable")


@pytest.mark.parametrize(
    "blind",
    [
        {"moves": None},
        {"recorded_cluster_id": "another"},
        {"brokers": None},
        {"unknown": {"Pod": "no answer"}},
        {"unknown": {"Deployment": "no answer"}},
        {"unknown": {"StatefulSet": "no answer"}},
    ],
)
def test_what_is_not_known_changes_nothing_that_was_said(blind: dict[str, Any]) -> None:
    world = upgraded()
    step(world, AUTOMATIC)
    world.seconds += 2 * HOUR_S
    first = shown(AUTOMATIC, world.observed(), {}, "2026-01-01T00:00:00Z")
    seen = replace(world.observed(), **blind)
    plan = plan_cluster(AUTOMATIC, seen)
    assert not finalizes(plan)
    assert plan.format is None
    again = cluster_status(AUTOMATIC, seen, plan, first, "2026-01-01T02:00:00Z")
    assert pending_of(again) == pending_of(first)


def test_a_policy_that_is_wrong_finalizes_nothing() -> None:
    world = upgraded()
    step(world, AUTOMATIC)
    world.seconds += 2 * HOUR_S
    unclear = replace(AUTOMATIC, unknown=frozenset({Section.POLICY}))
    assert not finalizes(plan_cluster(unclear, world.observed()))


def test_a_paused_cluster_is_not_finalized() -> None:
    world = upgraded()
    step(world, AUTOMATIC)
    assert not finalizes(step(world, wish(paused=True), 2 * HOUR_S))


def test_an_hour_asleep_is_none() -> None:
    world = upgraded()
    step(world, AUTOMATIC)
    world.hibernating = True
    plan = step(world, wish(spec_hibernate=True), HOUR_S)
    assert not finalizes(plan)
    assert (told(plan).holds, world.format_said.since) == (False, "")


def test_the_status_says_since_when_and_until_when_and_is_written_once() -> None:
    world = upgraded()
    never = pending_of(shown(AUTOMATIC, settled(MANUAL).observed(), {}, "2026-01-01T00:00:00Z"))
    assert never == {}, "a new operator must not write every status"
    first = shown(AUTOMATIC, world.observed(), {}, "2026-01-01T00:00:05Z")
    pending = pending_of(first)
    assert (pending["status"], pending["reason"]) == ("True", "FormatPending")
    assert "It is stored at 2026-01-01T01:00:05Z, or as soon after that" in pending["message"]
    assert "Sooner: kubectl penstock cluster finalize" in pending["message"]
    assert FormatSaid.of(first) == FormatSaid("FormatPending", "2026-01-01T00:00:05Z")
    assert first["phase"] == "Ready"
    assert shown(AUTOMATIC, world.observed(), first, "2026-01-01T00:30:00Z") == first
    by_hand = pending_of(shown(MANUAL, world.observed(), first, "2026-01-01T00:31:00Z"))
    assert by_hand["lastTransitionTime"] == "2026-01-01T00:00:05Z"
    assert by_hand["message"].endswith(
        "until somebody finalizes: kubectl penstock cluster finalize"
    )
    world.format, world.format_said = 2, FormatSaid.of(first)
    after = pending_of(shown(AUTOMATIC, world.observed(), first, "2026-01-01T02:00:00Z"))
    assert (after["status"], after["reason"]) == ("False", "NewestFormat")


@st.composite
def days(draw: st.DrawFn) -> list[tuple[str, int]]:
    """What happens, and for how many times five minutes that stays so."""
    what = st.sampled_from(
        ["nothing", "roll", "dead", "controllers", "silent", "manual", "older", "unknown"]
    )
    return draw(st.lists(st.tuples(what, st.integers(1, 14)), max_size=6))


@given(days())
@settings(max_examples=60, deadline=None)
def test_it_is_never_finalized_within_an_hour_of_a_roll_nor_without_everybody(
    drawn: list[tuple[str, int]],
) -> None:  # I36
    world = upgraded()
    newest = world.pods[1].template_hash
    quiet_since: float | None = None
    for what, passes in [*drawn, ("nothing", 14)]:
        rolls = what in {"roll", "controllers", "older"}
        world.versions = {2: "0"} if what == "older" else {}
        world.reachable = what != "silent"
        world.unknown = {"Pod": "no answer"} if what == "unknown" else {}
        for _ in range(passes):
            world.pods[1] = replace(
                world.pods[1], template_hash="before" if what == "roll" else newest, ready=True
            )
            live = world.objects["Deployment", NAMES.controller]
            live["status"]["updatedReplicas"] = 1 if what == "controllers" else 2
            world.alive = {0, 2} if what == "dead" else {0, 1, 2}
            wanted = MANUAL if what == "manual" else AUTOMATIC
            world.seconds += 300
            if rolls:
                quiet_since = None
            elif quiet_since is None:
                quiet_since = world.seconds
            plan = plan_cluster(wanted, world.observed())
            world.remember(plan)
            for action in plan.actions:
                if isinstance(action, FinalizeFormat):
                    assert what == "nothing"
                    assert quiet_since is not None
                    assert world.seconds - quiet_since >= HOUR_S
                    world.carry_out(action)
    assert world.format == 2
