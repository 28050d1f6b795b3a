"""`make` as README.md, CONTRIBUTING.md and docs/testing.md show it.

What takes seconds runs as it stands. The tests cannot run themselves: what plays them is shown to
be what CI runs, command for command, and `make scenarios` goes as far as finding its tests. CI runs
the demo too, after the tests: it wants the machine for itself.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from support.documents import ROOT

from tools.snippets.page import How, documents, read_page
from tools.snippets.shell import commands

HERE: Final = "tests/documents/test_making.py"
SHOWN: Final = sorted(
    {
        " ".join(words)
        for page in documents(ROOT)
        for snippet in read_page(ROOT, page)
        if snippet.how is How.ELSEWHERE and snippet.detail == HERE
        for words in commands(snippet.text)
    }
)
CI: Final = ("make check types", "make docs", "make test", "make unit")
DEMO: Final = "make demo"
HELP: Final = "make help"
SCENARIOS: Final = "make scenarios"
MUTATE: Final = [line for line in SHOWN if line.startswith("make mutate ")]
_NOT_LINKED: Final = (".git", ".venv", "build")
_FROM_OUTSIDE: Final = ("MAKE", "MFLAGS", "PYTEST")
"""Begin the names of variables of whoever runs these tests: make, or pytest and its workers."""


class Checkout:
    """The tree as `make setup` leaves it. What a target writes comes into this folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        environment = folder / ".venv"
        environment.mkdir(parents=True)
        for shown in ROOT.iterdir():
            if shown.name not in _NOT_LINKED:
                (folder / shown.name).symlink_to(shown)
        for part in Path(sys.prefix).iterdir():
            if part.name != ".stamp":
                (environment / part.name).symlink_to(part)
        (environment / ".stamp").touch()

    def run(self, *words: str, **more: str) -> str:
        """What it prints on both outputs; `more`: of its environment. It must succeed."""
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(_FROM_OUTSIDE)
        }
        done = subprocess.run(
            words,
            env={**clean, **more}, cwd=self.folder, check=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: exit code {done.returncode}\n{done.stdout}"
        return done.stdout

    def recipe(self, line: str) -> set[str]:
        """The commands that make would run."""
        return set(self.run(*line.split(), "--dry-run").splitlines())


def ci_runs(line: str) -> bool:
    """Whether it stands in CI's script as a command, with more arguments or without."""
    return bool(re.search(rf"^{line}\b", (ROOT / ".ci" / "run").read_text(), re.MULTILINE))


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout")


def test_every_line_that_is_left_to_these_tests_is_run_by_one() -> None:
    assert sorted((*CI, DEMO, HELP, SCENARIOS, *MUTATE)) == SHOWN
    assert MUTATE


def test_help_lists_the_targets_that_pages_show(checkout: Checkout) -> None:
    listed = {line.split()[0] for line in checkout.run(*HELP.split()).splitlines()}
    shown = {word for line in SHOWN for word in line.split()[1:] if "=" not in word}
    assert shown <= listed


@pytest.mark.parametrize("line", CI)
def test_it_is_what_ci_runs(checkout: Checkout, line: str) -> None:
    assert ci_runs("make test")
    commands_of_it = checkout.recipe(line)
    assert any(".venv/bin/" in command for command in commands_of_it)
    assert commands_of_it <= checkout.recipe("make test")


def test_the_demo_is_run_by_ci() -> None:
    assert ci_runs(DEMO)


def test_the_scenarios_are_found(checkout: Checkout) -> None:
    found = checkout.run(*SCENARIOS.split(), PYTEST_ADDOPTS="--collect-only -q -p no:cacheprovider")
    for name in ("bank", "pipe", "ring", "bad_days"):
        assert f"tests/scenarios/test_{name}.py" in found


def test_mutants_are_listed_tried_and_reported(checkout: Checkout) -> None:
    """In the order of the page: the last command reads what the one before has written."""
    shown = [
        words
        for snippet in read_page(ROOT, "docs/testing.md")
        if snippet.detail == HERE
        for words in commands(snippet.text)
    ]
    assert {" ".join(words) for words in shown} == set(MUTATE)
    listed, tried, again = (checkout.run(*words) for words in shown)
    assert " → " in listed
    assert "noticed" not in listed
    assert "1 of 1 noticed, 100.0 %" in tried
    assert len((checkout.folder / "report.jsonl").read_text().splitlines()) == 1
    assert again.startswith("0 of "), "nothing was missed"
