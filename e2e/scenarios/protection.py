"""Protected from deletion: from kubectl, from the command line, from the end of a namespace."""

from collections.abc import Callable
from functools import partial

from e2e.harness.kubectl import Kubectl
from e2e.harness.penstock import CLUSTERS, RESTRICTED, condition
from e2e.harness.process import CommandError, wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.scenarios.resources import TOPICS, cluster, topic

ON = {"deletion.protection": "true"}
CONFIRM = "penstock.dev/confirm-delete"
CLAIMS = "persistentvolumeclaims"
GUARDED = "guarded"


@scenario("A protected topic: kubectl and the command line are refused, until somebody lifts it")
def protected_topic(stage: Stage) -> None:
    penstock, streams = stage.penstock, stage.penstock.streams
    streams.apply(topic("dear", config=ON, deletionPolicy="Delete"))
    streams.wait_condition(TOPICS, "dear")
    streams.wait(TOPICS, "dear", lambda found: found["status"].get("protected") is True)
    _refused(stage, lambda: streams.delete(TOPICS, "dear"), "Topic dear is protected")
    lift = "--set deletion.protection=false"
    _refused(stage, lambda: penstock.cli("topic", "delete", "dear", "--yes"), lift)

    _confirm(streams, TOPICS, "dear")
    streams.delete(TOPICS, "dear", wait_s=None)
    held = streams.wait(
        TOPICS, "dear", lambda found: condition(found, "Ready").get("reason") == "DeletionProtected"
    )
    stage.expect(lift in held["status"]["message"], f"the Topic says: {held['status']['message']}")
    names = penstock.cli("topic", "list", "-o", "json")
    stage.expect('"dear"' in names, "the topic went although it was protected")
    penstock.cli("topic", "alter", "dear", *lift.split())
    wait_until("the Topic goes", lambda: streams.find(TOPICS, "dear") is None, 60.0)
    names = penstock.cli("topic", "list", "-o", "json")
    stage.expect('"dear"' not in names, "the topic outlived its Topic")


@scenario("A protected Cluster in a protected namespace goes only by name, and then nothing hangs")
def protected_cluster(stage: Stage) -> None:
    kubectl = stage.penstock.operator.in_namespace(GUARDED)
    labels = {**RESTRICTED, "penstock.dev/protected": ""}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": GUARDED, "labels": labels}}
    )
    kubectl.apply([cluster(GUARDED, brokers=1, config=ON, deletionPolicy="Delete",
                           **stage.penstock.security),
                   {**topic("t"), "spec": {"cluster": GUARDED, "partitions": 1, "replicas": 1,
                                           "deletionPolicy": "Delete"}}])  # fmt: skip
    kubectl.wait_condition(TOPICS, "t", deadline_s=240.0)
    kubectl.wait(TOPICS, "t", lambda found: found["status"].get("protected") is True)
    claim = f"data-{GUARDED}-broker-0"
    for kind, name, words in (
        (CLUSTERS, GUARDED, f"Cluster {GUARDED} is protected"),
        (TOPICS, "t", "Topic t is protected"),
        (CLAIMS, claim, f"records of a broker of Cluster {GUARDED}"),
        ("namespace", GUARDED, "has the label penstock.dev/protected"),
    ):
        _refused(stage, partial(kubectl.delete, kind, name), words)
        kubectl.get(kind, name)
    _confirm(kubectl, "namespace", GUARDED)
    kubectl.delete("namespace", GUARDED, wait_s=180.0)


def _refused(stage: Stage, call: Callable[[], object], words: str) -> None:
    try:
        call()
    except CommandError as error:
        said = f"{error}\n{error.output}"
        stage.expect(words in said, f"refused, but without {words!r}: {said}")
    else:
        stage.expect(False, f"not refused with {words!r}")


def _confirm(kubectl: Kubectl, kind: str, name: str) -> None:
    kubectl.patch(kind, name, {"metadata": {"annotations": {CONFIRM: name}}})
