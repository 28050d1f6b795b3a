"""What the operator reads from pods and claims, as the kubelet and the provisioner write them."""

from dataclasses import replace
from typing import Any

import pytest
from support.operator_world import desired, settled

from penstock.core.manifest.objects import SecurityMode
from penstock_operator.model import PodState, Severity, Wait
from penstock_operator.names import RACK, TEMPLATE_HASH
from penstock_operator.observe import pod_state
from penstock_operator.plan import plan_cluster
from penstock_operator.volume_model import ClaimState
from penstock_operator.volumes import claim_state

CRASH = {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}
OUT = {"exitCode": 1, "reason": "Error", "message": "starting\nthe disk is full\n"}


SIDECAR_STATUS = {"name": "agent", "ready": True, "restartCount": 0, "state": {"running": {}}}
"""Of a container that others put first."""


def pod(*, container: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    if container is not None:
        status["containerStatuses"] = [SIDECAR_STATUS, {"name": "broker", **container}]
    return {
        "metadata": {
            "name": "flights-broker-2",
            "uid": "uid-2",
            "annotations": {TEMPLATE_HASH: "abc", RACK: "east"},
        },
        "spec": {
            "containers": [
                {"name": "istio-proxy", "image": "proxy:1", "args": ["proxy"]},
                {"name": "broker", "image": "broker:1", "args": ["broker", "--enrol-at=x"]},
            ],
            "nodeName": "node-1",
        },
        "status": status,
    }


def test_a_pod_is_read_whole() -> None:
    ready = [{"type": "Initialized", "status": "False"}, {"type": "Ready", "status": "True"}]
    seen = pod_state(2, pod(container={"ready": True, "restartCount": 3}, conditions=ready))
    assert seen == PodState(
        broker_id=2,
        name="flights-broker-2",
        uid="uid-2",
        ready=True,
        terminating=False,
        template_hash="abc",
        image="broker:1",
        node="node-1",
        rack="east",
        trouble="",
        restarts=3,
        mode=SecurityMode.STRICT,
    )


def test_a_pod_without_our_container_has_a_mode_that_nobody_knows() -> None:
    body = pod(container={"ready": True})
    body["spec"]["containers"].pop()
    body["status"]["containerStatuses"].pop()
    seen = pod_state(2, body)
    assert (seen.mode, seen.image, seen.restarts, seen.trouble) == (None, "", 0, "")
    assert SecurityMode.of_controller(body) is None


def test_a_pod_that_nobody_has_run_yet_is_not_ready() -> None:
    body = pod()
    body["metadata"] = {"name": "flights-broker-11", "uid": "u", "deletionTimestamp": "now"}
    body["spec"] = {"containers": [{"name": "broker"}]}
    del body["status"]
    seen = pod_state(11, body)
    assert (seen.broker_id, seen.ready, seen.terminating) == (11, False, True)
    assert (seen.template_hash, seen.image, seen.node, seen.rack) == ("", "", "", "")
    assert (seen.trouble, seen.restarts) == ("", 0)


@pytest.mark.parametrize(
    ("container", "trouble"),
    [
        ({"state": {"waiting": {"reason": "ContainerCreating"}}}, ""),
        ({"state": {"waiting": {"reason": "PodInitializing"}}}, ""),
        (
            {"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}},
            "ErrImagePull: no such image",
        ),
        ({"state": {"waiting": {"reason": "InvalidImageName"}}}, "InvalidImageName"),
        (
            {"state": {"waiting": CRASH}, "lastState": {"terminated": OUT}},
            "it exited with code 1: the disk is full",
        ),
        (
            {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}},
            "it exited with code 137: OOMKilled",
        ),
        (
            {"state": {"waiting": CRASH}},
            "CrashLoopBackOff: back-off 40s restarting failed container",
        ),
        ({"state": {"running": {}}, "lastState": {"terminated": OUT}}, ""),
        ({"state": {"running": {}}, "lastState": {"terminated": OUT}, "ready": True}, ""),
    ],
)
def test_why_a_container_does_not_run(container: dict[str, Any], trouble: str) -> None:
    assert pod_state(2, pod(container=container)).trouble == trouble


DONE = {"exitCode": 0, "reason": "Completed"}
QUIET = {"state": {"waiting": {"reason": "PodInitializing"}}}


@pytest.mark.parametrize(
    ("first", "second", "beside"),
    [
        (
            {"state": {"waiting": CRASH}, "lastState": {"terminated": OUT}, "restartCount": 4},
            {},
            ("container mesh-init: it exited with code 1: the disk is full", 4),
        ),
        (
            {"state": {"terminated": DONE}, "ready": True},
            {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}},
            ("container mesh-proxy: ImagePullBackOff: no such image", 0),
        ),
        ({"state": {"terminated": DONE}}, {"state": {"running": {}}, "ready": True}, ("", 0)),
        ({"state": {"running": {}}, "lastState": {"terminated": OUT}}, QUIET, ("", 0)),
    ],
)
def test_why_containers_of_others_do_not_run(
    first: dict[str, Any], second: dict[str, Any], beside: tuple[str, int]
) -> None:
    """It is no trouble of the broker, which may run and have all its records."""
    found = pod(container=QUIET, initContainerStatuses=[{"name": "mesh-init", **first}])
    found["status"]["containerStatuses"].append({"name": "mesh-proxy", **second})
    seen = pod_state(2, found)
    assert (seen.beside, seen.beside_restarts) == beside
    assert seen.trouble == ""


def test_a_pod_that_cannot_be_scheduled_says_so_first() -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes fit"}
    seen = pod_state(2, pod(container={"state": {"waiting": CRASH}}, conditions=[unscheduled]))
    assert seen.trouble == "it cannot be scheduled: 0/3 nodes fit"
    scheduled = {"type": "PodScheduled", "status": "True", "message": "fits"}
    assert pod_state(2, pod(conditions=[scheduled])).trouble == ""


@pytest.mark.parametrize(
    ("is_ready", "since", "shown", "start_s"),
    [
        ("True", "2026-01-01T00:00:40Z", "2026-01-01T00:00:40Z", 40),
        ("True", None, "2026-01-01T00:00:00Z", 0),
        ("False", "2026-01-01T00:00:40Z", "", 0),
    ],
)
def test_since_when_a_pod_is_ready_is_what_its_kubelet_says(
    is_ready: str, since: str | None, shown: str, start_s: int
) -> None:
    ready = {"type": "Ready", "status": is_ready, "lastTransitionTime": since}
    made = pod(conditions=[{"type": "Initialized", "status": "True"}, ready])
    made["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    seen = pod_state(2, made)
    assert (seen.ready_since, seen.start_s) == (shown, start_s)


def test_a_claim_is_read_whole() -> None:
    claim = {
        "metadata": {"name": "data-flights-broker-1", "uid": "u1"},
        "spec": {"resources": {"requests": {"storage": "20Gi"}}},
        "status": {
            "capacity": {"storage": "10Gi"},
            "conditions": [
                {"type": "Resizing", "status": "True"},
                {"type": "FileSystemResizePending", "status": "True", "message": "waiting"},
                {"type": "Other", "status": "False", "message": "not this"},
            ],
        },
    }
    assert claim_state(1, claim, expandable=True) == ClaimState(
        broker_id=1,
        name="data-flights-broker-1",
        uid="u1",
        requested=20 << 30,
        capacity=10 << 30,
        expandable=True,
        resizing="Resizing; waiting",
    )
    del claim["status"]
    unbound = claim_state(1, claim, expandable=False)
    assert (unbound.capacity, unbound.expandable, unbound.resizing) == (0, False, "")


@pytest.mark.parametrize(
    ("restarts", "severity"), [(1, Severity.PROGRESS), (2, Severity.BLOCKED), (9, Severity.BLOCKED)]
)
def test_a_cluster_says_which_container_of_others_it_waits_for(
    restarts: int, severity: Severity
) -> None:
    wish = desired()
    world = settled(wish)
    why = "container mesh-init: it exited with code 1: no route"
    world.pods[1] = replace(world.pods[1], ready=False, beside=why, beside_restarts=restarts)
    text = f"pod flights-broker-1 is not ready: {why}"
    assert Wait("PodNotRunning", text, severity) in plan_cluster(wish, world.observed()).waits
