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
        self._age = Gauge(
            "penstock_scrub_age_seconds",
            "How long ago the log that waits longest was last read as a whole, or came here. Above "
            "two scrub.interval.days: the scrub does not keep up.",
            registry=registry,
        )

    def observe_age(self, seconds: Callable[[], float]) -> None:
        """Has `seconds` called at every scrape, in the endpoint's thread."""
        self._age.set_function(seconds)
