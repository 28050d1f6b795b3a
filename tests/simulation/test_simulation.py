"""The simulator as part of every test run; `make sim` runs far more seeds."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock_sim import planting
from penstock_sim.planted_transactions import append_without_a_second_look, keep_guards_at_the_end
from penstock_sim.planting import ALL_BUGS, Found, find, find_again, row
from penstock_sim.seeds import kept_seeds
from penstock_sim.world import History, World, simulate

SEEDS = 40
"""Of those that `make sim` plays as well: these are for whoever runs only the tests."""


@pytest.fixture(scope="module")
def histories() -> list[History]:
    return [simulate(seed) for seed in range(SEEDS)]


def test_histories_full_of_faults_break_no_invariant(histories: list[History]) -> None:
    for history in histories:
        assert history.violation is None, (
            f"{history.violation}\n"
            f"replay: python tests/simulation/run.py --seed {history.seed} --trace"
        )
    assert sum(history.commits for history in histories) > 1_000
    assert sum(history.elections for history in histories) > 60
    assert sum(history.truncations for history in histories) > 10
    assert sum(history.group_commits for history in histories) > 40
    assert sum(history.rebalances for history in histories) > 40
    assert sum(history.transactions for history in histories) > 10
    assert sum(history.latest_readers for history in histories) > 20


def test_brokers_keep_journals_while_the_store_is_unavailable(histories: list[History]) -> None:
    assert sum(history.journals for history in histories) > 10


def test_a_history_leaves_nothing_behind(histories: list[History]) -> None:
    """Thousands are played by one process."""
    assert histories
    gc.collect()
    assert [each for each in gc.get_objects() if isinstance(each, World)] == []


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


FINGERPRINTS = """
import sys
from penstock_sim.world import simulate
print([simulate(int(seed)).fingerprint for seed in sys.argv[1:]])
"""
WITH_CONSUMERS = ("0", "3", "9", "12", "30")


def test_a_seed_is_one_history_however_strings_are_hashed() -> None:
    """Tests hash them in another way in each process; stored seeds must still find their bugs."""
    found = [
        subprocess.run(
            [sys.executable, "-c", FINGERPRINTS, *WITH_CONSUMERS],
            env={**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": str(Path(__file__).parent)},
            capture_output=True,
            text=True,
            timeout=180,
            check=True,
        ).stdout
        for hashes in ("0", "1", "2")
    ]
    assert len(set(found)) == 1, "sets of strings are iterated somewhere: sort them"


@pytest.mark.parametrize("number", range(len(ALL_BUGS)), ids=map(str, ALL_BUGS))
def test_a_planted_bug_is_found(number: int) -> None:
    found = find_again(number)
    print(row(found))
    assert found.as_expected, row(found)


def test_a_stored_seed_that_no_longer_finds_its_bug_only_costs_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = {name: seed for name, seed in planting.stored_seeds().items() if seed > 0}
    number = min(
        (n for n, bug in enumerate(ALL_BUGS) if str(bug) in later),
        key=lambda n: later[str(ALL_BUGS[n])],
    )
    monkeypatch.setattr(planting, "FILE", tmp_path / "planted_seeds.txt")
    first = find(number)
    assert first.seeds > 1, "seed 0 must not find it, or nothing is tried here"
    planting.store_seeds([first])
    assert find_again(number) == first
    planting.store_seeds([Found(number, 1, "seed 0")])
    assert planting.stored_seeds() == {str(ALL_BUGS[number]): 0}
    assert find_again(number) == first


@pytest.mark.parametrize("half", [keep_guards_at_the_end, append_without_a_second_look])
def test_each_of_two_looks_keeps_a_late_batch_from_behind_the_marker(
    half: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a history that breaks without both: with either one, everything before is the same."""
    [both] = [n for n, bug in enumerate(ALL_BUGS) if bug.name == "append_behind_the_marker"]
    found = find_again(both)
    assert (found.violation or "").startswith(("I10", "I12")), row(found)
    half(monkeypatch)
    assert simulate(found.seeds - 1, **ALL_BUGS[both].options).violation is None
