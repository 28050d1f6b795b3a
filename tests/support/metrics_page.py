"""What pages say of metrics: the names and labels in docs/metrics-reference.md, and the
expressions to alert on in docs/metrics.md."""

import re
from functools import cache
from pathlib import Path
from typing import Final

from tools.metrics_reference import PAGE as REFERENCE
from tools.snippets.page import read_page

ROOT: Final = Path(__file__).parents[2]


@cache
def documented() -> dict[str, frozenset[str]]:
    """By metric, as a scrape names it, without suffixes of histograms: its labels."""
    rows = [
        line.split("|") for line in REFERENCE.read_text().splitlines() if line.startswith("| `")
    ]
    return {row[1].strip(" `"): frozenset(re.findall(r"`(\w+)`", row[3])) for row in rows}


def family(sample: str) -> str:
    """The metric that a sample or a series belongs to."""
    return re.sub(r"_(bucket|count|sum)$", "", sample)


def expressions() -> list[str]:
    """Queries of docs/metrics.md; the lines of one are indented from the second on."""
    found = []
    for snippet in read_page(ROOT, "docs/metrics.md"):
        if snippet.language == "promql":
            lines = snippet.text.replace("…", "").splitlines()
            bare = "\n".join(line.partition("#")[0].rstrip() for line in lines)
            found += re.split(r"\n+(?=\S)", bare.strip())
    return found
