"""Members of one group that commit, in two processes, and what that costs their coordinator."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.common import cpu_seconds, progress
from benchmarks.group_members import MemberProcess
from penstock.client import Admin
from penstock_broker.local import LocalCluster

PROCESSES = 2
PARTITIONS_EACH = 10
_LEAST_S = 0.01
"""Processor time is counted in steps of that."""

Measure = Callable[..., tuple[float, float]]
"""(seconds, command of `group_members.py`, its arguments) to commits answered to all members
together: per second, and per second of the coordinator's broker's processor time."""


@contextmanager
def committing_members(cluster: LocalCluster, each: int, replication: int) -> Iterator[Measure]:
    """`each` members in every process, with ten partitions each, which they do not read."""
    with ExitStack() as ended:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("commits", PARTITIONS_EACH * PROCESSES * each, replication)
        processes = []
        for _ in range(PROCESSES):
            process = MemberProcess(cluster.bootstrap, "commits", ["commits"], resting=True)
            ended.callback(process.kill)
            process.tell("start", each)
            processes.append(process)
        for process in processes:
            process.await_done("start")
        with Admin(cluster.bootstrap) as admin:
            coordinator = admin.describe_group("commits", include_offsets=False).coordinator
        pid = cluster.broker_pid(coordinator) or 0

        def measure(seconds: float, command: str, *arguments: object) -> tuple[float, float]:
            before, began = cpu_seconds(pid), time.monotonic()
            for process in processes:
                process.tell(command, seconds, *arguments)
            answers = [process.await_done(command) for process in processes]
            count = sum(answer["commits"] for answer in answers)
            busy_s = max(cpu_seconds(pid) - before, _LEAST_S)
            progress(
                f"{' '.join(map(str, [command, *arguments]))}: the coordinator's broker uses "
                f"{busy_s / (time.monotonic() - began):.0%} of a core, "
                f"{1e3 * busy_s / count:.3f} ms each"
            )
            return float(sum(answer["per_s"] for answer in answers)), count / busy_s

        yield measure
