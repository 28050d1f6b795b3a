"""The simulator as part of every test run; `make sim` runs far more seeds."""

import subprocess
import sys
from pathlib import Path

import pytest
import run

from penstock_sim.planted import PLANTED
from penstock_sim.planted_groups import GROUP_BUGS
from penstock_sim.planted_journal import JOURNAL_BUGS
from penstock_sim.seeds import kept_seeds
from penstock_sim.world import simulate

SEEDS = 100
SEEDS_TO_FIND_A_BUG = 400
SEEDS_TO_FIND_A_GROUP_BUG = 150
SEEDS_TO_FIND_A_JOURNAL_BUG = 400


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


@pytest.mark.parametrize("seed", kept_seeds())
def test_a_seed_that_failed_once_holds(seed: int) -> None:
    assert simulate(seed).violation is None, kept_seeds()[seed]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("7", "seeds.txt:1: expected a seed and why"),
        ("# kept\n\nseven  it failed", "seeds.txt:3: expected a seed and why"),
        ("7 it failed\n7 again", "seeds.txt:2: 7 is there already"),
    ],
)
def test_a_kept_seed_says_why(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        kept_seeds(text)


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
        history = simulate(seed, faults=frozenset(faults.split()), groups=False, journal=False)
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
        found = simulate(seed, faults=frozenset(faults.split()), groups=False, journal=True)
        violation = found.violation
        if violation is not None:
            print(f"{name}: seed {seed}: {violation}")
            return
    pytest.fail(f"{SEEDS_TO_FIND_A_JOURNAL_BUG} seeds did not find {name}")


def test_the_command_says_how_many_seeds_hold() -> None:
    found = command("--seeds", "3", "--first", "5")
    assert found.returncode == 0, found.stderr
    assert "3 seeds from 5, 0 failed" in found.stdout


def test_the_command_replays_a_seed_event_by_event() -> None:
    first, again = command("--seed", "7", "--trace"), command("--seed", "7", "--trace")
    assert first.returncode == 0
    assert len(first.stdout.splitlines()) > 200
    assert "fingerprint" in first.stdout.splitlines()[-1]
    assert first.stdout == again.stdout


def test_a_failing_seed_prints_its_trace_and_how_to_replay_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "--seeds", "50"])
    PLANTED["commit_with_too_few_in_sync"][0](monkeypatch)
    assert run.main() == 1
    printed = capsys.readouterr().out
    assert "FAILED: I5" in printed
    assert "replay: python tests/simulation/run.py --seed" in printed
    assert "Assigned(" in printed


def command(*options: str) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).parent / "run.py"
    return subprocess.run(
        [sys.executable, str(script), *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
