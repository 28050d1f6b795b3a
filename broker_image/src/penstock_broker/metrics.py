"""The metrics of a broker.

Counters and histograms are updated once per request or tick, never per record. Numbers about
replicas (leaders, under-replicated, log ends) are computed when scraped, as sums: a series per
partition would cost more than the partition. Only partitions whose readers wait for a transaction
have a series, up to a limit. Metrics of single groups: `groups.lag`.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

STANDING_MAX: Final = 500
"""Limit of partitions whose stable offset lag a broker exports."""
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class ReplicaTotals:
    """Sums over the replicas of this broker, at one moment."""

    replicas: int = 0
    leaders: int = 0
    under_replicated: int = 0
    offline: int = 0
    stopped: int = 0
    damaged: int = 0
    mended_batches: int = 0
    rebuilt_replicas: int = 0
    high_watermarks: int = 0
    stable_offset_lags: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """By topic and partition, of all partitions led here where it is not 0."""
    log_ends: int = 0
    disk_free_bytes: int = 0
    inflight_bytes: int = 0
    parked_fetches: int = 0


@dataclass(frozen=True, slots=True)
class GroupTotals:
    """The consumer groups that this broker coordinates, counted periodically; states by name."""

    states: Mapping[str, int] = field(default_factory=dict)
    members: int = 0
    loading: int = 0


class Metrics:
    """The registry of a broker and everything in it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, histogram = self._counter, self._histogram
        self.bytes_in = counter("bytes_in", "Payload bytes appended by producers")
        self.records_in = counter("records_in", "Records appended by producers")
        self.bytes_out = counter("bytes_out", "Payload bytes sent to consumers")
        self.records_out = counter("records_out", "Records sent to consumers")
        self.replicated_in = counter(
            "replicated_in_bytes", "Bytes of batches received from leaders"
        )
        self.replicated_out = counter("replicated_out_bytes", "Bytes of batches sent to followers")
        self.overloads = counter("overloads", "Requests refused because a limit was reached")
        self.produce_errors = Counter(
            "penstock_produce_errors",
            "Partitions of produce requests that were refused, by error",
            ["error"],
            registry=self.registry,
        )
        self.tick_seconds = histogram(
            "tick_seconds", "Duration of one group commit over all partitions"
        )
        self.request_seconds = Histogram(
            "penstock_request_seconds",
            "Duration of requests on calls and streams, by method, excluding a Fetch's wait "
            "for records",
            ["method"],
            registry=self.registry,
            buckets=_SECONDS,
        )
        self._seconds_of: dict[str, Histogram] = {}
        self.fetch_wait_seconds = histogram(
            "fetch_wait_seconds", "How long fetches waited for records"
        )
        self.group_commits = counter("group_commits", "Offsets committed by consumer groups")
        self.group_rebalances = counter(
            "group_rebalances", "Target assignments computed for consumer groups"
        )
        self.group_load_seconds = histogram(
            "group_load_seconds", "Time to read the log of one group coordinator"
        )

    def observe_request(self, method: str, seconds: float) -> None:
        """Counts and times one request."""
        # Looking up a label costs more than the observation.
        histogram = self._seconds_of.get(method)
        if histogram is None:
            histogram = self._seconds_of[method] = self.request_seconds.labels(method)
        histogram.observe(seconds)

    def observe_controller(self, connected: Callable[[], bool]) -> None:
        """Makes every scrape call `connected`, in the endpoint's thread."""
        gauge = Gauge(
            "penstock_controller_connected",
            "1 while there is a session with a controller",
            registry=self.registry,
        )
        gauge.set_function(lambda: float(connected()))

    def observe_grace(self, is_on: Callable[[], bool]) -> None:
        """Makes every scrape call `is_on`, in the endpoint's thread."""
        gauge = Gauge(
            "penstock_token_grace",
            "1 while tokens that have ended count, because the API server is unavailable",
            registry=self.registry,
        )
        gauge.set_function(lambda: float(is_on()))

    def observe_replicas(self, totals: Callable[[], ReplicaTotals]) -> None:
        """Makes every scrape call `totals`, in the endpoint's thread."""
        self.registry.register(_Totals(totals))

    def observe_groups(self, totals: Callable[[], GroupTotals]) -> None:
        """Makes every scrape call `totals`, in the endpoint's thread."""
        self.registry.register(_Groups(totals))

    def observe_throttled(self, refused: Callable[[], Mapping[str, int]]) -> None:
        """Makes every scrape call `refused` (by principal), in the endpoint's thread."""
        self.registry.register(_Throttled(refused))

    def _counter(self, name: str, documentation: str) -> Counter:
        return Counter(f"penstock_{name}", documentation, registry=self.registry)

    def _histogram(self, name: str, documentation: str) -> Histogram:
        return Histogram(
            f"penstock_{name}", documentation, registry=self.registry, buckets=_SECONDS
        )


class _Totals(Collector):
    def __init__(self, totals: Callable[[], ReplicaTotals]) -> None:
        self._totals = totals

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        totals = self._totals()
        for name, documentation, value in (
            ("replicas", "Partition replicas on this broker", totals.replicas),
            ("leaders", "Partitions led by this broker", totals.leaders),
            (
                "under_replicated",
                "Partitions led here with an ISR smaller than their replica list",
                totals.under_replicated,
            ),
            ("offline_replicas", "Replicas without a leader to follow", totals.offline),
            (
                "stopped_replicas",
                "Replicas that a defect or a broken log has stopped until a restart",
                totals.stopped,
            ),
            (
                "damaged_replicas",
                "Replicas here that cannot read all of their logs, or have stopped",
                totals.damaged,
            ),
            ("high_watermarks", "Sum of all high watermarks", totals.high_watermarks),
            (
                "stable_offset_lag",
                (
                    "Offsets of partitions led here that readers cannot read yet because of "
                    "open transactions, or missing markers"
                ),
                sum(totals.stable_offset_lags.values()),
            ),
            ("log_ends", "Sum of all log end offsets", totals.log_ends),
            ("disk_free_bytes", "Free space for the data directory", totals.disk_free_bytes),
            (
                "inflight_bytes",
                "Produced payload that is not acknowledged yet",
                totals.inflight_bytes,
            ),
            ("parked_fetches", "Fetches waiting for records", totals.parked_fetches),
        ):
            yield GaugeMetricFamily(f"penstock_{name}", documentation, value=value)
        yield CounterMetricFamily(
            "penstock_mended_batches",
            "Damaged batches replaced by the same bytes from another replica",
            value=totals.mended_batches,
        )
        yield CounterMetricFamily(
            "penstock_rebuilt_replicas",
            "Damaged replicas whose logs were dropped and copied from their leaders",
            value=totals.rebuilt_replicas,
        )
        yield _stable_offset_lags(totals)


def _stable_offset_lags(totals: ReplicaTotals) -> Metric:
    """The largest ones; `penstock_stable_offset_lag` is the sum of all."""
    family = GaugeMetricFamily(
        "penstock_partition_stable_offset_lag",
        "Offsets of a partition led here that readers cannot read yet because of open "
        "transactions, where there are any",
        labels=["topic", "partition"],
    )
    found = totals.stable_offset_lags
    for topic, partition in heapq.nlargest(STANDING_MAX, found, key=found.__getitem__):
        family.add_metric([topic, str(partition)], found[topic, partition])
    return family


class _Throttled(Collector):
    def __init__(self, refused: Callable[[], Mapping[str, int]]) -> None:
        self._refused = refused

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        found = CounterMetricFamily(
            "penstock_throttled",
            "Calls and streams refused because of a quota, by principal",
            labels=["principal"],
        )
        for principal, count in dict(self._refused()).items():
            found.add_metric([principal], count)
        yield found


class _Groups(Collector):
    def __init__(self, totals: Callable[[], GroupTotals]) -> None:
        self._totals = totals

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        totals = self._totals()
        groups = GaugeMetricFamily(
            "penstock_groups", "Consumer groups coordinated here, by state", labels=["state"]
        )
        for state, count in totals.states.items():
            groups.add_metric([state], count)
        yield groups
        for name, documentation, value in (
            ("groups_members", "Members of all consumer groups here", totals.members),
            (
                "group_coordinators_loading",
                "Group coordinators that do not serve yet",
                totals.loading,
            ),
        ):
            yield GaugeMetricFamily(f"penstock_{name}", documentation, value=value)
