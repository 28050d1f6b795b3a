"""What docs/metrics.md says: the metrics, their labels, and expressions to alert on."""

import re
from functools import cache
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[2] / "docs" / "metrics.md"
_BLOCK: Final = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)


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
    """Those in code blocks; the lines of one are indented from the second on."""
    found = []
    for block in _BLOCK.findall(PAGE.read_text()):
        bare = "\n".join(line.partition("#")[0].rstrip() for line in block.splitlines())
        found += re.split(r"\n(?=\S)", bare.strip())
    return found
