"""Transactions while brokers restart, and while a node is lost.

Two loads go on at once, whose producers abort every fifth transaction. Their judge says that what
committed is there as a whole, that nothing of what was aborted was ever read, that no transaction
is left behind, and that the sum of a bank's accounts stays 0; the figure is the longest time that
any one producer went without a commit.
"""

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from e2e.harness.penstock import CLUSTERS
from e2e.harness.process import E2EError, wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.harness.workload import Workload
from e2e.scenarios.faults import settle, worker_of_a_leader
from e2e.scenarios.operations import ROLL_S, restore, rolled, uids
from penstock.verify.history import read_history

PRODUCERS = 4
"""So that their coordinators are not likely all on one broker."""
BANK_RATE = 100
"""Records/s; each transfer is two of them, and a transaction."""
ROLL_PAUSE_S = 5.0
NODE_LOST_S = 15.0
"""If the active controller dies with the node: its Lease (6 s), then the sessions of brokers."""


class Loads(NamedTuple):
    """Both go on at once. What is said of coordinators is about `batches`."""

    batches: Workload
    transfers: Workload

    def go_on(self, batches: int = 50, deadline_s: float = 120.0) -> None:
        """Waits until so many more are committed by each."""
        for each in self:
            each.goes_on(batches, deadline_s)

    def judge(self, stage: Stage, *, all_s: float | None = None, one_s: float) -> None:
        """Ends both; the verdicts must be PASS. Limits in seconds: without a commit of anybody, and
        of any one producer, which may have aborted meanwhile."""
        for name, each in self._asdict().items():
            verdict = each.finish()
            stage.expect(verdict.passed, f"{name}: {verdict}")
            gap_s, pause_s = verdict.write_gap_s, longest_pause_s(each.history)
            stage.measure(f"longest time without any commit, {name}", gap_s, limit=all_s)
            stage.measure(
                f"longest time without one of any one producer, {name}", pause_s, limit=one_s
            )


@contextmanager
def loads(stage: Stage, *, replicas: int = 3) -> Iterator[Loads]:
    """Producers that write a few batches per transaction, and a bank of as many; both started."""
    batches = stage.load(transactions=True, producers=PRODUCERS, replicas=replicas)
    bank = replace(batches, topic=f"{batches.topic}-bank", bank=True, rate=BANK_RATE)
    with stage.workload(batches) as first, stage.workload(bank) as second:
        both = Loads(first, second)
        for each in both:
            each.started()
        yield both


def coordinators(stage: Stage, running: Workload) -> dict[int, list[str]]:
    """Transactional ids of the load's producers, by the broker that decides for them."""
    found: dict[int, list[str]] = defaultdict(list)
    for name in running.transactional_ids():
        shown = json.loads(stage.penstock.cli("txn", "describe", name, "-o", "json"))
        found[shown["coordinator"]].append(name)
    return dict(found)


def busiest(stage: Stage, deciding: Mapping[int, Sequence[str]]) -> int:
    """The broker that decides for most of the load's producers; `deciding` as `coordinators`."""
    broker = max(deciding, key=lambda each: len(deciding[each]))
    stage.say(f"broker {broker} decides for {len(deciding[broker])} of {PRODUCERS} producers")
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


@scenario("Transactions continue while brokers restart one by one", short=True)
def transactions_through_a_roll(stage: Stage) -> None:
    """Each broker decides for some producers, and leads partitions of every transaction."""
    penstock = stage.penstock
    with loads(stage) as both:
        before = uids(stage)
        penstock.streams.patch(
            CLUSTERS, penstock.cluster, {"spec": {"config": {"cache.bytes": 44_000_000}}}
        )
        wait_until("brokers restarted", lambda: rolled(stage, before), ROLL_S)
        both.go_on()
        both.judge(stage, one_s=ROLL_PAUSE_S)
    restore(stage, {"spec": {"config": {"cache.bytes": None}}})


@scenario("The transaction coordinator's node is killed and comes back", short=True)
def transactions_through_node_loss(stage: Stage) -> None:
    penstock = stage.penstock
    with loads(stage) as both:
        node = _worker_of_a_coordinator(stage, both.batches)
        if _active_controller_is_on(stage, node):
            stage.say("the active controller is there, too: leaders wait for its Lease to run out")
        stage.nodes.kill(node)
        both.go_on(20, 60.0)
        began = time.monotonic()
        stage.nodes.start(node, 180.0)
        settle(stage, both.batches, both.batches.topic, began)
        both.judge(stage, one_s=NODE_LOST_S)
    penstock.wait_ready(240.0)


def _worker_of_a_coordinator(stage: Stage, running: Workload) -> str:
    """A worker node whose broker decides for a producer; or, if there is none, that leads."""
    penstock, workers = stage.penstock, stage.nodes.workers()

    for broker, names in coordinators(stage, running).items():
        node = stage.nodes.of_pod(penstock.pod(broker), penstock.streams)
        if node in workers:
            stage.say(f"killing {node}, which decides for {len(names)} of {PRODUCERS} producers")
            return node
    return worker_of_a_leader(stage, running.topic)


def _active_controller_is_on(stage: Stage, node: str) -> bool:
    lease = stage.penstock.streams.get("lease", f"{stage.penstock.cluster}-controller")
    holder = str(lease["spec"]["holderIdentity"])
    names = {
        pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in stage.penstock.controller_pods()
    }
    return any(holder.startswith(name) and where == node for name, where in names.items())
