"""Results: a table for people, JSON lines for programs, a page in docs/.

    a run ──▶ .local/e2e/                                     what it played
    a run with --record ──▶ e2e/results/, docs/e2e-results.md   each scenario as it was played last

So a list of hours can be recorded in several runs, and each row says which commit it tells of.
"""

import datetime
import json
from collections.abc import Sequence
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

Each row says when it was played last, and at which commit: `make e2e RECORD=1` renews those that it
plays. {played} scenarios, {minutes:.0f} minutes together, on Kubernetes {kubernetes}.

"""
OVER: Final = """\
**{over} of {limited} figures are over their limits**, as the rows say. A run fails then, unless it
is told that the machine is not its own (`SHARED=1`): limits in seconds are for a machine that does
nothing else. What was lost or doubled fails any run.

"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value, with the limit that it must not pass, if there is one."""

    value: float
    unit: str
    limit: float | None = None

    @property
    def is_over(self) -> bool:
        return self.limit is not None and self.value > self.limit

    def __str__(self) -> str:
        limit = "" if self.limit is None else f" (limit {self.limit:g} {self.unit})"
        return f"{self.value:g} {self.unit}{limit}{', over it' if self.is_over else ''}"


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


@dataclass(frozen=True, slots=True)
class Played:
    """A result and where it comes from. `date`: as 2026-11-26. `commit`: its short name."""

    date: str
    commit: str
    kubernetes: str
    result: Result

    @classmethod
    def from_line(cls, line: str) -> "Played":
        """Of a file that `as_line` has written."""
        found = json.loads(line)
        origin = {name: found.pop(name) for name in ("date", "commit", "kubernetes")}
        figures = {what: Figure(**figure) for what, figure in found.pop("figures").items()}
        return cls(**origin, result=Result(**found, figures=figures))

    def as_line(self) -> str:
        """JSON."""
        origin = {"date": self.date, "commit": self.commit, "kubernetes": self.kubernetes}
        return json.dumps({**origin, **asdict(self.result)}) + "\n"


def rows(results: Sequence[Result]) -> list[tuple[str, str, str, str]]:
    """Scenario, seconds, longest write gap, verdict."""
    return [
        (
            one.title,
            f"{one.seconds:.0f}",
            "-" if one.write_gap_s is None else f"{one.write_gap_s:.2f} s",
            _verdict(one),
        )
        for one in results
    ]


def _verdict(one: Result) -> str:
    if not one.passed:
        return f"FAILED: {one.error}"
    over = sum(figure.is_over for figure in one.figures.values())
    return (
        f"{one.verdict}; {over} over {'its limit' if over == 1 else 'their limits'}"
        if over
        else one.verdict
    )


def table(results: Sequence[Result]) -> str:
    """For the terminal."""
    lines = [("scenario", "seconds", "longest write gap", "verdict"), *rows(results)]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line[:3], widths, strict=True))
        + f"  {line[3]}"
        for line in lines
    )


def joined(
    recorded: Sequence[Played], played: Sequence[Played], names: Sequence[str]
) -> list[Played]:
    """The newest of each scenario, in the order of `names`; what is none of them is left out."""
    newest = {one.result.name: one for one in (*recorded, *played)}
    return [newest[name] for name in names if name in newest]


def page_of(played: Sequence[Played]) -> str:
    """Markdown; there is at least one."""
    results = [one.result for one in played]
    minutes = sum(one.seconds for one in results) / 60
    versions = ", ".join(sorted({one.kubernetes for one in played}))
    text = HEAD.format(played=len(played), minutes=minutes, kubernetes=versions)
    figures = [figure for one in results for figure in one.figures.values()]
    limited = [figure for figure in figures if figure.limit is not None]
    if over := sum(figure.is_over for figure in limited):
        text += OVER.format(over=over, limited=len(limited))
    text += "| scenario | seconds | longest write gap | verdict | played |\n|---|---|---|---|---|\n"
    text += "".join(
        f"| {' | '.join(row)} | {one.date}, {one.commit} |\n"
        for one, row in zip(played, rows(results), strict=True)
    )
    measured = [
        f"| {one.title}: {what} | {_bold(figure)} |\n"
        for one in results
        for what, figure in one.figures.items()
    ]
    if measured:
        text += "\n| measured | value |\n|---|---|\n" + "".join(measured)
    return text


def _bold(figure: Figure) -> str:
    return f"**{figure}**" if figure.is_over else str(figure)


def write(
    results: Sequence[Result], names: Sequence[str], *, kubernetes: str, at: str, record: bool
) -> Path:
    """Writes page and JSON lines; returns the page's path.

    `results`: of this run. `names`: of all scenarios. `at`: its `commit`.
    """
    page = PAGE if record else LOCAL / "results.md"
    lines = RESULTS if record else LOCAL / "scenarios.jsonl"
    for path in (page, lines):
        path.parent.mkdir(parents=True, exist_ok=True)
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    played = [Played(date, at, kubernetes, one) for one in results]
    before = lines.read_text().splitlines() if record and lines.exists() else []
    kept = joined([Played.from_line(line) for line in before], played, names)
    page.write_text(page_of(kept))
    lines.write_text("".join(one.as_line() for one in kept))
    return page


def commit() -> str:
    """Short name of the commit, with a note if other files than the results differ from it."""
    others = (".", ":!docs/e2e-results.md", ":!e2e/results")
    try:
        name = run("git", "rev-parse", "--short", "HEAD").strip()
        changed = run("git", "status", "--porcelain", "--untracked-files=no", *others).strip()
    except CommandError:
        return "unknown"
    return f"{name} with changes" if changed else name
