"""What the operator's metrics say of a Cluster with real brokers, value by value."""

from contextlib import ExitStack
from pathlib import Path

from support.apiserver import ApiServer
from support.kubernetes_faults import Operated
from support.operator_process import OURS
from support.waiting import wait_until

from penstock.kubernetes.names import PAUSED


def test_the_metrics_follow_a_cluster_and_its_topics(api_server: ApiServer, tmp_path: Path) -> None:
    namespace = api_server.namespace("metrics")
    with ExitStack() as stack:
        operated = Operated(api_server, tmp_path, stack, namespace)
        assert operated.said("cluster_paused") == 0
        assert operated.said("cluster_stalled", "DrainBlocked") is None
        for name, replicas in (("t", 3), ("too-many", 4)):
            kind = {"apiVersion": "penstock.dev/v1alpha1", "kind": "Topic"}
            spec = {"cluster": "flights", "partitions": 2, "replicas": replicas}
            body = {**kind, "metadata": {"name": name}, "spec": spec}
            api_server.request("POST", f"{OURS}/namespaces/{namespace}/topics", body)
        wait_until(lambda: operated.said("topic_ready", "t") == 1, what="t is Ready")
        wait_until(
            lambda: operated.said("topic_ready", "too-many") == 0, what="the other one is not"
        )
        api_server.request("DELETE", f"{OURS}/namespaces/{namespace}/topics/too-many")
        wait_until(lambda: operated.said("topic_ready", "too-many") is None, what="it is forgotten")
        operated.change({"spec": {"brokers": 2}})
        wait_until(
            lambda: operated.said("cluster_stalled", "DrainBlocked") == 1, what="it is stalled"
        )
        operated.change({"spec": {"brokers": 3}})
        wait_until(
            lambda: operated.said("cluster_stalled", "DrainBlocked") is None, what="not stalled"
        )
        operated.change({"metadata": {"annotations": {PAUSED: "true"}}})
        wait_until(lambda: operated.said("cluster_paused") == 1, what="it is paused")
