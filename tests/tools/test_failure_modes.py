"""Every row of docs/failure-modes.md names what shows it, and that exists."""

import re
from pathlib import Path

import pytest

from e2e import scenarios  # noqa: F401 - registers them
from e2e.harness.scenario import REGISTRY

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 5


def rows() -> list[list[str]]:
    """The cells of every row of every table, without the heads."""
    lines = (ROOT / "docs/failure-modes.md").read_text().splitlines()
    found = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"
    ]
    return [row for row in found if not row[0].startswith(("---", "what fails"))]


def unknown(shown_by: str) -> list[str]:
    """What a cell names and is neither a scenario nor a file of tests."""
    names = re.findall(r"`([^`]+)`", shown_by)
    return [
        name
        for name in names
        if not (name in REGISTRY or (name.startswith("tests/") and (ROOT / name).is_file()))
    ]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_failure_is_shown_by_something_that_exists(row: list[str]) -> None:
    assert len(row) == COLUMNS
    assert all(row)
    assert "`" in row[-1]
    assert unknown(row[-1]) == []


def test_what_does_not_exist_is_found() -> None:
    assert unknown("e2e `node_killed`, `tests/scenarios/test_kills.py`") == []
    assert unknown("e2e `node_kiled`, `tests/scenarios/test_kill.py`, `README.md`") == [
        "node_kiled",
        "tests/scenarios/test_kill.py",
        "README.md",
    ]


@pytest.mark.parametrize(
    "what",
    [
        "process",
        "pod",
        "node",
        "volume",
        "controller",
        "operator",
        "API server",
        "zone",
        "full",
        "damaged",
        "clock",
        "CA",
    ],
)
def test_what_people_ask_about_has_a_row(what: str) -> None:
    assert any(what in row[0] for row in rows())
