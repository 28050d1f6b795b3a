"""A lost volume is replaced: one at a time, only if its records are elsewhere, and only once."""

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.operator_world import NAMES, World, advance, desired, settled, where_of

from penstock.core.manifest.objects import ReplaceLost
from penstock_operator.model import (
    AnswerRequest,
    Apply,
    Observed,
    PartitionState,
    Plan,
    RestartPod,
    Severity,
    Wait,
)
from penstock_operator.names import REPLACE_VOLUME
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan import plan_cluster
from penstock_operator.plan.volumes import (
    DELETED,
    EXPIRED,
    LOST,
    REPLACING,
    Request,
    holds_restarts,
)
from penstock_operator.volume_model import (
    BoundNode,
    ClaimState,
    NodeState,
    ReplaceVolume,
)
from penstock_operator.volumes import claim_state

WISH = desired()


def replaced(plan: Plan) -> list[int]:
    return [each.broker_id for each in plan.actions if isinstance(each, ReplaceVolume)]


def wait_of(plan: Plan, reason: str) -> Wait:
    found = [wait for wait in plan.waits if wait.reason == reason]
    assert found, plan.waits
    return found[0]


def lost(state: NodeState = NodeState.LOST, *, partitions: int = 6) -> World:
    """Broker 1's node is gone, and everybody else has every record."""
    world = settled(WISH, partitions=partitions)
    world.lose_node(1, state)
    return world


def asked(world: World, text: str, wish: DesiredCluster = WISH) -> DesiredCluster:
    """A person writes the annotation."""
    world.request = text
    return replace(wish, replace_volume=text)


def go(world: World, wish: DesiredCluster = WISH, steps: int = 60) -> Plan:
    """Until nothing is left to do; the last plan."""
    plan = Plan()
    for _ in range(steps):
        plan = advance(world, replace(wish, replace_volume=world.request))
        if plan.is_idle:
            break
    return plan


def down(world: World, broker_id: int) -> None:
    """Its pod is there and does not work, as with a database that cannot be opened."""
    world._stop(broker_id)
    pod = world.pods[broker_id]
    world.pods[broker_id] = replace(pod, terminating=False, trouble="it exited with code 1")


# ── A node is gone ────────────────────────────────────────────────────────────────────────────


def test_a_volume_that_went_with_its_node_is_replaced_and_filled_again() -> None:  # I34
    world = lost()
    claim, pod = world.claims[1], world.pods[1]
    plan = plan_cluster(WISH, world.observed())
    why = "node node-1 is gone for 5 min"
    action = ReplaceVolume(1, claim.name, claim.uid, pod.name, pod.uid, why)
    assert [each for each in plan.actions if isinstance(each, ReplaceVolume)] == [action]
    assert wait_of(plan, REPLACING).message == f"broker 1 gets a new volume: {why}"
    assert go(world).is_idle
    assert world.replaced == [1]
    assert world.claims[1].uid != claim.uid
    assert all(each.is_full for each in world.partitions)


def test_within_five_minutes_it_waits() -> None:
    plan = plan_cluster(WISH, lost(NodeState.GONE).observed())
    assert not replaced(plan)
    assert wait_of(plan, LOST) == Wait(
        LOST,
        "the volume of broker 1 (data-flights-broker-1) can only be used on node node-1, which is "
        "gone; it is replaced once that has been so for 5 min",
    )


def test_a_node_that_is_there_is_waited_for() -> None:
    plan = plan_cluster(WISH, lost(NodeState.THERE).observed())
    assert not replaced(plan)
    assert not {LOST, REPLACING} & {wait.reason for wait in plan.waits}


def test_what_is_not_known_is_not_absent() -> None:  # planted bug 31
    world = lost()
    world.volumes[1] = BoundNode(world.claims[1].uid, "node-1", NodeState.UNKNOWN, "forbidden")
    plan = plan_cluster(WISH, world.observed())
    assert not replaced(plan)
    assert wait_of(plan, "NotRead").message.endswith("and it stays: forbidden")


def test_a_volume_of_no_single_node_is_not_lost() -> None:
    world = lost()
    world.volumes = {}
    assert not replaced(plan_cluster(WISH, world.observed()))


def test_never_means_only_by_request() -> None:
    world, wish = lost(), desired(spec_replace_lost=ReplaceLost.NEVER)
    told = wait_of(plan_cluster(wish, world.observed()), LOST)
    assert told.severity is Severity.BLOCKED
    assert 'annotation penstock.dev/replace-volume: "1"' in told.message
    assert not world.replaced
    asked(world, "1")
    assert go(world, wish).is_idle
    assert world.replaced == [1]


def test_what_was_seen_of_a_former_claim_says_nothing_about_this_one() -> None:
    world = lost()
    world.claims[1] = world.claim(1, 1)
    assert not replaced(plan_cluster(WISH, world.observed()))


def test_a_claim_without_a_volume_goes_whatever_else_is_down() -> None:
    """Nothing was ever stored there. Two brokers that wait for each other would wait for ever."""
    world = lost()
    world.lose_node(2)
    for broker_id in (1, 2):
        world.claims[broker_id] = replace(world.claims[broker_id], volume="", capacity=0)
    assert replaced(plan_cluster(WISH, world.observed())) == [1, 2]


def test_a_second_lost_node_waits_loudly() -> None:  # planted bug 27
    world = lost()
    world.lose_node(2)
    plan = plan_cluster(WISH, world.observed())
    assert not replaced(plan)
    told = [wait for wait in plan.waits if wait.reason == LOST]
    assert [wait.severity for wait in told] == [Severity.BLOCKED] * 2
    assert "for 5 min; it is not replaced yet: broker 2 is down, too" in told[0].message
    assert 'penstock.dev/replace-volume: "1:accept-loss"' in told[0].message
    asked(world, "1:accept-loss")
    go(world)
    assert world.replaced == [1, 2], "the second one once the first is filled again"


def test_two_lost_nodes_and_both_controllers_with_them_wait_loudly() -> None:
    world = lost()
    world.lose_node(2)
    seen = world.observed()
    assert seen.brokers is not None
    without = replace(seen, brokers=replace(seen.brokers, controller_reachable=False))
    plan = plan_cluster(WISH, without)
    assert not replaced(plan)
    told = [wait for wait in plan.waits if wait.reason == LOST]
    assert [wait.severity for wait in told] == [Severity.BLOCKED] * 2
    assert "it is not replaced yet: broker 2 is lost, too; the brokers have to" in told[0].message
    setting = "controller.takeover.min.brokers"
    assert f"set {setting} in spec.config to how many" in told[0].message
    plan = plan_cluster(desired(spec_config={setting: "1"}), without)
    applied = [each.object for each in plan.actions if isinstance(each, Apply)]
    (controllers,) = (each for each in applied if each["kind"] == "Deployment")
    assert f"{setting}=1" in str(controllers), "though none of them leads"
    world = lost()
    seen = world.observed()
    assert seen.brokers is not None
    without = replace(seen, brokers=replace(seen.brokers, controller_reachable=False))
    told = [wait_of(plan_cluster(WISH, without), LOST)]
    assert told[0].severity is Severity.PROGRESS, "a majority is there: a controller takes over"


def test_two_lost_nodes_of_five_leave_brokers_enough_for_a_controller() -> None:
    """It is on its way: nobody is told to let fewer brokers answer, which may lose decisions."""
    wish = desired(brokers=5)
    world = settled(wish, partitions=6)
    world.lose_node(1)
    world.lose_node(2)
    seen = world.observed()
    assert seen.brokers is not None
    without = replace(seen, brokers=replace(seen.brokers, controller_reachable=False))
    told = wait_of(plan_cluster(wish, without), LOST)
    assert told.severity is Severity.PROGRESS
    assert "controller.takeover.min.brokers" not in told.message


# ── What has to be true ───────────────────────────────────────────────────────────────────────

T0 = PartitionState("t", 0, 0, (0, 1, 2), (0, 2), 2)


def alone(world: World) -> None:
    world.partitions.append(PartitionState("only", 0, -1, (1,), (1,), 1))


def dead_elsewhere(world: World) -> None:
    down(world, 2)


def behind_elsewhere(world: World) -> None:
    world.partitions[0] = replace(T0, isr=(0,))


def damaged_elsewhere(world: World) -> None:
    world.damaged[where_of(world.partitions[0])] = {2}


def never_registered(world: World) -> None:
    world.registered.discard(2)
    world.alive.discard(2)
    world.partitions = []


def goes_elsewhere(world: World) -> None:
    world.claims[2] = replace(world.claims[2], deleting=True)


def nobody_elected(world: World) -> None:
    """All died together with their seats: who opens its logs may yet find them damaged."""
    world.partitions[0] = replace(T0, leader=-1, isr=(0, 1, 2))


def led_by_the_lost_one(world: World) -> None:
    world.partitions[0] = replace(T0, leader=1, isr=(0, 1, 2))


def believed_alive(world: World) -> None:
    """A controller has just taken over, and has not heard of it."""
    world.versions[2] = ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (nobody_elected, "another broker has to lead t-0"),
        (led_by_the_lost_one, "another broker has to lead t-0"),
        (believed_alive, "broker 2 has to register with the new controller"),
        (alone, "nobody else has all records of only-0; bring back a broker that has"),
        (dead_elsewhere, "broker 2 is down, too, and one volume is replaced at a time"),
        (never_registered, "broker 2 is down, too"),
        (behind_elsewhere, "other replicas have to catch up first: t-0"),
        (damaged_elsewhere, "a replica of t-0 on another broker is damaged"),
        (goes_elsewhere, "the volume of broker 2 is being replaced"),
    ],
)
@pytest.mark.parametrize("by_request", [False, True])
def test_what_is_wrong_elsewhere_holds_it_up(
    change: Callable[[World], None], words: str, *, by_request: bool
) -> None:
    world, wish = lost(), WISH
    if by_request:
        wish = asked(world, f"1@{world.claims[1].uid}")
    assert replaced(plan_cluster(wish, world.observed())) == [1]
    change(world)
    plan = plan_cluster(wish, world.observed())
    assert not replaced(plan)
    assert words in wait_of(plan, REPLACING if by_request else LOST).message


def test_a_damaged_copy_is_no_copy() -> None:
    world = lost()
    two = PartitionState("two", 0, 2, (1, 2), (1, 2), 1)
    world.partitions.append(two)
    assert replaced(plan_cluster(WISH, world.observed())) == [1]
    world.damaged[where_of(two)] = {2}
    told = wait_of(plan_cluster(WISH, world.observed()), LOST)
    assert "nobody else has all records of two-0" in told.message
    world.damaged[where_of(two)] = {1}
    assert replaced(plan_cluster(WISH, world.observed())) == [1], "its own is lost anyway"


def stale(seen: Observed) -> Observed:
    assert seen.brokers is not None
    return replace(seen, brokers=replace(seen.brokers, controller_reachable=False))


def of_another_cluster(seen: Observed) -> Observed:
    return replace(seen, recorded_cluster_id="another")


def silent(seen: Observed) -> Observed:
    return replace(seen, brokers=None, moves=None, brokers_problem="no route")


def old_controller(seen: Observed) -> Observed:
    return replace(seen, moves=None, moves_problem="unknown method")


def journaled(seen: Observed) -> Observed:
    assert seen.moves is not None
    moving = replace(seen.moves.moving, paused=True)
    return replace(seen, moves=replace(seen.moves, moving=moving))


def alive_by_the_controller(seen: Observed) -> Observed:
    assert seen.moves is not None
    brokers = tuple(replace(one, alive=True) for one in seen.moves.moving.brokers)
    moving = replace(seen.moves.moving, brokers=brokers)
    return replace(seen, moves=replace(seen.moves, moving=moving))


def ready_by_the_kubelet(seen: Observed) -> Observed:
    return replace(seen, pods={**seen.pods, 1: replace(seen.pods[1], ready=True)})


def unlisted(kind: str) -> Callable[[Observed], Observed]:
    return lambda seen: replace(seen, unknown={kind: "no answer"})


@pytest.mark.parametrize("text", ["", "1", "1:accept-loss"])
@pytest.mark.parametrize(
    "view",
    [
        stale,
        of_another_cluster,
        silent,
        old_controller,
        journaled,
        alive_by_the_controller,
        ready_by_the_kubelet,
        unlisted("Pod"),
        unlisted("PersistentVolumeClaim"),
        unlisted("StatefulSet"),
    ],
)
def test_facts_that_are_not_known_or_say_otherwise_hold_it_up(
    view: Callable[[Observed], Observed], text: str
) -> None:
    world, wish = lost(), WISH
    if text:
        wish = asked(world, f"{text}@{world.claims[1].uid}@{world.at}")
    seen = world.observed()
    assert replaced(plan_cluster(wish, seen)) == [1]
    is_past = text == "1:accept-loss" and view in {old_controller, journaled}
    assert bool(replaced(plan_cluster(wish, view(seen)))) is is_past


def test_a_broken_section_or_a_set_that_is_not_ours_holds_it_up() -> None:
    world = lost()
    seen = world.observed()
    others = seen.objects["StatefulSet", NAMES.broker]
    others["metadata"]["ownerReferences"] = []
    others["metadata"]["labels"] = {}
    assert not replaced(plan_cluster(WISH, seen))
    del seen.objects["StatefulSet", NAMES.broker]  # type: ignore[attr-defined]
    assert not replaced(plan_cluster(WISH, seen)), "it is made again first"


def test_a_broker_that_is_to_go_gets_no_new_volume() -> None:
    wish = desired(brokers=4)
    world = settled(wish)
    world.lose_node(3)
    assert replaced(plan_cluster(wish, world.observed())) == [3]
    assert not replaced(plan_cluster(desired(brokers=3), world.observed()))


# ── A request ─────────────────────────────────────────────────────────────────────────────────


def test_a_request_is_bound_to_the_claim_it_is_for_and_taken_back_once_done() -> None:
    world = settled(WISH)
    down(world, 1)
    uid = world.claims[1].uid
    first = plan_cluster(asked(world, "1"), world.observed())
    assert AnswerRequest(REPLACE_VOLUME, f"1@{uid}") in first.actions
    assert not replaced(first)
    assert go(world).is_idle
    assert (world.replaced, world.request) == ([1], "")
    again = plan_cluster(asked(world, f"1@{uid}"), world.observed())
    assert again.actions == (AnswerRequest(REPLACE_VOLUME, None),), "it was for the former claim"


def test_a_request_for_what_only_this_volume_has_is_refused_by_name() -> None:
    world = settled(WISH)
    alone(world)
    down(world, 1)
    asked(world, "1")
    go(world, steps=10)
    told = wait_of(advance(world, asked(world, world.request)), REPLACING)
    assert told.severity is Severity.BLOCKED
    assert told.message.startswith(
        "broker 1 does not get a new volume yet: nobody else has all records of only-0"
    )
    assert not world.replaced
    bound = asked(world, f"1:accept-loss@{world.claims[1].uid}@{world.at}")
    (action,) = [
        each
        for each in plan_cluster(bound, world.observed()).actions
        if isinstance(each, ReplaceVolume)
    ]
    assert action.why == "by request; what only it had is given up: only-0"


def test_a_broker_that_runs_keeps_its_volume_even_if_loss_is_accepted() -> None:
    world = settled(WISH)
    text = f"1:accept-loss@{world.claims[1].uid}@{world.at}"
    plan = plan_cluster(asked(world, text), world.observed())
    assert not replaced(plan)
    told = wait_of(plan, REPLACING)
    assert told.severity is Severity.BLOCKED
    assert "it is running; stop it (kubectl delete pod flights-broker-1)" in told.message


def test_with_nobody_left_to_ask_only_accepted_loss_goes_on() -> None:
    world = settled(WISH)
    for broker_id in range(3):
        down(world, broker_id)
    uid = world.claims[1].uid
    assert world.observed().brokers is None
    assert not replaced(plan_cluster(asked(world, f"1@{uid}"), world.observed()))
    wish = asked(world, f"1:accept-loss@{uid}@{world.at}")
    assert replaced(plan_cluster(wish, world.observed())) == [1]
    world.pods[2] = replace(world.pods[2], ready=True)
    assert not replaced(plan_cluster(wish, world.observed())), "it could be asked"


def test_a_broker_that_only_starts_keeps_its_volume_even_if_nobody_can_be_asked() -> None:
    """As all of them do after a wake, while a request waits for this one to stop."""
    world = settled(WISH)
    for broker_id in range(3):
        down(world, broker_id)
        world.pods[broker_id] = replace(world.pods[broker_id], ready=False, trouble="")
    wish = asked(world, f"1:accept-loss@{world.claims[1].uid}@{world.at}")
    plan = plan_cluster(wish, world.observed())
    assert not replaced(plan)
    assert "nothing says that it cannot run" in wait_of(plan, REPLACING).message


@pytest.mark.parametrize(
    "text",
    [
        *("one", "1:", "1:please", "-1", "3", "٣", "", "12345678901", "1:accept-loss@uid@noon"),
        *("1:accept-loss@uid@2026-01-01T00:00:00Z@up", "1:accept-loss@uid@@down"),
    ],
)
def test_a_request_that_makes_no_sense_says_so(text: str) -> None:
    world = lost()
    plan = plan_cluster(desired(replace_volume=text), world.observed())
    if not text:
        assert "InvalidRequest" not in {wait.reason for wait in plan.waits}
        return
    told = wait_of(plan, "InvalidRequest")
    assert told.severity is Severity.BLOCKED
    assert f"is {text!r}; it must be the id of a broker, from 0 to 2" in told.message


@pytest.mark.parametrize(
    "text",
    [
        *("1", "1@uid", "12:accept-loss", "12:accept-loss@uid@2026-01-01T00:00:00Z"),
        "12:accept-loss@uid@2026-01-01T00:00:00Z@down",
    ],
)
def test_a_request_is_written_as_it_is_read(text: str) -> None:
    found = Request.read(text)
    assert found is not None
    assert found.text == (text if "@" in text else f"{text}@")


# ── In between ────────────────────────────────────────────────────────────────────────────────


def test_a_claim_that_goes_is_waited_for_and_its_pod_stopped_once() -> None:
    world = settled(WISH)
    down(world, 1)
    world.claims[1] = replace(world.claims[1], deleting=True)
    wish = asked(world, f"1@{world.claims[1].uid}")
    assert replaced(plan_cluster(wish, world.observed())) == [1], "its pod keeps it"
    world.pods[1] = replace(world.pods[1], terminating=True)
    plan = plan_cluster(wish, world.observed())
    assert not replaced(plan)
    assert "kubectl delete node node-1" in wait_of(plan, REPLACING).message
    world.pods[1] = replace(world.pod(1, "x", ready=False), node="")
    plan = plan_cluster(wish, world.observed())
    assert not replaced(plan), "no node has it: the next one would only be in the way, too"
    assert wait_of(plan, REPLACING).message == (
        "broker 1 gets a new volume once claim data-flights-broker-1 is gone"
    )


def test_a_new_claim_is_waited_for() -> None:
    world = settled(WISH)
    down(world, 1)
    world.claims[1] = replace(world.claim(1, 1), volume="", capacity=0)
    told = wait_of(plan_cluster(WISH, world.observed()), REPLACING)
    assert told.message == "broker 1 gets a new volume: data-flights-broker-1 has no volume yet"
    del world.claims[1]
    told = wait_of(plan_cluster(WISH, world.observed()), REPLACING)
    assert told.message == "broker 1 gets a new volume: the claim is not there yet"


# ── Whatever happens ──────────────────────────────────────────────────────────────────────────


def holders(world: World, partition: PartitionState) -> set[int]:
    """Who has every record and can say so."""
    harmed = world.damaged.get(where_of(partition), set())
    return set(partition.isr) & world.alive - harmed


@cache
def healthy(brokers: int) -> World:
    """To be copied: it takes fifty passes."""
    return settled(desired(brokers=brokers), partitions=0)


@st.composite
def troubles(draw: st.DrawFn) -> tuple[World, int]:
    brokers = draw(st.integers(2, 4))
    world = copy.deepcopy(healthy(brokers))
    world.random.seed(draw(st.integers(0, 2**16)))
    for at in range(draw(st.integers(1, 4))):
        factor = draw(st.sampled_from([1, 2, 3]))
        replicas = tuple(draw(st.permutations(range(brokers)))[:factor])
        isr = replicas[: draw(st.sampled_from([3, 3, 3, 1]))]
        world.partitions.append(PartitionState("t", at, isr[0], replicas, isr, 1))
        if draw(st.sampled_from([False, False, False, True])):
            world.damaged[where_of(world.partitions[-1])] = {draw(st.sampled_from(replicas))}
    for broker_id in draw(st.sets(st.integers(0, brokers - 1), min_size=1, max_size=2)):
        states = [NodeState.LOST, NodeState.LOST, NodeState.GONE, NodeState.UNKNOWN]
        world.lose_node(broker_id, draw(st.sampled_from(states)))
    return world, brokers


@given(troubles(), st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=150, deadline=None)
def test_never_two_volumes_and_never_the_last_copy(
    trouble: tuple[World, int], chance: random.Random, by_request: bool
) -> None:  # I34
    world, brokers = trouble
    wish = desired(brokers=brokers)
    if by_request:
        world.request = str(chance.randrange(brokers))
    for _ in range(12):
        plan = plan_cluster(replace(wish, replace_volume=world.request), world.observed())
        goes = replaced(plan)
        assert len(goes) <= 1
        for broker_id in goes:
            others = set(range(brokers)) - {broker_id}
            seen = world.volumes.get(broker_id)
            state = None if seen is None else seen.state
            asked_for = by_request and world.request.startswith(f"{broker_id}@")
            assert asked_for or state is NodeState.LOST, "what is not known is not absent"
            assert broker_id not in world.alive
            assert others <= world.alive, "the budget is one"
            for each in world.partitions:
                if broker_id in each.replicas:
                    assert holders(world, each) - {broker_id}
                assert set(each.replicas) - {broker_id} <= set(each.isr)
        for action in plan.actions:
            world.carry_out(action)
        world.go_on()


def test_a_claim_is_seen_as_it_is() -> None:
    body = {
        "metadata": {
            "name": "data-flights-broker-1",
            "uid": "u",
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"volume.kubernetes.io/selected-node": "worker"},
        },
        "spec": {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": "v"},
    }
    assert claim_state(1, body, expandable=False) == ClaimState(
        1, "data-flights-broker-1", "u", 1 << 30, 0, False, "", "v", "worker", True
    )


# ── A loss that is accepted for a broker that runs ─────────────────────────────────────────


def asks_to_accept(world: World) -> None:
    """A person writes the annotation, and the operator binds it."""
    bound = f"1:accept-loss@{world.claims[1].uid}@{world.at}"
    advance(world, asked(world, "1:accept-loss"))
    assert world.request == bound


def test_an_accepted_loss_is_taken_back_while_the_broker_runs_on() -> None:
    world = settled(WISH)
    asks_to_accept(world)
    told = wait_of(plan_cluster(asked(world, world.request), world.observed()), REPLACING)
    assert "it is running; stop it" in told.message
    assert "the request is taken back at 2026-01-01T" in told.message
    world.seconds += 598
    assert AnswerRequest not in map(type, again(world).actions), "ten minutes are not over"
    world.seconds += 2
    (action,) = again(world).actions
    assert isinstance(action, AnswerRequest)
    assert action.text is None
    assert action.reason == EXPIRED
    assert action.note.startswith(
        "annotation penstock.dev/replace-volume accepted at 2026-01-01T00:00:"
    )


def test_an_accepted_loss_lapses_though_the_broker_is_down_when_somebody_looks_again() -> None:
    """A pause, an operator that was away: why it is down, and whether it ran, nobody saw."""
    world = settled(WISH)
    asks_to_accept(world)
    world.seconds += 86_400
    down(world, 1)
    plan = again(world)
    assert not replaced(plan)
    (action,) = (each for each in plan.actions if isinstance(each, AnswerRequest))
    assert (action.text, action.reason) == (None, EXPIRED)


def test_within_its_ten_minutes_a_broker_that_stops_gets_its_new_volume() -> None:
    world = settled(WISH)
    asks_to_accept(world)
    down(world, 1)
    world.seconds += 590
    assert replaced(again(world)) == [1]


def test_a_loss_that_is_accepted_for_a_broker_that_is_down_stands_until_it_runs() -> None:
    """It may be long before somebody else can be asked."""
    world = settled(WISH)
    down(world, 1)
    world.request = "1:accept-loss"
    bound = f"1:accept-loss@{world.claims[1].uid}@{world.at}@down"
    assert AnswerRequest(REPLACE_VOLUME, bound) in again(world).actions
    world.request = bound
    world.seconds += 86_400
    assert replaced(again(world)) == [1]
    world.alive.add(1)
    world.pods[1] = replace(world.pods[1], ready=True)
    (action,) = (each for each in again(world).actions if isinstance(each, AnswerRequest))
    assert (action.text, action.reason) == (None, EXPIRED)


def again(world: World) -> Plan:
    return plan_cluster(replace(WISH, replace_volume=world.request), world.observed())


def test_an_accepted_loss_of_a_former_operator_is_bound_to_the_time_as_well() -> None:
    world = settled(WISH)
    world.request = f"1:accept-loss@{world.claims[1].uid}"
    (action,) = again(world).actions
    assert action == AnswerRequest(REPLACE_VOLUME, f"{world.request}@{world.at}")


def test_nothing_is_restarted_while_a_loss_is_accepted_for_a_broker_that_runs() -> None:
    """A roll would give up its volume."""
    world = settled(WISH)
    rolled = desired(image="other")
    first = plan_cluster(replace(rolled, replace_volume="1:accept-loss"), world.observed())
    assert RestartPod not in map(type, first.actions), "it is not bound yet"
    asked(world, f"1:accept-loss@{world.claims[1].uid}@{world.at}")
    plan = Plan()
    for _ in range(20):
        plan = advance(world, replace(rolled, replace_volume=world.request))
        assert RestartPod not in map(type, plan.actions)
    assert "nothing is restarted while annotation" in " ".join(w.message for w in plan.waits)
    world.request = ""
    found = set[type]()
    for _ in range(20):
        found |= {type(each) for each in advance(world, rolled).actions}
    assert RestartPod in found


def test_an_accepted_loss_that_is_refused_holds_nothing() -> None:
    """The broker leaves: its volume is not replaced."""
    world = settled(WISH)
    leaving = replace(desired(brokers=2), replace_volume="2:accept-loss")
    assert holds_restarts(leaving, world.observed()) is None
    assert holds_restarts(replace(leaving, replace_volume="1:accept-loss"), world.observed())


# ── Somebody has deleted a claim ──────────────────────────────────────────────────────────────

ROLLED = desired(image="penstock-broker:2")


def deleted(world: World, *brokers: int) -> World:
    """Kubernetes keeps the claim of a pod until that stops."""
    for broker_id in brokers:
        world.claims[broker_id] = replace(world.claims[broker_id], deleting=True)
    return world


def restarts(world: World, wish: DesiredCluster, steps: int = 60) -> set[int]:
    """Of brokers, while a roll has time to end."""
    found = set()
    for _ in range(steps):
        plan = advance(world, wish)
        found |= {each.broker_id for each in plan.actions if isinstance(each, RestartPod)}
    return found


def test_nothing_is_restarted_while_a_deleted_claim_has_what_nobody_else_has() -> None:
    world = settled(desired(brokers=4))
    alone_there = PartitionState("alone", 0, 1, (1,), (1,), 1)
    world.partitions.append(alone_there)
    deleted(world, 1)
    wish = desired(brokers=4, image="penstock-broker:2")
    assert not restarts(world, wish)
    assert not restarts(world, replace(wish, force_roll=1, force_roll_pod=world.pods[1].uid))
    told = wait_of(plan_cluster(wish, world.observed()), DELETED)
    assert told.severity is Severity.BLOCKED
    assert told.message.startswith(
        "claim data-flights-broker-1 is being deleted, and the records of broker 1 go with it when "
        "its pod stops, so nothing is restarted: copy them away first (penstock broker drain 1), "
        "then kubectl delete pod flights-broker-1; not all of them are safe elsewhere: nobody else "
        "has all records of alone-0"
    )
    world.partitions.remove(alone_there)
    assert 1 in restarts(world, wish), "all that it has is elsewhere"


def test_a_broker_that_was_drained_may_stop_whatever_else_is_down() -> None:
    world = settled(desired(brokers=4), partitions=0)
    world.partitions.append(PartitionState("t", 0, 1, (1, 2), (1, 2), 1))
    deleted(world, 1)
    down(world, 3)
    wish = desired(brokers=4)
    assert wait_of(plan_cluster(wish, world.observed()), DELETED).message.endswith(
        'replace this one nevertheless with annotation penstock.dev/replace-volume: "1:accept-loss"'
    )
    world.partitions = [replace(world.partitions[0], replicas=(2, 0), isr=(2, 0), leader=2)]
    plan = plan_cluster(wish, world.observed())
    assert DELETED not in {wait.reason for wait in plan.waits}
    assert wait_of(plan, REPLACING).message == (
        "broker 1 gets a new volume once claim data-flights-broker-1 is gone, which is when pod "
        "flights-broker-1 stops: kubectl delete pod flights-broker-1"
    )


def test_two_deleted_claims_do_not_go_one_after_the_other() -> None:
    world = deleted(settled(WISH), 0, 1)
    assert not restarts(world, ROLLED)


def test_nothing_is_restarted_while_it_is_not_known_which_claims_are_deleted() -> None:
    world = deleted(settled(WISH), 0, 1)
    world.unknown = {"PersistentVolumeClaim": "forbidden"}
    assert not restarts(world, ROLLED)


def test_nothing_is_restarted_while_nobody_says_where_the_records_of_a_deleted_claim_are() -> None:
    world = deleted(settled(WISH), 1)
    down(world, 1)
    world.reachable = False
    assert not restarts(world, ROLLED), "though it is broken"
