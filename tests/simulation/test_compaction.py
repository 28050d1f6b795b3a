"""Partitions with transactions are compacted under simulation. Their bugs: `test_simulation`."""

from penstock_sim.world import History, simulate


def compacted(seed: int) -> History:
    return simulate(seed, groups=False, transactions=True, deletion=False, compaction=True)


def test_compaction_changes_nothing_that_is_visible() -> None:
    for seed in range(30):
        violation = compacted(seed).violation
        assert violation is None, (seed, violation)
