"""The simulator as part of every test run; `make sim` runs far more seeds."""

import pytest

from penstock_sim.planted import PLANTED
from penstock_sim.planted_groups import GROUP_BUGS
from penstock_sim.planted_journal import JOURNAL_BUGS
from penstock_sim.planted_transactions import TRANSACTION_BUGS
from penstock_sim.seeds import kept_seeds
from penstock_sim.world import simulate

SEEDS = 100
SEEDS_TO_FIND_A_BUG = 400
SEEDS_TO_FIND_A_GROUP_BUG = 150
SEEDS_TO_FIND_A_JOURNAL_BUG = 400
SEEDS_TO_FIND_A_TRANSACTION_BUG = 300


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
    assert sum(history.group_commits for history in histories) > 40
    assert sum(history.rebalances for history in histories) > 20
    assert sum(history.journals for history in histories) > 0
    assert sum(history.transactions for history in histories) > 5


@pytest.mark.parametrize("seed", kept_seeds())
def test_a_seed_that_failed_once_holds(seed: int) -> None:
    assert simulate(seed).violation is None, kept_seeds()[seed]


@pytest.mark.parametrize("seed", [7, 42, 1001, 1002])
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
        history = simulate(
            seed,
            faults=frozenset(faults.split()),
            groups=False,
            journal=False,
            transactions=False,
        )
        if history.violation is not None:
            print(f"{name}: seed {seed}: {history.violation}")
            return
    pytest.fail(f"{SEEDS_TO_FIND_A_BUG} seeds did not find {name}")


@pytest.mark.parametrize("name", GROUP_BUGS)
def test_a_planted_bug_of_groups_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    GROUP_BUGS[name](monkeypatch)
    for seed in range(SEEDS_TO_FIND_A_GROUP_BUG):
        violation = simulate(seed, groups=True).violation
        if violation is not None:
            assert violation.startswith(("I16", "I17", "I18", "I19")), violation
            return
    pytest.fail(f"{SEEDS_TO_FIND_A_GROUP_BUG} seeds did not find {name}")


@pytest.mark.parametrize("name", JOURNAL_BUGS)
def test_a_planted_bug_of_the_journal_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, faults = JOURNAL_BUGS[name]
    plant(monkeypatch)
    for seed in range(SEEDS_TO_FIND_A_JOURNAL_BUG):
        found = simulate(
            seed,
            faults=frozenset(faults.split()),
            groups=False,
            journal=True,
            transactions=False,
        )
        violation = found.violation
        if violation is not None:
            print(f"{name}: seed {seed}: {violation}")
            return
    pytest.fail(f"{SEEDS_TO_FIND_A_JOURNAL_BUG} seeds did not find {name}")


@pytest.mark.parametrize("name", TRANSACTION_BUGS)
def test_a_planted_bug_of_transactions_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    TRANSACTION_BUGS[name](monkeypatch)
    for seed in range(SEEDS_TO_FIND_A_TRANSACTION_BUG):
        violation = simulate(seed, groups=False, transactions=True).violation
        if violation is not None:
            print(f"{name}: seed {seed}: {violation}")
            return
    pytest.fail(f"{SEEDS_TO_FIND_A_TRANSACTION_BUG} seeds did not find {name}")
