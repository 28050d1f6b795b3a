"""Those who decide are unavailable: operators, controllers, the API server."""

import time
from functools import partial

from e2e.harness.kubectl import Kubectl
from e2e.harness.penstock import CLUSTERS, OPERATOR_SELECTOR
from e2e.harness.process import wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.scenarios.operations import ROLL_S, restore, rolled, uids

OUTAGE_S = 120.0
AWAY_GAP_S = 5.0
"""A broker's death while the API is unavailable: noticed after 1.8 s, then decided without it."""


def operator_pods(stage: Stage) -> list[str]:
    pods = stage.penstock.operator.list("pod", OPERATOR_SELECTOR)
    return [pod["metadata"]["name"] for pod in pods]


def kill_operators(stage: Stage) -> None:
    """All at once; others take their places."""
    stage.penstock.operator.delete("pod", *operator_pods(stage), now=True, wait_s=None)


def kill_controllers(stage: Stage) -> None:
    """As `kill_operators`."""
    penstock = stage.penstock
    names = [pod["metadata"]["name"] for pod in penstock.controller_pods()]
    penstock.streams.delete("pod", *names, now=True, wait_s=None)


@scenario("Operators are killed at every step of a roll")
def operator_killed_in_a_roll(stage: Stage) -> None:
    """All pods of the operator are killed whenever a broker restarts; the roll still succeeds."""
    penstock, load = stage.penstock, stage.load()
    with stage.workload(load) as running:
        running.started()
        before = uids(stage)
        penstock.streams.patch(
            CLUSTERS, penstock.cluster, {"spec": {"config": {"cache.bytes": 41_000_000}}}
        )
        for step in range(1, 4):
            wait_until(
                f"{step} brokers restarted",
                partial(_has_restarted, stage, before, step),
                ROLL_S,
            )
            kill_operators(stage)
        wait_until("brokers restarted", lambda: rolled(stage, before), ROLL_S)
        running.goes_on()
        verdict = running.finish()
    stage.measure("longest write gap of a partition", verdict.partition_write_gap_s)
    restore(stage, {"spec": {"config": {"cache.bytes": None}}})


def _has_restarted(stage: Stage, before: dict[str, str], brokers: int) -> bool:
    return len(set(uids(stage).values()) - set(before.values())) >= brokers


@scenario("Two operators act at once")
def two_operators(stage: Stage) -> None:
    """The Lease is taken from the active one, again and again, in the middle of a roll."""
    penstock, load = stage.penstock, stage.load()
    with stage.workload(load) as running:
        running.started()
        before = uids(stage)
        penstock.streams.patch(
            CLUSTERS, penstock.cluster, {"spec": {"config": {"cache.bytes": 42_000_000}}}
        )
        for _ in range(5):
            steal_lease(penstock.operator)
            running.goes_on(20)
        wait_until("brokers restarted", lambda: rolled(stage, before), ROLL_S)
        running.goes_on()
        verdict = running.finish()
    stage.measure("longest write gap of a partition", verdict.partition_write_gap_s)
    restore(stage, {"spec": {"config": {"cache.bytes": None}}})


def steal_lease(kubectl: Kubectl) -> None:
    """Nobody holds the Lease: the standby takes it while the other still believes it has it."""
    kubectl.patch("lease", "penstock-operator", {"spec": {"holderIdentity": ""}})


@scenario("Both controllers are killed", short=True)
def controllers_killed(stage: Stage) -> None:
    """Reads and writes continue; a leader then dies and is replaced: controllers decide again."""
    penstock, load = stage.penstock, stage.load()
    with stage.workload(load) as running:
        running.started()
        kill_controllers(stage)
        running.goes_on(30, 30.0)
        began = time.monotonic()
        penstock.wait_ready()
        stage.measure("controllers back", time.monotonic() - began)
        pod = penstock.pod(penstock.leader(load.topic))
        stage.nodes.kill_process(pod, penstock.streams)
        running.goes_on(50, 60.0)
        penstock.wait_brokers(3)
        penstock.wait_in_sync(load.topic)
    penstock.wait_ready()


@scenario("The API server is unavailable for two minutes")
def api_server_away(stage: Stage) -> None:
    """Reads and writes continue for a minute; then a broker dies, and they still continue.

    The brokers keep what the controller decides meanwhile: others lead, the ISR shrinks and, with
    the broker back, grows. All of it is in the API server's objects after the outage.
    """
    penstock, load = stage.penstock, stage.load()
    with stage.workload(load) as running:
        running.started()
        victim = penstock.pod(penstock.leader(load.topic))
        place = stage.nodes.place(victim, penstock.streams)
        numbers = " ".join(map(str, stage.nodes.processes(place)))
        began = time.monotonic()
        with stage.api_server.away("hang"):
            until = began + OUTAGE_S / 2
            wait_until("half of the outage", lambda: time.monotonic() > until, OUTAGE_S)
            stage.nodes.shell(place.node, f"kill -KILL {numbers}")
            until = began + OUTAGE_S
            wait_until("the other half", lambda: time.monotonic() > until, OUTAGE_S)
        began = time.monotonic()
        running.goes_on(50, 120.0)
        penstock.wait_brokers(3, 240.0)
        penstock.wait_in_sync(load.topic, 240.0)
        stage.measure("all well after the outage", time.monotonic() - began)
        running.goes_on()
        verdict = running.finish()
    stage.measure("longest write gap", verdict.write_gap_s, limit=AWAY_GAP_S)
    stage.measure("longest write gap of a partition", verdict.partition_write_gap_s)
    penstock.wait_ready(240.0)
