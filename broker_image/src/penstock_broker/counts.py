"""Plain numbers that the event loop counts and a scrape reads.

What happens once per batch adds to integers of an object that is at hand: a label look-up or a lock
would cost more than the counting. Only the loop writes; the endpoint's threads read, and may see a
histogram whose sum is one observation ahead of its buckets.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Upper bounds of the buckets of all histograms of a broker."""


class Flow:
    """What one topic has taken from producers and given to consumers here, since the start."""

    __slots__ = ("__weakref__", "bytes_in", "bytes_out", "records_in", "records_out")

    def __init__(self) -> None:
        self.records_in = self.bytes_in = self.records_out = self.bytes_out = 0

    def took(self, records: int, payload_bytes: int) -> None:
        """A producer's batch was appended."""
        self.records_in += records
        self.bytes_in += payload_bytes

    def gave(self, records: int, payload_bytes: int) -> None:
        """A batch was sent to a consumer."""
        self.records_out += records
        self.bytes_out += payload_bytes


class Durations:
    """A histogram of seconds."""

    __slots__ = ("_bounds", "_counts", "sum_s")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, observations up to it), as Prometheus wants them; the last is all."""
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True))


class ProduceTimes:
    """Where the time of produce requests goes: until the batch is in the leader's store, and from
    then until it is acknowledged. Of one batch at a time per partition (`Probe`)."""

    __slots__ = ("replication", "write")

    def __init__(self) -> None:
        self.write, self.replication = Durations(), Durations()

    def observe(self, probe: "Probe", answered_s: float) -> None:
        """`probe` was answered; one that was not written here, as a duplicate, does not count."""
        if probe.written_s:
            self.write.observe(probe.written_s - probe.began_s)
            self.replication.observe(max(0.0, answered_s - probe.written_s))


class Probe:
    """The batch of a partition whose way is timed; the next one is when this one is answered."""

    __slots__ = ("began_s", "persist_id", "written_s")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.persist_id = 0
        """Of the write that it is in; 0: of none yet."""
        self.written_s = 0.0
        """When that write ended; 0: it has not."""


class RequestErrors:
    """Requests answered with an error, by method and code: both are names of the protocol's."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def failed(self, method: str, code: str) -> None:
        self.counts[method, code] += 1


class IsrCounts:
    """In-sync replicas that left and came back, of partitions led here.

    Counted as images are applied, not where changes are asked for: the controller makes some by
    itself.
    """

    __slots__ = ("expands", "shrinks")

    def __init__(self) -> None:
        self.shrinks = self.expands = 0

    def learned(self, before: Sequence[int], after: Sequence[int], replicas: Sequence[int]) -> None:
        """A partition's ISR by the former image, empty if there was none, and by the new one.

        `replicas`: by the new one. One that a move has taken off the partition has left nothing.
        """
        if not before or before == after:
            return
        self.shrinks += not set(before) & set(replicas) <= set(after)
        self.expands += not set(after) <= set(before)
