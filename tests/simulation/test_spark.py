"""Exactly-once batches under simulation: the bugs that they must never have are found."""

import pytest

from penstock_sim.planted_spark import SPARK_BUGS
from penstock_sim.world import simulate

SEEDS_TO_FIND_A_BUG = 500


@pytest.mark.parametrize("name", SPARK_BUGS)
def test_a_planted_bug_of_batches_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    SPARK_BUGS[name](monkeypatch)
    for seed in range(SEEDS_TO_FIND_A_BUG):
        violation = simulate(seed, groups=False, transactions=True, spark=True).violation
        if violation is not None:
            print(f"{name}: seed {seed}: {violation}")
            assert violation.startswith("I11"), violation
            return
    pytest.fail(f"{SEEDS_TO_FIND_A_BUG} seeds did not find {name}")


def test_batches_are_in_once_whatever_dies() -> None:
    histories = [simulate(seed, groups=False, transactions=True, spark=True) for seed in range(30)]
    for history in histories:
        assert history.violation is None, (history.seed, history.violation)
    assert sum(history.spark_batches for history in histories) > 30
