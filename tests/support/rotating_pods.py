"""A Strict Cluster of two controllers and three brokers on a real API server, whose CA can change.

    operator (a process) ─▶ objects ─▶ arguments, volumes
    Kubelet (a thread) ─ Secrets, ConfigMaps ─▶ files of the volumes, again and again
                       └ Secrets whose owner is gone ─▶ deleted, as the garbage collector does

`kubelet.lags` names pods whose volumes are not brought up to date.
"""

import base64
import json
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError, URLError

from support.apiserver import ApiServer
from support.operator_process import OURS, condition
from support.processes import HOST, ReservedPort, ServerProcess
from support.strict_pods import BROKER_PORTS, CONTROLLER_PORTS, StrictPods
from support.waiting import wait_until

from penstock.kubernetes.names import ROTATE_CA, ROTATE_CA_WAIT
from penstock.kubernetes.rotation import RotationState, rotation_of
from penstock_operator.names import CONTROLLER_PORT, ENROL_PORT, GRPC_PORT, HEALTH_PORT

CONTROLLERS, BROKERS = 2, 3
MERGE = "application/merge-patch+json"


class Kubelet:
    """Keeps the files of projected volumes as their sources are."""

    def __init__(self, pods: "RotatingPods") -> None:
        self._pods = pods
        self._volumes: dict[str, tuple[Path, list[dict[str, Any]]]] = {}
        self.lags: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelet")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def mount(self, pod: str, folder: Path, sources: list[dict[str, Any]]) -> None:
        """From now on, and once before this returns."""
        folder.mkdir(exist_ok=True)
        self._volumes[pod] = (folder, sources)
        self._refresh(pod)

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            with suppress(HTTPError, URLError, OSError):  # tried again in a moment
                self._collect_garbage()
                for pod in {*self._volumes} - self.lags:
                    self._refresh(pod)

    def _refresh(self, pod: str) -> None:
        folder, sources = self._volumes[pod]
        for source in sources:
            for kind, plural in (("secret", "secrets"), ("configMap", "configmaps")):
                if kind in source:
                    found = self._pods.object("/api/v1", plural, source[kind]["name"])
                    assert found or source[kind].get("optional"), source
                    self._write(folder, source[kind]["items"], found, decode=kind == "secret")

    def _write(
        self, folder: Path, items: list[dict[str, Any]], found: Any, *, decode: bool
    ) -> None:
        for item in items:
            file = folder / item["path"]
            if found is None:
                file.unlink(missing_ok=True)
                continue
            text = found["data"][item["key"]]
            content = base64.b64decode(text) if decode else text.encode()
            if not file.exists() or file.read_bytes() != content:
                file.parent.mkdir(exist_ok=True)
                fresh = file.with_name(f"{file.name}.fresh")
                fresh.write_bytes(content)
                fresh.replace(file)

    def _collect_garbage(self) -> None:
        server, namespace = self._pods.server, self._pods.names.namespace
        maps = server.request("GET", f"/api/v1/namespaces/{namespace}/configmaps")["items"]
        uids = {each["metadata"]["uid"] for each in maps}
        path = f"/api/v1/namespaces/{namespace}/secrets"
        for secret in server.request("GET", path)["items"]:
            owners = secret["metadata"].get("ownerReferences") or []
            if owners and owners[0]["kind"] == "ConfigMap" and owners[0]["uid"] not in uids:
                server.request("DELETE", f"{path}/{secret['metadata']['name']}")


class RotatingPods(StrictPods):
    """See the module. `start_all` first."""

    def __init__(self, server: ApiServer, path: Path) -> None:
        super().__init__(server, path)
        self.controllers: list[ServerProcess] = []
        self.brokers: list[ServerProcess] = []
        self._own: dict[tuple[str, int], ReservedPort] = {}
        kinds = [("controller", CONTROLLERS, CONTROLLER_PORTS), ("broker", BROKERS, BROKER_PORTS)]
        for kind, count, numbers in kinds:
            for index in range(count):
                for number in numbers:
                    port = self.stack.enter_context(ReservedPort())
                    self._own[f"{kind}-{index}", number] = port
        self.kubelet = self.stack.enter_context(Kubelet(self))

    def spec(self) -> dict[str, Any]:
        config = {"default.replication.factor": 3, "min.insync.replicas": 2}
        return {"brokers": BROKERS, "controllers": {"replicas": CONTROLLERS}, "config": config}

    @property
    def bootstrap(self) -> str:
        """All brokers, for clients."""
        return ",".join(self._own[f"broker-{index}", GRPC_PORT].address for index in range(BROKERS))

    def port(self, pod: str, number: int) -> str:
        """The address of a port of `controller-0`, `broker-2`, …"""
        return self._own[pod, number].address

    def data(self, broker_id: int) -> Path:
        return self.path / f"broker-{broker_id}" / "data"

    def start_all(self) -> None:
        """Until all serve; and a client's mount is in `client/ca.crt`."""
        deployment = self.waited("/apis/apps/v1", "deployments", self.names.controller)
        self.waited("/api/v1", "secrets", self.names.authority)
        self._grant()
        for index in range(CONTROLLERS):
            self.controllers.append(self._controller_of(deployment, index))
        trust = self.waited("/api/v1", "configmaps", self.names.trust)["metadata"]["name"]
        broker_set = self.waited("/apis/apps/v1", "statefulsets", self.names.broker)
        for index in range(BROKERS):
            self.brokers.append(self._broker_of(broker_set, index))
        items = [{"key": "ca.crt", "path": "ca.crt"}]
        mount = [{"configMap": {"name": trust, "items": items}}]
        self.kubelet.mount("client", self.path / "client", mount)
        for process in self.brokers:
            process.wait_serving(90.0)

    def rotate(self, request: str, wait_s: int) -> None:
        """As somebody who annotates the Cluster."""
        asked = {ROTATE_CA: request, ROTATE_CA_WAIT: str(wait_s)}
        path = f"{OURS}/namespaces/{self.names.namespace}/clusters/{self.names.cluster}"
        body = {"metadata": {"annotations": asked}}
        self.server.request("PATCH", path, body, Content_Type=MERGE)

    def state(self) -> RotationState | None:
        return rotation_of(self.waited("/api/v1", "configmaps", self.names.trust))

    def wait_state(
        self, phase: str, *, waits: tuple[str, ...] | None = None, secret: str | None = None
    ) -> RotationState:
        """Until this phase, and until it waits for exactly these, with this Secret. Only for one
        that stays: others may pass between two looks."""

        def reached() -> RotationState | None:
            state = self.state()
            fits = (
                state is not None
                and state.phase == phase
                and waits in {None, state.waits}
                and secret in {None, state.secret}
            )
            return state if fits else None

        what = f"the rotation is {phase}" + (f", waiting for {waits}" if waits else "")
        return wait_until(reached, what=what, timeout_s=120)

    def condition(self) -> dict[str, Any]:
        """RotatingCA of the Cluster."""
        return condition(self.object(OURS, "clusters", self.names.cluster), "RotatingCA")

    def active(self) -> ServerProcess:
        """The controller that decides: the last to have taken over, of those that run."""
        running = [each for each in self.controllers if each.is_running]
        return max(running, key=lambda each: _last_take_over(each.log_text()))

    # ------------------------------------------------------------ inside

    def _controller_of(self, deployment: dict[str, Any], index: int) -> ServerProcess:
        name = f"controller-{index}"
        token = self.token(self.names.controller, "https://kubernetes.default.svc")
        kubeconfig = self.server.write_kubeconfig(self.path / f"{name}.kubeconfig", token)
        folder = self.path / f"{name}-ca"
        self.kubelet.mount(name, folder, _sources(deployment, "ca"))
        places = {"/etc/penstock/ca": str(folder)}
        process = self._spawn(name, deployment, places, [f"--certificate-host={HOST}"])
        process.environment["KUBECONFIG"] = str(kubeconfig)
        process.start()
        return process

    def _broker_of(self, broker_set: dict[str, Any], index: int) -> ServerProcess:
        name, pod = f"broker-{index}", self.names.pod(index)
        self.make_pod(pod, self.names.broker)
        folder, data = self.path / f"{name}-enrolment", self.path / name
        data.mkdir()
        sources = _sources(broker_set, "enrolment")
        self.kubelet.mount(name, folder, sources)
        (asked,) = [one["serviceAccountToken"] for one in sources if "serviceAccountToken" in one]
        token = self.token(self.names.broker, asked["audience"], pod)
        (folder / asked["path"]).write_text(token)
        places = {"/etc/penstock/enrolment": str(folder), "/var/lib/penstock": str(data)}
        process = self._spawn(name, broker_set, places, [])
        process.start(wait=False)
        return process

    def _spawn(
        self, name: str, workload: dict[str, Any], places: dict[str, str], more: list[str]
    ) -> ServerProcess:
        (main,) = workload["spec"]["template"]["spec"]["containers"]
        index = name.rpartition("-")[2]
        known = {
            "$(BROKER_ID)": index,
            self.names.broker_host(index): HOST,
            self.names.controllers_host: HOST,
            "0.0.0.0": HOST,
            **places,
        }
        here = partial(_here, known, self._addresses(name))
        health = self._own[name, HEALTH_PORT]
        arguments = [here(each) for each in main["args"]]
        process = ServerProcess(name, [*arguments, *more], self.path / f"{name}.log", health)
        process.environment = {
            each["name"]: here(each["value"]) for each in main["env"] if "value" in each
        }
        process.environment["TMPDIR"] = str(self.path / f"{name}-tmp")
        (self.path / f"{name}-tmp").mkdir()
        self.stack.callback(process.close)
        return process

    def _addresses(self, name: str) -> dict[int, str]:
        """By port: of this pod; of all controllers, for brokers."""
        own = {number: port.address for (of, number), port in self._own.items() if of == name}
        controllers = [f"controller-{index}" for index in range(CONTROLLERS)]
        all_of = {
            number: ",".join(self._own[each, number].address for each in controllers)
            for number in (CONTROLLER_PORT, ENROL_PORT)
        }
        return {**all_of, **own}


def _here(known: dict[str, str], addresses: dict[int, str], text: str) -> str:
    for name, value in known.items():
        text = text.replace(name, value)
    for number, address in addresses.items():
        text = text.replace(f"{HOST}:{number}", address)
    return text


def _sources(workload: dict[str, Any], volume: str) -> list[dict[str, Any]]:
    volumes = workload["spec"]["template"]["spec"]["volumes"]
    (found,) = [each["projected"]["sources"] for each in volumes if each["name"] == volume]
    return list(found)


def _last_take_over(log: str) -> str:
    """When, as text that sorts."""
    lines = [line for line in log.splitlines() if '"lease acquired, taking over"' in line]
    return str(json.loads(lines[-1])["time"]) if lines else ""
