"""The benchmarks of what the operator does: a Cluster at rest, and rolls."""

import json
import sys
from pathlib import Path

import pytest
from support.apiserver import missing
from support.benchmarks import running
from support.missing import cannot_run
from support.waiting import wait_exit

from benchmarks import rolls
from benchmarks.at_rest import is_write


def test_what_is_asked_of_the_api_server_is_counted(tmp_path: Path) -> None:
    if reason := missing():
        cannot_run(reason)
    command = [sys.executable, "-m", "benchmarks.at_rest", "--quick"]
    with running(command, tmp_path, {}) as process:
        assert wait_exit(process, 500) == 0, (tmp_path / "err").read_text()
    written, asked = (json.loads(line) for line in (tmp_path / "out").read_text().splitlines())
    assert written["goal"] == "0"
    assert asked["value"] > 0


@pytest.mark.parametrize(
    ("call", "counts"),
    [
        ("GET configmaps", False),
        ("PUT leases", False),
        ("PATCH clusters", True),
        ("POST events", True),
        ("DELETE pods", True),
    ],
)
def test_all_but_reads_and_leases_are_writes(call: str, counts: bool) -> None:
    assert is_write(call) is counts


def test_a_roll_by_racks_takes_four_steps_of_nine(capsys: pytest.CaptureFixture[str]) -> None:
    rolls.main()
    by_racks, by_default = map(json.loads, capsys.readouterr().out.splitlines())
    assert (by_racks["value"], by_racks["vs_value"]) == (4, 9)
    assert by_racks["ratio"] <= 0.45
    assert (by_default["value"], by_default["vs_value"]) == (6, 9)
