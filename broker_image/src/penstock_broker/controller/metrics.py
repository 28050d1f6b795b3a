"""The controller's metrics: computed when scraped, from the machine's views.

The scrape runs in the HTTP server's thread. It only reads: the machine replaces its state instead
of changing it in place, so a scrape sees a consistent state.
"""

from collections.abc import Collection, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock.core.control.documents import FORMAT_NEWEST
from penstock.core.control.election import ElectionKind
from penstock.core.control.move_views import MoveView
from penstock.core.control.views import Summary
from penstock.errors import ClusterError
from penstock_broker.controller.counters import Counters
from penstock_broker.controller.runtime import ControllerRuntime

_PREFIX = "penstock_controller_"


class ControllerMetrics(Collector):
    """Registers itself in a registry of its own."""

    def __init__(self, runtime: ControllerRuntime) -> None:
        self._runtime = runtime
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """All series; those about the cluster only while active."""
        yield _gauge(
            "active",
            "1 while this controller decides. The sum over all is 1.",
            int(self._runtime.active),
        )
        yield _gauge(
            "detached",
            "1 while the metadata store is unavailable, and brokers would keep a change in its "
            "place, or do.",
            int(self._runtime.detached),
        )
        yield from _counted(self._runtime.counters)
        try:
            self._runtime.check_active()
            machine = self._runtime.machine
        except ClusterError:
            return
        yield _gauge(
            "pending_requests",
            "Requests that wait for a write to begin.",
            machine.pending_requests,
        )
        yield _gauge(
            "metadata_format",
            "Format of the stored metadata. Lower than metadata_format_newest until an upgrade is "
            "finalized.",
            machine.stored.cluster.format,
        )
        yield _gauge(
            "metadata_format_newest",
            "The newest format of stored metadata that this release reads.",
            FORMAT_NEWEST,
        )
        yield from _cluster(machine.summary())
        yield from _moves(machine.moves())

    def describe(self) -> Iterable[Metric]:
        """Nothing: otherwise the registry would collect once at start."""
        return []


def _counted(counters: Counters) -> Iterable[Metric]:
    yield _counter("metadata_writes", "Writes to the metadata store.", counters.writes)
    yield _counter(
        "metadata_conflicts",
        "Writes to the metadata store that were refused because another controller wrote.",
        counters.write_conflicts,
    )
    yield _counter(
        "metadata_unknowns",
        "Writes to the metadata store without an answer.",
        counters.write_unknowns,
    )
    yield _counter(
        "metadata_write_seconds",
        "Time that all writes to the metadata store took together.",
        counters.write_seconds,
    )
    elections = CounterMetricFamily(
        _PREFIX + "elections",
        "Leaders elected, by how they were found: isr, elr, lossy, unclean, none. With lossy, all "
        "who had the committed records have lost power, and what none of them had on disk is "
        "lost; with unclean, committed records may be lost; with none, a partition went offline.",
        labels=["how"],
    )
    for kind in ElectionKind:  # also those that never were: a rate begins at 0
        how = kind.name.lower()
        elections.add_metric([how], counters.elections[how])
    yield elections
    yield _counter("events", "Events handled.", counters.events)


def _cluster(summary: Summary) -> Iterable[Metric]:
    yield _gauge("epoch", "Epoch of this controller.", summary.controller_epoch)
    yield _gauge(
        "metadata_version", "Version of the newest durable change.", summary.metadata_version
    )
    yield _gauge("topics", "Topics of the cluster.", summary.topics)
    yield _gauge("partitions", "Partitions of the cluster.", summary.partitions)
    yield _gauge("offline_partitions", "Partitions without a leader.", summary.offline_partitions)
    yield _gauge(
        "under_replicated_partitions",
        "Partitions whose ISR lacks replicas.",
        summary.under_replicated_partitions,
    )
    yield _gauge(
        "under_min_isr_partitions",
        "Partitions that refuse acks=all.",
        summary.under_min_isr_partitions,
    )
    yield _gauge(
        "at_min_isr_partitions",
        "Partitions that will refuse acks=all once one more replica falls behind.",
        summary.at_min_isr_partitions,
    )
    yield _gauge(
        "leaders_not_preferred",
        "Partitions that another broker should lead.",
        summary.not_preferred_leaders,
    )
    yield _gauge(
        "damaged_replicas",
        "Replicas stored as damaged, and not mended yet.",
        summary.damaged_replicas,
    )
    alive = GaugeMetricFamily(
        _PREFIX + "broker_alive", "1 while the broker has a session.", labels=["broker"]
    )
    leaders = GaugeMetricFamily(
        _PREFIX + "broker_leaders", "Partitions that the broker leads.", labels=["broker"]
    )
    for broker in summary.brokers:
        alive.add_metric([str(broker.broker_id)], int(broker.alive))
        leaders.add_metric([str(broker.broker_id)], summary.leaders.get(broker.broker_id, 0))
    yield alive
    yield leaders


def _moves(moves: Collection[MoveView]) -> Iterable[Metric]:
    stalled_ms = (copy.stalled_for_ms for move in moves for copy in move.copies)
    yield _gauge("moves", "Partitions that move to other brokers.", len(moves))
    yield _gauge(
        "move_stalled_seconds",
        "How long the copy that has stalled longest has not advanced; 0 if all do.",
        max(stalled_ms, default=0) / 1000,
    )


def _gauge(name: str, documentation: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, documentation, value)


def _counter(name: str, documentation: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(_PREFIX + name, documentation, value)
