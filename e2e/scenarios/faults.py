"""Processes and nodes that die, hang or come back, while records are written."""

import time

from e2e.harness.process import wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.harness.workload import Workload

FROZEN_S = 20.0
"""Beyond every timeout: sessions (1.8 s), keepalive (15 s), the Lease (6 s)."""


def settle(stage: Stage, load: Workload, topic: str, began: float) -> None:
    """Waits until all is well again, measured from `began`, and that records are written."""
    stage.penstock.wait_brokers(3, 240.0)
    stage.penstock.wait_in_sync(topic, 240.0)
    stage.measure("all replicas in sync", time.monotonic() - began)
    load.goes_on()


def worker_of_a_leader(stage: Stage, topic: str) -> str:
    """A worker node that leads a partition; the control plane's node is left alone here."""
    workers = set(stage.nodes.workers())
    for partition in stage.penstock.partitions(topic):
        if partition.leader is not None:
            pod = stage.penstock.pod(partition.leader)
            node = stage.nodes.of_pod(pod, stage.penstock.streams)
            if node in workers:
                return node
    return min(workers)


@scenario("The leader's process is killed with SIGKILL inside its pod", short=True)
def leader_process_killed(stage: Stage) -> None:
    """The kubelet starts the container again, in the same pod and on the same data."""
    penstock, load = stage.penstock, stage.load()
    with stage.workload(load) as running:
        running.started()
        pod = penstock.pod(penstock.leader(load.topic))
        began = time.monotonic()
        stage.nodes.kill_process(pod, penstock.streams)
        wait_until("container started again", lambda: _restarts(stage, pod) > 0, 60.0)
        settle(stage, running, load.topic, began)
    penstock.wait_ready()


def _restarts(stage: Stage, pod: str) -> int:
    statuses = stage.penstock.streams.get("pod", pod)["status"].get("containerStatuses", [])
    return sum(int(each["restartCount"]) for each in statuses)


@scenario("Leader pods are killed one after the other, twenty times")
def leader_killed_twenty_times(stage: Stage) -> None:
    """The figure is the longest time without an acknowledged write of each kill (limit 3 s)."""
    penstock, load = stage.penstock, stage.load(partitions=3, rate=3_000)
    with stage.workload(load) as running:
        running.started()
        for _ in range(20):
            pod = penstock.pod(penstock.leader(load.topic))
            # A new pod each time: the kubelet would start the same one again more and more slowly.
            penstock.kill_pod(pod)
            running.goes_on(20)
            penstock.wait_in_sync(load.topic, 120.0)
        verdict = running.finish()
    stage.measure(
        "longest write gap of a partition over 20 kills", verdict.partition_write_gap_s, limit=3.0
    )


@scenario("A node is killed and comes back", short=True)
def node_killed(stage: Stage) -> None:
    penstock, load = stage.penstock, stage.load()
    with stage.workload(load) as running:
        running.started()
        node = worker_of_a_leader(stage, load.topic)
        stage.say(f"killing {node}")
        stage.nodes.kill(node)
        running.goes_on(20, 60.0)
        began = time.monotonic()
        stage.nodes.start(node, 180.0)
        settle(stage, running, load.topic, began)
    penstock.wait_ready(240.0)


@scenario("A node freezes beyond every timeout and thaws")
def node_frozen(stage: Stage) -> None:
    """What its deposed leaders believe when they wake up must have no effect."""
    penstock, load = stage.penstock, stage.load()
    with stage.workload(load) as running:
        running.started()
        node = worker_of_a_leader(stage, load.topic)
        stage.say(f"freezing {node}")
        with stage.nodes.frozen(node):
            until = time.monotonic() + FROZEN_S
            running.goes_on(20, 60.0)
            wait_until("frozen long enough", lambda: time.monotonic() > until, FROZEN_S + 10)
        settle(stage, running, load.topic, time.monotonic())
    penstock.wait_ready(240.0)
