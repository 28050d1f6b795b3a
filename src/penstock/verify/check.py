"""The checker: reads histories, reports PASS or which rule was broken, with the records.

    pass 1  sends, acknowledgements, the final read-back  ─▶ per-stream ranges, per-partition runs
    pass 2  what live readers saw, and transactions, compared with the final read-back

It decides without I/O: events in, a `Verdict` out; `check_files` is the thin shell. Memory is 16
bytes per unbroken stretch of a stream, 32 per run of the final read-back and 16 per transfer of a
bank: 35 MB beside the program for 100 million records written in batches of 100
(`benchmarks/verify_memory.py`). Transactions take none once they have ended.

Rules, by invariant: lost (I7), resurrected (I8), duplicated (I9), reordered, changed (I6), vanished
(I2, I6: read, then gone), skipped (I17), ended (I24). `check_groups.py`, `check_transactions.py`,
`check_bank.py`, `check_pipe.py` and `check_ring.py` have the rules of consumer groups,
transactions, banks, pipes and rings.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from penstock.errors import MisuseError
from penstock.verify.breach import Breach
from penstock.verify.check_groups import GROUP_EVENTS, GroupChecker
from penstock.verify.check_pipe import PipeChecker
from penstock.verify.check_ring import RING_EVENTS, RingChecker
from penstock.verify.check_transactions import TransactionChecker
from penstock.verify.final_log import FinalLog
from penstock.verify.history import Event, read_history
from penstock.verify.intervals import IntervalSet
from penstock.verify.verdict import RULES, Verdict


class _Gaps:
    """Longest time between neighbours, per key."""

    def __init__(self) -> None:
        self._last: dict[object, float] = {}
        self.longest: dict[object, float] = {}

    def seen(self, key: object, at_ms: float) -> None:
        last = self._last.get(key)
        if last is not None:
            self.longest[key] = max(self.longest.get(key, 0.0), at_ms - last)
        self._last[key] = at_ms

    def worst(self, choose: Callable[[object], bool]) -> float:
        return max((gap for key, gap in self.longest.items() if choose(key)), default=0.0)


class Checker:
    """Feed every event of every history to `first_pass`, `settle`, then all to `second_pass`."""

    def __init__(self) -> None:
        self.verdict = Verdict({}, {})
        self._sent: dict[int, IntervalSet] = defaultdict(IntervalSet)
        self._acked: dict[int, IntervalSet] = defaultdict(IntervalSet)
        self._failed: dict[int, IntervalSet] = defaultdict(IntervalSet)
        self._logged: dict[int, IntervalSet] = defaultdict(IntervalSet)
        self._final: dict[int, FinalLog] = defaultdict(FinalLog)
        self._newest: dict[int, int] = {}
        self._final_end: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._positions: dict[tuple[str, int], int] = {}
        self._gaps = _Gaps()
        self._group = GroupChecker(self._breach)
        self._transactions = TransactionChecker(self._breach, self._acked, self._logged)
        self._pipe = PipeChecker(self._breach)
        self._ring = RingChecker(self._breach, self._transactions.aborted_of)
        self._judged_by: dict[str, Callable[[Event], None]] = {
            "ended-tx": self._transactions.ended,
            "piped": self._pipe.got,
            **dict.fromkeys(GROUP_EVENTS, self._group.see),
            **dict.fromkeys(RING_EVENTS, self._ring.see),
        }
        self._offsets: dict[int, IntervalSet] = {}
        self._acks = "ALL"
        self._refusal = "nothing was sent"

    def first_pass(self, event: Event) -> None:
        match event["e"]:
            case "start":
                self._acks = event.get("acks", "ALL")
                self._pipe.expected |= "pipe" in event
                self._ring.begins(event.get("ring", 0))
            case "send" | "ack" | "fail" | "unknown":
                self._produced(event)
            case "final":
                self._read_back(event)
            case "odd" if event["r"] == "final":
                self._final_end[event["p"]] = event["o"] + 1
            case "ends":
                self._starts[event["p"]] = event["lo"]
                self._ends[event["p"]] = event["hi"]
                self._transactions.stuck(event)
            case "reached":
                self._final_end[event["p"]] = event["o"]
            case "ended":
                self._breach("ended", 1, f"{event['who']} at {event['t']:.0f} ms: {event['why']}")
            case kind if kind in self._judged_by:
                self._judged_by[kind](event)
            case _:
                pass

    def _produced(self, event: Event) -> None:
        """What a producer did, and which answers it got."""
        match event["e"]:
            case "send":
                self.verdict.sent += event["n"]
                self._sent[event["s"]].add(event["q"], event["q"] + event["n"])
                if "x" in event:
                    self._transactions.sent(event)
            case "ack":
                self.verdict.acknowledged += event["n"]
                if "x" not in event:  # stored, and visible once its transaction commits
                    self._acked[event["s"]].add(event["q"], event["q"] + event["n"])
                self._gaps.seen("all", event["t"])
                self._gaps.seen(("partition", event.get("p")), event["t"])
            case "fail":
                self._refusal = f"the last answer: {event.get('why', 'unknown')}"
                self.verdict.failed += event["n"]
                self._failed[event["s"]].add(event["q"], event["q"] + event["n"])
            case "unknown":
                self._refusal = f"the last answer: {event.get('why', 'unknown')}"
                self.verdict.unknown += event["n"]

    def settle(self) -> None:
        """Between the passes, when the outcome of transactions and the content of the log are
        known."""
        self._transactions.settle()
        self._offsets = {at: log.intervals() for at, log in self._final.items()}

    def second_pass(self, event: Event) -> None:
        match event["e"]:
            case "read":
                self._live_read(event)
            case "through":
                self._passes_to(event)
            case "odd":
                self._positions[event["r"], event["p"]] = event["o"] + 1
                where = f"partition {event['p']} offset {event['o']}"
                self._breach("changed", 1, f"{where}, seen by {event['r']}")
            case "send" if "x" in event:
                self._transactions.sent(event)
            case "ended-tx":
                self._transactions.ended_again(event)
            case _:
                pass

    def finish(self) -> Verdict:
        """The verdict; call once, after both passes."""
        self._transactions.finish()
        self._pipe.finish(self._logged)
        self._ring.finish(self._logged)
        self._compare_outcomes()
        self._check_read_back_is_whole()
        self._group.finish(self._offsets)
        self.verdict.delivered = self._group.delivered
        self.verdict.redelivered = self._group.redelivered
        self.verdict.committed = self._transactions.committed
        self.verdict.aborted = self._transactions.aborted
        self.verdict.undecided = self._transactions.unknown
        self.verdict.transfers = self._transactions.bank.transfers
        self.verdict.balance = self._transactions.bank.balance
        self.verdict.piped = self._pipe.piped
        self.verdict.passed_on = self._ring.passed_on
        self.verdict.ring_committed = self._ring.committed
        gaps = self._gaps
        self.verdict.write_gap_ms = gaps.worst(lambda key: key == "all")
        self.verdict.partition_write_gap_ms = gaps.worst(lambda key: _is(key, "partition"))
        self.verdict.read_gap_ms = gaps.worst(lambda key: _is(key, "reader"))
        return self.verdict

    def _compare_outcomes(self) -> None:
        """Compares the producers' answers with the log."""
        for stream, acked in self._acked.items():
            for lo, hi in acked.minus(self._logged[stream]):
                self._lost(stream, lo, hi)
        for stream, failed in self._failed.items():
            for lo, hi in failed:
                for seen_lo, seen_hi in self._logged[stream].overlap(lo, hi):
                    text = f"key {stream} sequences {seen_lo} to {seen_hi - 1}"
                    self._breach("resurrected", seen_hi - seen_lo, text)
        for stream, logged in self._logged.items():
            for lo, hi in logged.minus(self._sent[stream]):
                self._breach("changed", hi - lo, f"key {stream} sequence {lo}: was never sent")

    def _check_read_back_is_whole(self) -> None:
        if not self.verdict.acknowledged:
            self._breach("unacknowledged", self.verdict.sent, self._refusal)
        if self.verdict.sent and not self._ends:
            self._breach("unfinished", self.verdict.sent, "no end offsets were recorded")
        for partition, end in self._ends.items():
            reached = self._final_end.get(partition, self._starts[partition])
            if reached < end:
                text = f"partition {partition} was read back to {reached} of {end}"
                self._breach("unfinished", end - reached, text)

    def _read_back(self, event: Event) -> None:
        stream, first, count = event["s"], event["q"], event["n"]
        partition, offset = event["p"], event["o"]
        self.verdict.final += count
        self._final[partition].add(event)
        self._transactions.read_back(event)
        expected = self._final_end.get(partition, self._starts.get(partition, offset))
        if offset > expected and not self._transactions.seen:
            text = f"partition {partition}: offsets {expected} to {offset - 1} at read-back"
            self._breach("skipped", offset - expected, text)
        self._final_end[partition] = offset + count
        logged = self._logged[stream]
        for lo, hi in logged.overlap(first, first + count):
            text = f"key {stream} sequences {lo} to {hi - 1}, again at {partition}/{offset}"
            self._breach("duplicated", hi - lo, text)
        newest = self._newest.get(stream, -1)
        if first <= newest and not logged.overlap(first, first + count):
            text = f"key {stream} sequence {first} at {partition}/{offset} behind {newest}"
            self._breach("reordered", count, text)
        logged.add(first, first + count)
        self._newest[stream] = max(newest, first + count - 1)

    def _live_read(self, event: Event) -> None:
        partition, offset = int(event["p"]), int(event["o"])
        key = (event["r"], partition)
        self.verdict.read += event["n"]
        self._gaps.seen(("reader", event["r"]), event["t"])
        self._passes_to(event)
        self._positions[key] = offset + event["n"]
        if offset + event["n"] <= self._starts.get(partition, 0):
            return  # removed by retention since
        if self._transactions.read(event):
            return
        missing = self._final[partition].missing(event)
        if missing and self._ends:
            text = (
                f"partition {partition} offset {offset}: key {event['s']} sequences "
                f"{event['q']} to {event['q'] + event['n'] - 1}, seen by {event['r']}"
            )
            self._breach("vanished", missing, text)

    def _passes_to(self, event: Event) -> None:
        """Whether the records before this offset, where a live reader is, were read by it: from
        where the run began, and up to where it ended."""
        reader, partition, offset = event["r"], event["p"], event["o"]
        began = min(self._starts.get(partition, offset), offset)
        expected = self._positions.get((reader, partition), began)
        skipped = self._passed_over(partition, expected, offset)
        if skipped:
            text = f"{reader} at partition {partition}: {offset} where {expected} was next"
            self._breach("skipped", skipped, text)

    def _passed_over(self, partition: int, expected: int, offset: int) -> int:
        """Records between these; markers and aborted ones do not count, because readers do not get
        them."""
        if offset > expected and self._transactions.seen:
            visible = self._offsets.get(partition, IntervalSet())
            return sum(hi - lo for lo, hi in visible.overlap(expected, offset))
        return abs(offset - expected)

    def _lost(self, stream: int, lo: int, hi: int) -> None:
        text = f"key {stream} sequences {lo} to {hi - 1}"
        if self._acks == "ALL":
            self._breach("lost", hi - lo, text)
        else:
            # acks=LEADER promises no more than the leader's own disk.
            self.verdict.allowed.setdefault("lost", Breach()).add(hi - lo, text)

    def _breach(self, rule: str, records: int, example: str) -> None:
        assert rule in RULES
        self.verdict.breaches.setdefault(rule, Breach()).add(records, example)


def check_files(paths: Iterable[Path]) -> Verdict:
    """Checks the histories of one run (several files if several processes wrote them).

    Raises MisuseError for files that cannot be read or are of different runs.
    """
    files = list(paths)
    judge = Checker()
    runs = set()
    for event in _events(files):
        if event["e"] == "start":
            runs.add(event["run"])
        judge.first_pass(event)
    if len(runs) > 1:
        raise MisuseError(f"these histories belong to {len(runs)} runs; check one run at a time")
    judge.settle()
    for event in _events(files):
        judge.second_pass(event)
    return judge.finish()


def _events(paths: list[Path]) -> Iterator[Event]:
    for path in paths:
        yield from read_history(path)


def _is(key: object, kind: str) -> bool:
    return isinstance(key, tuple) and key[0] == kind
