"""Lists in sentences."""

import re
from pathlib import Path

from penstock.core import words
from penstock.core.types import BrokerId
from penstock.core.words import listed

CORE = Path(words.__file__).parent


def test_values_are_listed_in_their_order_without_brackets() -> None:
    assert listed([BrokerId(2), BrokerId(0), BrokerId(1)]) == "2, 0, 1"
    assert listed(("a",)) == "a"
    assert listed([]) == "none"


def test_no_error_of_the_controller_shows_a_python_list() -> None:
    lists = re.compile(r"f\".*\{(?:sorted|list|tuple|set)\((?!.*join)")
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted((CORE / "control").rglob("*.py"))
        for line in path.read_text().splitlines()
        if lists.search(line)
    ]
    assert found == []
