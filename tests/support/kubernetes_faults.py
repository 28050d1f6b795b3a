"""Faults that need a real API server: of two controllers, and of the operator.

    controllers ──proxy each──▶ API server ◀──proxy── operator      brokers: three, as processes

There is no kubelet: brokers are processes of this machine, and the pods that the operator sees are
written here.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families
from support import hanging_child, reaching_operator
from support.api_proxy import ApiProxy, Kind, leases
from support.apiserver import ApiServer, start_api_server
from support.cluster import Cluster
from support.controller_pods import ACTIVE, Pod
from support.fault_scene import Scene
from support.local_faults import Load
from support.operator_process import OURS, Operator, get, install_crds
from support.processes import HOST
from support.reached_pods import ReachedPods
from support.waiting import wait_until

from penstock_operator.names import POD_INDEX, REPLACE_VOLUME, Names

MERGE: Final = "application/merge-patch+json"
BROKERS: Final = 3
NAMESPACE: Final = "streams"


@contextmanager
def api_server() -> Iterator[ApiServer]:
    """One for a scene."""
    server, scratch = start_api_server()
    with scratch:
        try:
            yield server
        finally:
            server.stop()


def _make_namespace(server: ApiServer) -> None:
    server.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})


def _brokers(cluster: Cluster) -> dict[str, str]:
    return {f"broker-{id_}": f"{HOST}:{port}" for id_, port in cluster.metrics_ports.items()}


# ── Two controllers ───────────────────────────────────────────────────────────────────────────


class TwoControllers:
    """The first is active, the second stands by."""

    def __init__(self, server: ApiServer, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        _make_namespace(server)
        self.pods = [self._pod(server, NAMESPACE, name, stack) for name in ("one", "two")]
        addresses = ",".join(pod.address for pod in self.pods)
        self.cluster = Cluster(folder / "brokers", brokers=BROKERS, start=False)
        stack.callback(self.cluster.close)
        for broker in self.cluster.brokers.values():
            broker.arguments[broker.arguments.index("--controllers") + 1] = addresses
            broker.start(wait=False)
        for broker in self.cluster.brokers.values():
            broker.wait_serving()
        self.cluster.wait_alive(set(self.cluster.brokers))
        self.cluster.create_topic("flights", replication_factor=3)
        stack.enter_context(Load(self.cluster))

    def _pod(self, server: ApiServer, namespace: str, name: str, stack: ExitStack) -> Pod:
        pod = Pod(server, namespace, self.folder, name)
        stack.callback(pod.close)
        pod.process.launcher = hanging_child.LAUNCHER
        faults = self.folder / name
        faults.mkdir()
        kubeconfig = {"KUBECONFIG": str(pod.kubeconfig), "KUBERNETES_SERVICE_HOST": ""}
        pod.process.environment = {**kubeconfig, hanging_child.FAULTS: str(faults)}
        pod.process.start(wait=False)
        state = ACTIVE if name == "one" else ""
        wait_until(lambda: pod.says(state), what=f"controller {name} is ready", timeout_s=40.0)
        return pod

    @property
    def targets(self) -> dict[str, str]:
        controllers = {f"controller-{pod.process.name}": pod.metrics_address for pod in self.pods}
        return {**_brokers(self.cluster), **controllers}

    def hang(self) -> None:
        """The active one, until the scene ends."""
        (self.folder / "one" / "hang").touch()

    def cut(self) -> None:
        """Neither reaches the API server any more."""
        for pod in self.pods:
            pod.proxy.cut()


def _controllers(make: Callable[[TwoControllers], None]) -> Callable[[Path], Any]:
    @contextmanager
    def scene(folder: Path) -> Iterator[Scene]:
        folder.mkdir()
        with api_server() as server, ExitStack() as stack:
            two = TwoControllers(server, folder, stack)
            yield Scene(two.targets, lambda: make(two))

    return scene


# ── The operator ──────────────────────────────────────────────────────────────────────────────


class Operated:
    """A Cluster of three brokers that its operator finds Ready."""

    def __init__(
        self, server: ApiServer, folder: Path, stack: ExitStack, namespace: str = NAMESPACE
    ) -> None:
        install_crds(server)
        self.server, self.folder, self._stack = server, folder, stack
        self.names = Names("flights", namespace)
        self.servers = stack.enter_context(Cluster(folder / "brokers", brokers=BROKERS))
        self.servers.create_topic("flights", replication_factor=3)
        stack.enter_context(Load(self.servers))
        self.proxy = ApiProxy(server)
        stack.callback(self.proxy.close)
        self.kubeconfig = self.proxy.kubeconfig(folder / "operator.kubeconfig")
        self.operator = self._start()
        controller = f"{HOST}:{self.servers.controller_metrics_port}"
        self.targets = {**_brokers(self.servers), "controller-0": controller}
        self.targets["operator"] = self.operator.address
        spec = {"brokers": BROKERS, "security": {"mode": "Disabled"}}
        kind = {"apiVersion": "penstock.dev/v1alpha1", "kind": "Cluster"}
        body = {**kind, "metadata": {"name": self.names.cluster}, "spec": spec}
        server.request("POST", self._clusters, body)
        self._make_pods()
        wait_until(self._is_ready, what="the operator finds it Ready", timeout_s=60.0)

    def _start(self) -> Operator:
        operator = Operator(
            self.server,
            self.folder,
            namespace=self.names.namespace,
            watch=self.names.namespace,
            kubeconfig=self.kubeconfig,
            launcher=reaching_operator.LAUNCHER,
            environment={reaching_operator.BOOTSTRAP: self.servers.bootstrap},
        )
        self._stack.callback(operator.kill)
        return operator

    @property
    def _clusters(self) -> str:
        return f"{OURS}/namespaces/{self.names.namespace}/clusters"

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.names.namespace}/pods"

    def _make_pods(self) -> None:
        """What the StatefulSet's controller and kubelets do."""
        place = f"/apis/apps/v1/namespaces/{self.names.namespace}/statefulsets/{self.names.broker}"
        made = wait_until(lambda: get(self.server, place), what="the StatefulSet", timeout_s=60.0)
        template = made["spec"]["template"]
        for broker_id in range(BROKERS):
            labels = {**template["metadata"]["labels"], POD_INDEX: str(broker_id)}
            metadata = {**template["metadata"], "name": self.names.pod(broker_id), "labels": labels}
            spec = {"containers": template["spec"]["containers"]}
            spec["containers"][0].pop("volumeMounts", None)
            self.server.request("POST", self._pods, {"metadata": metadata, "spec": spec})
            self._tell_pod(broker_id, ready=True)

    def _tell_pod(self, broker_id: int, *, ready: bool) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        shown = {"type": "Ready", "status": str(ready), "lastTransitionTime": now}
        path = f"{self._pods}/{self.names.pod(broker_id)}/status"
        self.server.request("PATCH", path, {"status": {"conditions": [shown]}}, Content_Type=MERGE)

    def _is_ready(self) -> bool:
        return self.said("cluster_ready") == 1

    def said(self, name: str, *labels: str) -> float | None:
        """What the operator exports of this Cluster, or of a part of it; None: nothing."""
        wanted = {self.names.namespace, self.names.cluster, *labels}
        for family in text_string_to_metric_families(self.operator.ask("/metrics")):
            for sample in family.samples:
                found = set(sample.labels.values())
                if sample.name == f"penstock_operator_{name}" and found == wanted:
                    return float(sample.value)
        return None

    def change(self, body: dict[str, Any]) -> None:
        """Merges it into the Cluster."""
        path = f"{self._clusters}/{self.names.cluster}"
        self.server.request("PATCH", path, body, Content_Type=MERGE)

    # ── Faults ────────────────────────────────────────────────────────────────────────────

    def lose_broker(self) -> None:
        """Broker 2 dies, and its pod is not ready any more."""
        self.servers.brokers[2].kill()
        self._tell_pod(2, ready=False)

    def scale_down(self) -> None:
        """To fewer brokers than a topic has replicas."""
        self.change({"spec": {"brokers": 2}})

    def ask_nonsense(self) -> None:
        """A broker's volume is to be replaced, but not one that exists."""
        self.change({"metadata": {"annotations": {REPLACE_VOLUME: "the-first"}}})

    def refuse_clusters(self) -> None:
        """The operator may not read the Cluster any more; all else goes on."""

        def fits(method: str, path: str) -> bool:
            return method == "GET" and path.endswith(f"/clusters/{self.names.cluster}")

        self.proxy.plant(Kind.STATUS, fits=fits, times=None, status=403)

    def lose_lease(self) -> None:
        """It cannot be renewed. The operator ends, and is started again, as a kubelet does it."""
        self.proxy.plant(Kind.STATUS, fits=leases, times=None, status=500)
        assert self.operator.wait_end() == 1
        self.operator = self._start()
        wait_until(lambda: self.operator.is_up, what="the operator answers", timeout_s=40.0)
        self.targets["operator"] = self.operator.address

    def kill_operator(self) -> None:
        """And nobody starts it again."""
        self.operator.kill()


def _operated(make: Callable[[Operated], None]) -> Callable[[Path], Any]:
    @contextmanager
    def scene(folder: Path) -> Iterator[Scene]:
        folder.mkdir()
        with api_server() as server, ExitStack() as stack:
            _make_namespace(server)
            operated = Operated(server, folder, stack)
            yield Scene(operated.targets, lambda: make(operated))

    return scene


@contextmanager
def _authority_lost(folder: Path) -> Iterator[Scene]:
    folder.mkdir()
    with api_server() as server, ReachedPods(server, folder) as pods:
        pods.become_ready()
        yield Scene(pods.targets, pods.lose_authority)


KUBERNETES_FAULTS: Final[dict[str, Callable[[Path], Any]]] = {
    "controller-hangs": _controllers(TwoControllers.hang),
    "api-server-away": _controllers(TwoControllers.cut),
    "pod-not-ready": _operated(Operated.lose_broker),
    "scale-down-too-far": _operated(Operated.scale_down),
    "request-refused": _operated(Operated.ask_nonsense),
    "operator-refused": _operated(Operated.refuse_clusters),
    "operator-without-lease": _operated(Operated.lose_lease),
    "operator-gone": _operated(Operated.kill_operator),
    "authority-lost": _authority_lost,
}
