"""Commands and fields that documents name are those there are."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from penstock.cli.main import Elsewhere, app

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *sorted((ROOT / "docs").glob("*.md")),
    *TEMPLATES,
]
COMMAND = re.compile(r"(?:^|[`|$(] ?)((?:kubectl )?penstock(?: -?-?[a-z][\w-]*)+)", re.MULTILINE)


def unknown(words: list[str]) -> str:
    """The first word that is no command, or ""."""
    command: Any = typer.main.get_command(app)
    for word in words:
        if isinstance(command, Elsewhere):
            command = command.load()
        children = getattr(command, "commands", None)
        if children is None or word.startswith("-"):
            return ""
        if word not in children:
            return word
        command = children[word]
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_a_page_names_exists(page: Path) -> None:
    wrong = []
    for match in COMMAND.finditer(page.read_text()):
        words = match[1].removeprefix("kubectl ").split()[1:]
        if unknown(words):
            wrong.append(match[1])
    assert not wrong


def test_a_report_of_a_bug_asks_for_the_bundle_of_any_cluster() -> None:
    asked = (ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text()
    assert "`kubectl penstock report " in asked
    assert "`penstock report " in asked


def test_a_command_that_does_not_exist_is_found() -> None:
    assert COMMAND.findall("run `penstock topic lits --all`") == ["penstock topic lits --all"]
    assert unknown(["topic", "lits"]) == "lits"
    assert unknown(["verify", "run"]) == ""
    assert unknown(["verify", "walk"]) == "walk"
