"""Metrics of a broker's replicas: computed when scraped, as sums.

A series per partition would cost more than the partition. Only partitions whose readers wait for a
transaction have one, up to a limit; others with one: `partition_metrics`.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

STANDING_MAX: Final = 500
"""Limit of partitions whose stable offset lag a broker exports."""


@dataclass(frozen=True, slots=True)
class ReplicaTotals:
    """Sums over the replicas of this broker, at one moment."""

    replicas: int = 0
    leaders: int = 0
    under_replicated: int = 0
    at_min_isr: int = 0
    under_min_isr: int = 0
    not_preferred: int = 0
    isr_shrinks: int = 0
    isr_expands: int = 0
    follower_lags: Mapping[int, int] = field(default_factory=dict)
    """By follower, of the partition where it lacks the most offsets."""
    offline: int = 0
    stopped: int = 0
    damaged: int = 0
    mended_batches: int = 0
    rebuilt_replicas: int = 0
    high_watermarks: int = 0
    stable_offset_lags: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """By topic and partition, of all partitions led here where it is not 0."""
    log_ends: int = 0
    remembered_producers: int = 0
    disk_free_bytes: int = 0
    disk_total_bytes: int = 0
    disk_reserve_bytes: int = 0
    inflight_bytes: int = 0
    parked_fetches: int = 0


class ReplicaMetrics(Collector):
    """Calls `totals` at every scrape, in the endpoint's thread."""

    def __init__(self, totals: Callable[[], ReplicaTotals]) -> None:
        self._totals = totals

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        totals = self._totals()
        for name, documentation, gauge in (*_of_replicas(totals), *_of_resources(totals)):
            yield GaugeMetricFamily(f"penstock_{name}", documentation, value=gauge)
        for name, documentation, count in _counted(totals):
            yield CounterMetricFamily(f"penstock_{name}", documentation, value=count)
        yield _follower_lags(totals)
        yield _stable_offset_lags(totals)


_Row = tuple[str, str, int]
"""Name, description, value."""


def _of_replicas(totals: ReplicaTotals) -> tuple[_Row, ...]:
    return (
        ("replicas", "Replicas on this broker.", totals.replicas),
        ("leaders", "Partitions that this broker leads.", totals.leaders),
        (
            "under_replicated",
            "Partitions led here whose ISR lacks replicas.",
            totals.under_replicated,
        ),
        (
            "at_min_isr",
            "Partitions led here whose ISR has shrunk to min.insync.replicas.",
            totals.at_min_isr,
        ),
        (
            "under_min_isr",
            (
                "Partitions led here whose ISR is below min.insync.replicas, so that they refuse "
                "acks=all."
            ),
            totals.under_min_isr,
        ),
        (
            "leaders_not_preferred",
            "Partitions led here whose first replica is another broker.",
            totals.not_preferred,
        ),
        ("offline_replicas", "Replicas here without a leader to follow.", totals.offline),
        (
            "stopped_replicas",
            (
                "Replicas here that a defect, a damaged or a broken log has stopped; the "
                "broker's log says why. Must be 0, or soon be 0 again: what is damaged is mended."
            ),
            totals.stopped,
        ),
        (
            "damaged_replicas",
            (
                "Replicas here that cannot read all of their logs, or have stopped, and are not "
                "mended yet. Must be 0."
            ),
            totals.damaged,
        ),
        (
            "high_watermarks",
            "Sum of the high watermarks of all replicas here.",
            totals.high_watermarks,
        ),
        (
            "stable_offset_lag",
            (
                "Offsets of partitions led here that readers of committed records cannot read yet, "
                "because a transaction before them is open."
            ),
            sum(totals.stable_offset_lags.values()),
        ),
        ("log_ends", "Sum of the log end offsets of all replicas here.", totals.log_ends),
    )


def _of_resources(totals: ReplicaTotals) -> tuple[_Row, ...]:
    return (
        (
            "remembered_producers",
            "Idempotent producers that replicas here remember, counted once for each replica.",
            totals.remembered_producers,
        ),
        ("disk_free_bytes", "Free space for the data directory.", totals.disk_free_bytes),
        ("disk_total_bytes", "Size of the data directory's volume.", totals.disk_total_bytes),
        (
            "disk_reserve_bytes",
            "With less free space than this reserve, writes are refused.",
            totals.disk_reserve_bytes,
        ),
        (
            "inflight_bytes",
            "Payload bytes that were produced and are not acknowledged yet.",
            totals.inflight_bytes,
        ),
        ("parked_fetches", "Fetches waiting for records.", totals.parked_fetches),
    )


def _counted(totals: ReplicaTotals) -> tuple[_Row, ...]:
    return (
        (
            "mended_batches",
            (
                "Damaged batches replaced by the same bytes from another replica. If it grows, a "
                "disk is failing."
            ),
            totals.mended_batches,
        ),
        (
            "rebuilt_replicas",
            (
                "Damaged replicas whose logs were dropped and copied again. If it grows, a disk is "
                "failing."
            ),
            totals.rebuilt_replicas,
        ),
        (
            "isr_shrinks",
            "Times that replicas left the ISR of a partition led here.",
            totals.isr_shrinks,
        ),
        (
            "isr_expands",
            "Times that replicas came into the ISR of a partition led here.",
            totals.isr_expands,
        ),
    )


def _stable_offset_lags(totals: ReplicaTotals) -> Metric:
    """The largest ones; `penstock_stable_offset_lag` is the sum of all."""
    family = GaugeMetricFamily(
        "penstock_partition_stable_offset_lag",
        "Offsets of a partition led here that readers of committed records cannot read yet, "
        f"because a transaction before them is open. Only where it is not 0, the {STANDING_MAX} "
        "largest.",
        labels=["topic", "partition"],
    )
    found = totals.stable_offset_lags
    for topic, partition in heapq.nlargest(STANDING_MAX, found, key=found.__getitem__):
        family.add_metric([topic, str(partition)], found[topic, partition])
    return family


def _follower_lags(totals: ReplicaTotals) -> Metric:
    family = GaugeMetricFamily(
        "penstock_follower_lag_offsets",
        "Offsets written here that this follower lacks, of the partition where it lacks the most.",
        labels=["follower"],
    )
    for follower, lag in sorted(totals.follower_lags.items()):
        family.add_metric([str(follower)], lag)
    return family
