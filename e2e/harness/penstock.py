"""The product under test: images, Helm release, and the cluster `flights` of the example.

    install    helm upgrade --install, namespaces under the restricted Pod Security Standard
    create     examples/flights/cluster.yaml, until the Cluster says Ready
    cli        `penstock …` in a pod of its own, which in a Strict Cluster is the administrator's
    remove     all of it, volumes included: the next install starts from nothing

The names are those users meet: the release in namespace `penstock`, the streams in `streams`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.harness.images import BROKER
from e2e.harness.kubectl import Kubectl, Manifest
from e2e.harness.login import Login
from e2e.harness.process import ROOT, CommandError, run, wait_until
from e2e.harness.workload import client_pod

RELEASE: Final = "penstock"
OPERATOR_NAMESPACE: Final = "penstock"
OPERATOR_SELECTOR: Final = "app.kubernetes.io/name=penstock-operator"
STREAMS: Final = "streams"
CHART: Final = ROOT / "charts/penstock"
VALUES: Final = ROOT / "e2e/values.yaml"
EXAMPLE: Final = ROOT / "examples/flights/cluster.yaml"
RESTRICTED: Final = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/enforce-version": "latest",
}
CLUSTERS: Final = "clusters.penstock.dev"
UNDO: Final[Manifest] = {
    "metadata": {"annotations": {"penstock.dev/paused": None, "penstock.dev/replace-volume": None}},
    "spec": {"image": None, "external": None, "config": {"cache.bytes": None}},
}
OURS: Final = "e2e-"
"""Topics and groups of scenarios begin with it, if they may be there when one has failed."""
IMAGES_LABEL: Final = "penstock.dev/e2e-images"
MODE_LABEL: Final = "penstock.dev/e2e-security"
SPARK_ACCOUNT: Final = "spark"
"""That of examples/spark/kubernetes."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Who serves a partition. `leader` None: nobody at the moment."""

    partition: int
    leader: int | None
    replicas: list[int]
    isr: list[int]


class Penstock:
    """A Penstock cluster on Kubernetes; `streams` is kubectl in its namespace.

    `strict`: the cluster is as new ones are: with TLS, and it asks for tokens. `login`: what a pod
    shows to it to be its administrator; None if nobody is asked.
    """

    def __init__(
        self, kubectl: Kubectl, cluster: str = "flights", namespace: str = STREAMS,
        *, strict: bool = True,
    ) -> None:  # fmt: skip
        self._kubectl, self._namespace = kubectl, namespace
        self.cluster, self.strict = cluster, strict
        self.login = self.login_as(f"{cluster}-admin")
        self._tool = f"{cluster}-cli"
        self._tool_runs = False
        self.operator = kubectl.in_namespace(OPERATOR_NAMESPACE)
        self.streams = kubectl.in_namespace(namespace)
        self.bootstrap = f"{cluster}-bootstrap.{namespace}.svc:9092"
        self.broker_selector = f"penstock.dev/cluster={cluster},app.kubernetes.io/component=broker"
        self.controller_selector = (
            f"penstock.dev/cluster={cluster},app.kubernetes.io/component=controller"
        )

    def login_as(self, account: str) -> Login | None:
        """What a pod with this account in the cluster's namespace shows."""
        if not self.strict:
            return None
        return Login(account, f"{self.cluster}-trust", f"penstock.{self._namespace}.{self.cluster}")

    def variables(self, folder: Path) -> list[str]:
        """Of the environment of an administrator's client outside; its files come into `folder`."""
        if self.login is None:
            return []
        trust = self.streams.get("configmap", self.login.trust)["data"]["ca.crt"]
        token = self.streams.call(
            "create", "token", self.login.account, f"--audience={self.login.audience}"
        )
        ca_file, token_file = folder / "ca.crt", folder / "token"
        ca_file.write_text(trust)
        token_file.write_bytes(token)
        return [f"PENSTOCK_CA_FILE={ca_file}", f"PENSTOCK_TOKEN_FILE={token_file}"]

    def other(self, cluster: str) -> "Penstock":
        """Another cluster in the same namespace, in the same security mode."""
        return Penstock(self._kubectl, cluster, self._namespace, strict=self.strict)

    @property
    def security(self) -> Manifest:
        """What a Cluster's `spec` says about security, for this mode: a new one is Strict unless it
        says otherwise."""
        return {} if self.strict else {"security": {"mode": "Disabled"}}

    # ------------------------------------------------------------------ install and remove

    def install(
        self, images: str, deadline_s: float = 180.0, *, options: Sequence[str] = (),
        chart: Path = CHART,
    ) -> None:  # fmt: skip
        """CRDs and operator from the chart, until the operator is available.

        `images` names the images' contents; `installed` compares it. `options` are helm's. `chart`
        may be another release's.
        """
        for namespace in (OPERATOR_NAMESPACE, STREAMS):
            self.operator.apply(
                {
                    "apiVersion": "v1",
                    "kind": "Namespace",
                    "metadata": {
                        "name": namespace,
                        "labels": {**RESTRICTED, IMAGES_LABEL: images, MODE_LABEL: self._mode},
                    },
                }
            )
        run(
            "helm", "upgrade", "--install", RELEASE, str(chart), "-n", OPERATOR_NAMESPACE,
            "--create-namespace", "-f", str(VALUES), "--wait", f"--timeout={deadline_s:.0f}s",
            *options, timeout_s=deadline_s + 30,
        )  # fmt: skip

    @property
    def _mode(self) -> str:
        return "strict" if self.strict else "disabled"

    def installed(self, images: str) -> bool:
        """Is this very build installed, for a Cluster of this mode?"""
        found = self.operator.find("namespace", OPERATOR_NAMESPACE)
        labels = (found or {}).get("metadata", {}).get("labels", {})
        same = labels.get(IMAGES_LABEL) == images and labels.get(MODE_LABEL) == self._mode
        return bool(same and self._releases())

    def create(self, manifests: Path = EXAMPLE, deadline_s: float = 240.0) -> None:
        """Applies a manifest and waits until the Cluster is Ready and settled.

        What a scenario changed and did not change back, because it failed, is undone; topics and
        groups that it left are removed.
        """
        if self.streams.find(CLUSTERS, self.cluster) is not None:
            self.streams.patch(CLUSTERS, self.cluster, UNDO)
        self.streams.apply(self._with_security(manifests))
        self.wait_settled(deadline_s)
        for kind in ("group", "topic"):
            names = [each[kind] for each in json.loads(self.cli(kind, "list", "-o", "json"))]
            for name in names:
                if name.startswith(OURS):
                    self.cli(kind, "delete", name, "--yes")

    def _with_security(self, manifests: Path) -> list[Manifest]:
        """A manifest with its Cluster in this mode. Spark's account may do in a Strict one what the
        jobs of scenarios do, with topics of scenarios only."""
        objects: list[Manifest] = list(yaml.safe_load_all(manifests.read_text()))
        spark = [f"serviceaccount:{self._namespace}/{SPARK_ACCOUNT}"]
        works = {"topicPrefix": OURS, "operations": ["Create", "Read", "Write"]}
        writes = {"transactionalIdPrefix": "spark", "operations": ["Write"]}
        for each in objects:
            if each["kind"] == "Cluster":
                each["spec"] |= self.security
                if self.strict:
                    each["spec"]["access"] = [
                        {"principals": spark, **one} for one in (works, writes)
                    ]
        return objects

    def remove(self) -> None:
        """Streams, volumes, operator, CRDs."""
        self._tool_runs = False
        crds = [each["metadata"]["name"] for each in self.operator.list("crd")]
        ours = [name for name in crds if name.endswith(".penstock.dev")]
        # Topics before their Cluster; and before the operator, which takes their finalizers away.
        for kind in sorted(ours, reverse=True):
            self._delete_all(kind)
        if self._releases():
            run("helm", "uninstall", RELEASE, "-n", OPERATOR_NAMESPACE, "--wait", timeout_s=120.0)
        self.operator.delete("namespace", STREAMS, OPERATOR_NAMESPACE, wait_s=180.0)
        if ours:
            self.operator.delete("crd", *ours)

    def _delete_all(self, kind: str) -> None:
        """Deletes all of a kind; an operator that does not work must not keep them."""
        try:
            self.streams.delete(kind, "--all", wait_s=60.0)
        except CommandError:
            for each in self.streams.list(kind):
                name = each["metadata"]["name"]
                self.streams.patch(kind, name, {"metadata": {"finalizers": None}})

    def _releases(self) -> list[Any]:
        found: list[Any] = json.loads(
            run("helm", "list", "-n", OPERATOR_NAMESPACE, "-o", "json", "--filter", f"^{RELEASE}$")
        )
        return found

    # ------------------------------------------------------------------ looking at it

    def wait_ready(self, deadline_s: float = 180.0) -> Manifest:
        """The Cluster, once it says Ready for its present generation."""
        return self.streams.wait_condition(CLUSTERS, self.cluster, deadline_s=deadline_s)

    def wait_settled(self, deadline_s: float = 180.0) -> Manifest:
        """The Cluster, once it is Ready and nothing is left to be done for its generation."""
        return self.streams.wait(CLUSTERS, self.cluster, is_settled, deadline_s)

    def broker_pods(self) -> list[Manifest]:
        return self.streams.list("pod", self.broker_selector)

    def controller_pods(self) -> list[Manifest]:
        return self.streams.list("pod", self.controller_selector)

    def pod(self, broker_id: int) -> str:
        """Name of a broker's pod."""
        return f"{self.cluster}-broker-{broker_id}"

    def cli(self, *args: str) -> str:
        """Runs `penstock …` against the cluster, as its administrator."""
        return self.exec("penstock", *args)

    def exec(self, *command: str, timeout_s: float | None = None) -> str:
        """Runs a command in a pod of a client that may do everything. PENSTOCK_BOOTSTRAP is set."""
        if not self._tool_runs:
            self._start_tool()
        return self.streams.exec(self._tool, *command, timeout_s=timeout_s)

    def end_tool(self) -> None:
        """Ends the pod of `exec`, if there is one; the next `exec` starts another."""
        self.streams.delete("pod", self._tool, now=True, wait_s=None)
        self._tool_runs = False

    def _start_tool(self) -> None:
        spec = client_pod("cli", BROKER.tag, ("sleep", "infinity"), self.login)
        spec["containers"][0]["env"] = [{"name": "PENSTOCK_BOOTSTRAP", "value": self.bootstrap}]
        self.streams.delete("pod", self._tool, now=True)
        self.streams.apply(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": self._tool}, "spec": spec}
        )
        self.streams.wait_condition("pod", self._tool, deadline_s=60.0)
        self._tool_runs = True

    def partitions(self, topic: str) -> list[Partition]:
        """Leaders and replicas of a topic, as the brokers tell."""
        seen = json.loads(self.cli("topic", "describe", topic, "-o", "json"))
        return [
            Partition(each["partition"], each["leader"], each["replicas"], each["isr"])
            for each in seen["partition_list"]
        ]

    def leader(self, topic: str, partition: int = 0) -> int:
        """Broker id of a partition's leader; waits for there to be one."""

        def found() -> tuple[int] | None:
            now = self.partitions(topic)[partition].leader
            return None if now is None else (now,)

        leader = wait_until(f"{topic}-{partition} led", found, 60.0)
        assert leader is not None
        return leader[0]

    def wait_in_sync(self, topic: str, deadline_s: float = 120.0) -> None:
        """Waits until every replica of a topic is in sync."""
        wait_until(
            f"{topic} in sync",
            lambda: all(len(one.isr) == len(one.replicas) for one in self.partitions(topic)),
            deadline_s,
        )

    def kill_pod(self, pod: str) -> None:
        """Ends a pod without grace; returns when its successor is there, ready or not."""
        uid = self.streams.get("pod", pod)["metadata"]["uid"]
        self.streams.delete("pod", pod, now=True, wait_s=None)
        self.wait_replaced(pod, uid)

    def produce_numbers(self, topic: str, count: int) -> None:
        """Writes the numbers 1 to `count`."""
        self.exec("sh", "-c", f"seq {count} | penstock produce {topic}")

    def wait_replaced(self, pod: str, uid: str, deadline_s: float = 120.0) -> None:
        """Waits until a pod of that name is there that is not the one with this uid."""
        self.streams.wait("pod", pod, lambda found: found["metadata"]["uid"] != uid, deadline_s)

    def ready_brokers(self) -> int:
        return sum(pod_ready(pod) for pod in self.broker_pods())

    def wait_brokers(self, count: int, deadline_s: float = 120.0) -> None:
        """Waits until that many broker pods are ready."""
        wait_until(
            f"{count} broker pods ready",
            lambda: self.ready_brokers() == count,
            deadline_s,
        )


def condition(found: Manifest, kind: str) -> Manifest:
    """One of an object's conditions; {} if it has none of this type."""
    each = [one for one in found.get("status", {}).get("conditions", []) if one["type"] == kind]
    return each[0] if each else {}


def is_settled(cluster: Manifest) -> bool:
    """Ready, and nothing is left to be done for the present generation."""
    return (
        condition(cluster, "Ready").get("status") == "True"
        and condition(cluster, "Reconciling").get("status") == "False"
        and bool(cluster["status"]["observedGeneration"] == cluster["metadata"]["generation"])
    )


def pod_ready(pod: Manifest) -> bool:
    """Ready, and not on its way out."""
    conditions = pod.get("status", {}).get("conditions", [])
    return "deletionTimestamp" not in pod["metadata"] and any(
        each["type"] == "Ready" and each["status"] == "True" for each in conditions
    )
