"""What docs/metrics.md says: the metrics, their labels, and expressions to alert on."""

import re
from functools import cache
from pathlib import Path
from typing import Final

from tools.snippets.page import read_page

PAGE: Final = Path(__file__).parents[2] / "docs" / "metrics.md"
ROOT: Final = PAGE.parents[1]


@cache
def documented() -> dict[str, frozenset[str]]:
    """By metric, as a scrape names it, without suffixes of histograms: its labels."""
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return {
        name: frozenset(re.findall(r"`(\w+)`", row[2]))
        for row in rows
        for name in re.findall(r"`(\w+)`", row[1])
    }


def family(sample: str) -> str:
    """The metric that a sample or a series belongs to."""
    return re.sub(r"_(bucket|count|sum)$", "", sample)


def expressions() -> list[str]:
    """Its queries; the lines of one are indented from the second on."""
    found = []
    for snippet in read_page(ROOT, PAGE.relative_to(ROOT).as_posix()):
        if snippet.language == "promql":
            lines = snippet.text.replace("…", "").splitlines()
            bare = "\n".join(line.partition("#")[0].rstrip() for line in lines)
            found += re.split(r"\n+(?=\S)", bare.strip())
    return found
