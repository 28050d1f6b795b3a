"""A Strict Cluster on a real API server, with the test in place of the kubelet.

    operator (a process) ─▶ Secret, Deployment, StatefulSet ─▶ arguments, variables, volumes
    this file ─▶ the files of those volumes, tokens bound to pods ─▶ controller, broker (processes)

What differs from a real cluster is addresses: there is no DNS for Services, so names of Services
become loopback, and certificates name it too.
"""

import base64
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from support.apiserver import ApiServer
from support.operator_process import OURS, get, install_crds, running
from support.processes import HOST, ReservedPort, ServerProcess
from support.waiting import wait_until

from penstock_operator.names import (
    CONTROLLER_PORT,
    ENROL_PORT,
    GRPC_PORT,
    HEALTH_PORT,
    INTERNAL_PORT,
    METRICS_PORT,
    REPLICATION_PORT,
    SECURE_CONTROLLER_PORT,
    SECURE_PORT,
    STREAM_PORT,
    Names,
)

BROKER_PORTS = (
    GRPC_PORT,
    SECURE_PORT,
    INTERNAL_PORT,
    REPLICATION_PORT,
    STREAM_PORT,
    METRICS_PORT,
    HEALTH_PORT,
)
_CALLED_BY_BROKERS = (CONTROLLER_PORT, SECURE_CONTROLLER_PORT, ENROL_PORT)
CONTROLLER_PORTS = (*_CALLED_BY_BROKERS, METRICS_PORT, HEALTH_PORT)


class StrictPods:
    """One controller and broker 0 of Cluster `flights`; `start` them."""

    def __init__(self, server: ApiServer, path: Path, mode: str = "Strict") -> None:
        """`mode`: of the Cluster's security."""
        install_crds(server)
        self._mode = mode
        self.server, self.path = server, path
        self.names = Names("flights", self.make_namespace())
        self.stack = ExitStack()
        self._operator = ExitStack()
        self.stack.push(self._operator)
        self.operator = self._operator.enter_context(running(server, path, self.names.namespace))
        self.cluster = self._make_cluster()
        self._ports: dict[tuple[str, int], ReservedPort] = {}
        for kind, numbers in (("controller", CONTROLLER_PORTS), ("broker", BROKER_PORTS)):
            for number in numbers:
                self._ports[kind, number] = self.stack.enter_context(ReservedPort())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def make_namespace(self) -> str:
        """Its name."""
        return self.server.namespace("strict")

    def spec(self) -> dict[str, Any]:
        """What the Cluster has besides."""
        return {"brokers": 1}

    def end_operator(self) -> None:
        """It ends by itself without an API server, and is needed for nothing that runs."""
        self._operator.close()

    def object(self, base: str, plural: str, name: str) -> Any:
        """None: it is not there."""
        return get(self.server, f"{base}/namespaces/{self.names.namespace}/{plural}/{name}")

    def waited(self, base: str, plural: str, name: str) -> dict[str, Any]:
        def found() -> Any:
            return self.object(base, plural, name)

        made: dict[str, Any] = wait_until(found, what=f"{plural} {name} is made", timeout_s=60)
        return made

    def address(self, number: int, kind: str = "broker") -> str:
        return self._ports[kind, number].address

    def token(self, account: str, audience: str, pod: str = "") -> str:
        """As the API server signs it. `pod`: the pod that it is bound to."""
        spec: dict[str, Any] = {"audiences": [audience]}
        if pod:
            uid = self.waited("/api/v1", "pods", pod)["metadata"]["uid"]
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid}
        path = f"/api/v1/namespaces/{self.names.namespace}/serviceaccounts/{account}/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(self.server.request("POST", path, asked)["status"]["token"])

    def make_pod(self, name: str, account: str) -> None:
        """With the labels of a broker, whoever it is."""
        labels = self.names.selector("broker")
        spec = {"serviceAccountName": account, "containers": [{"name": "broker", "image": "x:1"}]}
        body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
        path = f"/api/v1/namespaces/{self.names.namespace}/pods"
        self.server.request("POST", path, body)

    def controller(self) -> ServerProcess:
        """Started; with the account that the operator made for it."""
        deployment = self.waited("/apis/apps/v1", "deployments", self.names.controller)
        folder = self.path / "ca"
        folder.mkdir()
        secret = self.waited("/api/v1", "secrets", self.names.authority)
        for name, value in secret["data"].items():
            (folder / name).write_bytes(base64.b64decode(value))
        audience = "https://kubernetes.default.svc"
        token = self.token(self.names.controller, audience)
        self._grant()
        kubeconfig = self.server.write_kubeconfig(self.path / "controller.kubeconfig", token)
        process = self._process(
            "controller",
            deployment,
            {"/etc/penstock/ca": str(folder)},
            [f"--certificate-host={HOST}"],
        )
        process.environment["KUBECONFIG"] = str(kubeconfig)
        process.start()
        return process

    def broker(self) -> ServerProcess:
        """Started; its pod exists, and its token is bound to it."""
        broker_set = self.waited("/apis/apps/v1", "statefulsets", self.names.broker)
        pod, folder = self.names.pod(0), self.path / "enrolment"
        self.make_pod(pod, self.names.broker)
        folder.mkdir()
        volumes = broker_set["spec"]["template"]["spec"]["volumes"]
        (projected,) = [each["projected"] for each in volumes if "projected" in each]
        for source in projected["sources"]:
            if asked := source.get("serviceAccountToken"):
                token = self.token(self.names.broker, asked["audience"], pod)
                (folder / asked["path"]).write_text(token)
            else:
                trust = self.waited("/api/v1", "configmaps", source["configMap"]["name"])
                for item in source["configMap"]["items"]:
                    (folder / item["path"]).write_text(trust["data"][item["key"]])
        places = {"/etc/penstock/enrolment": str(folder), "/var/lib/penstock": str(self.path)}
        process = self._process("broker", broker_set, places, [])
        process.start()
        return process

    # ------------------------------------------------------------ inside

    def _make_cluster(self) -> dict[str, Any]:
        body = {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": "Cluster",
            "metadata": {"name": self.names.cluster},
            "spec": {"security": {"mode": self._mode}, **self.spec()},
        }
        path = f"{OURS}/namespaces/{self.names.namespace}/clusters"
        return dict(self.server.request("POST", path, body))

    def _grant(self) -> None:
        """What the ClusterRole of the chart grants controllers."""
        group, name = "rbac.authorization.k8s.io", self.names.controller
        path = f"/apis/{group}/v1/namespaces/{self.names.namespace}"
        kinds = {"": ["configmaps"], "coordination.k8s.io": ["leases"]}
        verbs = ["list", "get", "create", "update", "delete"]
        rules = [{"apiGroups": [g], "resources": r, "verbs": verbs} for g, r in kinds.items()]
        role = {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": {"name": "granted"}}
        self.server.request("POST", f"{path}/roles", {**role, "rules": rules})
        subject = {"kind": "ServiceAccount", "name": name, "namespace": self.names.namespace}
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "granted"},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "granted"},
            "subjects": [subject],
        }
        self.server.request("POST", f"{path}/rolebindings", binding)

    def _process(
        self, kind: str, workload: dict[str, Any], places: dict[str, str], more: list[str]
    ) -> ServerProcess:
        """Of the pod's only container."""
        (main,) = workload["spec"]["template"]["spec"]["containers"]
        names = self.names
        known = {
            "$(BROKER_ID)": "0",
            names.broker_host(0): HOST,
            names.controllers_host: HOST,
            "0.0.0.0": HOST,
            **places,
        }

        def here(text: str) -> str:
            for name, value in known.items():
                text = text.replace(name, value)
            for (of, number), port in self._ports.items():
                if of == kind or number in _CALLED_BY_BROKERS:
                    text = text.replace(f"{HOST}:{number}", port.address)
            return text

        arguments = [here(each) for each in main["args"]]
        health = self._ports[kind, HEALTH_PORT]
        process = ServerProcess(kind, [*arguments, *more], self.path / f"{kind}.log", health)
        process.environment = {
            each["name"]: here(each["value"]) for each in main["env"] if "value" in each
        }
        self.stack.callback(process.close)
        return process
