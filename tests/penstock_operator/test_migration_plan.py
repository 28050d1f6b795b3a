"""From plaintext to Strict and back: in steps, one broker at a time, and only when nobody is cut
off."""

import random
from dataclasses import replace
from typing import Final

import pytest
from support.operator_world import NAMES, World, desired, settled

from penstock.core.manifest.objects import SecurityMode
from penstock_operator.model import PlaintextFacts, Plan, RestartPod, Severity
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan import plan_cluster
from penstock_operator.plan.security import QUIET_MS, called
from penstock_operator.status import cluster_status

DISABLED, MIGRATE, STRICT = SecurityMode
BROKERS: Final = 3
NOW: Final = "2026-01-01T00:00:00Z"


def wish(mode: SecurityMode) -> DesiredCluster:
    return desired(BROKERS, spec_security=mode)


def told(idle_ms: dict[str, int], watched_ms: int = QUIET_MS) -> dict[int, PlaintextFacts]:
    """All brokers say the same."""
    return {broker: PlaintextFacts(watched_ms, idle_ms) for broker in range(BROKERS)}


def play(world: World, to: DesiredCluster, steps: int = 600) -> list[set[SecurityMode | None]]:
    """Plans and acts until nothing is left to do; every set of modes of pods that there was."""
    seen: list[set[SecurityMode | None]] = []
    for _ in range(steps):
        plan = plan_cluster(to, world.observed())
        modes = {pod.mode for pod in world.pods.values()}
        if not seen or seen[-1] != modes:
            seen.append(modes)
        if plan.is_idle:
            return seen
        for action in plan.actions:
            if isinstance(action, RestartPod):
                others = [pod for at, pod in world.pods.items() if at != action.broker_id]
                up = [pod for pod in others if pod.ready and not pod.terminating]
                assert len(up) == BROKERS - 1, "one at a time"
            world.carry_out(action)
        check_rest(world)
        world.go_on()
    raise AssertionError(f"not settled: {plan_cluster(to, world.observed()).waits}")


def check_rest(world: World) -> None:
    """Controllers have what brokers with TLS need for as long as there is one."""
    deployment = world.objects["Deployment", NAMES.controller]
    controllers = deployment["spec"]["template"]["spec"]["containers"][0]
    ports = {port["containerPort"] for port in controllers["ports"]}
    if any(pod.mode is not DISABLED for pod in world.pods.values()):
        assert {9099, 9108} <= ports
    if any(pod.mode is DISABLED for pod in world.pods.values()):
        plain = not any(word.startswith("--ca-key") for word in controllers["args"])
        assert plain or "--migrate" in controllers["args"], "9093 is in plaintext"


@pytest.mark.parametrize("seed", range(10))
def test_a_cluster_goes_to_strict_and_back_and_no_brokers_are_two_modes_apart(seed: int) -> None:
    """Also when it is told to go all the way at once, as `kubectl edit` twice does."""
    world = settled(wish(DISABLED), seed)
    world.plaintext = told({"10.0.0.9": QUIET_MS})
    there = play(world, wish(STRICT))
    back = play(world, wish(DISABLED))
    for modes in (*there, *back):
        assert not {DISABLED, STRICT} <= modes
    assert (there[0], there[-1]) == ({DISABLED}, {STRICT})
    assert {MIGRATE} in there
    assert back[-1] == {DISABLED}
    assert {MIGRATE} in back


@pytest.mark.parametrize("seed", range(5))
def test_a_step_that_is_half_done_can_be_taken_back(seed: int) -> None:
    chance = random.Random(seed)
    world = settled(wish(DISABLED), seed)
    world.plaintext = told({})
    for _ in range(6):
        to = wish(chance.choice([DISABLED, MIGRATE, STRICT]))
        for _ in range(chance.randrange(40)):
            for action in plan_cluster(to, world.observed()).actions:
                world.carry_out(action)
            check_rest(world)
            modes = {pod.mode for pod in world.pods.values()}
            assert not {DISABLED, STRICT} <= modes
            world.go_on()
    assert play(world, wish(DISABLED))[-1] == {DISABLED}


def at_the_gate() -> World:
    """All brokers serve both."""
    return settled(wish(MIGRATE))


def gate(world: World, *, skip: bool = False) -> Plan:
    to = replace(called(wish(STRICT), world.pods), skip_plaintext_gate=skip)
    assert to.ends_plaintext, "the operator asks who calls in plaintext"
    return plan_cluster(to, world.observed())


def test_strict_waits_for_plaintext_clients_and_says_who() -> None:
    world = at_the_gate()
    hosts = {f"10.0.0.{number}": 0 for number in range(1, 8)}
    world.plaintext = told({**hosts, "10.0.0.99": QUIET_MS})
    plan = gate(world)
    (wait,) = plan.waits
    assert not plan.actions
    assert (wait.reason, wait.severity) == ("PlaintextClients", Severity.BLOCKED)
    assert "waits for 7 plaintext clients: 10.0.0.1, " in wait.message
    assert "and 2 more" in wait.message
    assert "10.0.0.99" not in wait.message, "it has been quiet"
    status = cluster_status(wish(STRICT), world.observed(), plan, {}, NOW)
    shown = {each["type"]: each for each in status["conditions"]}
    assert shown["Stalled"]["message"] == wait.message
    assert (shown["Secured"]["status"], shown["Secured"]["reason"]) == ("False", "Migrating")
    assert shown["Ready"]["status"] == "True"


@pytest.mark.parametrize(
    "known",
    [
        None,
        {0: PlaintextFacts(QUIET_MS, {}), 1: PlaintextFacts(QUIET_MS, {})},
        told({}, QUIET_MS - 1),
        {**told({}), 2: PlaintextFacts(QUIET_MS - 1, {})},
        {**told({}), 2: PlaintextFacts(QUIET_MS, {"": QUIET_MS - 1})},
    ],
    ids=["unknown", "one does not say", "too short", "one too short", "one has others"],
)
def test_what_is_not_known_keeps_plaintext(known: dict[int, PlaintextFacts] | None) -> None:
    world = at_the_gate()
    world.plaintext = known
    plan = gate(world)
    assert [wait.reason for wait in plan.waits] == ["PlaintextClients"]
    assert not plan.actions


def test_the_gate_opens_when_all_have_been_quiet_or_by_annotation() -> None:
    world = at_the_gate()
    world.plaintext = told({"10.0.0.9": QUIET_MS})
    assert gate(world).actions
    world.plaintext = told({"10.0.0.9": 0})
    assert not gate(world).actions
    assert gate(world, skip=True).actions


def test_a_broker_that_restarts_to_become_strict_does_not_shut_the_gate() -> None:
    """While it is away it cannot say who calls in plaintext, and no pod is Strict yet."""
    world = at_the_gate()
    world.plaintext = told({})
    restarted = False
    while any(pod.mode is not STRICT for pod in world.pods.values()):
        for action in plan_cluster(wish(STRICT), world.observed()).actions:
            restarted |= isinstance(action, RestartPod)
            world.carry_out(action)
        assert not restarted or template_mode(world) is STRICT
        world.go_on()


def template_mode(world: World) -> SecurityMode | None:
    live = world.objects["StatefulSet", NAMES.broker]
    return SecurityMode.of_pod(live["spec"]["template"])


@pytest.mark.parametrize("strangers", [1, BROKERS])
@pytest.mark.parametrize("mode", [MIGRATE, STRICT])
def test_pods_of_which_nobody_knows_the_mode_hold_it(mode: SecurityMode, strangers: int) -> None:
    """As if another webhook renamed their container: less than TLS would serve plaintext."""
    world = settled(wish(mode))
    world.plaintext = told({})
    for broker in range(strangers):
        world.pods[broker] = replace(world.pods[broker], mode=None)
    plan = plan_cluster(wish(STRICT), world.observed())
    assert not plan.actions
    (wait,) = plan.waits
    assert (wait.reason, wait.severity) == ("SecurityModeUnknown", Severity.BLOCKED)
    assert wait.message.startswith(f"{NAMES.pod(0)} has no container named broker")
    assert called(wish(STRICT), world.pods).called is (mode if strangers < BROKERS else None)


def test_what_has_begun_to_be_strict_becomes_so() -> None:
    world = at_the_gate()
    world.plaintext = told({})
    while not any(pod.mode is STRICT for pod in world.pods.values()):
        for action in plan_cluster(wish(STRICT), world.observed()).actions:
            world.carry_out(action)
        world.go_on()
    world.plaintext = told({"10.0.0.9": 0})
    assert play(world, wish(STRICT))[-1] == {STRICT}


@pytest.mark.parametrize(
    ("modes", "port", "tls"),
    [
        ([], 9092, True),
        ([DISABLED, DISABLED], 9092, False),
        ([MIGRATE, DISABLED], 9092, False),
        ([MIGRATE, MIGRATE], 9095, True),
        ([MIGRATE, STRICT], 9095, True),
        ([STRICT, STRICT], 9092, True),
    ],
)
def test_the_operator_calls_brokers_where_all_that_run_can_be_called(
    modes: list[SecurityMode], port: int, *, tls: bool
) -> None:
    world = at_the_gate()
    pods = {n: replace(world.pods[n], mode=mode) for n, mode in enumerate(modes)}
    assert called(wish(STRICT), pods).calls == (port, tls)
