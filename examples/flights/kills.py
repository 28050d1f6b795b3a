"""The three kills, each at a bad moment: with a transaction open, or of a partition's leader.

An open transaction may be committed between the look and the signal. So its owner is frozen first;
if it is still open half a second later, nobody will commit it, and its owner is killed. Where it
begins is kept: the verdict looks there.
"""

import signal
import time
from collections.abc import Callable, Iterable
from typing import Final

from examples.flights.jobs import Job
from examples.flights.live import Board
from examples.flights.readback import partitions_of
from penstock.client import Admin
from penstock.errors import PenstockError
from penstock_broker.local import LocalCluster

LOOK_SECONDS: Final = 30.0
FROZEN_SECONDS: Final = 0.5
Place = tuple[int, int]


def open_places(admin: Admin, topic: str) -> list[Place]:
    """Partition and first offset of every open transaction; partitions without leader are left
    out."""
    found: list[Place] = []
    for where in partitions_of(admin, topic):
        try:
            seen = admin.partition_transactions(where)
        except PenstockError:
            continue
        found += [(where.partition, one.first_offset) for one in seen.open]
    return found


def kill_with_open_transaction(
    job: Job, topic: str, admin: Admin, board: Board, step: Callable[[], None]
) -> list[Place]:
    """Kills the job when something of it is open in the topic, or after half a minute.

    `step` is called between two looks. Returns where the transactions begin that were open.
    """
    limit = time.monotonic() + LOOK_SECONDS
    left: list[Place] = []
    while not left and time.monotonic() < limit:
        if open_places(admin, topic):
            job.freeze()
            time.sleep(FROZEN_SECONDS)
            left = open_places(admin, topic)
            if not left:
                job.thaw()
        step()
    job.kill()
    board.killed.append(job.name)
    board.dead.add(job.name)
    said = "in a transaction" if left else "between transactions"
    board.tell(f"kill -9 {job.pid}: {job.name}, {said}", "bold red")
    return left


def note_returned(jobs: Iterable[Job], board: Board) -> None:
    """Who does its work again is not shown as down any longer."""
    for job in jobs:
        if job.ready:
            board.dead.discard(job.name)


def kill_leader(cluster: LocalCluster, board: Board, partition: int) -> int:
    """Kills the broker that leads the partition; returns it, or -1 if nobody does now."""
    leader = next((row.leader for row in board.partitions if row.partition == partition), -1)
    if leader < 0:
        return -1
    pid = cluster.broker_pid(leader)
    killed_at = time.monotonic()
    cluster.kill(leader, signal.SIGKILL)
    board.killed.append(f"broker {leader}")
    board.down = {leader}
    board.waiting_since = killed_at
    board.tell(f"kill -9 {pid}: broker {leader}, leader of partition {partition}", "bold red")
    return leader
