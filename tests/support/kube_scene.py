"""A Cluster as Kubernetes would show it, made by hand on a real API server.

There are no kubelets and no operator: tests write pods, claims, events and their statuses
themselves, and so can show any trouble.
"""

import json
import urllib.error
from datetime import UTC, datetime, timedelta
from typing import Any

from support.apiserver import ApiServer
from support.operator_process import install_crds

from penstock.core.control.documents import (
    BrokerRegistration,
    ClusterDocument,
    TopicDocument,
    encode_cluster,
    encode_topic,
)
from penstock.core.control.partition import PartitionDocument
from penstock.core.types import (
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    PartitionState,
    TopicId,
)

API = "penstock.dev/v1alpha1"
PENSTOCK = f"/apis/{API}"


def ago(seconds: float) -> str:
    """An RFC 3339 time so long ago."""
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Scene:
    """One namespace with a Cluster `flights`."""

    def __init__(self, server: ApiServer, name: str = "flights") -> None:
        install_crds(server)
        self.server = server
        self.name = name
        self.namespace = server.namespace("cli")
        self.kubeconfig = server.kubeconfig
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        self._request("POST", self.path("/api/v1", "serviceaccounts"), account)

    def path(self, group: str, plural: str, name: str = "") -> str:
        return f"{group}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def make(self, group: str, plural: str, body: dict[str, Any]) -> dict[str, Any]:
        """Creates an object, and then writes its status, as kubelets and controllers would."""
        status = body.pop("status", None)
        made = self._request("POST", self.path(group, plural), body)
        if status is not None:
            self.set_status(group, plural, made["metadata"]["name"], status)
        return dict(made)

    def set_status(self, group: str, plural: str, name: str, status: dict[str, Any]) -> None:
        self._request(
            "PATCH",
            f"{self.path(group, plural, name)}/status",
            {"status": status},
            Content_Type="application/merge-patch+json",
        )

    def set_spec(self, group: str, plural: str, name: str, spec: dict[str, Any]) -> None:
        where, how = self.path(group, plural, name), "application/merge-patch+json"
        self._request("PATCH", where, {"spec": spec}, Content_Type=how)

    def get(self, group: str, plural: str, name: str) -> dict[str, Any]:
        return dict(self._request("GET", self.path(group, plural, name)))

    def _request(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        try:
            return self.server.request(method, path, body, **headers)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.read().decode()}") from error

    # ------------------------------------------------------------ what belongs to a Cluster

    def labels(self, component: str) -> dict[str, str]:
        return {"penstock.dev/cluster": self.name, "app.kubernetes.io/component": component}

    def cluster(
        self, *, ready: bool = True, message: str = "", brokers: int = 3, strict: bool = False
    ) -> None:
        """The Cluster resource; not ready: stuck, with this message."""
        self.make(
            PENSTOCK,
            "clusters",
            {
                "apiVersion": API,
                "kind": "Cluster",
                "metadata": {"name": self.name},
                "spec": {
                    "brokers": brokers,
                    "security": {"mode": "Strict" if strict else "Disabled"},
                },
                "status": {
                    "observedGeneration": 1,
                    "phase": "Ready" if ready else "Blocked",
                    "clusterId": "id-of-flights",
                    "conditions": conditions(ready=ready, message=message),
                },
            },
        )

    def topic(self, name: str, *, ready: bool = True, message: str = "") -> None:
        self.make(
            PENSTOCK,
            "topics",
            {
                "apiVersion": API,
                "kind": "Topic",
                "metadata": {"name": name},
                "spec": {"cluster": self.name, "partitions": 2, "replicas": 3},
                "status": {
                    "observedGeneration": 1,
                    "conditions": conditions(ready=ready, message=message),
                },
            },
        )

    def pod(
        self,
        name: str,
        component: str,
        *,
        status: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        node: str = "node-1",
    ) -> None:
        """A pod that runs and is ready, unless a status says otherwise."""
        container = {
            "name": component,
            "image": "penstock-broker:1",
            "env": [{"name": key, "value": value} for key, value in (environment or {}).items()],
        }
        self.make(
            "/api/v1",
            "pods",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": self.labels(component)},
                "spec": {"nodeName": node, "containers": [container]} if node else
                {"containers": [container]},
                "status": running(component) if status is None else status,
            },
        )  # fmt: skip

    def claim(self, index: int, *, bound: bool = True, size: str = "10Gi") -> None:
        capacity = {"capacity": {"storage": size}} if bound else {}
        self.make(
            "/api/v1",
            "persistentvolumeclaims",
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": f"data-{self.name}-broker-{index}"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "fast",
                    "resources": {"requests": {"storage": "10Gi"}},
                },
                "status": {"phase": "Bound" if bound else "Pending", **capacity},
            },
        )

    def event(self, kind: str, name: str, reason: str, message: str, **more: Any) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{name}."},
            "involvedObject": {"kind": kind, "name": name, "namespace": self.namespace},
            "reason": reason,
            "message": message,
            "type": "Warning",
            "lastTimestamp": ago(5),
            "count": 3,
            **more,
        }
        self.make("/api/v1", "events", body)

    def lease(self, holder: str, *, renewed_ago_s: float = 1, name: str = "") -> None:
        moment = datetime.now(UTC) - timedelta(seconds=renewed_ago_s)
        self.make(
            "/apis/coordination.k8s.io/v1",
            "leases",
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name or f"{self.name}-controller"},
                "spec": {
                    "holderIdentity": holder,
                    "leaseDurationSeconds": 45,  # a slow machine must not seem to renew none
                    "renewTime": moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                },
            },
        )

    def metadata(self, *, alive: set[int], isr: list[list[int]], topic: str = "flights") -> None:
        """The controller's documents: three brokers, a topic with these in-sync replicas."""
        brokers = {
            BrokerId(i): BrokerRegistration(
                broker_id=BrokerId(i),
                host=f"{self.name}-broker-{i}",
                port=9092,
                rack="",
                directory_id=f"d{i}",
                incarnation=f"i{i}",
                alive=i in alive,
            )
            for i in range(3)
        }
        partitions = tuple(
            PartitionDocument(
                PartitionState(
                    leader=BrokerId(members[0] if members else -1),
                    leader_epoch=LeaderEpoch(1),
                    isr=tuple(BrokerId(one) for one in members),
                    replicas=(BrokerId(0), BrokerId(1), BrokerId(2)),
                    version=1,
                )
            )
            for members in isr
        )
        epoch = ControllerEpoch(1)
        cluster = ClusterDocument(
            cluster_id="id-of-flights", controller_epoch=epoch, metadata_version=2, brokers=brokers
        )
        document = TopicDocument(
            name=topic,
            topic_id=TopicId("t-1"),
            controller_epoch=epoch,
            metadata_version=2,
            configs={},
            partitions=partitions,
        )
        for kind, text in (("cluster", encode_cluster(cluster)), ("topic", encode_topic(document))):
            labels = {**self.labels("controller"), "penstock.dev/metadata": kind}
            self.make(
                "/api/v1",
                "configmaps",
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {"name": f"{self.name}-{kind}-x", "labels": labels},
                    "data": {"key": kind, "document": text},
                },
            )

    def healthy(self, *, strict: bool = False) -> None:
        """All of a Cluster that is well, with its operator."""
        self.cluster(strict=strict)
        self.topic("flights")
        for index in range(3):
            self.pod(f"{self.name}-broker-{index}", "broker")
            self.claim(index)
        for suffix in ("a", "b"):
            self.pod(f"{self.name}-controller-{suffix}", "controller")
        self.lease(f"{self.name}-controller-a")
        self.lease("penstock-operator-x", name="penstock-operator")
        self.metadata(alive={0, 1, 2}, isr=[[0, 1, 2], [1, 2, 0]])


def conditions(*, ready: bool, message: str) -> list[dict[str, Any]]:
    rows = (
        ("Ready", ready, "AsDesired" if ready else "Waiting"),
        ("Reconciling", False, "NothingToDo"),
        ("Stalled", not ready, "NotStalled" if ready else "Waiting"),
    )
    return [
        {
            "type": kind,
            "status": str(true),
            "reason": reason,
            "message": message if kind != "Reconciling" else "",
            "observedGeneration": 1,
            "lastTransitionTime": ago(300),
        }
        for kind, true, reason in rows
    ]


def running(container: str, **more: Any) -> dict[str, Any]:
    """The status of a pod that runs and is ready; `more` changes its container's."""
    ready = "state" not in more
    return {
        "phase": "Running",
        "startTime": ago(600),
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": ago(600)},
            {"type": "Ready", "status": str(ready), "lastTransitionTime": ago(300)},
        ],
        "containerStatuses": [
            {
                "name": container,
                "image": "penstock-broker:1",
                "imageID": "",
                "ready": ready,
                "restartCount": 0,
                "state": {"running": {"startedAt": ago(600)}},
                **more,
            }
        ],
    }


def to_json(text: str) -> dict[str, Any]:
    """A command's output, which must be one object."""
    found = json.loads(text)
    assert isinstance(found, dict)
    return found
