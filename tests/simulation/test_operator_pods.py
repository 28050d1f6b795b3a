"""Two operators of Kubernetes, simulated. Planted bugs: `test_simulation`."""

import pytest

from penstock.core.control.documents import ClusterDocument, Cordon
from penstock.core.types import BrokerId, ControllerEpoch
from penstock_sim.operator_pods import OperatorPods
from penstock_sim.planted_operators import LEASE_LOOKS
from penstock_sim.planting import ALL_BUGS, find_again, row
from penstock_sim.scheduler import RuleError
from penstock_sim.world import World, simulate


def a_world(seed: int) -> tuple[World, OperatorPods]:
    world = World(
        seed,
        groups=False,
        journal=False,
        transactions=False,
        moves=False,
        compaction=False,
        operator_pods=True,
    )
    assert world.operator_pods is not None
    return world, world.operator_pods


def test_operators_take_over_from_each_other_and_no_former_one_changes_anything() -> None:
    changes = successions = 0
    for seed in range(8):
        world, pods = a_world(seed)
        world.run()
        changes += pods.changes
        successions += pods.successions
    assert changes > 30
    assert successions > 3


def test_a_change_from_an_older_tenure_breaks_the_promise() -> None:
    world, pods = a_world(0)
    pods._sent = {"one": ("a.1", 1), "two": ("b.1", 2), "late": ("a.1", 1)}

    def stored(*texts: str) -> None:
        cordons = {
            BrokerId(broker): Cordon(directory_id="", placement=True, leadership=False, why=text)
            for broker, text in zip(world.brokers, texts, strict=False)
        }
        pods.stored(
            ClusterDocument(
                cluster_id="",
                controller_epoch=ControllerEpoch(1),
                metadata_version=1,
                cordons=cordons,
            )
        )

    stored("one")
    stored("one", "two")
    with pytest.raises(RuleError, match=r"I35: late, sent in tenure 1 .* b\.1 has acted in"):
        stored("one", "two", "late")


@pytest.mark.parametrize("forgotten", LEASE_LOOKS)
def test_the_lease_is_fresh_for_who_asks_or_for_who_decides(
    forgotten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a history that breaks without both."""
    [both] = [
        number
        for number, bug in enumerate(ALL_BUGS)
        if bug.name == "acquire_an_epoch_without_a_fresh_lease"
    ]
    found = find_again(both)
    assert (found.violation or "").startswith("I35"), row(found)
    LEASE_LOOKS[forgotten](monkeypatch)
    assert simulate(found.seeds - 1, **ALL_BUGS[both].options).violation is None
