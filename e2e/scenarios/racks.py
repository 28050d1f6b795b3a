"""Brokers in racks: those that have no partition in common restart together."""

import time

from e2e.harness.penstock import CLUSTERS, pod_ready
from e2e.harness.process import wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.scenarios.operations import ROLL_S, restore, rolled, uids

RACK = "penstock.dev/e2e-rack"
BROKERS = 6
TOGETHER = 2


@scenario("Six brokers in racks restart two at a time, never two of one partition")
def racks_rolled(stage: Stage) -> None:
    """Each node is a rack. The limit: no write waits longer than a second."""
    penstock, load = stage.penstock, stage.load(partitions=6)
    for number, node in enumerate(stage.nodes.names()):
        stage.kubectl.call("label", "node", node, f"{RACK}=rack-{number}", "--overwrite")
    six = {
        "brokers": BROKERS,
        "rack": {"topologyKey": RACK},
        "upgrade": {"maxParallel": TOGETHER},
    }
    penstock.streams.patch(CLUSTERS, penstock.cluster, {"spec": six})
    penstock.wait_brokers(BROKERS, ROLL_S)
    seen = penstock.wait_settled(ROLL_S)
    racks = {each["id"]: each["rack"] for each in seen["status"]["brokerStatuses"]}
    stage.say(f"racks: {racks}")
    stage.expect(all(racks.values()), f"a broker has no rack: {racks}")
    with stage.workload(load) as running:
        running.started()
        groups: set[frozenset[int]] = set()
        before, began = uids(stage), time.monotonic()
        change = {"spec": {"config": {"cache.bytes": 40_000_000}}}
        penstock.streams.patch(CLUSTERS, penstock.cluster, change)

        def done() -> bool:
            down = _down(stage)
            groups.add(down)
            stage.expect(len(down) <= TOGETHER, f"brokers {sorted(down)} are down")
            stage.expect(len({racks[each] for each in down}) <= 1, f"{sorted(down)}: two racks")
            for each in penstock.partitions(load.topic) if len(down) > 1 else ():
                missing = set(each.replicas) & down
                stage.expect(len(missing) <= 1, f"{load.topic}/{each} misses {missing}")
            return rolled(stage, before)

        wait_until("brokers restarted", done, ROLL_S)
        stage.measure("six brokers restarted, two at a time", time.monotonic() - began)
        pairs = sorted(sorted(each) for each in groups if len(each) > 1)
        stage.expect(pairs, f"nobody restarted together: {groups}")
        stage.say(f"restarted together: {pairs}")
        running.goes_on()
        verdict = running.finish()
    stage.measure("longest write gap of a partition", verdict.partition_write_gap_s, limit=1.0)
    penstock.streams.patch(CLUSTERS, penstock.cluster, {"spec": {"brokers": 3}})
    wait_until("three brokers", lambda: len(penstock.broker_pods()) == 3, ROLL_S)
    restore(stage, {"spec": {"rack": None, "upgrade": None, "config": {"cache.bytes": None}}})
    for node in stage.nodes.names():
        stage.kubectl.call("label", "node", node, f"{RACK}-")


def _down(stage: Stage) -> frozenset[int]:
    """Brokers without a pod that is ready."""
    ready = {
        int(pod["metadata"]["name"].rpartition("-")[2])
        for pod in stage.penstock.broker_pods()
        if pod_ready(pod) and "deletionTimestamp" not in pod["metadata"]
    }
    return frozenset(range(BROKERS)) - ready
