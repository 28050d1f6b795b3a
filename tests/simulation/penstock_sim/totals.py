"""Sums over many histories, progress of a run, and the report of a failing history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from penstock_sim.contents import Options
from penstock_sim.workers import Lost
from penstock_sim.world import History, simulate

TRACE_LINES: Final = 60
FAILING_SHOWN: Final = 10
TERMINAL_EVERY_S: Final = 5.0
LOG_EVERY_S: Final = 60.0
_COUNTS: Final = {
    "steps": "steps",
    "commits": "commits",
    "elections": "leaderships",
    "truncations": "truncations",
    "acked": "batches acknowledged",
    "group_commits": "group commits",
    "rebalances": "rebalances",
    "journals": "journals",
    "transactions": "transactions ended",
    "spark_batches": "Spark batches",
    "piped": "records piped",
    "aborts_asked": "aborts requested by an operator",
    "aborts_hit": "transactions they ended",
    "latest_readers": "readers from the end",
    "moves": "replicas switched",
    "cancels": "moves cancelled",
    "drops": "logs dropped",
    "sleeps": "sleeps",
    "wakes": "wakes",
    "taken_back": "sleeps taken back",
    "drains": "drains",
    "drained": "brokers proven empty",
    "drains_back": "drains taken back",
    "pauses": "pauses",
    "edits": "edits by hand",
    "handed_over": "controllers that handed over",
    "changes": "changes of settings",
    "lives": "topics of one name",
    "grown": "partitions added",
    "retained": "batches retention removed",
    "compacted": "rewrites",
}
"""Fields of a history that are counted, and their names."""


@dataclass(slots=True)
class Totals:
    """Counts the histories of one part of a run as they end."""

    clock: Callable[[], float] = monotonic
    seeds: int = 0
    failed: int = 0
    failing: list[int] = field(default_factory=list)
    """The first seeds that failed."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    started_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.started_s = self.clock()

    @property
    def seconds(self) -> float:
        return self.clock() - self.started_s

    def add(self, history: History | Lost) -> bool:
        """Counts a history; whether it held."""
        held = isinstance(history, History) and history.violation is None
        self.seeds += 1
        self.failed += not held
        if not held and len(self.failing) < FAILING_SHOWN:
            self.failing.append(history.seed)
        for name in _COUNTS if isinstance(history, History) else ():
            self.counts[name] += getattr(history, name)
        return held

    def line(self, which: str) -> str:
        """The final line with all totals."""
        counts = ", ".join(f"{self.counts[name]} {word}" for name, word in _COUNTS.items())
        return f"{self.seeds} {which}, {self.told_failures}, {self.seconds:.1f} s: {counts}"

    @property
    def told_failures(self) -> str:
        """How many failed, and the first of them."""
        seeds = ", ".join(map(str, self.failing))
        return f"{self.failed} failed (first {seeds})" if seeds else f"{self.failed} failed"


class Progress:
    """Reports the progress of a part of a run now and then."""

    def __init__(self, totals: Totals, every_s: float, say: Callable[[str], None]) -> None:
        self._totals = totals
        self._every_s = every_s
        self._say = say
        self._due_s = every_s

    def look(self) -> None:
        """Call it often."""
        totals = self._totals
        if totals.seconds < self._due_s:
            return
        self._due_s = totals.seconds + self._every_s
        pace = totals.seeds / totals.seconds
        self._say(
            f"… {totals.seeds} seeds in {totals.seconds:.0f} s, {pace:.1f} a second, "
            f"{totals.told_failures}"
        )


def report(history: History | Lost, how: Options, *, everything: bool) -> bool:
    """Prints one history, a failed one with the end of its trace; returns whether it held.

    `how`: as it was played.
    """
    if isinstance(history, Lost):
        print(f"FAILED: the process that played seed {history.seed} ended: {history.exit_code}")
        _print_replay(history.seed, how)
        return False
    if history.violation is not None and not history.trace:
        history = simulate(history.seed, traced=True, **how)
    for line in history.trace if everything else history.trace[-TRACE_LINES:]:
        print(line)
    print(
        f"seed {history.seed}: {history.steps} steps, {history.commits} commits, "
        f"{history.elections} leaderships, {history.truncations} truncations, {history.acked} "
        f"acknowledged, {history.group_commits} group commits, {history.rebalances} rebalances, "
        f"{history.journals} journals, "
        f"fingerprint {history.fingerprint:016x}"
    )
    if history.violation is None:
        return True
    print(f"FAILED: {history.violation}")
    _print_replay(history.seed, how)
    return False


def _print_replay(seed: int, how: Options) -> None:
    options = " ".join((*(f"--{name}" for name in how), "--trace"))
    print(f"replay: python tests/simulation/run.py --seed {seed} {options}", flush=True)
