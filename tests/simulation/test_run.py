"""The command that plays seeds: what it plays, on how many cores, what it prints, how it ends."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import run
from support.descendants import descendants_of, still_running
from support.waiting import wait_until

from penstock_sim.planted import PLANTED
from penstock_sim.planted_damage import DAMAGE_BUGS
from penstock_sim.planted_moving import DRAIN_BUGS
from penstock_sim.seeds import fresh_seeds, kept_seeds
from penstock_sim.totals import Progress, Totals
from penstock_sim.workers import Workers
from penstock_sim.world import History

HERE = Path(__file__).parent
PLANTED_RUN = f"""
import sys
sys.path[:0] = [{str(HERE)!r}]
import pytest, run
from penstock_sim.planted import PLANTED
PLANTED["commit_with_too_few_in_sync"][0](pytest.MonkeyPatch())
sys.argv = ["run.py", *sys.argv[1:]]
sys.exit(run.main())
"""
DYING_RUN = f"""
import os, sys
sys.path[:0] = [{str(HERE)!r}]
import run
from penstock_sim import workers
play = workers.simulate
workers.simulate = lambda seed: os._exit(9) if seed == 3 else play(seed)
sys.argv = ["run.py", *sys.argv[1:]]
sys.exit(run.main())
"""

FEW_KEPT_RUN = f"""
import sys
sys.path[:0] = [{str(HERE)!r}]
import run
kept = dict(list(run.kept_seeds().items())[:2])
run.kept_seeds = lambda: kept
sys.argv = ["run.py", *sys.argv[1:]]
sys.exit(run.main())
"""

HARMLESS_RUN = f"""
import sys
sys.path[:0] = [{str(HERE)!r}]
import run
from penstock_sim import planting
harmless = planting.PlantedBug("replication", "nothing to see", lambda patch: None, 3)
run.ALL_BUGS = planting.ALL_BUGS = (harmless,)
sys.argv = ["run.py", *sys.argv[1:]]
sys.exit(run.main())
"""


def command(
    *options: str, code: str | None = None, hashes_set: bool = True
) -> subprocess.CompletedProcess[str]:
    """`hashes_set`: else the command starts itself again, and imports everything twice."""
    script = [str(HERE / "run.py")] if code is None else ["-c", code]
    more = {"PYTHONHASHSEED": "0"} if hashes_set else {}
    clean = {name: text for name, text in os.environ.items() if name != "PYTHONHASHSEED"}
    return subprocess.run(
        [sys.executable, *script, *options],
        env={**clean, **more},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@contextmanager
def running(*options: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command in a process group of its own, as a shell would start it."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "run.py"), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=20)


# ---------------------------------------------------------------- what is played


def test_it_says_how_many_seeds_hold() -> None:
    found = command("--seeds", "3", "--first", "5", "--workers", "2")
    assert found.returncode == 0, found.stderr
    assert "3 seeds from 5, 0 failed" in found.stdout


def test_fixed_kept_and_fresh_seeds_are_played_and_the_fresh_ones_announced() -> None:
    options = ("--seeds", "1", "--kept", "--fresh-seconds", "0.2", "--workers", "2")
    found = command(*options, code=FEW_KEPT_RUN)
    assert found.returncode == 0, found.stdout
    said = found.stdout.splitlines()
    assert said[0] == "playing seeds from 0, 2 at a time"
    assert said[3].startswith("2 seeds that failed once, 0 failed")
    assert said[4].startswith("playing fresh seeds from ")
    first = said[4].removeprefix("playing fresh seeds from ").partition(",")[0]
    assert f" fresh seeds from {first}, 0 failed" in said[5]


def test_all_processes_play_and_a_history_is_the_same_in_any() -> None:
    with Workers(3) as workers:
        found = [one for one in workers.histories(range(4)) if one is not None]
        alone = [one for one in Workers(1).histories(range(4)) if one is not None]
    assert sorted(found, key=lambda one: one.seed) == alone


def test_ranges_of_fresh_seeds_do_not_meet() -> None:
    now_ms = 1_700_000_000_000
    seconds = iter([0.0, 0.0, 0.5, 0.999, 1.0])
    first = fresh_seeds(now_ms, 1.0)
    played = list(type(first)(first.first, 1.0, clock=lambda: next(seconds)))
    assert played == [first.first, first.first + 1, first.first + 2]
    assert played[-1] < fresh_seeds(now_ms + 1, 1.0).first


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


# ---------------------------------------------------------------- what is said


def test_it_replays_a_seed_event_by_event() -> None:
    options = ("--seed", "7", "--trace")
    first, again = command(*options), command(*options, hashes_set=False)
    assert first.returncode == 0
    assert len(first.stdout.splitlines()) > 200
    assert "fingerprint" in first.stdout.splitlines()[-1]
    assert first.stdout == again.stdout


def test_its_help_has_examples() -> None:
    found = command("--help")
    assert found.returncode == 0
    assert "run.py --seeds 2000 --kept --fresh-seconds 60" in found.stdout


def test_nonsense_is_refused() -> None:
    assert command("--workers", "0").returncode == 2


def test_progress_is_said_at_its_pace() -> None:
    now = [0.0]
    said: list[str] = []
    totals = Totals(lambda: now[0])
    progress = Progress(totals, 5.0, said.append)
    for _ in range(12):
        now[0] += 1.0
        totals.add(History(1, 0, 1, 0, 0, 0, 0, 0))
        progress.look()
    assert said == [
        "… 5 seeds in 5 s, 1.0 a second, 0 failed",
        "… 10 seeds in 10 s, 1.0 a second, 0 failed",
    ]


# ---------------------------------------------------------------- failures


def test_a_failing_seed_prints_its_trace_and_how_to_replay_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "--seeds", "50", "--workers", "1"])
    PLANTED["commit_with_too_few_in_sync"][0](monkeypatch)
    assert run.main() == 1
    printed = capsys.readouterr().out
    assert "FAILED: I5" in printed
    assert "replay: python tests/simulation/run.py --seed" in printed
    assert "Assigned(" in printed


def test_a_failure_in_one_of_many_processes_ends_the_run() -> None:
    found = command("--seeds", "5000", "--kept", "--workers", "2", code=PLANTED_RUN)
    assert found.returncode == 1, found.stderr
    assert "FAILED: I5" in found.stdout
    assert "replay: python tests/simulation/run.py --seed" in found.stdout
    assert "Assigned(" in found.stdout
    assert "failed once" not in found.stdout


def test_bits_flip_in_all_histories_of_a_run_if_asked_for() -> None:
    """And a failing one is replayed with them."""
    found = command("--damage", "--seeds", "3", "--workers", "2")
    assert found.returncode == 0, found.stderr
    assert "3 seeds from 0 with bits that flip, 0 failed" in found.stdout
    plain, damaged = (command(*how, "--seed", "1").stdout for how in ((), ("--damage",)))
    assert plain.split("fingerprint")[1] != damaged.split("fingerprint")[1]


def test_a_failing_seed_with_bits_that_flip_is_replayed_with_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "--damage", "--seeds", "50", "--workers", "1"])
    DAMAGE_BUGS["a_damaged_replica_keeps_its_seat"][0](monkeypatch)
    assert run.main() == 1
    printed = capsys.readouterr().out
    assert re.search(r"replay: .* --seed \d+ --damage --trace", printed), printed


def test_a_failing_seed_with_drains_is_replayed_with_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "--drains", "--seeds", "50", "--workers", "1"])
    DRAIN_BUGS["take_the_drained_broker_as_a_target"][0](monkeypatch)
    assert run.main() == 1
    printed = capsys.readouterr().out
    assert "playing seeds from 0 with drains, 1 at a time" in printed
    assert re.search(r"replay: .* --seed \d+ --drains --trace", printed), printed


def test_a_process_that_dies_is_a_failure_of_its_seed() -> None:
    found = command("--seeds", "6", "--keep-going", "--workers", "2", code=DYING_RUN)
    assert found.returncode == 1, found.stderr
    assert "FAILED: the process that played seed 3 ended: 9" in found.stdout
    assert "run.py --seed 3 --trace" in found.stdout
    assert "6 seeds from 0, 1 failed (first 3)" in found.stdout


# ---------------------------------------------------------------- the end


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminated"])
def test_an_interrupted_run_leaves_no_process(how: signal.Signals) -> None:
    with running("--seeds", "0", "--fresh-seconds", "600", "--workers", "3") as process:
        wait_until(lambda: len(descendants_of(process.pid)) == 3, what="three processes play")
        players = descendants_of(process.pid)
        if how is signal.SIGINT:
            os.killpg(process.pid, how)
        else:
            process.send_signal(how)
        printed = process.communicate(timeout=30)[0].decode()
        assert process.returncode == 130, printed
        assert still_running(players) == {}
        assert " fresh seeds from " in printed.splitlines()[-2]
        assert "interrupted" in printed
        assert "Traceback" not in printed


def test_the_players_of_a_killed_run_end_by_themselves() -> None:
    with running("--seeds", "0", "--fresh-seconds", "600", "--workers", "3") as process:
        wait_until(lambda: len(descendants_of(process.pid)) == 3, what="three processes play")
        players = descendants_of(process.pid)
        process.kill()
        wait_until(lambda: still_running(players) == {}, what="its players have ended")


# ---------------------------------------------------------------- planted bugs


def test_planted_bugs_are_told_with_the_seeds_that_found_them() -> None:
    found = command("--planted", "follow_without", "--workers", "2")
    assert found.returncode == 0, found.stdout
    said = found.stdout.splitlines()
    assert said[0] == "looking for 1 planted bugs, 2 at a time"
    assert said[2].split()[:2] == ["replication", "follow_without_looking_up_the_divergence"]
    assert int(said[2].split()[2]) >= 1
    assert said[3].startswith("1 planted bugs, 0 not found, the most seeds were ")


def test_a_planted_bug_that_is_not_found_is_a_failure() -> None:
    found = command("--planted", "nothing to see", "--workers", "1", code=HARMLESS_RUN)
    assert found.returncode == 1, found.stdout
    assert "NOT FOUND in 3 seeds" in found.stdout
    assert "1 planted bugs, 1 not found" in found.stdout


def test_an_unknown_planted_bug_is_said() -> None:
    found = command("--planted", "no such thing")
    assert found.returncode == 1
    assert "no planted bug has 'no such thing' in its kind or name" in found.stdout


def test_storing_goes_with_planted_bugs() -> None:
    found = command("--seeds", "1", "--store")
    assert found.returncode == 2
    assert "--store goes with --planted" in found.stderr


def test_processes_are_paused_in_all_histories_of_a_run_if_asked_for() -> None:
    found = command("--pauses", "--seeds", "3", "--workers", "2")
    assert found.returncode == 0, found.stderr
    assert "3 seeds from 0 with pauses, 0 failed" in found.stdout
    assert re.search(r"[1-9]\d* pauses", found.stdout), found.stdout
