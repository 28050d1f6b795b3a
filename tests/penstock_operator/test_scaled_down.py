"""What a broker that is to go, or has gone, still has: its Service for outside, and its volume."""

from dataclasses import replace

from support.operator_world import NAMES, World, advance, desired, settled

from penstock_operator.model import Apply, GrowClaim, Plan, RemoveObject
from penstock_operator.objects import DesiredCluster
from penstock_operator.objects.desired import External
from penstock_operator.plan import plan_cluster

GIB = 1024**3
SERVICE = ("Service", NAMES.external(2))


def outside(brokers: int) -> DesiredCluster:
    return replace(desired(brokers=brokers), external=External("penstock.example"))


def run(world: World, wish: DesiredCluster) -> None:
    """Until nothing is left to do."""
    for _ in range(400):
        if advance(world, wish).is_idle:
            return
    raise AssertionError(plan_cluster(wish, world.observed()))


def removed(plan: Plan) -> list[str]:
    return [each.name for each in plan.actions if isinstance(each, RemoveObject)]


def test_a_broker_has_its_service_for_outside_until_its_pod_has_gone() -> None:
    world = settled(outside(3))
    two = outside(2)
    for _ in range(20):
        plan = advance(world, two)
        assert "DrainBlocked" in {wait.reason for wait in plan.waits}
        assert removed(plan) == []
    assert any(each.leader == 2 for each in world.partitions)
    world.partitions = [replace(each, replicas=(0, 1), isr=(0, 1)) for each in world.partitions]
    for _ in range(400):
        idle = advance(world, two).is_idle
        assert SERVICE in world.objects or 2 not in world.pods
        if idle:
            break
    assert sorted(world.pods) == [0, 1]
    assert SERVICE not in world.objects


def test_the_service_of_a_broker_that_is_to_go_is_made_again() -> None:
    world = settled(outside(3))
    del world.objects[SERVICE]
    plan = plan_cluster(outside(2), world.observed())
    made = [each.object["metadata"]["name"] for each in plan.actions if isinstance(each, Apply)]
    assert SERVICE[1] in made


def test_no_service_goes_while_it_is_not_known_which_brokers_run() -> None:
    world = settled(outside(3))
    kinds = ("Pod", "StatefulSet", "PersistentVolumeClaim")
    world.unknown = dict.fromkeys(kinds, "forbidden")
    assert removed(plan_cluster(outside(2), world.observed())) == []
    assert len(removed(plan_cluster(desired(), world.observed()))) == 4, "nobody is let in"


def test_the_volume_of_a_broker_that_was_let_go_grows_when_the_broker_comes_back() -> None:
    """Many drivers grow a volume only while a pod uses it: it would grow for ever."""
    world = settled(desired(brokers=4), partitions=8)
    world.partitions = [each for each in world.partitions if 3 not in each.replicas]
    run(world, desired(brokers=3))
    before = world.claims[3]
    larger = desired(brokers=3, spec_storage_size="20Gi")
    run(world, larger)
    assert world.claims[3] == before
    assert {world.claims[at].capacity for at in range(3)} == {20 * GIB}
    (template,) = world.objects["StatefulSet", NAMES.broker]["spec"]["volumeClaimTemplates"]
    assert template["spec"]["resources"]["requests"]["storage"] == "20Gi"
    asked = replace(before, requested=20 * GIB)
    seen = replace(world.observed(), claims={**world.claims, 3: asked})
    assert plan_cluster(larger, seen) == Plan(), "as an operator before may have asked for"
    four = desired(brokers=4, spec_storage_size="20Gi")
    grows = [one for one in plan_cluster(four, world.observed()).actions if type(one) is GrowClaim]
    assert [one.uid for one in grows] == [before.uid]
    run(world, four)
    assert world.claims[3].capacity == 20 * GIB
