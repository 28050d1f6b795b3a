"""Partitions with transactions are compacted in the simulator. Planted bugs: `test_simulation`."""

import pytest

from penstock_sim.scheduler import RuleError
from penstock_sim.world import History, World, simulate

FAILED_ONCE = {
    81100048: "a log began inside a batch that was never merged: no follower was fed from there",
    81000238: "as 81100048, inside a batch that compaction had emptied and whose sequence it kept",
    81100399: "deletion overtook a pass, which then forgot an abort whose data it had not removed",
}
"""As in seeds.txt, but only here with compaction."""


def compacted(seed: int) -> History:
    return simulate(seed, groups=False, transactions=True, deletion=False, compaction=True)


def test_compaction_changes_nothing_that_is_visible() -> None:
    for seed in range(30):
        violation = compacted(seed).violation
        assert violation is None, (seed, violation)


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_a_compacted_history_that_failed_once_holds(seed: int) -> None:
    assert compacted(seed).violation is None, FAILED_ONCE[seed]


def test_what_was_found_right_is_looked_at_again_once_it_has_changed() -> None:
    world = World(
        1, groups=False, transactions=True, deletion=False, compaction=True, brokers=3, moves=False
    )
    world.run()
    key, broker = world.keys[0], world.brokers[1]
    world.compaction_checks.check_log(broker, key)
    log = broker.disk.batches(broker.disk.open_slot(key))
    assert len(log) > 3
    del log[1]
    with pytest.raises(RuleError, match=r"I3: b1 .* has a gap"):
        world.compaction_checks.check_log(broker, key)
