"""Loops that consume, transform and produce: each record counts once, whoever dies.

What the loops wrote tells which record each line was made of, by whom and when. It is compared with
the log of what they read: no record may be missing, and none may be there twice.
"""

import json
from collections import Counter

from e2e.harness.members import Event, Members, Pipe, describe_group, read_lines
from e2e.harness.penstock import CLUSTERS
from e2e.harness.process import wait_until
from e2e.harness.scenario import Stage, scenario
from e2e.scenarios.operations import ROLL_S, restore, rolled, uids

PODS = 3
SHARED_S = 120.0
READ_ON_S = 3.0


@scenario("Loops of a pipe: brokers restart, a pod is deleted, one is killed -9; each record once")
def pipe_through_a_roll(stage: Stage) -> None:
    """Whoever takes over the partitions of a loop that is gone reads on within three seconds."""
    penstock, load = stage.penstock, stage.load(partitions=PODS, rate=900)
    with (
        stage.topic("-lines", partitions=PODS) as target,
        stage.workload(load) as running,
    ):
        pipe = Pipe(load.topic, "e2e-pipe", target)
        running.started()
        with Members(penstock, pipe.group, pipe) as members:
            members.scale(PODS)
            wait_shared(stage, pipe)
            before = uids(stage)
            penstock.streams.patch(
                CLUSTERS, penstock.cluster, {"spec": {"config": {"cache.bytes": 45_000_000}}}
            )
            wait_until("brokers restarted", lambda: rolled(stage, before), ROLL_S)
            deleted = min(wait_shared(stage, pipe))
            penstock.streams.delete("pod", pod_of(deleted), wait_s=None)
            killed = min(wait_shared(stage, pipe, without=deleted))
            stage.nodes.kill_process(pod_of(killed), penstock.streams)
            wait_shared(stage, pipe, without=killed)
            running.goes_on(20)
            running.finish()
            wait_until("all is read", lambda: describe_group(penstock, pipe.group)["lag"] == 0)
            lines = read_lines(penstock, pipe.target)
        judge(stage, pipe, lines)
    for who, how in ((deleted, "deleted"), (killed, "killed -9")):
        took = taken_over_s(lines, who)
        stage.measure(f"until others read on what a pod that was {how} had", took, limit=READ_ON_S)
    penstock.cli("group", "delete", pipe.group, "--yes")
    restore(stage, {"spec": {"config": {"cache.bytes": None}}})


def wait_shared(stage: Stage, pipe: Pipe, *, without: str = "") -> set[str]:
    """The loops, as soon as each of PODS has a partition and the one `without` has none."""

    def loops() -> set[str] | None:
        rows = describe_group(stage.penstock, pipe.group)["partitions"]
        owners = {row["client"] for row in rows} - {None}
        return owners if len(owners) == PODS and without not in owners else None

    found = wait_until(f"{PODS} loops share {pipe.topic}", loops, SHARED_S)
    assert found is not None
    return found


def pod_of(loop: str) -> str:
    """See `harness/pipe.py`."""
    return loop.rpartition(".")[0]


def judge(stage: Stage, pipe: Pipe, lines: list[Event]) -> None:
    """Fails unless there is one line for every record, which nobody may be writing any more."""
    rows = json.loads(stage.penstock.cli("offsets", pipe.topic, "-o", "json"))
    read = {
        (row["partition"], offset)
        for row in rows
        for offset in range(row["earliest"], row["latest"])
    }
    made = Counter((line["p"], line["o"]) for line in lines)
    twice = sorted(each for each, count in made.items() if count > 1)
    missing, strange = sorted(read - made.keys()), sorted(made.keys() - read)
    stage.expect(
        not twice, f"{len(twice)} records count twice, first (partition, offset) {twice[:1]}"
    )
    stage.expect(not missing, f"{len(missing)} of {len(read)} records do not count: {missing[:1]}")
    stage.expect(not strange, f"lines of records that are not there: {strange[:1]}")
    stage.measure("records that count once", len(made), "records")


def taken_over_s(lines: list[Event], loop: str) -> float:
    """Seconds from the last line of a loop to the next one that another made of its partition, the
    longest of all its partitions."""
    longest = 0.0
    for partition in {line["p"] for line in lines if line["r"] == loop}:
        last = max(line["t"] for line in lines if (line["p"], line["r"]) == (partition, loop))
        later = [line["t"] for line in lines if line["p"] == partition and line["t"] > last]
        longest = max(longest, min(later) - last)
    return longest
