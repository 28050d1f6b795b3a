"""The metrics of a broker.

Counters and histograms are updated once per request or tick, never per record. What a description
says is all that docs/metrics-reference.md says of a metric: `make metrics` writes it. Numbers about
replicas: `replica_metrics`; single groups: `groups.lag_metrics`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock_broker.counts import SECONDS as _SECONDS
from penstock_broker.counts import ProduceTimes, RequestErrors
from penstock_broker.replica_metrics import ReplicaMetrics, ReplicaTotals


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
        self.bytes_in = counter("bytes_in", "Payload bytes appended by producers.")
        self.records_in = counter("records_in", "Records appended by producers.")
        self.bytes_out = counter("bytes_out", "Payload bytes sent to consumers.")
        self.records_out = counter("records_out", "Records sent to consumers.")
        self.replicated_in = counter(
            "replicated_in_bytes",
            "Bytes of batches received from leaders, including batch headers.",
        )
        self.replicated_out = counter(
            "replicated_out_bytes", "Bytes of batches sent to followers, including batch headers."
        )
        self.overloads = counter("overloads", "Requests refused because a limit was reached.")
        self.produce_errors = Counter(
            "penstock_produce_errors",
            "Partitions of produce requests that were refused.",
            ["error"],
            registry=self.registry,
        )
        self.tick_seconds = histogram(
            "tick_seconds", "Duration of group commits over all partitions."
        )
        self.request_seconds = Histogram(
            "penstock_request_seconds",
            "Duration of calls; requests on ProduceStream, CommitOffsetsStream and "
            "EndTransactionStream count as the calls of that name. A Produce includes the wait for "
            "its acks; a Fetch excludes its wait for records.",
            ["method"],
            registry=self.registry,
            buckets=_SECONDS,
        )
        self._seconds_of: dict[str, Histogram] = {}
        self.produce_times = ProduceTimes()
        self.request_errors = RequestErrors()
        self.registry.register(_Counts(self.produce_times, self.request_errors))
        self.fetch_wait_seconds = histogram(
            "fetch_wait_seconds",
            "How long fetches waited for records (at most their max_wait_ms); only fetches that "
            "waited.",
        )
        self.group_commits = counter("group_commits", "Offsets committed by consumer groups.")
        self.group_rebalances = counter(
            "group_rebalances", "Target assignments computed for consumer groups."
        )
        self.group_load_seconds = histogram(
            "group_load_seconds", "Time that group coordinators take to read their logs."
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
            "1 while there is a session with a controller.",
            registry=self.registry,
        )
        gauge.set_function(lambda: float(connected()))

    def observe_grace(self, is_on: Callable[[], bool]) -> None:
        """Makes every scrape call `is_on`, in the endpoint's thread."""
        gauge = Gauge(
            "penstock_token_grace",
            "1 while tokens of ServiceAccounts count after their end, because controllers say that "
            "the API server is unavailable.",
            registry=self.registry,
        )
        gauge.set_function(lambda: float(is_on()))

    def observe_clock(self, is_doubted: Callable[[], bool]) -> None:
        """Makes every scrape call `is_doubted`, in the endpoint's thread."""
        gauge = Gauge(
            "penstock_clock_doubted",
            "1 while this broker's wall clock has jumped, or started, more than 10 minutes from "
            "where it should be: nothing is deleted by time.",
            registry=self.registry,
        )
        gauge.set_function(lambda: float(is_doubted()))

    def observe_replicas(self, totals: Callable[[], ReplicaTotals]) -> None:
        """Makes every scrape call `totals`, in the endpoint's thread."""
        self.registry.register(ReplicaMetrics(totals))

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
                "Time until a produced batch is in the leader's store.",
                self._times.write,
            ),
            (
                "produce_replication",
                "Time until a produced batch is acknowledged, once it is in the leader's store.",
                self._times.replication,
            ),
        ):
            yield HistogramMetricFamily(
                f"penstock_{name}_seconds",
                f"{documentation} Of one batch at a time per partition.",
                buckets=times.buckets(),
                sum_value=times.sum_s,
            )
        errors = CounterMetricFamily(
            "penstock_request_errors",
            "Calls, streams and fetches answered with an error as a whole. What single partitions "
            "of a produce were refused: penstock_produce_errors_total.",
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
            "penstock_open_streams",
            "Streams open here: client (a connection each), grpc, follower.",
            labels=["kind"],
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
            "Calls and streams refused because of a quota (THROTTLED); 100 principals by name, and "
            "others. Waits of streams and fetches are not counted.",
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
            "penstock_groups", "Consumer groups coordinated here.", labels=["state"]
        )
        for state, count in totals.states.items():
            groups.add_metric([state], count)
        yield groups
        for name, documentation, value in (
            ("groups_members", "Members of all groups coordinated here.", totals.members),
            (
                "group_coordinators_loading",
                "Group coordinators here that do not serve: they load, or ended and try again.",
                totals.loading,
            ),
        ):
            yield GaugeMetricFamily(f"penstock_{name}", documentation, value=value)
