"""Part of `latency.py`: a group's commits, each waited for, at one coordinator.

Members are those of `groups.py` (`group_commits.py`). Three brokers and the members share the
machine's cores, so the figure is what a core of the coordinator's broker would store: commits per
second of its processor time.
"""

from __future__ import annotations

from benchmarks.common import figure, local_cluster, median
from benchmarks.group_commits import PROCESSES, committing_members
from benchmarks.latency_stage import BROKERS, Stage

COMMITS_PER_S = 5_000


def commits(stage: Stage) -> None:
    stage.close()  # nobody to compare with: the machine for this alone
    sizes = stage.sizes
    each = sizes.members // PROCESSES
    with local_cluster(BROKERS) as cluster, committing_members(cluster, each, BROKERS) as measure:
        measure(sizes.settle_s, "commit_rate", 1)
        found = [measure(sizes.commit_s, "commit_rate", 1) for _ in range(sizes.rounds)]
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
