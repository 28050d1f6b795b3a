"""Part of `latency.py`: a group's commits, each waited for, at one coordinator.

Members are those of `groups.py` (`group_members.py`), in two processes. Three brokers and the
members share the machine's cores, so the figure is what a core of the coordinator's broker would
store: commits per second of its processor time.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

from benchmarks.common import cpu_seconds, figure, local_cluster, median, progress
from benchmarks.group_members import MemberProcess
from benchmarks.latency_stage import BROKERS, Stage
from penstock.client import Admin

COMMITS_PER_S = 5_000
PROCESSES = 2
PARTITIONS_EACH = 10


def commits(stage: Stage) -> None:
    stage.close()  # nobody to compare with: the machine for this alone
    sizes = stage.sizes
    each = sizes.members // PROCESSES
    with local_cluster(BROKERS) as cluster, ExitStack() as ended:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("commits", PARTITIONS_EACH * sizes.members, BROKERS)
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
        _commit(processes, pid, sizes.settle_s)
        found = [_commit(processes, pid, sizes.commit_s) for _ in range(sizes.rounds)]
    words = f"commits waited for, {PROCESSES * each} members"
    figure(words, median([rate for rate, _ in found]), "commits/s")
    figure(
        f"{words}, per core of the coordinator's broker",
        median([per_core for _, per_core in found]),
        "commits per CPU second",
        "goal",
        COMMITS_PER_S,
        goal=f"≥ {COMMITS_PER_S:,}",
    )


def _commit(processes: list[MemberProcess], pid: int, seconds: float) -> tuple[float, float]:
    """Commits per second, and per second of the process `pid`'s processor time."""
    before, began = cpu_seconds(pid), time.monotonic()
    for process in processes:
        process.tell("commit_rate", seconds, 1)
    answers = [process.await_done("commit_rate") for process in processes]
    count, took_s = sum(answer["commits"] for answer in answers), time.monotonic() - began
    busy_s = max(cpu_seconds(pid) - before, 0.01)
    progress(f"the coordinator's broker uses {busy_s / took_s:.0%} of a core")
    return float(sum(answer["per_s"] for answer in answers)), count / busy_s
