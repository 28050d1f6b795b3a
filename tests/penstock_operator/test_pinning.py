"""I37: another operator restarts nothing. The spec does, and who approves."""

import copy
from dataclasses import replace
from typing import Any, Final

import pytest
from support.operator_world import NAMES, World, settled

from penstock.kubernetes.names import APPROVE
from penstock_operator.model import Apply, GrowClaim, OrphanSet, Plan
from penstock_operator.names import MADE_FROM, TEMPLATE_HASH
from penstock_operator.objects import DesiredCluster, Installation, last_of, read_cluster
from penstock_operator.objects.broker import live_template_hash
from penstock_operator.plan import plan_cluster
from penstock_operator.plan.upgrade import Upgrade, upgrade_of
from penstock_operator.status import cluster_status

OLD: Final = "penstock-broker:0.1.0"
NEW: Final = Installation("penstock-broker:0.2.0", pull_secrets=("registry",))
SET: Final = ("StatefulSet", NAMES.broker)
DEPLOYMENT: Final = ("Deployment", NAMES.controller)
SPECS: Final[dict[str, dict[str, Any]]] = {
    "nothing": {},
    "plaintext": {"security": {"mode": "Disabled"}, "config": {"cache.bytes": 1_000_000}},
    "both": {"security": {"mode": "Migrate"}, "resources": {"requests": {"cpu": "1000m"}}},
    "strict": {
        "security": {
            "mode": "Strict",
            "oidc": [{"issuer": "https://login.example.com", "audience": "flights"}],
            "clientCertificates": {"caConfigMap": "people", "nodePort": 31_200},
        },
        "external": {"type": "NodePort", "host": "flights.example.com"},
        "deletionPolicy": "Delete",
    },
    "placed": {
        "imagePullPolicy": "Always",
        "rack": {"topologyKey": "zone"},
        "pod": {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "k"}]},
        "controllers": {"resources": {"limits": {"memory": "1Gi"}}},
        "config": {"min.insync.replicas": 1},
    },
}


def read(
    world: World | None, spec: dict[str, Any], operator: Installation = NEW, approved: str = ""
) -> DesiredCluster:
    metadata: dict[str, Any] = {"name": "flights", "namespace": "default", "uid": "cluster-uid"}
    if approved:
        metadata["annotations"] = {APPROVE: approved}
    objects = {} if world is None else world.objects
    last = last_of([objects.get(SET), objects.get(DEPLOYMENT)])
    return read_cluster({"metadata": metadata, "spec": spec}, operator, last)


def made_by_an_older_operator(spec: dict[str, Any], *, records: bool = True) -> World:
    """Its templates differ in a variable, an option and a probe. `records`: it kept some."""
    world = settled(read(None, spec, Installation(OLD)))
    for key in (SET, DEPLOYMENT):
        template = world.objects[key]["spec"]["template"]
        (container,) = template["spec"]["containers"]
        container["env"].append({"name": "PENSTOCK_OF_OLD", "value": "1"})
        container["args"].remove("--log-level=INFO")
        container["livenessProbe"]["periodSeconds"] = 5
        template["metadata"]["creationTimestamp"] = None  # as the API server shows it
        annotations = world.objects[key]["metadata"]["annotations"]
        if not records:
            del annotations[MADE_FROM]
    world.objects[SET]["spec"]["template"]["metadata"]["annotations"][TEMPLATE_HASH] = "older"
    annotations = world.objects[DEPLOYMENT]["metadata"]["annotations"]
    if records:
        annotations[TEMPLATE_HASH] = "older"
    else:
        del annotations[TEMPLATE_HASH]
    for broker_id, pod in world.pods.items():
        world.pods[broker_id] = replace(pod, template_hash="older")
    return world


def run(world: World, spec: dict[str, Any], approved: str = "", steps: int = 400) -> Plan:
    """With the newer operator, until nothing is left to do; returns the last plan."""
    plan = Plan()
    for _ in range(steps):
        plan = plan_cluster(read(world, spec, approved=approved), world.observed())
        if plan.is_idle:
            return plan
        for action in plan.actions:
            world.carry_out(action)
        world.go_on()
    raise AssertionError(f"not settled: {plan}")


def templates(world: World) -> list[Any]:
    """Without what only the API server writes."""
    found = copy.deepcopy([world.objects[key]["spec"]["template"] for key in (SET, DEPLOYMENT)])
    for each in found:
        each["metadata"].pop("creationTimestamp", None)
    return found


def uids(world: World) -> set[str]:
    return {pod.uid for pod in world.pods.values()}


def container(world: World, key: tuple[str, str] = SET) -> dict[str, Any]:
    (found,) = world.objects[key]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def offered(world: World, spec: dict[str, Any]) -> Upgrade | None:
    return upgrade_of(read(world, spec), world.observed())


@pytest.mark.parametrize("records", [True, False], ids=["with a record", "without"])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_another_operator_changes_no_template_and_restarts_nothing(
    spec: dict[str, Any], *, records: bool
) -> None:
    world = made_by_an_older_operator(spec, records=records)
    pods, before = uids(world), templates(world)
    assert run(world, spec).is_idle
    assert templates(world) == before
    assert uids(world) == pods
    run(world, {**spec, "brokers": 4})
    assert (uids(world) > pods, templates(world)[0]) == (True, before[0]), "also when it scales"


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_first_pass_over_objects_without_records_adds_only_annotations(
    spec: dict[str, Any],
) -> None:
    """The operator before this one made the same templates, and kept no records."""
    world = settled(read(None, spec))
    for key in (SET, DEPLOYMENT):
        for name in (MADE_FROM, TEMPLATE_HASH):
            world.objects[key]["metadata"]["annotations"].pop(name, None)
    before = copy.deepcopy(world.objects)
    actions = plan_cluster(read(world, spec), world.observed()).actions
    applied = [action.object for action in actions if isinstance(action, Apply)]
    assert len(applied) == len(actions)
    assert [(each["kind"], each["metadata"]["name"]) for each in applied] == [DEPLOYMENT, SET]
    for each in applied:
        assert each["spec"] == before[each["kind"], each["metadata"]["name"]]["spec"]
    run(world, spec)
    assert offered(world, spec) is None


@pytest.mark.parametrize("records", [True, False], ids=["with a record", "without"])
@pytest.mark.parametrize(
    ("spec", "change"),
    [
        ("nothing", {"config": {"cache.bytes": 2_000_000}}),
        ("nothing", {"security": {"mode": "Migrate"}}),
        ("nothing", {"resources": {"limits": {"memory": "3Gi"}}}),
        ("nothing", {"rack": {"topologyKey": "zone"}}),
        ("nothing", {"pod": {"nodeSelector": {"disk": "ssd"}}}),
        ("nothing", {"imagePullPolicy": "Always"}),
        ("plaintext", {"external": {"type": "NodePort"}}),
        ("both", {"security": {"mode": "Disabled"}}),
        ("strict", {"security": {"mode": "Strict"}}),
        ("placed", {"pod": {"tolerations": [{"key": "other"}]}}),
    ],
)
def test_a_change_of_the_spec_rolls_with_the_image_that_runs_and_takes_the_template_along(
    spec: str, change: dict[str, Any], *, records: bool
) -> None:
    world = made_by_an_older_operator(SPECS[spec], records=records)
    pods = uids(world)
    run(world, {**SPECS[spec], **change})
    assert not uids(world) & pods, "every broker restarted"
    assert container(world)["image"] == container(world, DEPLOYMENT)["image"] == OLD
    assert "--log-level=INFO" in container(world)["args"]
    found = offered(world, {**SPECS[spec], **change})
    assert found is not None, "the image"
    assert (found.before, found.after) == (OLD, NEW.image)


@pytest.mark.parametrize(
    ("change", "rolls"),
    [
        ({"config": {"min.insync.replicas": 1}}, True),
        ({"controllers": {"replicas": 2, "resources": {"limits": {"memory": "1Gi"}}}}, True),
        ({"deletionPolicy": "Delete"}, True),
        ({"brokers": 1}, True),
        ({"brokers": 5}, False),
        ({"controllers": {"replicas": 3}}, False),
        ({"allowFrom": {"metrics": [{"podSelector": {}}]}}, False),
        ({"storage": {"size": "20Gi"}}, False),
        ({"quotas": []}, False),
    ],
)
def test_what_concerns_controllers_or_no_pod_restarts_no_broker(
    change: dict[str, Any], *, rolls: bool
) -> None:
    """`rolls`: controllers."""
    world = made_by_an_older_operator({})
    world.partitions = []
    brokers, controllers = templates(world)
    pods = {pod.uid for broker, pod in world.pods.items() if broker < change.get("brokers", 3)}
    run(world, change)
    assert templates(world)[0] == brokers
    assert (templates(world)[1] != controllers) == rolls
    assert container(world, DEPLOYMENT)["image"] == OLD
    assert pods <= uids(world)


def test_what_is_offered_says_what_would_change_and_is_carried_out_once_approved() -> None:
    world = made_by_an_older_operator({})
    pods, found = uids(world), offered(world, {})
    assert found is not None
    assert (found.before, found.after) == (OLD, NEW.image)
    said = "\n".join(found.changes)
    for whose in ("controllers", "brokers"):
        assert f"{whose}: spec.containers[0].image: {OLD} becomes {NEW.image}" in said
        assert f"{whose}: spec.containers[0].livenessProbe.periodSeconds: 5 becomes 10" in said
        assert f"{whose}: spec.containers[0].args: " in said
    assert "new: ['--log-level=INFO']" in said
    run(world, {}, approved="another")
    assert uids(world) == pods
    assert offered(world, {}) == found, "the same plan, whoever computes it"
    run(world, {}, approved=found.plan)
    assert not uids(world) & pods
    assert container(world)["image"] == container(world, DEPLOYMENT)["image"] == NEW.image
    assert "PENSTOCK_OF_OLD" not in str(templates(world))
    assert offered(world, {}) is None
    run(world, {})
    assert container(world)["image"] == NEW.image, "the annotation may go"


def test_an_approval_is_of_one_plan_and_not_of_a_later_one() -> None:
    world = made_by_an_older_operator({})
    found = offered(world, {})
    assert found is not None
    newer = Installation("penstock-broker:0.3.0")
    wish = read(world, {}, newer, approved=found.plan)
    later = upgrade_of(wish, world.observed())
    assert later is not None
    assert later.plan != found.plan
    assert not [a for a in plan_cluster(wish, world.observed()).actions if type(a) is Apply
                and a.object["spec"].get("template") not in (None, *templates(world))]  # fmt: skip


def test_who_wants_upgrades_at_once_gets_them() -> None:
    spec = {"upgrade": {"policy": "Automatic"}}
    world = made_by_an_older_operator(spec)
    pods = uids(world)
    assert offered(world, spec) is None
    run(world, spec)
    assert not uids(world) & pods
    assert container(world)["image"] == NEW.image


def test_an_image_that_is_no_longer_named_gives_way_to_the_operators_own() -> None:
    """As when a bad image is taken back."""
    world = settled(read(None, {"image": "mine:2"}))
    assert container(world)["image"] == "mine:2"
    run(world, {})
    assert container(world)["image"] == container(world, DEPLOYMENT)["image"] == NEW.image


def test_a_set_that_is_lost_comes_back_with_the_image_of_the_controllers_and_they_with_its() -> (
    None
):
    for lost in (SET, DEPLOYMENT):
        world = made_by_an_older_operator({})
        del world.objects[lost]
        run(world, {})
        assert container(world, lost)["image"] == OLD


@pytest.mark.parametrize("lost", [SET, DEPLOYMENT])
def test_what_is_lost_is_not_made_while_it_is_not_known_which_image_the_other_has(
    lost: tuple[str, str],
) -> None:
    world = made_by_an_older_operator({})
    wish = read(world, {})
    del world.objects[lost]
    world.unknown = {(DEPLOYMENT if lost == SET else SET)[0]: "no route"}
    actions = plan_cluster(wish, world.observed()).actions
    kinds = {each.object["kind"] for each in actions if isinstance(each, Apply)}
    assert lost[0] not in kinds


def test_volumes_grow_and_the_set_is_not_replaced_while_it_could_not_be_made_as_it_is() -> None:
    world = made_by_an_older_operator({})
    spec = {"storage": {"size": "20Gi"}}
    plan = plan_cluster(read(world, spec), world.observed())
    assert len([each for each in plan.actions if isinstance(each, GrowClaim)]) == 3
    pods = uids(world)
    for _ in range(20):
        plan = plan_cluster(read(world, spec), world.observed())
        assert not [each for each in plan.actions if isinstance(each, OrphanSet)]
        for action in plan.actions:
            world.carry_out(action)
        world.go_on()
    assert uids(world) == pods
    assert {claim.requested for claim in world.claims.values()} == {20 << 30}


@pytest.mark.parametrize("key", [SET, DEPLOYMENT])
@pytest.mark.parametrize(("field", "value"), [("image", "elsewhere:1"), ("args", ["version"])])
def test_a_template_of_ours_that_somebody_edits_is_healed(
    key: tuple[str, str], field: str, value: Any
) -> None:
    world = settled(read(None, {}))
    before = templates(world)
    world.objects[key]["spec"]["template"]["spec"]["containers"][0][field] = value
    run(world, {})
    assert templates(world) == before


def test_the_status_tells_of_it_and_the_cluster_is_at_rest() -> None:
    world = made_by_an_older_operator({})
    run(world, {})
    wish, observed = read(world, {}), world.observed()
    plan = plan_cluster(wish, observed)
    status = cluster_status(wish, observed, plan, {}, "2026-01-01T00:00:00Z")
    found = upgrade_of(wish, observed)
    assert found is not None
    assert status["upgrade"] == {
        "available": True,
        "plan": found.plan,
        "from": OLD,
        "to": NEW.image,
        "changes": list(found.changes),
        "steps": ["0", "1", "2"],
        "minutes": None,
        "format": 2,
        "newestFormat": 2,
    }
    unheard = replace(observed, moves=None)
    kept = cluster_status(wish, unheard, plan, status, "2026-01-01T00:00:00Z")["upgrade"]
    assert kept == status["upgrade"], "as the brokers said last"
    world.format = 1
    older = cluster_status(wish, world.observed(), plan, {}, "2026-01-01T00:00:00Z")["upgrade"]
    assert (older["format"], older["newestFormat"]) == (1, 2), "one can go back until finalize"
    assert status["brokers"]["updated"] == 3
    assert {each["type"]: each["status"] for each in status["conditions"]}["Reconciling"] == "False"
    assert live_template_hash(world.objects[SET]) == "older"
