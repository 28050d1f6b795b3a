"""What a measurement of `latency.py` comes to: pure arithmetic, and the lines that tell it.

Sample   what one client process saw        ─┐
Sample                                       ├─▶ Run ─▶ per second, p50, p99, CPU per event
processor time of the brokers meanwhile     ─┘
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.common import figure, figure_of_rounds, median, percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One client process's part of a run.

    Attributes:
        events: What was done: appends acknowledged, records sent or received.
        took_s: By the clock.
        cpu_s: Processor time of the process, all its threads, meanwhile.
        latencies_us: Of each event, in whole microseconds; empty if none were taken.
    """

    events: int
    took_s: float
    cpu_s: float
    latencies_us: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All client processes of one turn together. There is at least one event.

    Attributes:
        brokers_s: Processor time of all brokers from before the first event to after the last.
    """

    samples: Sequence[Sample]
    brokers_s: float

    @property
    def events(self) -> int:
        return sum(sample.events for sample in self.samples)

    @property
    def took_s(self) -> float:
        """They began together: it lasted as long as the longest."""
        return max(sample.took_s for sample in self.samples)

    @property
    def per_s(self) -> float:
        return self.events / self.took_s

    @property
    def brokers_ms(self) -> float:
        """Milliseconds of the brokers' processor time per event."""
        return 1e3 * self.brokers_s / self.events

    @property
    def clients_ms(self) -> float:
        """Milliseconds of the clients' processor time per event."""
        return 1e3 * sum(sample.cpu_s for sample in self.samples) / self.events

    @property
    def brokers_percent(self) -> float:
        """Of one core, all brokers together."""
        return 100 * self.brokers_s / self.took_s

    def latency_ms(self, share: float) -> float:
        """The percentile `share` 0..1 over the events of all clients."""
        together = [float(each) for sample in self.samples for each in sample.latencies_us]
        return percentile(together, share) / 1e3


def spent_s(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Processor time between two looks at the same processes, by pid.

    Raises SystemExit if they are not the same: one that was restarted began at 0.
    """
    if before.keys() != after.keys():
        raise SystemExit(f"brokers {sorted(before)} are {sorted(after)} now: what they spent?")
    return sum(after[pid] - before[pid] for pid in before)


def report(
    name: str,
    unit: str,
    ours: list[float],
    peers: Mapping[str, list[float]],
    goals: Mapping[str, str] | None = None,
) -> None:
    """A line beside each peer; a line alone if there is none.

    Args:
        name: The figure's.
        unit: Of its values.
        ours: A value per round.
        peers: By label; as many values, of the same rounds.
        goals: By label, what the ratio is to reach.
    """
    if not peers:
        figure(name, median(ours), unit)
    for label, theirs in peers.items():
        figure_of_rounds(name, ours, unit, label, theirs, goal=(goals or {}).get(label, ""))
