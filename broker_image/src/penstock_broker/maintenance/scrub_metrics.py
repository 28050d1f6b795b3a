"""Metrics of the scrub, updated once per chunk or computed when scraped."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge


class ScrubMetrics:
    """In the registry of a broker's `Metrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.bytes_read = Counter(
            "penstock_scrub_read_bytes",
            "Stored bytes that the scrub has read.",
            registry=registry,
        )
        self.damage_found = Counter(
            "penstock_scrub_damage_found",
            "Logs in which the scrub has met damage.",
            registry=registry,
        )
        self.ranges_compared = Counter(
            "penstock_scrub_compared_ranges",
            "Parts of logs that the scrub has compared with the leader's.",
            registry=registry,
        )
        self._differing = Gauge(
            "penstock_differing_replicas",
            "Replicas here whose log differs from the leader's although both read well. Must be 0.",
            registry=registry,
        )
        self._age = Gauge(
            "penstock_scrub_age_seconds",
            "How long ago the log that waits longest was last read as a whole, or came here. Above "
            "two scrub.interval.days: the scrub does not keep up. Damaged logs do not count.",
            registry=registry,
        )
        self.interval = Gauge(
            "penstock_scrub_interval_seconds",
            "In what time the scrub is to read every log once: scrub.interval.days. 0: only when "
            "asked.",
            registry=registry,
        )

    def observe_differing(self, replicas: Callable[[], float]) -> None:
        """As `observe_age`."""
        self._differing.set_function(replicas)

    def observe_age(self, seconds: Callable[[], float]) -> None:
        """Has `seconds` called at every scrape, in the endpoint's thread."""
        self._age.set_function(seconds)
