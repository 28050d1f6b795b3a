"""A Cluster in plaintext becomes Strict under load, and goes back one step.

    Disabled ── Migrate ──▶ both, clients move ── Strict, once nobody uses plaintext ──▶ Strict
                    ◀───────────────────────── Migrate ─────────────────────────────────────┘

Each roll carries a recorded workload, which is judged: nothing acknowledged is lost.
"""

import time

from e2e.harness.images import BROKER
from e2e.harness.kubectl import Kubectl
from e2e.harness.login import Login
from e2e.harness.penstock import CLUSTERS, RESTRICTED, Penstock, condition
from e2e.harness.plugin import plugin
from e2e.harness.process import wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.harness.workload import Load, Workload
from e2e.scenarios.resources import cluster

NAMESPACE = "moving"
CLUSTER = "stocks"
PLAIN = "by-plaintext"
SECURED = "by-tls"
LOGIN = Login("load", f"{CLUSTER}-trust", f"penstock.{NAMESPACE}.{CLUSTER}")
SECURE_BOOTSTRAP = f"{CLUSTER}-bootstrap.{NAMESPACE}.svc:9095"
READY_S = 240.0
ROLL_S = 600.0
QUIET_S = 900.0
"""The ten minutes of the gate, and some time to see it."""
SKIP = "penstock.dev/skip-plaintext-gate"


@scenario("From plaintext to Strict under load, and one step back")
def migrate(stage: Stage) -> None:
    """The gate holds while a plaintext client writes, and opens ten minutes after its end."""
    kubectl = stage.kubectl.in_namespace(NAMESPACE)
    moving = Penstock(stage.kubectl, CLUSTER, NAMESPACE)
    kubectl.apply(
        {"apiVersion": "v1", "kind": "Namespace",
         "metadata": {"name": NAMESPACE, "labels": RESTRICTED}}
    )  # fmt: skip
    try:
        config = {"default.replication.factor": 3, "min.insync.replicas": 2}
        kubectl.apply(cluster(CLUSTER, security={"mode": "Disabled"}, config=config,
                              deletionPolicy="Delete"))  # fmt: skip
        kubectl.wait_condition(CLUSTERS, CLUSTER, deadline_s=READY_S)
        plain = Load(moving.bootstrap, PLAIN, group="readers")
        with Workload(kubectl, plain, BROKER.tag, stage.logs) as running:
            running.started()
            _roll(stage, moving, kubectl, "Migrate", "Migrating")
            running.goes_on()
            _is_held_back(stage, kubectl)
            running.goes_on()
            _judge(stage, running)
        _allow(kubectl)
        secured = Load(SECURE_BOOTSTRAP, SECURED, transactions=True)
        with Workload(kubectl, secured, BROKER.tag, stage.logs, LOGIN) as running:
            running.started()
            _roll(stage, moving, kubectl, "Strict", "Strict", QUIET_S)
            running.goes_on()
            _roll(stage, moving, kubectl, "Migrate", "Migrating")
            running.goes_on()
            _judge(stage, running)
    finally:
        kubectl.delete(CLUSTERS, CLUSTER, wait_s=120.0)
        kubectl.delete("namespace", NAMESPACE, wait_s=120.0)


def _set(kubectl: Kubectl, mode: str) -> None:
    kubectl.patch(CLUSTERS, CLUSTER, {"spec": {"security": {"mode": mode}}})


def _secured(kubectl: Kubectl) -> str:
    """The reason of its condition: what the weakest broker does."""
    return str(condition(kubectl.get(CLUSTERS, CLUSTER), "Secured").get("reason"))


def _roll(
    stage: Stage, moving: Penstock, kubectl: Kubectl, mode: str, reason: str, extra_s: float = 0.0
) -> None:
    """To that mode, and until nothing is left to be done."""
    began = time.monotonic()
    _set(kubectl, mode)
    wait_until(f"Secured says {reason}", lambda: _secured(kubectl) == reason, ROLL_S + extra_s)
    moving.wait_settled(ROLL_S)
    stage.measure(f"roll to {mode}", time.monotonic() - began)


def _is_held_back(stage: Stage, kubectl: Kubectl) -> None:
    """Strict is asked for while the workload writes in plaintext; taken back again."""
    _set(kubectl, "Strict")

    def stalled() -> str:
        found = condition(kubectl.get(CLUSTERS, CLUSTER), "Stalled")
        said = str(found.get("message")) if found.get("reason") == "PlaintextClients" else ""
        return said if "plaintext clients:" in said else ""

    wait_until("Strict waits for plaintext clients", lambda: bool(stalled()), 120.0)
    said = stalled()
    stage.say(said)
    stage.expect(SKIP in said, f"not said how to go on regardless: {said}")
    stage.expect(_secured(kubectl) == "Migrating", "plaintext ended although it is used")
    _set(kubectl, "Migrate")


def _allow(kubectl: Kubectl) -> None:
    """The workload's account may do what it does, over TLS."""
    kubectl.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": LOGIN.account}}
    )
    who = f"serviceaccount:{NAMESPACE}/{LOGIN.account}"
    at = ("--cluster", f"{NAMESPACE}/{CLUSTER}")
    operations = ("create", "read", "write", "describe")
    plugin(*at, "acl", "allow", who, *operations, "--topic-prefix", SECURED)
    plugin(*at, "acl", "allow", who, "write", "--transactional-id-prefix", "verify-")


def _judge(stage: Stage, running: Workload) -> None:
    verdict = running.finish()
    stage.verdicts.append(verdict)
    stage.say(f"{verdict}; longest write gap {verdict.write_gap_s:.2f} s")
    stage.expect(verdict.passed, f"{running.topic}: {verdict}")
