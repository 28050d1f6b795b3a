"""The simulator as part of every test run; `make sim` runs far more seeds."""

import pytest

from penstock_sim.planted import PLANTED
from penstock_sim.world import simulate

SEEDS = 100
SEEDS_TO_FIND_A_BUG = 400


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_histories_full_of_faults_break_no_invariant(first: int) -> None:
    histories = [simulate(seed) for seed in range(first, first + 20)]
    for history in histories:
        assert history.violation is None, (
            f"{history.violation}\n"
            f"replay: python tests/simulation/run.py --seed {history.seed} --trace"
        )
    assert sum(history.commits for history in histories) > 500
    assert sum(history.elections for history in histories) > 30
    assert sum(history.truncations for history in histories) > 5


@pytest.mark.parametrize("seed", [7, 42, 1001])
def test_a_seed_is_one_history_traced_or_not(seed: int) -> None:
    plain, again, traced = simulate(seed), simulate(seed), simulate(seed, traced=True)
    assert plain == again
    assert traced.fingerprint == plain.fingerprint
    assert traced.trace
    assert simulate(seed + 1).fingerprint != plain.fingerprint


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, faults = PLANTED[name]
    plant(monkeypatch)
    for seed in range(SEEDS_TO_FIND_A_BUG):
        history = simulate(seed, faults=frozenset(faults.split()))
        if history.violation is not None:
            print(f"{name}: seed {seed}: {history.violation}")
            return
    pytest.fail(f"{SEEDS_TO_FIND_A_BUG} seeds did not find {name}")
