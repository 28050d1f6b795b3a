"""Partitions with transactions are compacted under simulation, and planted bugs of that found."""

import pytest

from penstock_sim.planted_compaction import COMPACTION_BUGS
from penstock_sim.world import History, simulate

SEEDS_TO_FIND_A_BUG = 500


def compacted(seed: int) -> History:
    return simulate(seed, groups=False, transactions=True, deletion=False, compaction=True)


@pytest.mark.parametrize("name", COMPACTION_BUGS)
def test_a_planted_bug_of_compaction_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    COMPACTION_BUGS[name](monkeypatch)
    for seed in range(SEEDS_TO_FIND_A_BUG):
        violation = compacted(seed).violation
        if violation is not None:
            print(f"{name}: seed {seed}: {violation}")
            return
    pytest.fail(f"{SEEDS_TO_FIND_A_BUG} seeds did not find {name}")


def test_compaction_changes_nothing_that_is_visible() -> None:
    for seed in range(30):
        violation = compacted(seed).violation
        assert violation is None, (seed, violation)
