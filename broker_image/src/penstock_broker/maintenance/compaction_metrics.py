"""Metrics of compaction, updated once per pass or chunk."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from penstock.core.compaction.rewrite import Statistics


class CompactionMetrics:
    """In the registry of a broker's `Metrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, documentation: str) -> Counter:
            return Counter(f"penstock_compaction_{name}", documentation, registry=registry)

        self.passes = counter("passes", "Compaction passes over a log that were finished.")
        self.failures = counter("failures", "Compaction passes over a log that failed.")
        self.bytes_read = counter("io_bytes", "Bytes that compaction has read and written.")
        self.records_removed = counter("records_removed", "Records that compaction has removed.")
        self.bytes_removed = counter("bytes_removed", "Stored bytes that compaction has removed.")
        self._waiting = Gauge(
            "penstock_compaction_waiting_seconds",
            "How long the log that waits longest for compaction has been due.",
            registry=registry,
        )

    def observe_waiting(self, seconds: Callable[[], float]) -> None:
        """Has `seconds` called at every scrape, in the endpoint's thread."""
        self._waiting.set_function(seconds)

    def count(self, statistics: Statistics) -> None:
        """Counts a finished pass."""
        self.passes.inc()
        self.records_removed.inc(statistics.removed)
        self.bytes_removed.inc(max(0, statistics.bytes_before - statistics.bytes_after))
