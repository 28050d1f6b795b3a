"""Results: a table for people, JSON lines for programs, a page in docs/.

A run of all scenarios renews docs/e2e-results.md and e2e/results/; one of some of them (`--only`)
writes below .local/e2e/, so that what is committed always tells of a whole run.
"""

import datetime
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from e2e.harness.process import ROOT, CommandError, run

PAGE: Final = ROOT / "docs/e2e-results.md"
RESULTS: Final = ROOT / "e2e/results/scenarios.jsonl"
LOCAL: Final = ROOT / ".local/e2e"

HEAD: Final = """\
# End-to-end scenarios

`make e2e` runs these on a three-node Kubernetes on one machine, with the images built from
this tree; `make e2e SHORT=1`, which CI runs, runs some of them. Load comes from `penstock verify
run` inside the cluster, whose checker compares every acknowledged record with the log at
the end. The longest write gap is the longest time between two acknowledgements of all partitions
together; the nodes share the machine's cores.

Run on {date} at commit {commit}, Kubernetes {kubernetes}: {played} scenarios in {minutes:.0f}
minutes.

"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value, with the limit that it must not pass, if there is one."""

    value: float
    unit: str
    limit: float | None = None

    def __str__(self) -> str:
        limit = "" if self.limit is None else f" (limit {self.limit:g} {self.unit})"
        return f"{self.value:g} {self.unit}{limit}"


@dataclass(frozen=True, slots=True)
class Result:
    """One played scenario. `verdict` of its workloads; '-' without one. `error` '' if it passed."""

    name: str
    title: str
    passed: bool
    seconds: float
    write_gap_s: float | None
    verdict: str
    error: str = ""
    figures: dict[str, Figure] = field(default_factory=dict)
    workloads: list[dict[str, Any]] = field(default_factory=list)


def rows(results: list[Result]) -> list[tuple[str, str, str, str]]:
    """Scenario, seconds, longest write gap, verdict."""
    return [
        (
            one.title,
            f"{one.seconds:.0f}",
            "-" if one.write_gap_s is None else f"{one.write_gap_s:.2f} s",
            one.verdict if one.passed else f"FAILED: {one.error}",
        )
        for one in results
    ]


def table(results: list[Result]) -> str:
    """For the terminal."""
    lines = [("scenario", "seconds", "longest write gap", "verdict"), *rows(results)]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line[:3], widths, strict=True))
        + f"  {line[3]}"
        for line in lines
    )


def write(results: list[Result], kubernetes: str, *, whole: bool) -> Path:
    """Writes page and JSON lines; returns the page's path."""
    page = PAGE if whole else LOCAL / "results.md"
    lines = RESULTS if whole else LOCAL / "scenarios.jsonl"
    for path in (page, lines):
        path.parent.mkdir(parents=True, exist_ok=True)
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    run_of = {"date": date, "commit": commit(), "kubernetes": kubernetes}
    minutes = sum(one.seconds for one in results) / 60
    text = HEAD.format(**run_of, played=len(results), minutes=minutes)
    text += "| scenario | seconds | longest write gap | verdict |\n|---|---|---|---|\n"
    text += "".join(f"| {' | '.join(row)} |\n" for row in rows(results))
    measured = [one for one in results if one.figures]
    if measured:
        text += "\n| measured | value |\n|---|---|\n"
        text += "".join(
            f"| {one.title}: {what} | {figure} |\n"
            for one in measured
            for what, figure in one.figures.items()
        )
    page.write_text(text)
    lines.write_text("".join(json.dumps({**run_of, **asdict(one)}) + "\n" for one in results))
    return page


def commit() -> str:
    """Short name of the commit, with a note if files differ from it."""
    try:
        name = run("git", "rev-parse", "--short", "HEAD").strip()
        changed = run("git", "status", "--porcelain", "--untracked-files=no").strip()
    except CommandError:
        return "unknown"
    return f"{name} with changes" if changed else name
