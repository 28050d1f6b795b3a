"""What the operator and the controllers may do is what they do: no less, and no more.

Both run with the permissions that the chart gives them, behind a proxy that writes down what their
requests need. The rules are those of the chart's golden files, which tests/charts keeps true.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.api_proxy import ApiProxy, Permission
from support.apiserver import TIMEOUTS, ApiServer, start_api_server
from support.controller_pods import ACTIVE, Pod, all_serve, create
from support.operator_process import OURS, ROOT, Operator, get, install_crds, running
from support.sessions import Broker
from support.sessions import running as sessions
from support.waiting import wait_until

from penstock.kubernetes.connect import connect
from penstock.proto.v1 import admin_pb2
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock.rpc.channel import open_aio_channel
from penstock_operator.kube import Kube

RBAC = "/apis/rbac.authorization.k8s.io/v1"
GROUP = "rbac.authorization.k8s.io"
MEDIA = "application/merge-patch+json"
NOT_SEEN: dict[Permission, str] = {
    **{
        ("create", group, resource): "asked for by the API server when an apply makes the object"
        for group, resource in (
            ("", "serviceaccounts"),
            ("", "services"),
            ("apps", "deployments"),
            ("apps", "statefulsets"),
            ("networking.k8s.io", "networkpolicies"),
            ("policy", "poddisruptionbudgets"),
            (GROUP, "rolebindings"),
        )
    },
    ("bind", GROUP, "clusterroles"): "no request: the API server asks when a RoleBinding is made",
    ("create", "", "serviceaccounts/token"): "to log in to brokers of a Strict Cluster",
    ("get", "penstock.dev", "topics"): "one rule for our three kinds",
    ("patch", "penstock.dev", "topics"): "finalizers, once the brokers answer",
    ("get", "penstock.dev", "consumergroups"): "one rule for our three kinds",
}
"""Granted, and not among the requests here, with the reason."""


def chart(name: str, kind: str, ending: str) -> list[dict[str, Any]]:
    """The rules of a role in a golden file of the chart."""
    text = (ROOT / "tests" / "charts" / "golden" / f"{name}.yaml").read_text()
    (found,) = [
        each
        for each in yaml.safe_load_all(text)
        if each
        and each["kind"] == kind
        and each["metadata"]["name"].endswith(ending)
        and each["metadata"].get("namespace") != "tests"  # the same again
    ]
    rules: list[dict[str, Any]] = found["rules"]
    return rules


def granted(rules: list[dict[str, Any]]) -> set[Permission]:
    return {
        (verb, group, resource)
        for rule in rules
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


class Account:
    """A ServiceAccount with a token, and roles of its own, removed at the end."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self.server, self.namespace = server, namespace
        self._wide: list[str] = []
        body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "account"}}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        server.request("POST", path, body)
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        answer = server.request("POST", f"{path}/account/token", asked)
        self.token: str = answer["status"]["token"]

    def role(self, name: str, rules: list[dict[str, Any]]) -> None:
        """A ClusterRole, not bound."""
        body = {"apiVersion": f"{GROUP}/v1", "kind": "ClusterRole", "metadata": {"name": name}}
        self.server.request("POST", f"{RBAC}/clusterroles", {**body, "rules": rules})
        self._wide.append(f"{RBAC}/clusterroles/{name}")

    def bind(self, role: str, *, everywhere: bool, where: str = "") -> None:
        """`where`: the namespace; "": the account's own."""
        kind = "ClusterRoleBinding" if everywhere else "RoleBinding"
        namespaced = f"namespaces/{where or self.namespace}/rolebindings"
        path = "clusterrolebindings" if everywhere else namespaced
        subject = {"kind": "ServiceAccount", "name": "account", "namespace": self.namespace}
        body = {
            "apiVersion": f"{GROUP}/v1",
            "kind": kind,
            "metadata": {"name": role},
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
            "subjects": [subject],
        }
        self.server.request("POST", f"{RBAC}/{path}", body)
        if everywhere:
            self._wide.append(f"{RBAC}/clusterrolebindings/{role}")

    def close(self) -> None:
        for path in self._wide:
            self.server.request("DELETE", path)


class Scene:
    """An operator with the chart's permissions; `used` are those it needed."""

    def __init__(self, server: ApiServer, path: Path, *, everywhere: bool) -> None:
        install_crds(server)
        self.server, self.path, self.everywhere = server, path, everywhere
        self.namespace = server.namespace("permissions")
        self.clients = server.namespace("clients")
        self.account = Account(server, self.namespace)
        self.proxy = ApiProxy(server)
        self.controllers = f"{self.namespace}-controllers"
        self.kubeconfig = self.proxy.kubeconfig(path / "operator.kubeconfig", self.account.token)
        self.granted = self._grant()

    def _grant(self) -> set[Permission]:
        rules = chart("namespaces", "Role", "penstock-operator")
        wide = chart("namespaces", "ClusterRole", "penstock-operator-penstock-system")
        if self.everywhere:
            wide = chart("default", "ClusterRole", "penstock-operator-penstock-system")
        for rule in (*rules, *wide):
            if "bind" in rule["verbs"]:
                rule["resourceNames"] = [self.controllers]
        self.account.role(self.controllers, chart("default", "ClusterRole", "-controllers"))
        self.account.role(f"{self.namespace}-wide", wide)
        self.account.bind(f"{self.namespace}-wide", everywhere=True)
        if not self.everywhere:
            self.account.role(f"{self.namespace}-operator", rules)
            for namespace in (self.namespace, self.clients):
                self.account.bind(f"{self.namespace}-operator", everywhere=False, where=namespace)
        # The Lease is in a Role of its own, in the operator's namespace.
        lease = chart("default", "Role", "-election")
        self.account.role(f"{self.namespace}-election", lease)
        self.account.bind(f"{self.namespace}-election", everywhere=False)
        return granted([*wide, *([] if self.everywhere else rules), *lease])

    @contextmanager
    def operator(self) -> Iterator[Operator]:
        options = [f"--controller-role={self.controllers}"]
        watch = "" if self.everywhere else f"{self.namespace},{self.clients}"
        with running(
            self.server,
            self.path,
            self.namespace,
            watch=watch,
            options=options,
            kubeconfig=self.kubeconfig,
        ) as operator:
            yield operator

    def close(self) -> None:
        self.proxy.close()
        self.account.close()

    # ------------------------------------------------------------ what happens to it

    def url(self, group: str, plural: str, name: str = "") -> str:
        base = f"{group}/namespaces/{self.namespace}/{plural}"
        return f"{base}/{name}" if name else base

    def make(self, kind: str, name: str, **spec: Any) -> dict[str, Any]:
        body = {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": name},
            "spec": spec,
        }
        path = self.url(OURS, f"{kind.lower()}s")
        return dict(self.server.request("POST", path, body))

    def merge(self, path: str, body: dict[str, Any]) -> None:
        self.server.request("PATCH", path, body, Content_Type=MEDIA)

    def wait_used(self, *wanted: Permission) -> None:
        missing = set(wanted)
        try:
            wait_until(
                lambda: self.proxy.used >= missing, what="the last permissions", timeout_s=240
            )
        except AssertionError as late:
            late.add_note(f"not needed so far: {sorted(missing - self.proxy.used)}")
            raise


@pytest.fixture(params=[False, True], ids=["one namespace", "everywhere"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """On an API server of its own: node ports are there once, and one operator sees everything."""
    server, scratch = start_api_server()
    with scratch:
        try:
            made = Scene(server, tmp_path, everywhere=request.param)
            yield made
            made.close()
        finally:
            server.stop()


def live_a_life(scene: Scene) -> None:
    """Everything that happens to a Cluster of which the brokers never answer."""
    server, flights = scene.server, scene.url(OURS, "clusters", "flights")
    former = {
        "apiVersion": f"{GROUP}/v1",
        "metadata": {"name": "flights-controller", "labels": {"penstock.dev/cluster": "flights"}},
    }
    zone, node = "topology.kubernetes.io/zone", f"node-{scene.namespace}"
    server.request("POST", "/api/v1/nodes", {"metadata": {"name": node, "labels": {zone: "east"}}})
    grows = {"metadata": {"name": node}, "provisioner": "x.example", "allowVolumeExpansion": True}
    server.request("POST", "/apis/storage.k8s.io/v1/storageclasses", grows)
    asks = {f"guarded.{scene.namespace}.trust.penstock.dev/copy": ""}
    scene.merge(f"/api/v1/namespaces/{scene.clients}", {"metadata": {"labels": asks}})
    with scene.operator():
        made = scene.make(
            "Cluster",
            "flights",
            external={"type": "NodePort"},
            rack={"topologyKey": zone},
            security={"mode": "Disabled"},
        )
        owner = {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": "Cluster",
            "name": "flights",
            "uid": made["metadata"]["uid"],
            "controller": True,
        }
        scene.make("Cluster", "guarded")  # a new one is Strict, which the operator writes down
        certificates = {"caConfigMap": "people"}
        strict = {"mode": "Strict", "clientCertificates": certificates}
        scene.make("Cluster", "certified", security=strict)
        scene.make("Topic", "t", cluster="flights")
        scene.make("ConsumerGroup", "g", cluster="flights", deletionPolicy="Delete")
        broker_set = scene.url("/apis/apps/v1", "statefulsets", "flights-broker")
        wait_until(lambda: get(server, broker_set), what="the StatefulSet", timeout_s=240)
        # Of an earlier release: a Role of its own, and a binding to it.
        former["metadata"]["ownerReferences"] = [owner]  # type: ignore[index]
        role = scene.url(RBAC, "roles")
        server.request("POST", role, {**former, "kind": "Role", "rules": []})
        bound = {"apiGroup": GROUP, "kind": "Role", "name": "flights-controller"}
        binding = scene.url(RBAC, "rolebindings")
        server.request("POST", binding, {**former, "kind": "RoleBinding", "roleRef": bound})
        _pods_and_claims(scene, node)
        copied = _copy_of_the_trust(scene)
        scene.merge(flights, {"spec": {"external": None, "storage": {"size": "20Gi"}}})
        scene.merge(flights, {"metadata": {"annotations": {"penstock.dev/force-roll": "0"}}})
        request = {"penstock.dev/replace-volume": "1:accept-loss"}  # nobody is there to be asked
        scene.merge(flights, {"metadata": {"annotations": request}})
        scene.wait_used(
            ("delete", "", "pods"),
            ("patch", "", "pods"),
            ("patch", "", "persistentvolumeclaims"),
            ("create", "", "secrets"),
            ("get", "", "configmaps"),
            ("create", "", "configmaps"),
            ("delete", "", "services"),
            ("delete", GROUP, "roles"),
            ("delete", GROUP, "rolebindings"),
            ("delete", "apps", "statefulsets"),
            ("patch", "penstock.dev", "clusters"),
            ("patch", "penstock.dev", "topics/status"),
            ("patch", "penstock.dev", "consumergroups"),
            ("get", "", "nodes"),
            ("list", "", "nodes"),
            ("get", "", "persistentvolumes"),
            ("delete", "", "persistentvolumeclaims"),
            ("get", "storage.k8s.io", "storageclasses"),
            ("list", "events.k8s.io", "events"),  # once pods are missing for a while
            *(each for each in scene.granted if each[0] == "watch"),  # begin when all is listed
        )
        wait_until(lambda: get(server, broker_set), what="the StatefulSet is made again")
        scene.merge(copied, {"data": {"ca.crt": "of somebody else"}})
        scene.wait_used(("patch", "", "configmaps"))
        server.request("DELETE", scene.url(OURS, "clusters", "guarded"))
        scene.wait_used(("delete", "", "configmaps"))
        scene.server.request("DELETE", scene.url(OURS, "consumergroups", "g"))


def _copy_of_the_trust(scene: Scene) -> str:
    """The path of the ConfigMap, once it is there; the original is as controllers would make it."""
    labels = {"penstock.dev/trust-of": "guarded"}
    body = {"metadata": {"name": "guarded-trust", "labels": labels}, "data": {"ca.crt": "x"}}
    scene.server.request("POST", scene.url("/api/v1", "configmaps"), body)
    copied = f"/api/v1/namespaces/{scene.clients}/configmaps/guarded-trust"
    wait_until(lambda: get(scene.server, copied), what="the copy", timeout_s=240)
    return copied


def _pods_and_claims(scene: Scene, node: str) -> None:
    """As kubelets and controllers would make them."""
    labels = {"penstock.dev/cluster": "flights", "app.kubernetes.io/component": "broker"}
    for index in range(3):
        name = f"flights-broker-{index}"
        own = {**labels, "apps.kubernetes.io/pod-index": str(index)}
        spec = {"nodeName": node, "containers": [{"name": "broker", "image": "penstock:1"}]}
        pod = {"metadata": {"name": name, "labels": own}, "spec": spec}
        scene.server.request("POST", scene.url("/api/v1", "pods"), pod)
        claim = {
            "metadata": {"name": f"data-{name}", "labels": labels},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": node,
                "resources": {"requests": {"storage": "10Gi"}},
            },
        }
        path = scene.url("/api/v1", "persistentvolumeclaims")
        scene.server.request("POST", path, claim)
        # A claim must be bound before it may grow.
        bound = {"status": {"phase": "Bound", "capacity": {"storage": "10Gi"}}}
        scene.merge(f"{path}/data-{name}/status", bound)
    _stranded(scene)


def _stranded(scene: Scene) -> None:
    """The volume of broker 2 is on a node that is gone, and no other node can take its pod."""
    volume, node = f"volume-{scene.namespace}", f"gone-{scene.namespace}"
    host = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    spec = {
        "capacity": {"storage": "10Gi"},
        "accessModes": ["ReadWriteOnce"],
        "local": {"path": "/data"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [host]}]}},
    }
    body = {"metadata": {"name": volume}, "spec": spec}
    scene.server.request("POST", "/api/v1/persistentvolumes", body)
    claim = scene.url("/api/v1", "persistentvolumeclaims", "data-flights-broker-2")
    scene.merge(claim, {"spec": {"volumeName": volume}})
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    pod = scene.url("/api/v1", "pods", "flights-broker-2")
    scene.merge(f"{pod}/status", {"status": {"conditions": [scheduled]}})


async def scale_consumers(scene: Scene) -> None:
    """As for a ConsumerGroup with a scaleTarget: only that code knows lags, but not here."""
    pod = {"containers": [{"name": "main", "image": "consumer:1"}]}
    selector = {"app": "consumers"}
    body = {
        "metadata": {"name": "consumers"},
        "spec": {
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": selector}, "spec": pod},
        },
    }
    scene.server.request("POST", scene.url("/apis/apps/v1", "deployments"), body)
    kube = Kube(connect("tests", TIMEOUTS, kubeconfig=str(scene.kubeconfig)))
    try:
        scale = await kube.get_scale("Deployment", scene.namespace, "consumers")
        assert scale is not None
        version = scale["metadata"]["resourceVersion"]
        await kube.set_scale("Deployment", scene.namespace, "consumers", 2, version=version)
    finally:
        kube.close()


async def test_the_operator_uses_all_that_it_is_granted_and_needs_nothing_else(
    scene: Scene,
) -> None:
    live_a_life(scene)
    if not scene.everywhere:  # the golden values of the other switch it off
        await scale_consumers(scene)
    used = {each for each in scene.proxy.used if each[2]}  # discovery is open to everybody
    assert used <= scene.granted, f"refused: {sorted(used - scene.granted)}"
    unused = scene.granted - used - NOT_SEEN.keys()
    assert not unused, f"granted for nothing: {sorted(unused)}"
    assert NOT_SEEN.keys() <= scene.granted, "a reason for what is not granted"


async def test_controllers_use_all_that_they_are_granted_and_need_nothing_else(
    api_server: ApiServer, tmp_path: Path
) -> None:
    namespace = api_server.namespace("permissions")
    account = Account(api_server, namespace)
    rules = chart("default", "ClusterRole", "-controllers")
    role = f"{namespace}-controllers"
    account.role(role, rules)
    account.bind(role, everywhere=False)
    pod = Pod(api_server, namespace, tmp_path, "controller")
    pod.proxy.kubeconfig(pod.kubeconfig, account.token)
    pod.process.environment["KUBECONFIG"] = str(pod.kubeconfig)
    try:
        pod.process.start(wait=False)
        wait_until(lambda: pod.says(ACTIVE), what="the controller is active")
        broker = Broker(0, [pod.address])
        async with sessions(broker):
            await all_serve([broker], 1)
            await create(pod, "t", assignment=[admin_pb2.ReplicaList(broker_ids=[0])])
            async with open_aio_channel(pod.address) as channel:
                request = admin_pb2.DeleteTopicsRequest(topics=[admin_pb2.TopicName(topic="t")])
                await AdminServiceStub(channel).DeleteTopics(request, timeout=60)
        pod.process.terminate()
        assert pod.process.wait_end() == 0, pod.process.tail()
    finally:
        pod.close()
        account.close()
    assert pod.proxy.used == granted(rules)
