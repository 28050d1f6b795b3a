"""Clusters, releases and namespaces that go, and what is left of them."""

import json
import time

from e2e.harness.penstock import CLUSTERS, OPERATOR_NAMESPACE, RELEASE, RESTRICTED
from e2e.harness.process import run, wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.scenarios.resources import TOPICS, cluster, topic

RECORDS = 500


def write_and_count(stage: Stage, *, write: bool) -> int:
    """Records of the topic `kept`, after writing RECORDS more if asked."""
    penstock = stage.penstock
    if write:
        penstock.produce_numbers("kept", RECORDS)
    shown = json.loads(penstock.cli("offsets", "kept", "-o", "json"))
    rows = shown if isinstance(shown, list) else shown["partitions"]
    return sum(int(each["latest"]) - int(each["earliest"]) for each in rows)


@scenario("A Cluster is deleted with Retain and created again: the data is there", short=True)
def cluster_retained(stage: Stage) -> None:
    penstock, streams = stage.penstock, stage.penstock.streams
    streams.apply(topic("kept"))
    streams.wait_condition(TOPICS, "kept")
    before = write_and_count(stage, write=True)
    identity = streams.get(CLUSTERS, penstock.cluster)["status"]["clusterId"]
    streams.delete(CLUSTERS, penstock.cluster, wait_s=120.0)
    wait_until("pods gone", lambda: not penstock.broker_pods(), 120.0)
    claims = {each["metadata"]["name"] for each in streams.list("pvc")}
    lost = {f"data-{penstock.cluster}-broker-{number}" for number in range(3)} - claims
    stage.expect(not lost, f"volumes are gone: {sorted(lost)}")
    penstock.create()
    again = streams.get(CLUSTERS, penstock.cluster)["status"]["clusterId"]
    stage.expect(again == identity, f"it is another cluster now: {again}, was {identity}")
    after = write_and_count(stage, write=False)
    stage.expect(after == before, f"{before} records before, {after} after")
    streams.delete(TOPICS, "kept")
    penstock.cli("topic", "delete", "kept", "--yes")


@scenario("A Cluster is deleted with Delete: nothing is left behind", short=True)
def cluster_deleted(stage: Stage) -> None:
    streams = stage.penstock.streams
    streams.apply([cluster("gone", deletionPolicy="Delete", **stage.penstock.security),
                   {**topic("gone-topic"), "spec": {"cluster": "gone", "partitions": 1,
                                                    "deletionPolicy": "Delete"}}])  # fmt: skip
    streams.wait_condition(CLUSTERS, "gone", deadline_s=240.0)
    streams.wait_condition(TOPICS, "gone-topic")
    streams.delete(CLUSTERS, "gone", wait_s=120.0)
    kinds = "statefulset,deployment,service,pod,pvc,configmap,lease,role,rolebinding,pdb"

    def left() -> list[str]:
        found = streams.list(kinds, "penstock.dev/cluster=gone")
        return [f"{each['kind']}/{each['metadata']['name']}" for each in found]

    wait_until("nothing left", lambda: not left(), 120.0)
    streams.delete(TOPICS, "gone-topic")


@scenario("The chart is uninstalled: Clusters, CRDs and data stay, records flow")
def chart_uninstalled(stage: Stage) -> None:
    penstock = stage.penstock
    with stage.workload() as running:
        running.started()
        run("helm", "uninstall", RELEASE, "-n", OPERATOR_NAMESPACE, "--wait", timeout_s=120.0)
        penstock.streams.get(CLUSTERS, penstock.cluster)
        running.goes_on()
        # Another controller must be able to take over, and to name another leader.
        for pod in penstock.controller_pods():
            penstock.streams.delete("pod", pod["metadata"]["name"], now=True, wait_s=None)
        penstock.kill_pod(penstock.pod(penstock.leader(running.topic)))
        running.goes_on()
        penstock.install(stage.images)
        running.goes_on()
    penstock.wait_ready()


@scenario("A namespace is deleted with a Cluster in it: no finalizer hangs")
def namespace_deleted(stage: Stage) -> None:
    name = "doomed"
    kubectl = stage.penstock.operator.in_namespace(name)
    labels = {"name": name, "labels": RESTRICTED}
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": labels})
    kubectl.apply([cluster("doomed", brokers=1, **stage.penstock.security),
                   {**topic("t"), "spec": {"cluster": "doomed", "partitions": 1, "replicas": 1,
                                           "deletionPolicy": "Delete"}}])  # fmt: skip
    kubectl.wait_condition(TOPICS, "t", deadline_s=240.0)
    began = time.monotonic()
    kubectl.delete("namespace", name, wait_s=180.0)
    stage.measure("namespace gone", time.monotonic() - began)


@scenario("A broker on another broker's volume is refused")
def wrong_volume(stage: Stage) -> None:
    """Broker 2 finds the mark of broker 1 in its directory: it does not start, and says why."""
    penstock, streams = stage.penstock, stage.penstock.streams
    pod = penstock.pod(2)
    node = stage.nodes.of_pod(pod, streams)
    mark = f"{volume(stage, f'data-{pod}')}/data/meta.json"
    mine = stage.nodes.shell(node, f"cat {mark}")
    theirs = json.dumps({**json.loads(mine), "broker_id": 1})
    stage.nodes.kill_process(pod, streams)
    stage.nodes.shell(node, f"cat >{mark} <<'EOF'\n{theirs}\nEOF")
    streams.call("delete", "pod", pod, "--wait=false")
    refused = wait_until("the broker is refused", lambda: _said(stage, "broker 1"), 120.0)
    stage.say(str(refused))
    stage.nodes.shell(node, f"cat >{mark} <<'EOF'\n{mine}\nEOF")
    penstock.wait_brokers(3, 240.0)
    penstock.wait_ready()


def volume(stage: Stage, claim: str) -> str:
    """The directory of a claimed volume on its node."""
    bound = stage.penstock.streams.get("pvc", claim)
    found = stage.kubectl.get("pv", bound["spec"]["volumeName"])["spec"]
    return str((found.get("hostPath") or found["local"])["path"])


def _said(stage: Stage, words: str) -> str | None:
    """The Cluster's message, if these words are in it."""
    found = stage.penstock.streams.get(CLUSTERS, stage.penstock.cluster)
    message = str(found.get("status", {}).get("message", ""))
    return message if words in message else None
