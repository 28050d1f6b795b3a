"""The final read-back of one partition, as the checker keeps it.

Neighbouring records of one key make up one run of 32 bytes, so that the log of a whole run fits
into memory. `missing` compares what a live reader saw with it (I2, I6).
"""

from array import array
from bisect import bisect_right

from penstock.verify.history import Event
from penstock.verify.intervals import IntervalSet


class FinalLog:
    """Runs in the order of their offsets."""

    def __init__(self) -> None:
        self.offsets, self.streams = array("q"), array("q")
        self.sequences, self.counts = array("q"), array("q")

    def add(self, event: Event) -> None:
        last = len(self.offsets) - 1
        if (
            last >= 0
            and self.streams[last] == event["s"]
            and self.offsets[last] + self.counts[last] == event["o"]
            and self.sequences[last] + self.counts[last] == event["q"]
        ):
            self.counts[last] += event["n"]
            return
        self.offsets.append(event["o"])
        self.streams.append(event["s"])
        self.sequences.append(event["q"])
        self.counts.append(event["n"])

    def intervals(self) -> IntervalSet:
        """The offsets that were read back."""
        offsets = IntervalSet()
        for offset, count in zip(self.offsets, self.counts, strict=True):
            offsets.add(offset, offset + count)
        return offsets

    def missing(self, event: Event) -> int:
        """How many records of a read run are no longer where the reader saw them."""
        offset, end = event["o"], event["o"] + event["n"]
        matched = 0
        index = max(bisect_right(self.offsets, offset) - 1, 0)
        while index < len(self.offsets) and self.offsets[index] < end:
            lo = max(offset, self.offsets[index])
            hi = min(end, self.offsets[index] + self.counts[index])
            same = (
                self.streams[index] == event["s"]
                and self.sequences[index] - self.offsets[index] == event["q"] - event["o"]
            )
            if same and lo < hi:
                matched += hi - lo
            index += 1
        return int(event["n"]) - matched
