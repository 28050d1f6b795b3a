"""I28: whatever is wrong with a spec or unreadable, the rest is decided as if nothing was wrong."""

import copy
import json
import random
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.operator_world import NAMES, World, settled

from penstock.core.manifest.objects import SecurityMode
from penstock_operator.model import (
    Action,
    Apply,
    GrowClaim,
    MoveLeaders,
    OrphanSet,
    PlaintextFacts,
    Plan,
    RemoveObject,
    RestartPod,
    Severity,
)
from penstock_operator.names import MADE_FROM
from penstock_operator.objects import DesiredCluster, Installation, Last, last_of, read_cluster
from penstock_operator.objects.sections import Section, choose, section_of
from penstock_operator.observe import LISTED
from penstock_operator.plan import plan_cluster
from penstock_operator.plan.reach import reach_of
from penstock_operator.plan.security import QUIET_MS
from penstock_operator.status import cluster_status

NOW: Final = "2026-01-01T00:00:00Z"
INSTALLED: Final = Installation("penstock-broker:1", ("penstock-broker",))
SPEC: Final[dict[str, Any]] = {
    "brokers": 3,
    "storage": {"size": "10Gi"},
    "config": {"default.replication.factor": 3, "cache.bytes": 1_000_000},
    "external": {"type": "NodePort", "host": "flights.example.com"},
    "allowFrom": {"metrics": [{"podSelector": {}}]},
    "security": {"mode": "Strict"},
    "deletionPolicy": "Delete",
}
SET: Final = ("StatefulSet", NAMES.broker)
DEPLOYMENT: Final = ("Deployment", NAMES.controller)
MISTAKES: Final[dict[str, tuple[str, Any, Section]]] = {
    "a size that is none": ("storage", {"size": "many"}, Section.STORAGE),
    "a number in words": ("brokers", "three", Section.BROKERS),
    "an unknown setting": ("config", {"no.such.setting": 1}, Section.TEMPLATE),
    "more copies than brokers": ("config", {"default.replication.factor": 9}, Section.TEMPLATE),
    "fewer brokers than copies": ("brokers", 1, Section.TEMPLATE),
    "an image of somebody else": ("image", "elsewhere/penstock:1", Section.TEMPLATE),
    "a mode that is none": ("security", {"mode": "Loose"}, Section.TEMPLATE),
    "no host for certificates": ("external", {"type": "NodePort"}, Section.TEMPLATE),
    "peers that are none": ("allowFrom", {"clients": "all"}, Section.POLICY),
    "a policy that is none": ("deletionPolicy", "Maybe", Section.POLICY),
    "quotas that are none": ("quotas", [{"users": 1}], Section.POLICY),
    "a field that is none": ("colour", "blue", Section.TEMPLATE),
}  # fmt: skip


def read(spec: Any, last: Last | None = None) -> DesiredCluster:
    metadata = {"name": "flights", "namespace": "default", "uid": "cluster-uid", "generation": 2}
    return read_cluster({"metadata": metadata, "spec": spec}, INSTALLED, last)


def in_world(world: World, spec: Any) -> DesiredCluster:
    """As the worker reads it."""
    return read(spec, last_of([world.objects.get(SET), world.objects.get(DEPLOYMENT)]))


# ── Reading ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_broken_section_counts_as_it_last_was_and_the_others_as_they_are(mistake: str) -> None:
    name, value, section = MISTAKES[mistake]
    newer = {**SPEC, "storage": {"size": "20Gi"}, "allowFrom": {}, "deletionPolicy": "Retain"}
    wish = read({**newer, name: value}, Last(SPEC, frozenset(Section)))
    assert {wait.severity for wait in wish.refusals} == {Severity.BLOCKED}
    assert not wish.unknown
    size = "10Gi" if section is Section.STORAGE else "20Gi"
    assert (wish.spec.storage_size, wish.spec.brokers) == (size, 3)
    assert wish.broker_settings == {"cache.bytes": "1000000"}
    assert wish.external is not None
    assert wish.keeps_data == (section is not Section.POLICY)
    assert bool(wish.metrics_from) == (section is Section.POLICY)
    record = json.loads(wish.record)
    assert record[name] == SPEC[name] if name in SPEC else name not in record


def test_what_is_wrong_together_counts_as_it_last_was_together() -> None:
    """Otherwise the brokers would go, and the topics' factor would stay."""
    last = {**SPEC, "brokers": 5}
    wish = read({**SPEC, "brokers": 2}, Last(last, frozenset(Section)))
    assert wish.spec.brokers == 5
    assert "default.replication.factor is 3, but spec.brokers is 2" in wish.refusals[0].message


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_section_that_was_never_right_is_unknown(mistake: str) -> None:
    name, value, section = MISTAKES[mistake]
    wish = read({**SPEC, name: value})
    assert not wish.knows(section)
    assert wish.record == "", "nothing was made from it"
    assert wish.knows(Section.STORAGE) == (section is not Section.STORAGE)


@pytest.mark.parametrize("spec", ["nonsense", ["brokers"], 3])
def test_a_spec_that_is_no_mapping_breaks_every_section(spec: Any) -> None:
    assert read(spec).unknown == frozenset(Section)
    assert read(spec, Last(SPEC, frozenset(Section))).spec.brokers == 3
    assert section_of("spec") == frozenset(Section)


def test_a_last_spec_that_is_refused_by_now_is_not_used() -> None:
    """As after an upgrade of the operator that allows fewer images."""
    last = Last({**SPEC, "image": "elsewhere/penstock:1"}, frozenset(Section))
    wish = read({**SPEC, "image": "elsewhere/penstock:2"}, last)
    assert wish.unknown == {Section.BROKERS, Section.TEMPLATE}
    assert wish.refusals[0].reason == "ImageNotAllowed"
    assert (wish.spec.storage_size, wish.image) == ("10Gi", INSTALLED.image)


def test_of_what_a_newer_operator_has_recorded_the_fields_that_are_known_here_count() -> None:
    """As after a way back with the newer CRDs: the rest of the spec is not held up."""
    world = copy.deepcopy(SETTLED)
    users = [{"issuer": "https://id.example.com", "audience": "flights", "colour": "blue"}]
    newer = {
        **SPEC,
        "upgrade": {"soak": "1h", "colour": "blue"},
        "security": {"mode": "Strict", "oidc": users},
        "colours": ["blue"],
    }
    world.objects[SET]["metadata"]["annotations"][MADE_FROM] = json.dumps(newer)
    wish = in_world(world, {**newer, "storage": {"size": "20Gi"}})
    assert len(wish.refusals) == 3, "the fields that are not known are named"
    assert not wish.unknown
    assert (wish.spec.storage_size, wish.spec.soak_s) == ("20Gi", 3_600)
    assert [each.audience for each in wish.spec.oidc] == ["flights"]
    assert "blue" not in wish.record


def test_what_the_brokers_store_is_not_recorded_nor_what_is_too_large() -> None:
    access = [{"principals": ["cert:ada"], "role": "viewer"}]
    assert "access" not in json.loads(read({**SPEC, "access": access}).record)
    tolerations = [{"key": "k" * 60_000}, {"key": "k" * 80_000}]
    assert read({**SPEC, "pod": {"tolerations": tolerations}}).record == ""


def test_of_objects_without_a_record_the_set_shows_some_sections() -> None:
    world = settled(read({**SPEC, "rack": {"topologyKey": "zone"}}))
    for key in (SET, DEPLOYMENT):
        del world.objects[key]["metadata"]["annotations"][MADE_FROM]
    last = last_of([world.objects[SET], world.objects[DEPLOYMENT]])
    assert last.knows == {Section.STORAGE, Section.BROKERS}
    shown = choose("", last.spec, Last(), ["*"])
    assert not shown.waits
    wish = read("nonsense", last)
    assert (wish.spec.brokers, wish.spec.storage_size) == (3, "10Gi")
    assert (wish.has_tls, wish.spec.rack_topology_key) == (True, "zone"), "how to call brokers"
    assert wish.unknown == {Section.TEMPLATE, Section.POLICY}
    assert last_of([None, world.objects[DEPLOYMENT]]) == Last()


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_a_record_that_cannot_be_read_is_none(text: str) -> None:
    world = copy.deepcopy(SETTLED)
    world.objects[SET]["metadata"]["annotations"][MADE_FROM] = text
    assert last_of([None]) == Last()
    assert last_of([world.objects[SET]]).knows == {Section.STORAGE, Section.BROKERS}
    del world.objects[SET]["metadata"]["annotations"]
    assert last_of([world.objects[SET], world.objects[DEPLOYMENT]]).spec == SPEC


SETTLED: Final = settled(read(SPEC))
"""Never changed: tests take copies."""


# ── Planning ──────────────────────────────────────────────────────────────────────────────


@st.composite
def damaged(draw: st.DrawFn) -> World:
    """A settled world, then objects deleted and changed, brokers down, a replica out of sync."""
    world = copy.deepcopy(SETTLED)
    for key in draw(st.sets(st.sampled_from(sorted(world.objects)), max_size=4)):
        if draw(st.booleans()) and not ({SET, DEPLOYMENT} - world.objects.keys()):
            del world.objects[key]
        else:
            world.objects[key].pop("spec" if key not in (SET, DEPLOYMENT) else "x", None)
    for broker_id in draw(st.sets(st.integers(0, 2), max_size=2)):
        pod = replace(world.pods[broker_id], ready=False, trouble="ImagePullBackOff")
        world.pods[broker_id] = replace(pod, template_hash=draw(st.sampled_from(["old", "new"])))
        world.alive.discard(broker_id)
    if draw(st.booleans()):
        first = world.partitions[0]
        world.partitions[0] = replace(first, isr=first.isr[:2])
    return world


def plans(world: World, healthy: Any, broken: Any) -> tuple[Plan, Plan]:
    """With a spec that is right, and with one that is wrong in a part."""
    wishes = in_world(world, healthy), in_world(world, broken)
    good, bad = (plan_cluster(wish, world.observed()) for wish in wishes)
    assert set(wishes[1].refusals) <= set(bad.waits), "it says what is wrong"
    waits = tuple(wait for wait in bad.waits if wait not in wishes[1].refusals)
    return good, Plan(bad.actions, waits)


@given(damaged(), st.sampled_from(sorted(MISTAKES)))
@settings(max_examples=80, deadline=None)
def test_a_broken_section_changes_no_other_decision(world: World, mistake: str) -> None:
    name, value, _ = MISTAKES[mistake]
    healthy = {**SPEC, "storage": {"size": "20Gi"}}
    broken = {**healthy, name: value}
    good, bad = plans(world, SPEC if name == "storage" else healthy, broken)
    assert bad == good
    if name != "storage":
        assert [each for each in bad.actions if isinstance(each, GrowClaim)]


@given(damaged())
@settings(max_examples=30, deadline=None)
def test_a_spec_that_is_nonsense_changes_no_decision(world: World) -> None:
    good, bad = plans(world, SPEC, "nonsense")
    assert bad == good


def touches(action: Action) -> tuple[str, str]:
    match action:
        case Apply():
            return action.object["kind"], action.object["metadata"]["name"]
        case RemoveObject():
            return action.kind, action.name
        case GrowClaim():
            return "PersistentVolumeClaim", action.claim
        case OrphanSet():
            return "StatefulSet", action.name
        case _:
            return "Pod", ""


def heals(plan: Plan) -> list[Action]:
    """Growing volumes, the budget, other objects, and brokers that serve nobody."""
    return [
        each
        for each in plan.actions
        if isinstance(each, Apply | GrowClaim)
        or (isinstance(each, RestartPod) and "not running" in each.reason)
    ]


@given(damaged(), st.sampled_from([*LISTED, "ConfigMap"]))
@settings(max_examples=80, deadline=None)
def test_a_kind_that_cannot_be_read_changes_no_decision_about_others(
    world: World, kind: str
) -> None:
    wish = in_world(world, {**SPEC, "storage": {"size": "20Gi"}})
    good = plan_cluster(wish, world.observed())
    world.unknown = {kind: "403: forbidden"}
    bad = plan_cluster(wish, world.observed())
    assert all(action in good.actions for action in bad.actions), "nothing is made up"
    assert not [action for action in bad.actions if touches(action)[0] == kind]
    hanging = {kind}
    if kind == "StatefulSet":
        hanging.add("Pod")  # which template is the newest is not known
    if kind == "PersistentVolumeClaim":
        hanging.add("Pod")  # whether its claim is deleted, and would go with it, is not known
    if kind in {"Pod", "Deployment"} and SET not in world.objects:
        hanging.add("StatefulSet")  # how many pods there are, or with which image, is not known
    if kind in {"Pod", "StatefulSet"} and DEPLOYMENT not in world.objects:
        hanging |= {each[0] for each in map(touches, good.actions)} - {"PersistentVolumeClaim"}
        hanging -= {"PodDisruptionBudget"}  # which mode the rest has is not known
    expected = [each for each in heals(good) if touches(each)[0] not in hanging]
    assert [each for each in heals(bad) if touches(each)[0] not in hanging] == expected
    told = [wait for wait in bad.waits if wait.reason == "NotRead"]
    assert [kind in wait.message or kind[:-1] in wait.message for wait in told] == [True]


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "Pod", "PersistentVolumeClaim"])
def test_no_broker_is_taken_while_what_a_roll_depends_on_cannot_be_read(kind: str) -> None:
    world = copy.deepcopy(SETTLED)
    wish = read({**SPEC, "config": {"cache.bytes": 2_000_000}})
    for action in plan_cluster(wish, world.observed()).actions:
        world.carry_out(action)
    while not (taken := brokers_taken(plan_cluster(wish, world.observed()))):
        world.go_on()
    assert taken
    world.unknown = {kind: "no route"}
    assert not brokers_taken(plan_cluster(wish, world.observed()))


@pytest.mark.parametrize("kind", ["Pod", "StatefulSet"])
def test_no_step_of_the_mode_is_taken_or_taken_back_while_it_is_not_known_how_far_it_is(
    kind: str,
) -> None:
    world = settled(read({"security": {"mode": "Migrate"}}))
    strict = {"security": {"mode": "Strict"}}
    world.plaintext = {broker: PlaintextFacts(QUIET_MS, {}) for broker in world.pods}
    for action in plan_cluster(in_world(world, strict), world.observed()).actions:
        world.carry_out(action)
    world.plaintext = None  # as while the first of them restarts
    world.unknown = {kind: "no route"}
    plan = plan_cluster(in_world(world, strict), world.observed())
    assert not [each for each in plan.actions if touches(each) in (SET, DEPLOYMENT)]
    world.unknown, back = {}, {"security": {"mode": "Migrate"}}
    assert SET in map(touches, plan_cluster(in_world(world, back), world.observed()).actions)
    world.unknown = {kind: "no route"}
    plan = plan_cluster(in_world(world, back), world.observed())
    modes = [SecurityMode.of_controller(each.object["spec"]["template"]) for each in plan.actions
             if isinstance(each, Apply) and touches(each) == DEPLOYMENT]  # fmt: skip
    assert set(modes) <= {SecurityMode.STRICT}


def brokers_taken(plan: Plan) -> list[Action]:
    return [each for each in plan.actions if isinstance(each, RestartPod | MoveLeaders)]


def test_nothing_is_removed_of_a_kind_that_cannot_be_read() -> None:
    world = copy.deepcopy(SETTLED)
    wish = read({key: value for key, value in SPEC.items() if key not in {"external", "security"}})
    removed = [each for each in plan_cluster(wish, world.observed()).actions
               if isinstance(each, RemoveObject)]  # fmt: skip
    assert {each.kind for each in removed} == {"Service"}
    world.unknown = {"Service": "no route"}
    assert not [each for each in plan_cluster(wish, world.observed()).actions
                if isinstance(each, RemoveObject)]  # fmt: skip


@given(damaged(), st.sampled_from(sorted(SETTLED.objects)))
@settings(max_examples=80, deadline=None)
def test_a_name_that_is_taken_changes_no_decision_about_what_does_not_hang_on_it(
    world: World, key: tuple[str, str]
) -> None:
    wish = in_world(world, {**SPEC, "storage": {"size": "20Gi"}})
    good = plan_cluster(wish, world.observed())
    world.objects[key] = {"kind": key[0], "metadata": {"name": key[1], "uid": "of somebody"}}
    bad = plan_cluster(wish, world.observed())
    (taken,) = [wait for wait in bad.waits if wait.reason == "NameTaken"]
    assert f"{key[0]} {key[1]} exists" in taken.message
    out_of_reach = {key, *reach_of(wish, world.observed()).barred}
    if SET in out_of_reach:
        out_of_reach.add(("Pod", ""))
    assert not [each for each in bad.actions if touches(each) in out_of_reach]
    expected = [each for each in heals(good) if touches(each) not in out_of_reach]
    assert heals(bad) == expected


def test_what_hangs_on_a_taken_name_waits_with_it() -> None:
    world = World(random.Random(1))
    world.objects["Service", NAMES.brokers] = {
        "kind": "Service",
        "metadata": {"name": NAMES.brokers, "uid": "of somebody"},
    }
    made = {touches(each) for each in plan_cluster(read(SPEC), world.observed()).actions}
    assert SET not in made, "its pods would have no names"
    assert DEPLOYMENT in made
    world.objects = {("ServiceAccount", NAMES.controller): {
        "kind": "ServiceAccount", "metadata": {"name": NAMES.controller, "uid": "of somebody"},
    }}  # fmt: skip
    made = {touches(each) for each in plan_cluster(read(SPEC), world.observed()).actions}
    assert "RoleBinding" not in {kind for kind, _ in made}, "it would get our permissions"
    assert DEPLOYMENT not in made


def test_nothing_is_made_of_a_cluster_that_was_never_right_but_its_budget() -> None:
    world = World(random.Random(1))
    plan = plan_cluster(read({**SPEC, "image": "elsewhere/penstock:1"}), world.observed())
    assert {touches(each)[0] for each in plan.actions} == {"PodDisruptionBudget"}


@pytest.mark.parametrize("mistake", ["an unknown setting", "peers that are none"])
def test_the_set_of_a_cluster_without_a_record_stays_and_volumes_grow(mistake: str) -> None:
    """As after the upgrade of an operator that kept no records, if the spec was wrong before."""
    name, value, _ = MISTAKES[mistake]
    world = copy.deepcopy(SETTLED)
    for key in (SET, DEPLOYMENT):
        del world.objects[key]["metadata"]["annotations"][MADE_FROM]
    before = copy.deepcopy(world.objects)
    broken = {**SPEC, "storage": {"size": "20Gi"}, name: value}
    for _ in range(20):
        plan = plan_cluster(in_world(world, broken), world.observed())
        assert not [each for each in plan.actions if isinstance(each, OrphanSet)]
        for action in plan.actions:
            world.carry_out(action)
        world.go_on()
    assert {claim.requested for claim in world.claims.values()} == {20 << 30}
    assert world.objects == before
    pod = replace(world.pods[1], template_hash="old", ready=False, trouble="ImagePullBackOff")
    world.pods[1], world.alive = pod, {0, 2}
    plan = plan_cluster(in_world(world, broken), world.observed())
    assert [each.broker_id for each in plan.actions if isinstance(each, RestartPod)] == [1]


# ── Telling ───────────────────────────────────────────────────────────────────────────────


def test_a_cluster_that_serves_stays_ready_and_says_what_is_wrong_with_its_spec() -> None:
    world = copy.deepcopy(SETTLED)
    wish = in_world(world, {**SPEC, "config": {"no.such.setting": 1}})
    status = cluster_status(wish, world.observed(), plan_cluster(wish, world.observed()), {}, NOW)
    shown = {each["type"]: each for each in status["conditions"]}
    assert shown["Ready"]["status"] == "True"
    assert (shown["Stalled"]["status"], shown["Stalled"]["reason"]) == ("True", "InvalidSpec")
    assert "no.such.setting" in status["message"]
    assert status["brokers"]["updated"] == 3
    assert status["observedGeneration"] == 2


def test_what_cannot_be_read_is_shown_as_it_was() -> None:
    world = copy.deepcopy(SETTLED)
    wish = read(SPEC)
    before = cluster_status(wish, world.observed(), Plan(), {}, NOW)
    world.unknown = {"Pod": "no route", "ConfigMap": "no route"}
    world.pods = {}
    blind = replace(world.observed(), trust="")
    plan = plan_cluster(wish, blind)
    after = cluster_status(wish, blind, plan, before, NOW)
    for key in ("brokers", "replicas", "brokerStatuses", "authorityExpires"):
        assert after[key] == before[key], key
    secured = [each for each in before["conditions"] if each["type"] == "Secured"]
    assert [each for each in after["conditions"] if each["type"] == "Secured"] == secured
    assert not [wait for wait in plan.waits if wait.reason == "PodMissing"]
