"""Bytes change on a leader's volume: reads continue, another broker leads, and the replica is
mended, a batch at a time or by a new copy."""

import json
import shlex
import time
from typing import Final

from e2e.harness.kubectl import Manifest
from e2e.harness.penstock import CLUSTERS, condition
from e2e.harness.process import wait_until
from e2e.harness.scenario import Stage, scenario

RECORDS: Final = 60_000
FEW: Final = (RECORDS // 3,)
MANY: Final = tuple(range(RECORDS // 2, RECORDS // 2 + 12_000, 1_000))
"""Records in batches of their own: so many damaged ones are not mended one by one."""
SAID: Final = "PartitionDamaged"
MENDED_S: Final = 240.0
GAP_S: Final = 1.0

_WRITE: Final = """
import sys
for number in range(int(sys.argv[2])):
    print(f"<{sys.argv[1]}-{number:07}>" * 100)
"""
_FLIP: Final = """
import mmap, pathlib, sys
flipped = 0
for path in pathlib.Path(sys.argv[1]).rglob("*.blob"):
    if path.stat().st_size:
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as bytes_of:
            for wanted in sys.argv[2:]:
                at = bytes_of.find(wanted.encode() * 20)
                if at >= 0:
                    bytes_of[at + 900] ^= 0x10
                    flipped += 1
print(flipped)
"""


@scenario("Bits flip on a leader's volume: another leads, nothing is lost, the replica is mended")
def bits_flipped(stage: Stage) -> None:
    """First in one batch, which comes from another replica; then in a dozen, and the log is copied
    again. The Cluster says so until it is done."""
    penstock, load = stage.penstock, stage.load()
    with stage.topic("-flipped", partitions=1) as flipped, stage.workload(load) as running:
        running.started()
        script = (
            f"python3 -c {shlex.quote(_WRITE)} {flipped} {RECORDS} | penstock produce {flipped}"
        )
        penstock.exec("sh", "-c", script, timeout_s=300.0)
        whole, before = _digest(stage, flipped), condition(_cluster(stage), SAID)
        for numbers, done in ((FEW, "replica mended"), (MANY, "replica is copied again")):
            broker = _leads_from_disk(stage, flipped)
            _damage(stage, broker, flipped, numbers)
            stage.expect(_digest(stage, flipped) == whole, "what is read is not what was written")
            _until_mended(stage, broker, flipped, done)
            running.goes_on()
        broker = _leads_from_disk(stage, flipped)
        stage.expect(_digest(stage, flipped) == whole, f"broker {broker} was not mended")
        after = condition(_until_said(stage), SAID)
        changed = before.get("lastTransitionTime") != after["lastTransitionTime"]
        stage.expect(changed, f"the Cluster has never said that a replica is damaged: {after}")
        verdict = running.finish()
        stage.measure("longest write gap of a partition", verdict.partition_write_gap_s)
        stage.measure("longest write gap", verdict.write_gap_s, limit=GAP_S)
    penstock.wait_settled(MENDED_S)


def _leads_from_disk(stage: Stage, topic: str) -> int:
    """The preferred leader, which has been stopped, so that all it has is in files."""
    penstock = stage.penstock
    broker = penstock.partitions(topic)[0].replicas[0]
    pod = penstock.pod(broker)
    uid = penstock.streams.get("pod", pod)["metadata"]["uid"]
    penstock.streams.delete("pod", pod, wait_s=None)
    penstock.wait_replaced(pod, uid)
    penstock.wait_brokers(3, MENDED_S)
    penstock.wait_in_sync(topic, MENDED_S)

    def leads() -> bool:
        penstock.cli("elect", topic)
        return penstock.leader(topic) == broker

    wait_until(f"broker {broker} leads {topic}", leads, MENDED_S)
    return broker


def _until_mended(stage: Stage, broker: int, topic: str, done: str) -> None:
    """Another leads, this broker has logged `done`, and nothing is marked as damaged any longer."""
    penstock, began = stage.penstock, time.monotonic()
    wait_until("another broker leads", lambda: penstock.leader(topic) != broker, MENDED_S)
    stage.measure("damaged: another leads", time.monotonic() - began)
    pod = penstock.pod(broker)
    wait_until(done, lambda: done in penstock.streams.logs(pod), MENDED_S)
    penstock.wait_in_sync(topic, MENDED_S)
    wait_until("no replica is marked", lambda: not _marked(stage), MENDED_S)
    stage.measure("damaged: mended and in sync", time.monotonic() - began)


def _cluster(stage: Stage) -> Manifest:
    return stage.penstock.streams.get(CLUSTERS, stage.penstock.cluster)


def _until_said(stage: Stage) -> Manifest:
    """The Cluster, once its condition says that nothing is damaged; it has none before anything
    was."""
    return stage.penstock.streams.wait(
        CLUSTERS,
        stage.penstock.cluster,
        lambda found: condition(found, SAID).get("reason") == "NothingDamaged",
    )


def _damage(stage: Stage, broker: int, topic: str, numbers: tuple[int, ...]) -> None:
    """Flips a bit in each of these records, in the files of the broker's pod, and has them read."""
    penstock, pod = stage.penstock, stage.penstock.pod(broker)
    wanted = [f"<{topic}-{number:07}>" for number in numbers]
    command = ("python3", "-c", _FLIP, _data_dir(stage, pod), *wanted)
    flipped = int(penstock.streams.exec(pod, *command, timeout_s=120.0))
    stage.expect(flipped >= len(numbers), f"{flipped} of {len(numbers)} records are in files")
    penstock.cli("scrub", "start", f"{topic}/0")


def _data_dir(stage: Stage, pod: str) -> str:
    """As the broker was told."""
    found: Manifest = stage.penstock.streams.get("pod", pod)
    container = found["spec"]["containers"][0]
    words = [*container.get("command", ()), *container.get("args", ())]
    (given,) = [word for word in words if word.startswith("--data-dir=")]
    return str(given.partition("=")[2])


def _digest(stage: Stage, topic: str) -> str:
    """Of all that a consumer gets."""
    script = f"penstock consume {topic} --count {RECORDS} | sha256sum"
    return stage.penstock.exec("sh", "-c", script, timeout_s=300.0).split()[0]


def _marked(stage: Stage) -> bool:
    moves = json.loads(stage.penstock.cli("partitions", "status", "-o", "json")).get("moves") or ()
    return any(move.get("damaged") for move in moves)
