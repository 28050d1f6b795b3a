"""The operator's Prometheus metrics, on which its health check is based."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


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
        self.api_calls = Gauge(
            "penstock_operator_api_calls", "Requests to the API server", registry=registry
        )
        self.api_writes = Gauge(
            "penstock_operator_api_writes", "Writing requests to the API server", registry=registry
        )
        self.oldest_pass = Gauge(
            "penstock_operator_oldest_pass_seconds",
            "Age of the last finished reconciliation of the worker that is furthest behind",
            registry=registry,
        )

    def reconciled(self, result: str, seconds: float) -> None:
        self._passes.labels(result).inc()
        self._seconds.observe(seconds)

    def acted(self, action: str) -> None:
        self._actions.labels(action).inc()

    def cluster(self, namespace: str, name: str, *, ready: bool) -> None:
        self._ready.labels(namespace, name).set(ready)

    def forget(self, namespace: str, name: str) -> None:
        """The Cluster no longer exists."""
        self._ready.remove(namespace, name)
