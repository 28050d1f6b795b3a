"""Spark writes a stream exactly once, whatever is killed.

The driver is a pod of its own, not a Deployment's, so that it stays dead until it is told to come
back; all else is examples/spark/kubernetes/stream.yaml. What it copies are the numbers 1 to N: a
number that is missing, or there twice, is a row lost, or written twice.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Final

import yaml

from e2e.harness import images
from e2e.harness.kubectl import Manifest
from e2e.harness.process import ROOT, wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.scenarios.lifecycle import volume
from e2e.scenarios.spark import (
    DONE_S,
    MANIFESTS,
    applied,
    containers,
    executors,
    produce,
)

NAME: Final = "copies"
PROGRAM: Final = ROOT / "e2e/harness/spark_copies.py"
DELIVERY: Final = "exactly-once"
RECORDS: Final = 15_000
"""Of each round; in batches of BATCH."""
BATCH: Final = 2_500


@dataclass(frozen=True, slots=True)
class Copies:
    """A query, from `source` to `target`, and what can be done to its driver.

    `settings` of Spark, beside the example's; `arguments` for the program, beside those it needs.
    """

    stage: Stage
    source: str
    target: str
    settings: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()

    def manifests(self) -> list[Manifest]:
        """The example's, with this program in them; the last one is the driver's pod."""
        text = (MANIFESTS / "stream.yaml").read_text()
        claim, config, deployment = yaml.safe_load_all(text)
        text = text.replace(containers(deployment)[0]["image"], images.SPARK.tag)
        text = text.replace("totals-stream", NAME)
        claim, config, deployment = yaml.safe_load_all(text)
        config["data"]["copies.py"] = PROGRAM.read_text()
        more = "".join(f"{name} {value}\n" for name, value in self.settings.items())
        config["data"]["spark-defaults.conf"] += more
        template = deployment["spec"]["template"]
        containers(deployment)[0]["args"] = [
            "python3", "/etc/spark/copies.py",
            f"--bootstrap={self.stage.penstock.bootstrap}",
            f"--source={self.source}", f"--target={self.target}",
            "--checkpoint=file:///work/checkpoint", f"--delivery={DELIVERY}", f"--batch={BATCH}",
            *self.arguments,
        ]  # fmt: skip
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": NAME, "labels": template["metadata"]["labels"]},
            "spec": {**template["spec"], "restartPolicy": "Never"},
        }
        return [claim, config, pod]

    def copied(self) -> Counter[int]:
        """The numbers that a read_committed reader sees now, and how often each."""
        read = self.stage.penstock.cli("consume", self.target, "-o", "beginning", "-e")
        return Counter(map(int, read.split()))

    def stored(self) -> int:
        """At least as many as there are copied rows: markers, and rows of aborted branches, have
        offsets, too. Cheap, where reading all rows is not. Fails if the driver has ended."""
        driver = self.stage.penstock.streams.get("pod", NAME)["status"]["phase"]
        self.stage.expect(driver in ("Pending", "Running"), f"the driver has {driver.lower()}")
        rows = json.loads(self.stage.penstock.cli("offsets", self.target, "-o", "json"))
        return sum(row["latest"] - row["earliest"] for row in rows)

    def wait(self, records: int) -> None:
        """Waits until 1 to `records` are copied; fails at once if a row is there twice."""

        def complete() -> bool:
            if self.stored() < records:
                return False
            seen = self.copied()
            twice = sorted(number for number, count in seen.items() if count > 1)
            self.stage.expect(not twice, f"{len(twice)} rows are there twice, first: {twice[:1]}")
            strange = [number for number in seen if not 0 < number <= records]
            self.stage.expect(not strange, f"{strange[:1]} was never written")
            return len(seen) == records

        wait_until(f"{records} rows copied", complete, DONE_S)

    def kill_executor(self) -> None:
        """One of them, without grace."""
        stage = self.stage
        victim, *_ = wait_until("executors run", lambda: executors(stage, NAME), DONE_S)
        stage.say(f"killing {victim}")
        stage.penstock.streams.delete("pod", victim, now=True, wait_s=None)

    def kill_driver(self) -> None:
        """kill -9 of all its processes; returns when Kubernetes has seen it."""
        streams = self.stage.penstock.streams
        self.stage.nodes.kill_process(NAME, streams)
        streams.wait("pod", NAME, lambda pod: pod["status"]["phase"] == "Failed")

    def kill_driver_within_a_batch(self) -> None:
        """As `kill_driver`, when a batch has begun and is not done."""
        nodes, streams = self.stage.nodes, self.stage.penstock.streams

        def stopped() -> tuple[int] | None:
            nodes.kill_process(NAME, streams, signal="STOP")
            planned, done = self.batches("offsets")[-1], self.batches("commits")[-1]
            if planned > done:
                return (planned,)
            nodes.kill_process(NAME, streams, signal="CONT")
            return None

        found = wait_until("the driver is stopped within a batch", stopped, DONE_S)
        assert found is not None
        self.kill_driver()
        self.stage.say(f"driver killed within batch {found[0]}")

    def start_driver(self) -> None:
        """A new pod on the same checkpoint; what the old one started goes with it."""
        streams = self.stage.penstock.streams
        streams.delete("pod", NAME)
        streams.apply(self.manifests()[-1])
        streams.wait("pod", NAME, lambda pod: "nodeName" in pod["spec"])

    def replay_the_last_batch(self) -> None:
        """Kills the driver when all is copied, and lets the next one believe that the last batch
        was not: as if it had died between the cluster's decision and Spark's commit log."""
        last = wait_until("Spark has noted the last batch", self.idle)
        assert last is not None
        self.kill_driver()
        self.forget(last)
        self.stage.say(f"driver killed, batch {last} is not in Spark's commit log")
        self.start_driver()
        wait_until("the batch is replayed", lambda: last in self.batches("commits"), DONE_S)

    def batches(self, log: str) -> list[int]:
        """Numbers of the batches in a log of the checkpoint: `offsets` or `commits`."""
        listed = self.on_volume(f"ls checkpoint/{log}").split()
        return sorted(int(name) for name in listed if name.isdecimal())

    def idle(self) -> int | None:
        """The newest batch, if Spark's own log says of it, too, that it is done."""
        planned, done = self.batches("offsets"), self.batches("commits")
        return done[-1] if planned[-1] == done[-1] else None

    def forget(self, batch: int) -> None:
        """Takes a batch out of Spark's commit log, as if the driver had died before it wrote it."""
        self.on_volume(f"rm checkpoint/commits/{batch}; rm -f checkpoint/commits/.{batch}.crc")

    def on_volume(self, script: str) -> str:
        """Runs a shell script where the query keeps its files."""
        stage = self.stage
        node = stage.nodes.of_pod(NAME, stage.penstock.streams)
        return stage.nodes.shell(node, f"cd {volume(stage, NAME)} && {script}")


Fault = Callable[[Copies, int], None]
"""Happens while rows are being copied; the second argument is how many there will be."""


def executor_killed(query: Copies, _rows: int) -> None:
    query.kill_executor()


def driver_killed(query: Copies, _rows: int) -> None:
    query.kill_driver_within_a_batch()
    query.start_driver()


def leader_killed(query: Copies, _rows: int) -> None:
    penstock = query.stage.penstock
    pod = penstock.pod(penstock.leader(query.target))
    query.stage.say(f"killing {pod}")
    penstock.kill_pod(pod)


def batch_replayed(query: Copies, rows: int) -> None:
    query.wait(rows)
    query.replay_the_last_batch()


FAULTS: Final[tuple[Fault, ...]] = (executor_killed, driver_killed, leader_killed, batch_replayed)


@scenario(
    "Spark writes a stream exactly once while executor, driver and broker are killed in turn",
    images=("spark",),
    short=True,
)
def spark_exactly_once(stage: Stage) -> None:
    """An executor in the middle of batches, the driver in the middle of one, a leader of what is
    written, and the driver when the cluster has decided on a batch of which Spark's commit log does
    not know yet: each once, then on until the time is over. After each kill all rows must be there,
    and none twice."""
    began, done = time.monotonic(), 0
    with stage.topic() as source, stage.topic("-copy") as target:
        query = Copies(stage, source, target)
        with applied(stage, query.manifests()):
            for number, fault in enumerate(cycle(FAULTS), 1):
                done = _round(query, done, fault)
                over = time.monotonic() > began + 60 * stage.soak_minutes
                if over and number >= len(FAULTS):
                    break
            stage.say(ledger(stage))
    stage.measure("minutes it lasted", (time.monotonic() - began) / 60, "min")
    stage.measure("kills", number, "kills")
    stage.measure("rows, each of which is there once", done, "rows")


def _round(query: Copies, done: int, fault: Fault) -> int:
    """Some more rows, and a fault while they are copied; returns how many there are now."""
    stage, rows = query.stage, done + RECORDS
    before = query.stored()
    produce(stage, query.source, done + 1, rows)
    wait_until("rows are being copied", lambda: query.stored() > before, DONE_S)
    fault(query, rows)
    query.wait(rows)
    stage.penstock.wait_brokers(3)
    return rows


def ledger(stage: Stage) -> str:
    """What the cluster remembers of the queries' batches."""
    rows = json.loads(stage.penstock.cli("txn", "ledgers", "-o", "json"))
    return "; ".join(f"{row['application']}: batch {row['batch']}" for row in rows)
