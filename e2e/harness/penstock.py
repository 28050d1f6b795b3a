"""The product under test: images, Helm release, and the cluster `flights` of the example.

    install    helm upgrade --install, namespaces under the restricted Pod Security Standard
    create     examples/flights/cluster.yaml, until the Cluster says Ready
    remove     all of it, volumes included: the next install starts from nothing

The names are those users meet: the release in namespace `penstock`, the streams in `streams`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.harness.kubectl import Kubectl, Manifest
from e2e.harness.process import ROOT, CommandError, run, wait_until

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
    "metadata": {"annotations": {"penstock.dev/paused": None}},
    "spec": {"image": None, "external": None, "config": {"cache.bytes": None}},
}
OURS: Final = "e2e-"
"""Topics and groups of scenarios begin with it, if they may be there when one has failed."""
IMAGES_LABEL: Final = "penstock.dev/e2e-images"


@dataclass(frozen=True, slots=True)
class Partition:
    """Who serves a partition. `leader` None: nobody at the moment."""

    partition: int
    leader: int | None
    replicas: list[int]
    isr: list[int]


class Penstock:
    """A Penstock cluster on Kubernetes; `streams` is kubectl in its namespace."""

    def __init__(
        self, kubectl: Kubectl, cluster: str = "flights", namespace: str = STREAMS
    ) -> None:
        self.cluster = cluster
        self.operator = kubectl.in_namespace(OPERATOR_NAMESPACE)
        self.streams = kubectl.in_namespace(namespace)
        self.bootstrap = f"{cluster}-bootstrap.{namespace}.svc:9092"
        self.broker_selector = f"penstock.dev/cluster={cluster},app.kubernetes.io/component=broker"
        self.controller_selector = (
            f"penstock.dev/cluster={cluster},app.kubernetes.io/component=controller"
        )

    # ------------------------------------------------------------------ install and remove

    def install(
        self, images: str, deadline_s: float = 180.0, *, options: Sequence[str] = ()
    ) -> None:
        """CRDs and operator from the chart, until the operator is available.

        `images` names the images' contents; `installed` compares it. `options` are helm's.
        """
        for namespace in (OPERATOR_NAMESPACE, STREAMS):
            self.operator.apply(
                {
                    "apiVersion": "v1",
                    "kind": "Namespace",
                    "metadata": {"name": namespace, "labels": {**RESTRICTED, IMAGES_LABEL: images}},
                }
            )
        run(
            "helm", "upgrade", "--install", RELEASE, str(CHART), "-n", OPERATOR_NAMESPACE,
            "--create-namespace", "-f", str(VALUES), "--wait", f"--timeout={deadline_s:.0f}s",
            *options, timeout_s=deadline_s + 30,
        )  # fmt: skip

    def installed(self, images: str) -> bool:
        """Is this very build installed?"""
        found = self.operator.find("namespace", OPERATOR_NAMESPACE)
        labels = (found or {}).get("metadata", {}).get("labels", {})
        return bool(labels.get(IMAGES_LABEL) == images and self._releases())

    def create(self, manifests: Path = EXAMPLE, deadline_s: float = 240.0) -> None:
        """Applies a manifest and waits until the Cluster is Ready and settled.

        What a scenario changed and did not change back, because it failed, is undone; topics and
        groups that it left are removed.
        """
        if self.streams.find(CLUSTERS, self.cluster) is not None:
            self.streams.patch(CLUSTERS, self.cluster, UNDO)
        self.streams.apply(manifests)
        self.wait_settled(deadline_s)
        for kind in ("group", "topic"):
            names = [each[kind] for each in json.loads(self.cli(kind, "list", "-o", "json"))]
            for name in names:
                if name.startswith(OURS):
                    self.cli(kind, "delete", name, "--yes")

    def remove(self) -> None:
        """Streams, volumes, operator, CRDs."""
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
        """Runs `penstock …` in a broker pod that answers, against the whole cluster."""
        ready = [pod for pod in self.broker_pods() if pod_ready(pod)]
        names = [pod["metadata"]["name"] for pod in ready] or [self.pod(0)]
        return self.streams.exec(
            names[0], "env", f"PENSTOCK_BOOTSTRAP={self.bootstrap}", "penstock", *args
        )

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
        """Writes the numbers 1 to `count`, from broker 0's pod."""
        script = f"seq {count} | penstock produce {topic}"
        self.streams.exec(
            self.pod(0), "env", f"PENSTOCK_BOOTSTRAP={self.bootstrap}", "sh", "-c", script
        )

    def wait_replaced(self, pod: str, uid: str, deadline_s: float = 120.0) -> None:
        """Waits until a pod of that name is there that is not the one with this uid."""
        self.streams.wait("pod", pod, lambda found: found["metadata"]["uid"] != uid, deadline_s)

    def wait_brokers(self, count: int, deadline_s: float = 120.0) -> None:
        """Waits until that many broker pods are ready."""
        wait_until(
            f"{count} broker pods ready",
            lambda: len([pod for pod in self.broker_pods() if pod_ready(pod)]) == count,
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
