"""`RotatingPods` whose operator finds the Cluster Ready: it reaches brokers and sees their pods.

There is no DNS for the names of pods, and no kubelet that says that they are ready. So an operator
that knows the brokers' addresses takes the place of the first one, and pods are as the template of
the StatefulSet makes them.
"""

from datetime import UTC, datetime
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from support import reaching_operator
from support.apiserver import ApiServer
from support.operator_process import Operator, get
from support.rotating_load import TOPIC, Producing, login
from support.rotating_pods import BROKERS, CONTROLLERS, MERGE, RotatingPods
from support.waiting import wait_until

from penstock.client import Admin
from penstock_operator.names import METRICS_PORT, POD_INDEX, Names


class ReachedPods(RotatingPods):
    """See the module. `become_ready` first."""

    def make_namespace(self) -> str:
        """As other recordings have it."""
        metadata = {"metadata": {"name": "streams"}}
        made = self.server.request("POST", "/api/v1/namespaces", metadata)
        return str(made["metadata"]["name"])

    def become_ready(self) -> None:
        """With a producer that goes on."""
        self.start_all()
        with Admin(self.bootstrap, **login(self)) as admin:  # type: ignore[arg-type]
            admin.create_topic(TOPIC, 1, BROKERS)
        self.stack.enter_context(Producing(self))
        self.end_operator()
        self.operator = Operator(
            self.server,
            self.path,
            namespace=self.names.namespace,
            watch=self.names.namespace,
            launcher=reaching_operator.LAUNCHER,
            environment={reaching_operator.BOOTSTRAP: self.bootstrap},
        )
        self.stack.callback(self.operator.kill)
        tell_rolled_out(self.server, self.names, CONTROLLERS)
        wait_until(lambda: self.said("ready") == 1, what="it is Ready", timeout_s=120)

    @property
    def targets(self) -> dict[str, str]:
        """Addresses of metrics, by instance."""
        kinds = (("broker", BROKERS), ("controller", CONTROLLERS))
        pods = [f"{kind}-{index}" for kind, count in kinds for index in range(count)]
        return {
            **{pod: self.port(pod, METRICS_PORT) for pod in pods},
            "operator": self.operator.address,
        }

    def said(self, name: str, **labels: str) -> float | None:
        """What the operator exports of this Cluster; None: nothing."""
        try:
            page = self.operator.ask("/metrics")
        except OSError:
            return None
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                wanted = sample.name == f"penstock_operator_cluster_{name}"
                if wanted and labels.items() <= sample.labels.items():
                    return float(sample.value)
        return None

    def lose_authority(self) -> None:
        """Deletes the Secret of the CA, and waits until the Cluster says so."""
        secrets = f"/api/v1/namespaces/{self.names.namespace}/secrets"
        self.server.request("DELETE", f"{secrets}/{self.names.authority}")
        wait_until(
            lambda: self.said("stalled", reason="AuthorityLost") == 1,
            what="the Cluster says so",
            timeout_s=120,
        )

    def make_pod(self, name: str, account: str) -> None:
        """As the StatefulSet's controller makes it, and ready as a kubelet says it."""
        found = self.waited("/apis/apps/v1", "statefulsets", self.names.broker)
        template: dict[str, Any] = found["spec"]["template"]
        labels = {**template["metadata"]["labels"], POD_INDEX: name.rpartition("-")[2]}
        containers = template["spec"]["containers"]
        containers[0].pop("volumeMounts")
        body = {
            "metadata": {**template["metadata"], "name": name, "labels": labels},
            "spec": {"serviceAccountName": account, "containers": containers},
        }
        pods = f"/api/v1/namespaces/{self.names.namespace}/pods"
        self.server.request("POST", pods, body)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
        status = {"status": {"conditions": [ready]}}
        self.server.request("PATCH", f"{pods}/{name}/status", status, Content_Type=MERGE)


def tell_rolled_out(server: ApiServer, names: Names, controllers: int) -> None:
    """What the Deployment's controller says of a Cluster's controllers."""
    path = f"/apis/apps/v1/namespaces/{names.namespace}/deployments/{names.controller}"
    found = wait_until(lambda: get(server, path), what="the Deployment", timeout_s=60)
    counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    status = dict.fromkeys(counts, controllers)
    status["observedGeneration"] = found["metadata"]["generation"]
    server.request("PATCH", f"{path}/status", {"status": status}, Content_Type=MERGE)
