"""Broker pods that are deleted while records are written."""

import time

from e2e.harness.scenario import Stage, scenario


@scenario("The leader's pod is deleted under load", short=True)
def leader_pod_deleted(stage: Stage) -> None:
    """Others lead at once; the pod comes back under its name with its volume and catches up."""
    penstock, load = stage.penstock, stage.load()
    with stage.workload(load) as running:
        running.started()
        running.goes_on()
        leader = penstock.leader(load.topic)
        stage.say(f"deleting {penstock.pod(leader)}")
        before = penstock.streams.get("pod", penstock.pod(leader))["metadata"]["uid"]
        began = time.monotonic()
        penstock.streams.delete("pod", penstock.pod(leader), wait_s=None)
        penstock.wait_replaced(penstock.pod(leader), before)
        penstock.wait_brokers(3)
        stage.measure("pod back and ready", time.monotonic() - began)
        penstock.wait_in_sync(load.topic)
        stage.measure("all replicas in sync", time.monotonic() - began)
        running.goes_on()
    penstock.wait_ready()


def delete_all_brokers(stage: Stage) -> None:
    """All pods at once, without grace; returns when their successors are ready."""
    penstock = stage.penstock
    pods = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in penstock.broker_pods()}
    stage.expect(len(pods) == 3, f"three brokers wanted, seen {sorted(pods)}")
    penstock.streams.delete("pod", *pods, now=True, wait_s=None)
    for name, uid in pods.items():
        penstock.wait_replaced(name, uid)
    penstock.wait_brokers(3)


@scenario("All broker pods are deleted at once under load", short=True)
def all_broker_pods_deleted(stage: Stage) -> None:
    """No broker serves for a while; then everything that was acknowledged is there."""
    penstock, load = stage.penstock, stage.load()
    with stage.workload(load) as running:
        running.started()
        running.goes_on()
        began = time.monotonic()
        delete_all_brokers(stage)
        stage.measure("brokers back and ready", time.monotonic() - began)
        penstock.wait_in_sync(load.topic)
        stage.measure("all replicas in sync", time.monotonic() - began)
        running.goes_on()
    penstock.wait_ready()
