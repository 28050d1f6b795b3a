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
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock_broker.counts import SECONDS as _SECONDS
from penstock_broker.counts import ProduceTimes, RequestErrors

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
    disk_free_bytes: int = 0
    disk_total_bytes: int = 0
    disk_reserve_bytes: int = 0
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
        self.produce_times = ProduceTimes()
        self.request_errors = RequestErrors()
        self.registry.register(_Counts(self.produce_times, self.request_errors))
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

    def observe_streams(self, open_streams: Callable[[], Mapping[str, int]]) -> None:
        """Makes every scrape call `open_streams` (by kind), in the endpoint's thread."""
        self.registry.register(_Streams(open_streams))

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
        for name, documentation, value in (*_of_replicas(totals), *_of_resources(totals)):
            yield GaugeMetricFamily(f"penstock_{name}", documentation, value=value)
        for name, documentation, value in (
            (
                "mended_batches",
                "Damaged batches replaced by the same bytes from another replica",
                totals.mended_batches,
            ),
            (
                "rebuilt_replicas",
                "Damaged replicas whose logs were dropped and copied from their leaders",
                totals.rebuilt_replicas,
            ),
            ("isr_shrinks", "Replicas fell out of an ISR led here", totals.isr_shrinks),
            ("isr_expands", "Replicas came into an ISR led here", totals.isr_expands),
        ):
            yield CounterMetricFamily(f"penstock_{name}", documentation, value=value)
        yield _follower_lags(totals)
        yield _stable_offset_lags(totals)


def _of_replicas(totals: ReplicaTotals) -> tuple[tuple[str, str, int], ...]:
    return (
        ("replicas", "Partition replicas on this broker", totals.replicas),
        ("leaders", "Partitions led by this broker", totals.leaders),
        (
            "under_replicated",
            "Partitions led here with an ISR smaller than their replica list",
            totals.under_replicated,
        ),
        (
            "at_min_isr",
            "Partitions led here whose ISR has shrunk to min.insync.replicas",
            totals.at_min_isr,
        ),
        (
            "under_min_isr",
            "Partitions led here that refuse acks=all",
            totals.under_min_isr,
        ),
        (
            "leaders_not_preferred",
            "Partitions led here that another broker should lead",
            totals.not_preferred,
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
    )


def _of_resources(totals: ReplicaTotals) -> tuple[tuple[str, str, int], ...]:
    return (
        ("disk_free_bytes", "Free space for the data directory", totals.disk_free_bytes),
        ("disk_total_bytes", "Size of the data directory's volume", totals.disk_total_bytes),
        (
            "disk_reserve_bytes",
            "With less free space than this, writes are refused",
            totals.disk_reserve_bytes,
        ),
        (
            "inflight_bytes",
            "Produced payload that is not acknowledged yet",
            totals.inflight_bytes,
        ),
        ("parked_fetches", "Fetches waiting for records", totals.parked_fetches),
    )


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


def _follower_lags(totals: ReplicaTotals) -> Metric:
    family = GaugeMetricFamily(
        "penstock_follower_lag_offsets",
        "Offsets written here that a follower lacks, of the partition where it lacks the most",
        labels=["follower"],
    )
    for follower, lag in sorted(totals.follower_lags.items()):
        family.add_metric([str(follower)], lag)
    return family


class _Counts(Collector):
    """What is counted in plain numbers."""

    def __init__(self, times: ProduceTimes, errors: RequestErrors) -> None:
        self._times, self._errors = times, errors

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        for name, documentation, times in (
            (
                "produce_write",
                "Time until a produced batch is in the leader's store",
                self._times.write,
            ),
            (
                "produce_replication",
                "Time from then until the batch is acknowledged",
                self._times.replication,
            ),
        ):
            yield HistogramMetricFamily(
                f"penstock_{name}_seconds",
                f"{documentation}; of one batch at a time per partition",
                buckets=times.buckets(),
                sum_value=times.sum_s,
            )
        errors = CounterMetricFamily(
            "penstock_request_errors",
            "Requests answered with an error, by method and code",
            labels=["method", "code"],
        )
        for (method, code), count in sorted(dict(self._errors.counts).items()):
            errors.add_metric([method, code], count)
        yield errors


class _Streams(Collector):
    def __init__(self, open_streams: Callable[[], Mapping[str, int]]) -> None:
        self._open = open_streams

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "penstock_open_streams", "Streams that are open here, by kind", labels=["kind"]
        )
        for kind, count in self._open().items():
            family.add_metric([kind], count)
        yield family


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
