"""The operator's Prometheus metrics, on which its health check is based."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

import penstock


class Metrics:
    """A registry of its own: no global state."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.leader = Gauge(
            "penstock_operator_leader", "1 while this process reconciles", registry=registry
        )
        self._passes = Counter(
            "penstock_operator_reconciles",
            "Reconciliations of a Cluster, by result",
            ["result"],
            registry=registry,
        )
        self._seconds = Histogram(
            "penstock_operator_reconcile_seconds", "Duration of a reconciliation", registry=registry
        )
        self._actions = Counter(
            "penstock_operator_actions", "Actions performed", ["action"], registry=registry
        )
        self._ready = Gauge(
            "penstock_operator_cluster_ready",
            "1 if the Cluster is Ready",
            ["namespace", "cluster"],
            registry=registry,
        )
        self._paused = Gauge(
            "penstock_operator_cluster_paused",
            "1 while the operator leaves a Cluster alone, because its spec says so",
            ["namespace", "cluster"],
            registry=registry,
        )
        self._stalled = Gauge(
            "penstock_operator_cluster_stalled",
            "1 while a Cluster needs a person, by the reason of its condition Stalled",
            ["namespace", "cluster", "reason"],
            registry=registry,
        )
        self._topics = Gauge(
            "penstock_operator_topic_ready",
            "1 if the Topic is Ready",
            ["namespace", "cluster", "topic"],
            registry=registry,
        )
        _describe_process(registry)
        self._stalled_for: dict[tuple[str, str], str] = {}
        self._topics_of: dict[tuple[str, str], frozenset[str]] = {}
        self.api_calls = Gauge(
            "penstock_operator_api_calls", "Requests to the API server", registry=registry
        )
        self.api_writes = Gauge(
            "penstock_operator_api_writes", "Writing requests to the API server", registry=registry
        )
        self.oldest_pass = Gauge(
            "penstock_operator_oldest_pass_seconds",
            "Age of the last pass that did not fail, of the Cluster that is furthest behind",
            registry=registry,
        )

    def reconciled(self, result: str, seconds: float) -> None:
        self._passes.labels(result).inc()
        self._seconds.observe(seconds)

    def acted(self, action: str) -> None:
        self._actions.labels(action).inc()

    def cluster(
        self, namespace: str, name: str, *, ready: bool, paused: bool = False, stalled: str = ""
    ) -> None:
        """What its status says. `stalled`: for which reason, empty if it is not."""
        self._ready.labels(namespace, name).set(ready)
        self._paused.labels(namespace, name).set(paused)
        before = self._stalled_for.pop((namespace, name), "")
        if before and before != stalled:
            self._stalled.remove(namespace, name, before)
        if stalled:
            self._stalled_for[namespace, name] = stalled
            self._stalled.labels(namespace, name, stalled).set(1)

    def topics(self, namespace: str, cluster: str, ready: Mapping[str, bool]) -> None:
        """All Topics of a Cluster, by name, and whether they are Ready: others are gone."""
        before = self._topics_of.get((namespace, cluster), frozenset())
        for name in before - ready.keys():
            self._topics.remove(namespace, cluster, name)
        for name, is_ready in ready.items():
            self._topics.labels(namespace, cluster, name).set(is_ready)
        self._topics_of[namespace, cluster] = frozenset(ready)

    def forget(self, namespace: str, name: str) -> None:
        """The Cluster no longer exists."""
        self.topics(namespace, name, {})
        for gauge in (self._ready, self._paused):
            gauge.remove(namespace, name)
        reason = self._stalled_for.pop((namespace, name), "")
        if reason:
            self._stalled.remove(namespace, name, reason)


def _describe_process(registry: CollectorRegistry) -> None:
    """The release that runs, and Prometheus's own metrics of processes."""
    build = Gauge(
        "penstock_build_info",
        "1, of the release that runs",
        ["version", "role"],
        registry=registry,
    )
    build.labels(penstock.__version__, "operator").set(1)
    ProcessCollector(registry=registry)
