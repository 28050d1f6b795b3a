"""The checker of a ring: who read whose records, and that each record went round once (I13, I15).

    took x=9 w=7, ended-ring x=9 committed  ─▶ 9 read what 7 wrote, and that counts
    ringed w=9 h=2, …                       ─▶ what readers see of the ring at the end

From hop to hop a ring is a pipe, and is checked as one: `check_pipe.py`, whose "piped twice" is a
double commit here. A transaction of unknown outcome counts if any of its records is visible at the
end. About 250 bytes are kept per run that a transaction took, until the verdict.

Rules: cycle (I13, G1c in Adya's terms), double commit (I15), and "aborted read" (I11, G1a).
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Final, NamedTuple

from penstock.verify.breach import ReportBreach
from penstock.verify.check_pipe import PipeChecker
from penstock.verify.check_transactions import OUTCOMES
from penstock.verify.history import Event
from penstock.verify.intervals import IntervalSet

RING_RULES: Final = {
    "cycle": "read in a cycle: each transaction is committed and wrote what the next one read",
    "double commit": "in a ring, but taken or passed on by two committed transactions",
}
RING_EVENTS: Final = frozenset({"took", "ended-ring", "ringed"})


class _Taken(NamedTuple):
    """A run of one log that transaction `taker` read. `writer` 0: a producer wrote it."""

    offset: int
    records: int
    taker: int
    writer: int
    stream: int
    sequence: int

    def text(self, where: str) -> str:
        return f"{where} offset {self.offset}, {self.records} records that transaction {self.taker}"


class RingChecker:
    """Feed it the ring's events in order, then ask for `finish`."""

    def __init__(self, breach: ReportBreach, aborted_of: Callable[[Event], int]) -> None:
        """`aborted_of`: how many records of a run producers wrote in aborted transactions."""
        self._breach = breach
        self._aborted_of = aborted_of
        self._hops: dict[int, PipeChecker] = {}
        self._outcomes: dict[int, str] = {}
        self._visible: Counter[int] = Counter()
        self._taken: dict[str, list[_Taken]] = defaultdict(list)
        self.committed = 0
        """Transactions of the ring, also of unknown outcome if they are visible."""

    @property
    def passed_on(self) -> int:
        """Records in the ring at the end."""
        return sum(hop.piped for hop in self._hops.values())

    def begins(self, hops_max: int) -> None:
        """A record ends when it has been passed on this often; 0: there is no ring."""
        for hop in range(len(self._hops) + 1, hops_max + 1):
            self._hops[hop] = PipeChecker(self._at_hop(hop))
            self._hops[hop].expected = True

    def see(self, event: Event) -> None:
        """One of `RING_EVENTS`."""
        match event["e"]:
            case "took":
                where = f"{_log(event['h'])} partition {event['p']}"
                self._taken[where].append(_Taken(*(event[field] for field in "onxwsq")))
            case "ended-ring":
                assert event["how"] in OUTCOMES
                self._outcomes[event["x"]] = event["how"]
            case _:
                self._visible[event["w"]] += event["n"]
                self._hops[event["h"]].got(event)

    def finish(self, logged: dict[int, IntervalSet]) -> None:
        """Compares with what the final read-back saw of the topic: sequences, per stream."""
        self.committed = sum(self._counts(x) for x in self._outcomes.keys() | self._visible)
        self._check_aborted()
        self._check_cycle()
        for where, runs in self._taken.items():
            self._check_once(where, sorted(run for run in runs if self._counts(run.taker)))
        for hop in self._hops.values():
            hop.finish(logged)
            logged = hop.sequences

    # ------------------------------------------------------------ inside

    def _at_hop(self, hop: int) -> ReportBreach:
        def breach(rule: str, records: int, example: str) -> None:
            rule = "double commit" if rule == "piped twice" else rule
            self._breach(rule, records, f"hop {hop}: {example}")

        return breach

    def _counts(self, transaction: int) -> bool:
        how = self._outcomes.get(transaction, "unknown")
        return how == "committed" or (how == "unknown" and transaction in self._visible)

    def _check_aborted(self) -> None:
        """Readers of committed records got no aborted ones, whatever the outcome of their own
        transactions."""
        for x, records in self._visible.items():
            if not self._counts(x):
                self._breach("aborted read", records, f"transaction {x} of the ring, at the end")
        for where, runs in self._taken.items():
            for run in runs:
                if count := self._aborted_in(run):
                    text = f"{run.text(where)} took of {run.writer or 'a producer'}"
                    self._breach("aborted read", count, text)

    def _aborted_in(self, run: _Taken) -> int:
        """How many records of a run are of an aborted transaction, a member's or a producer's."""
        if run.writer:
            return 0 if self._counts(run.writer) else run.records
        return self._aborted_of({"s": run.stream, "q": run.sequence, "n": run.records})

    def _check_cycle(self) -> None:
        """Every transaction in a cycle has written, so it suffices to check if writers count."""
        edges: dict[tuple[int, int], int] = defaultdict(int)
        for runs in self._taken.values():
            for run in runs:
                if run.writer and self._counts(run.writer):
                    edges[run.writer, run.taker] += run.records
        order: TopologicalSorter[int] = TopologicalSorter()
        for writer, taker in edges:
            order.add(taker, writer)
        try:
            order.prepare()
        except CycleError as found:
            circle: list[int] = found.args[1]
            count = sum(edges[pair] for pair in pairwise(circle))
            self._breach("cycle", count, "transactions " + " ▶ ".join(map(str, circle)))

    def _check_once(self, where: str, runs: list[_Taken]) -> None:
        """`runs`: of one log, in the order of their offsets."""
        last: _Taken | None = None
        for run in runs:
            if last is not None and run.offset < last.offset + last.records:
                again = min(run.records, last.offset + last.records - run.offset)
                text = f"{run.text(where)} took; {last.taker} took {again} of them"
                self._breach("double commit", again, text)
            if last is None or run.offset + run.records > last.offset + last.records:
                last = run


def _log(hops: int) -> str:
    """The topic of records that have been passed on this often."""
    return "there" if hops % 2 else "back" if hops else "topic"
