"""Metrics of the transactions that a broker coordinates.

Counters are updated once per decision. What is open or finishing is counted periodically
(`Coordinators.count`), as sums and maxima over the coordinators here: a transactional id is not a
label. An application with a ledger is one, as there are few and each commits once in seconds; their
number is bounded nevertheless.
"""

import heapq
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock.core.transactions.contract import Ready
from penstock.core.transactions.views import Census, LedgerAge

LEDGERS_MAX: Final = 500
"""Limit per broker; those with the newest commits are exported."""
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class TransactionMetrics:
    """See the module."""

    def __init__(self, registry: CollectorRegistry, wall_ms: Callable[[], int]) -> None:
        """`wall_ms`: the time since 1970, called by the endpoint's threads."""
        self._ended = Counter(
            "penstock_transactions_ended",
            "Transactions decided: commit or abort; by producer, timeout, operator, fenced, "
            "superseded, member_gone.",
            ["outcome", "reason"],
            registry=registry,
        )
        self._commit = Histogram(
            "penstock_transaction_commit_seconds",
            "Time from a commit request until its decision is on all in-sync replicas, when it is "
            "answered.",
            registry=registry,
            buckets=_SECONDS,
        )
        self._visible = Histogram(
            "penstock_transaction_visible_seconds",
            "Time from a decision until every partition and group has stored it.",
            registry=registry,
            buckets=_SECONDS,
        )
        self._load = Histogram(
            "penstock_transaction_load_seconds",
            "Time that transaction coordinators take to read their logs.",
            registry=registry,
            buckets=_SECONDS,
        )

        def gauge(name: str, documentation: str) -> Gauge:
            return Gauge(f"penstock_{name}", documentation, registry=registry)

        self._ids = gauge("transactional_ids", "Transactional ids coordinated here.")
        self._open = gauge("transactions_open", "Transactions coordinated here that are open.")
        self._oldest_open = gauge(
            "transactions_oldest_open_seconds",
            "Age of the oldest open transaction coordinated here; 0 if none is open.",
        )
        self._finishing = gauge(
            "transactions_finishing",
            "Partitions and groups that have not stored yet how a transaction ended.",
        )
        self._oldest_finishing = gauge(
            "transactions_oldest_finishing_seconds",
            "How long the oldest outcome that a partition or group has not stored yet has been "
            "due; 0 if there is none.",
        )
        self._loading = gauge(
            "transaction_coordinators_loading",
            "Transaction coordinators here that do not serve: they load, or ended and try again.",
        )
        self._ledgers = _Ledgers(wall_ms)
        registry.register(self._ledgers)

    def decided(self, ready: Ready) -> None:
        """A machine took a step."""
        for outcome in ready.ended:
            name = "commit" if outcome.commit else "abort"
            self._ended.labels(name, outcome.reason.value.replace(" ", "_")).inc()
        for visible_ms in ready.visible_ms:
            self._visible.observe(visible_ms / 1000)

    def stored(self, ready: Ready, seconds: float) -> None:
        """The decisions in `ready` are on all in-sync replicas, `seconds` after they were made."""
        for outcome in ready.ended:
            if outcome.commit:
                self._commit.observe(seconds)

    def load_took(self, seconds: float) -> None:
        """A coordinator was loaded."""
        self._load.observe(seconds)

    def count(self, census: Iterable[Census], loading: int) -> None:
        """All coordinators here; `loading`: how many do not serve."""
        found = list(census)
        self._ids.set(sum(one.ids for one in found))
        self._open.set(sum(one.open for one in found))
        self._oldest_open.set(max((one.oldest_open_ms for one in found), default=0) / 1000)
        self._finishing.set(sum(one.finishing for one in found))
        oldest_ms = max((one.oldest_finishing_ms for one in found), default=0)
        self._oldest_finishing.set(oldest_ms / 1000)
        self._loading.set(loading)
        self._ledgers.newest = heapq.nlargest(
            LEDGERS_MAX,
            (age for one in found for age in one.ledger_ages),
            key=lambda age: age.committed_ms,
        )


class _Ledgers(Collector):
    """Ages are computed at the scrape."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self.newest: list[LedgerAge] = []

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "penstock_ledger_age_seconds",
            "Time since a Spark query, or another application with a ledger, committed its newest "
            f"batch. Applications coordinated here, the {LEDGERS_MAX} newest.",
            labels=["application"],
        )
        now_ms = self._wall_ms()
        for one in self.newest:
            age_ms = max(0, now_ms - one.committed_ms)
            family.add_metric([one.application_id], age_ms / 1000)
        yield family
