"""The operator's Prometheus metrics, on which its health check is based."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

import penstock


class Metrics:
    """A registry of its own: no global state."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()

        def gauge(name: str, documentation: str, *labels: str) -> Gauge:
            return Gauge(f"penstock_operator_{name}", documentation, labels, registry=registry)

        self._passes = Counter(
            "penstock_operator_reconciles",
            "Passes over a Cluster, by result.",
            ["result"],
            registry=registry,
        )
        self._seconds = Histogram(
            "penstock_operator_reconcile_seconds",
            "Duration of passes over a Cluster.",
            registry=registry,
        )
        self._actions = Counter(
            "penstock_operator_actions",
            "Actions that a pass has carried out.",
            ["action"],
            registry=registry,
        )
        self.leader = gauge("leader", "1 while this process reconciles. The sum over all is 1.")
        one = ("namespace", "cluster")
        self._ready = gauge("cluster_ready", "1 if the Cluster's condition Ready is True.", *one)
        self._paused = gauge(
            "cluster_paused", "1 if the Cluster's annotation penstock.dev/paused is true.", *one
        )
        self._hibernated = gauge(
            "cluster_hibernated", "1 while the Cluster sleeps: none of its pods runs.", *one
        )
        self._stalled = gauge(
            "cluster_stalled",
            "1 while a person has to act, by each reason why the Cluster is Stalled; absent "
            "otherwise.",
            *one,
            "reason",
        )
        self._topics = gauge("topic_ready", "1 if the Topic is Ready.", *one, "topic")
        self.api_calls = gauge("api_calls", "Requests to the API server.")
        self.api_writes = gauge("api_writes", "Writing requests to the API server.")
        self.oldest_pass = gauge(
            "oldest_pass_seconds",
            "Age of the last pass that did not fail, of the Cluster that is furthest behind.",
        )
        _describe_process(registry)
        self._stalled_for: dict[tuple[str, str], frozenset[str]] = {}
        self._topics_of: dict[tuple[str, str], frozenset[str]] = {}

    def reconciled(self, result: str, seconds: float) -> None:
        self._passes.labels(result).inc()
        self._seconds.observe(seconds)

    def acted(self, action: str) -> None:
        self._actions.labels(action).inc()

    def cluster(
        self,
        namespace: str,
        name: str,
        *,
        ready: bool,
        paused: bool = False,
        hibernated: bool = False,
        stalled: frozenset[str] = frozenset(),
    ) -> None:
        """What its status says. `stalled`: for which reasons, empty if it is not."""
        self._ready.labels(namespace, name).set(ready)
        self._paused.labels(namespace, name).set(paused)
        self._hibernated.labels(namespace, name).set(hibernated)
        self._stall(namespace, name, stalled)

    def _stall(self, namespace: str, name: str, reasons: frozenset[str]) -> None:
        for reason in self._stalled_for.pop((namespace, name), frozenset()) - reasons:
            self._stalled.remove(namespace, name, reason)
        if reasons:
            self._stalled_for[namespace, name] = reasons
        for reason in reasons:
            self._stalled.labels(namespace, name, reason).set(1)

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
        for gauge in (self._ready, self._paused, self._hibernated):
            gauge.remove(namespace, name)
        self._stall(namespace, name, frozenset())


def _describe_process(registry: CollectorRegistry) -> None:
    """The release that runs, and Prometheus's own metrics of processes."""
    build = Gauge(
        "penstock_build_info",
        "1, of the release that runs; role is broker, controller or operator.",
        ["version", "role"],
        registry=registry,
    )
    build.labels(penstock.__version__, "operator").set(1)
    ProcessCollector(registry=registry)
