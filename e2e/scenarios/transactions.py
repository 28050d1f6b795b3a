"""Transactions while brokers restart, and while a node is lost.

The load's producers write in transactions and abort every fifth. Its judge says that what committed
is there as a whole, that nothing of what was aborted was ever read, and that no transaction is left
behind; the figure is the longest time that any one producer went without a commit.
"""

import json
import time
from collections import defaultdict
from pathlib import Path

from e2e.harness.penstock import CLUSTERS
from e2e.harness.process import E2EError, wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.harness.workload import Load, Workload
from e2e.scenarios.faults import settle, worker_of_a_leader
from e2e.scenarios.operations import ROLL_S, restore, rolled, uids
from penstock.verify.history import read_history

PRODUCERS = 4
"""So that their coordinators are not likely all on one broker."""
NODE_LOST_S = 15.0
"""If the active controller dies with the node: its Lease (6 s), then the sessions of brokers."""
PAUSE = "longest time without a commit of any one producer"


def transactional(stage: Stage) -> Load:
    """The scenario's load, in transactions."""
    return stage.load(transactions=True, producers=PRODUCERS)


def coordinators(stage: Stage, running: Workload) -> dict[int, list[str]]:
    """Transactional ids of the load's producers, by the broker that decides for them."""
    found: dict[int, list[str]] = defaultdict(list)
    for name in running.transactional_ids():
        shown = json.loads(stage.penstock.cli("txn", "describe", name, "-o", "json"))
        found[shown["coordinator"]].append(name)
    return dict(found)


def busiest(stage: Stage, running: Workload) -> int:
    """The broker that decides for most of the load's producers."""
    found = coordinators(stage, running)
    broker = max(found, key=lambda each: len(found[each]))
    stage.say(f"broker {broker} decides for {len(found[broker])} of {PRODUCERS} producers")
    return broker


def longest_pause_s(history: Path) -> float:
    """Of all producers, the longest time between two commits, or from the last one to the end.

    Raises E2EError if one never committed.
    """
    last: dict[int, float] = {}
    longest, now = 0.0, 0.0
    for event in read_history(history):
        if event["e"] not in ("send", "ended-tx"):
            continue
        # Transactions are numbered per producer, from a multiple of 2**40 on.
        producer, now = event["x"] >> 40, event["t"]
        if event.get("how") == "committed":
            longest = max(longest, now - last.get(producer, now))
            last[producer] = now
    if len(last) < PRODUCERS:
        raise E2EError(f"of {PRODUCERS} producers only {sorted(last)} ever committed")
    return max(longest, *(now - at for at in last.values())) / 1000


def judge(stage: Stage, running: Workload, limit: float | None = None) -> None:
    """Ends the load; its verdict must be PASS, and no pause longer than `limit`, in seconds."""
    verdict = running.finish()
    stage.expect(verdict.passed, str(verdict))
    stage.measure(PAUSE, longest_pause_s(running.history), limit=limit)


@scenario("Transactions go on while brokers restart one by one")
def transactions_through_a_roll(stage: Stage) -> None:
    """Each broker decides for some producers, and leads partitions of every transaction."""
    penstock = stage.penstock
    with stage.workload(transactional(stage)) as running:
        running.started()
        before = uids(stage)
        penstock.streams.patch(
            CLUSTERS, penstock.cluster, {"spec": {"config": {"cache.bytes": 44_000_000}}}
        )
        wait_until("brokers restarted", lambda: rolled(stage, before), ROLL_S)
        running.goes_on()
        judge(stage, running)
    restore(stage, {"spec": {"config": {"cache.bytes": None}}})


@scenario("A node is killed under the coordinator of transactions, and comes back")
def transactions_through_node_loss(stage: Stage) -> None:
    penstock, load = stage.penstock, transactional(stage)
    with stage.workload(load) as running:
        running.started()
        node = _worker_of_a_coordinator(stage, running, load.topic)
        if _active_controller_is_on(stage, node):
            stage.say("the active controller is there, too: leaders wait for its Lease to run out")
        stage.nodes.kill(node)
        running.goes_on(20, 60.0)
        began = time.monotonic()
        stage.nodes.start(node, 180.0)
        settle(stage, running, load.topic, began)
        judge(stage, running, NODE_LOST_S)
    penstock.wait_ready(240.0)


def _worker_of_a_coordinator(stage: Stage, running: Workload, topic: str) -> str:
    """A worker node whose broker decides for a producer; or, if there is none, that leads."""
    penstock, workers = stage.penstock, stage.nodes.workers()

    for broker, names in coordinators(stage, running).items():
        node = stage.nodes.of_pod(penstock.pod(broker), penstock.streams)
        if node in workers:
            stage.say(f"killing {node}, which decides for {len(names)} of {PRODUCERS} producers")
            return node
    return worker_of_a_leader(stage, topic)


def _active_controller_is_on(stage: Stage, node: str) -> bool:
    lease = stage.penstock.streams.get("lease", f"{stage.penstock.cluster}-controller")
    holder = str(lease["spec"]["holderIdentity"])
    names = {
        pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in stage.penstock.controller_pods()
    }
    return any(holder.startswith(name) and where == node for name, where in names.items())
