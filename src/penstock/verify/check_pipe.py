"""The checker of a pipe: the target has each record of the topic once, in order per key (I15).

    final, final, …  ─▶ what is in the topic      piped, piped, …  ─▶ what is in the target

Both are what read_committed readers see at the end. Neither shows records of aborted or failed
transactions.
"""

from collections import defaultdict
from typing import Final

from penstock.verify.breach import ReportBreach
from penstock.verify.history import Event
from penstock.verify.intervals import IntervalSet

PIPE_RULES: Final = {
    "not piped": "in the topic, but not in the pipe's target",
    "piped twice": "in the pipe's target more than once",
    "piped late": "in the pipe's target after a later record of the same key",
    "made up": "in the pipe's target, but not in the topic",
}


class PipeChecker:
    """Feed it what is in the target, in order, then ask for `finish`."""

    def __init__(self, breach: ReportBreach) -> None:
        self._breach = breach
        self.sequences: dict[int, IntervalSet] = defaultdict(IntervalSet)
        """Per stream, what is in the target."""
        self._newest: dict[int, int] = {}
        self.expected = False
        """There was a pipe."""
        self.piped = 0

    def got(self, event: Event) -> None:
        """A run of records in the target."""
        stream, first, count = event["s"], event["q"], event["n"]
        where = f"at {event['p']}/{event['o']} of the target"
        self.piped += count
        there = self.sequences[stream]
        again = there.overlap(first, first + count)
        for lo, hi in again:
            text = f"key {stream} sequences {lo} to {hi - 1}, again {where}"
            self._breach("piped twice", hi - lo, text)
        newest = self._newest.get(stream, -1)
        if first <= newest and not again:
            text = f"key {stream} sequence {first} {where}, behind {newest}"
            self._breach("piped late", count, text)
        there.add(first, first + count)
        self._newest[stream] = max(newest, first + count - 1)

    def finish(self, logged: dict[int, IntervalSet]) -> None:
        """Compares with what the final read-back saw of the topic: sequences, per stream."""
        if not self.expected:
            return
        for stream, sequences in logged.items():
            for lo, hi in sequences.minus(self.sequences[stream]):
                self._breach("not piped", hi - lo, f"key {stream} sequences {lo} to {hi - 1}")
        for stream, sequences in self.sequences.items():
            there = logged[stream] if stream in logged else IntervalSet()
            for lo, hi in sequences.minus(there):
                self._breach("made up", hi - lo, f"key {stream} sequences {lo} to {hi - 1}")
