"""Loops that consume, transform and produce: each record counts once, whoever dies.

What the loops wrote tells which record each line was made of, which loop made it, and when. It is
compared with the log of what they read: no record may be missing, and none may be there twice.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

from e2e.harness.members import Event, Members, Pipe, describe_group, read_lines
from e2e.harness.penstock import CLUSTERS
from e2e.harness.process import wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.harness.workload import Workload
from e2e.scenarios.faults import settle, worker_of_a_leader
from e2e.scenarios.operations import ROLL_S, restore, rolled, uids
from e2e.scenarios.transactions import NODE_LOST_S

PODS = 3
SHARED_S = 120.0
READ_ON_S = 3.0
"""After a loop is gone."""
PAUSE = "longest time between two lines of a partition"


@dataclass(slots=True)
class Piped:
    """Loops that make lines of what a load writes. `lines`: all of them, once they were judged."""

    stage: Stage
    pipe: Pipe
    running: Workload
    lines: list[Event] = field(default_factory=list)

    def shared(self, *, without: str = "") -> set[str]:
        """The loops, as soon as each of PODS has a partition and the one `without` has none."""

        def loops() -> set[str] | None:
            rows = describe_group(self.stage.penstock, self.pipe.group)["partitions"]
            owners = {row["client"] for row in rows} - {None}
            return owners if len(owners) == PODS and without not in owners else None

        found = wait_until(f"{PODS} loops share {self.pipe.topic}", loops, SHARED_S)
        assert found is not None
        return found

    def judge(self) -> None:
        """Ends the load. Fails unless there is one line for every record."""
        stage, penstock, pipe = self.stage, self.stage.penstock, self.pipe
        self.running.goes_on(20)
        self.running.finish()
        wait_until("all is read", lambda: describe_group(penstock, pipe.group)["lag"] == 0, 120.0)
        self.lines = read_lines(penstock, pipe.target)
        rows = json.loads(penstock.cli("offsets", pipe.topic, "-o", "json"))
        read = {
            (row["partition"], at) for row in rows for at in range(row["earliest"], row["latest"])
        }
        made = Counter((line["p"], line["o"]) for line in self.lines)
        twice = sorted(each for each, count in made.items() if count > 1)
        missing, strange = sorted(read - made.keys()), sorted(made.keys() - read)
        where = "first (partition, offset)"
        stage.expect(not twice, f"{len(twice)} records count twice, {where} {twice[:1]}")
        stage.expect(not missing, f"{len(missing)} records do not count, {where} {missing[:1]}")
        stage.expect(not strange, f"{len(strange)} lines are of no record, {where} {strange[:1]}")
        stage.measure("records, each of which counts once", len(made), "records")

    def taken_over_s(self, loop: str) -> float:
        """Seconds from a loop's last line of a partition to the next one, which another made; the
        longest of all its partitions."""
        longest = 0.0
        for partition in {line["p"] for line in self.lines if line["r"] == loop}:
            of_it = [line for line in self.lines if line["p"] == partition]
            last = max(line["t"] for line in of_it if line["r"] == loop)
            longest = max(longest, min(line["t"] for line in of_it if line["t"] > last) - last)
        return longest

    def longest_pause_s(self) -> float:
        """Between two lines of one partition."""
        longest = 0.0
        for partition in range(PODS):
            times = sorted(line["t"] for line in self.lines if line["p"] == partition)
            longest = max(longest, *(later - one for one, later in pairwise(times)))
        return longest


@contextmanager
def piped(stage: Stage, suffix: str = "", *, replicas: int = 3) -> Iterator[Piped]:
    """A load, and PODS loops that have a partition each; when the block ends, they are judged.

    `suffix`: of the load's topic, if the scenario has others. `replicas`: of all topics.
    """
    penstock, load = stage.penstock, stage.load(partitions=PODS, rate=900, replicas=replicas)
    load = replace(load, topic=load.topic + suffix)
    lines = stage.topic("-lines", partitions=PODS, replicas=replicas)
    with lines as target, stage.workload(load) as running:
        pipe = Pipe(load.topic, f"e2e-{stage.name.replace('_', '-')}", target)
        running.started()
        with Members(penstock, pipe.group, pipe) as members:
            members.scale(PODS)
            all_of_it = Piped(stage, pipe, running)
            all_of_it.shared()
            yield all_of_it
            all_of_it.judge()
    penstock.cli("group", "delete", pipe.group, "--yes")


@scenario(
    "A pipe while brokers restart, a pod is deleted, one is SIGKILLed; each record once",
    short=True,
)
def pipe_through_a_roll(stage: Stage) -> None:
    """Whoever takes over the partitions of a loop that is gone reads on within three seconds."""
    penstock = stage.penstock
    with piped(stage) as pipe:
        before = uids(stage)
        penstock.streams.patch(
            CLUSTERS, penstock.cluster, {"spec": {"config": {"cache.bytes": 45_000_000}}}
        )
        wait_until("brokers restarted", lambda: rolled(stage, before), ROLL_S)
        deleted = min(pipe.shared())
        penstock.streams.delete("pod", pod_of(deleted), wait_s=None)
        killed = min(pipe.shared(without=deleted))
        stage.nodes.kill_process(pod_of(killed), penstock.streams)
        pipe.shared(without=killed)
    for who, how in ((deleted, "deleted"), (killed, "killed -9")):
        took = pipe.taken_over_s(who)
        stage.measure(f"until others read on what a pod that was {how} had", took, limit=READ_ON_S)
    restore(stage, {"spec": {"config": {"cache.bytes": None}}})


def pod_of(loop: str) -> str:
    """See `harness/pipe.py`."""
    return loop.rpartition(".")[0]


@scenario("A pipe while a node is killed and comes back; each record once")
def pipe_through_node_loss(stage: Stage) -> None:
    """The loops themselves are on another node."""
    with piped(stage) as pipe:
        node = worker_of_a_leader(stage, pipe.pipe.topic)
        stage.say(f"killing {node}")
        stage.nodes.kill(node)
        pipe.running.goes_on(20, 60.0)
        began = time.monotonic()
        stage.nodes.start(node, 180.0)
        settle(stage, pipe.running, pipe.pipe.topic, began)
    stage.measure(PAUSE, pipe.longest_pause_s(), limit=NODE_LOST_S)
    stage.penstock.wait_ready(240.0)
