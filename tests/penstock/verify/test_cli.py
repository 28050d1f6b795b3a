"""`penstock verify` says what is wrong with its use, and prints verdicts for people and programs.

On a live cluster it is tested in tests/scenarios/test_verify_live.py.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.verify.history import Event, HistoryWriter

NOWHERE = "127.0.0.1:9"  # the discard port: nobody listens


def run(*words: object) -> Any:
    return CliRunner().invoke(app, ["verify", *map(str, words)])


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Ten records: acknowledged, and nine of them read back."""
    path = tmp_path / "history.jsonl"
    at = {"s": 3, "q": 0, "n": 10, "p": 0, "o": 0}
    events: list[Event] = [
        {"e": "start", "run": 7, "topic": "t", "acks": "ALL"},
        {"e": "send", **at, "t": 1.0},
        {"e": "ack", **at, "t": 2.0},
        {"e": "ends", "p": 0, "lo": 0, "hi": 9},
        {"e": "final", "r": "final", **at, "n": 9, "t": 3.0},
    ]
    with HistoryWriter(path) as writer:
        for event in events:
            writer.write(event)
    return path


def test_a_failed_verdict_names_the_records_and_exits_with_1(history: Path) -> None:
    done = run("check", history)
    assert done.exit_code == 1
    first = done.stdout.splitlines()[0]
    assert first == "FAIL: 1 records lost: acknowledged, but not in the log", (
        "others may be cut off"
    )
    assert "key 3 sequences 9 to 9" in done.stdout


@pytest.mark.parametrize(("form", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_programs_get_json_or_yaml(history: Path, form: str, load: Callable[[str], Any]) -> None:
    verdict = load(run("check", history, "-o", form).stdout)
    assert verdict["verdict"] == "FAIL"
    assert verdict["breaches"]["lost"]["records"] == 1
    assert (verdict["sent"], verdict["in_log"]) == (10, 9)


def test_a_missing_history_is_one_line(tmp_path: Path) -> None:
    done = run("check", tmp_path / "absent")
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert line == f"penstock: {tmp_path}/absent: cannot be read: No such file or directory"


def test_without_a_cluster_it_says_so_in_one_line() -> None:
    done = run("run", "--bootstrap", NOWHERE, "--duration", "1")
    assert done.exit_code == 2
    assert done.stdout == ""
    (line,) = [one for one in done.stderr.splitlines() if one.strip()]
    assert line.startswith(f"penstock: nothing listens: {NOWHERE} ")


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--record-bytes", "8"),
        ("run", "--acks", "some"),
        ("run", "--bank", "--record-bytes", "48"),
        ("run", "--ring", "--record-bytes", "40"),
        ("run", "--bootstrap", "nonsense"),
        ("run", "--history", "/no/such/folder/history"),
        ("check",),
    ],
    ids=" ".join,
)
def test_wrong_use_ends_with_2_and_no_traceback(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.exit_code == 2, done.output
    assert words[-2 if len(words) > 1 else 0] in done.stderr or words[-1] in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("other", ["bank", "pipe"])
def test_a_ring_runs_alone(other: str) -> None:
    done = run("run", "--bootstrap", NOWHERE, "--ring", f"--{other}")
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert line == f"penstock: a ring and a {other} cannot run together: run one after the other"
