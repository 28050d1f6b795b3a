"""The CA of a Strict Cluster is replaced by another under load, and no pod notices.

    kubectl penstock rotate-ca ─▶ operator: Secret ─▶ kubelets ─▶ controllers ─▶ trust ─▶ kubelets

Kubelets bring each change to the volumes within a minute or two: that is what takes time here.
"""

import time

from e2e.harness.kubectl import Manifest
from e2e.harness.penstock import CLUSTERS, condition
from e2e.harness.plugin import STREAMS_CLUSTER, plugin
from e2e.harness.process import wait_until
from e2e.harness.scenario import Stage, scenario

ROTATING = "RotatingCA"
ANNOTATION = "penstock.dev/rotate-ca-wait-seconds"
CLIENTS_S = 150
"""For this load, which reads its trust every 10 s; a kubelet needs two minutes at most."""
STEP_S = 300.0
PHASES = ("TrustingBoth", "WaitingForClients", "RenewingCertificates", "DroppingOld")


@scenario("The CA is rotated under load: no pod restarts, no acknowledgement fails")
def rotate_ca(stage: Stage) -> None:
    """There and back, so that either Secret has its turn; a controller is killed half-way."""
    if not stage.penstock.strict:
        stage.say("a Cluster in plaintext has no CA")
        return
    streams, cluster = stage.penstock.streams, stage.penstock.cluster
    streams.patch(CLUSTERS, cluster, {"metadata": {"annotations": {ANNOTATION: f"{CLIENTS_S}"}}})
    with stage.workload() as running:
        running.started()
        before, pods = _trust(stage), _pods(stage)
        began = time.monotonic()
        shown = _rotate(stage)
        stage.expect(shown, "no phase was seen")
        stage.measure("CA rotated", time.monotonic() - began)
        running.goes_on()
        after = _trust(stage)
        stage.expect(after.count("BEGIN CERTIFICATE") == 1, "not one CA is trusted")
        stage.expect(after != before, "the CA is the same")
        stage.expect(_pods(stage) == pods, f"pods restarted: {pods} became {_pods(stage)}")

        _begin(stage)
        _wait_phase(stage, PHASES[1])
        victim = stage.penstock.controller_pods()[0]["metadata"]["name"]
        stage.nodes.kill_process(victim, streams)
        _wait_over(stage)
        running.goes_on()
        stage.expect(_trust(stage) != after, "the CA is the same")
        secrets = {each["metadata"]["name"] for each in streams.list("secret")}
        stage.expect(f"{cluster}-ca" in secrets, "the first Secret did not have its turn")
        stage.expect(f"{cluster}-ca-2" not in secrets, "the old CA's key is there still")
        failed = running.finish().figures["failed"]
        stage.expect(failed == 0, f"{failed} records were not acknowledged")
    stage.penstock.wait_ready()


def _rotate(stage: Stage) -> list[str]:
    """Until it is over; the phases that were seen on the way."""
    _begin(stage)
    seen = []
    for phase in PHASES:
        _wait_phase(stage, phase)
        seen.append(phase)
        stage.say(plugin("why", *STREAMS_CLUSTER).strip().splitlines()[-1])
    _wait_over(stage)
    return seen


def _begin(stage: Stage) -> None:
    plugin("rotate-ca", *STREAMS_CLUSTER)
    wait_until("the CA rotates", lambda: _rotating(stage).get("status") == "True", STEP_S)


def _rotating(stage: Stage) -> Manifest:
    return condition(stage.penstock.streams.get(CLUSTERS, stage.penstock.cluster), ROTATING)


def _wait_phase(stage: Stage, phase: str) -> None:
    """Until this phase or a later one; phases can be shorter than the operator's pause."""
    later = {*PHASES[PHASES.index(phase) :], "RemovingOldKey", "Settled"}
    wait_until(f"CA: {phase}", lambda: _rotating(stage).get("reason") in later, STEP_S)


def _wait_over(stage: Stage) -> None:
    wait_until("the CA is rotated", lambda: _rotating(stage).get("status") == "False", 3 * STEP_S)


def _trust(stage: Stage) -> str:
    name = f"{stage.penstock.cluster}-trust"
    return str(stage.penstock.streams.get("configmap", name)["data"]["ca.crt"])


def _pods(stage: Stage) -> dict[str, int]:
    """Restarts of each pod, by its uid."""
    found = [*stage.penstock.broker_pods(), *stage.penstock.controller_pods()]
    return {
        pod["metadata"]["uid"]: sum(
            each["restartCount"] for each in pod["status"]["containerStatuses"]
        )
        for pod in found
    }
