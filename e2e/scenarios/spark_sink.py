"""Spark writes a stream exactly once, whatever is killed.

The driver is a pod of its own, not a Deployment's, so that it stays dead until it is told to come
back; all else is examples/spark/kubernetes/stream.yaml. What it copies are the numbers 1 to N: a
number that is missing, or there twice, is a row lost, or written twice.
"""

import json
from collections import Counter
from dataclasses import dataclass
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
RECORDS: Final = 20_000
"""Of each part; in batches of BATCH."""
BATCH: Final = 2_500


@dataclass(frozen=True, slots=True)
class Copies:
    """A query, from `source` to `target`, and what can be done to its driver."""

    stage: Stage
    source: str
    target: str

    def manifests(self) -> list[Manifest]:
        """The example's, with this program in them; the last one is the driver's pod."""
        text = (MANIFESTS / "stream.yaml").read_text()
        claim, config, deployment = yaml.safe_load_all(text)
        text = text.replace(containers(deployment)[0]["image"], images.SPARK.tag)
        text = text.replace("totals-stream", NAME)
        claim, config, deployment = yaml.safe_load_all(text)
        config["data"]["copies.py"] = PROGRAM.read_text()
        template = deployment["spec"]["template"]
        containers(deployment)[0]["args"] = [
            "python3", "/etc/spark/copies.py",
            f"--bootstrap={self.stage.penstock.bootstrap}",
            f"--source={self.source}", f"--target={self.target}",
            "--checkpoint=file:///work/checkpoint", f"--delivery={DELIVERY}", f"--batch={BATCH}",
        ]  # fmt: skip
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": NAME, "labels": template["metadata"]["labels"]},
            "spec": {**template["spec"], "restartPolicy": "Never"},
        }
        return [claim, config, pod]

    def copied(self) -> Counter[int]:
        """The numbers that a read_committed reader sees now, and how often each. Fails if the
        driver has ended."""
        driver = self.stage.penstock.streams.get("pod", NAME)["status"]["phase"]
        self.stage.expect(driver in ("Pending", "Running"), f"the driver has {driver.lower()}")
        read = self.stage.penstock.cli("consume", self.target, "-o", "beginning", "-e")
        return Counter(map(int, read.split()))

    def wait(self, records: int) -> None:
        """Waits until 1 to `records` are copied; fails at once if a row is there twice."""

        def complete() -> bool:
            seen = self.copied()
            twice = sorted(number for number, count in seen.items() if count > 1)
            self.stage.expect(not twice, f"{len(twice)} rows are there twice, first: {twice[:1]}")
            strange = [number for number in seen if not 0 < number <= records]
            self.stage.expect(not strange, f"{strange[:1]} was never written")
            return len(seen) == records

        wait_until(f"{records} rows copied", complete, DONE_S)

    def kill_driver(self) -> None:
        """kill -9 of all its processes; returns when Kubernetes has seen it."""
        streams = self.stage.penstock.streams
        self.stage.nodes.kill_process(NAME, streams)
        streams.wait("pod", NAME, lambda pod: pod["status"]["phase"] == "Failed")

    def kill_driver_within_a_batch(self) -> int:
        """As `kill_driver`, when a batch has begun and is not done; returns which."""
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
        return found[0]

    def start_driver(self) -> None:
        """A new pod on the same checkpoint; what the old one started goes with it."""
        streams = self.stage.penstock.streams
        streams.delete("pod", NAME)
        streams.apply(self.manifests()[-1])
        streams.wait("pod", NAME, lambda pod: "nodeName" in pod["spec"])

    def batches(self, log: str) -> list[int]:
        """Numbers of the batches in a log of the checkpoint: `offsets` or `commits`."""
        listed = self._on_volume(f"ls checkpoint/{log}").split()
        return sorted(int(name) for name in listed if name.isdecimal())

    def idle(self) -> int | None:
        """The newest batch, if Spark's own log says of it, too, that it is done."""
        planned, done = self.batches("offsets"), self.batches("commits")
        return done[-1] if planned[-1] == done[-1] else None

    def forget(self, batch: int) -> None:
        """Takes a batch out of Spark's commit log, as if the driver had died before it wrote it."""
        self._on_volume(f"rm checkpoint/commits/{batch}; rm -f checkpoint/commits/.{batch}.crc")

    def _on_volume(self, script: str) -> str:
        stage = self.stage
        node = stage.nodes.of_pod(NAME, stage.penstock.streams)
        return stage.nodes.shell(node, f"cd {volume(stage, NAME)} && {script}")


@scenario(
    "Spark writes a stream exactly once while executor and driver are killed", images=("spark",)
)
def spark_exactly_once(stage: Stage) -> None:
    """An executor in the middle of batches, the driver in the middle of one, and the driver again
    when the cluster has decided on a batch of which Spark's commit log does not know yet."""
    with stage.topic() as source, stage.topic("-copy") as target:
        query = Copies(stage, source, target)
        with applied(stage, query.manifests()):
            produce(stage, source, 1, RECORDS)
            wait_until("the first rows are copied", query.copied, DONE_S)
            victim, *_ = wait_until("executors run", lambda: executors(stage, NAME))
            stage.say(f"killing {victim}")
            stage.penstock.streams.delete("pod", victim, now=True, wait_s=None)
            query.wait(RECORDS)
            produce(stage, source, RECORDS + 1, 2 * RECORDS)
            wait_until("more is copied", lambda: query.copied().total() > RECORDS, DONE_S)
            batch = query.kill_driver_within_a_batch()
            stage.say(f"driver killed within batch {batch}")
            query.start_driver()
            query.wait(2 * RECORDS)
            last = wait_until("Spark has noted the last batch", query.idle)
            assert last is not None
            query.kill_driver()
            query.forget(last)
            stage.say(f"driver killed, batch {last} is not in Spark's commit log")
            query.start_driver()
            wait_until("the batch is replayed", lambda: last in query.batches("commits"), DONE_S)
            produce(stage, source, 2 * RECORDS + 1, 2 * RECORDS + BATCH)
            query.wait(2 * RECORDS + BATCH)
            stage.say(ledger(stage))


def ledger(stage: Stage) -> str:
    """What the cluster remembers of the queries' batches."""
    rows = json.loads(stage.penstock.cli("txn", "ledgers", "-o", "json"))
    return "; ".join(f"{row['application']}: batch {row['batch']}" for row in rows)
