"""Part of `transactions.py`: kill -9 of a coordinator, and of a member of a pipe."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Self

from benchmarks.common import figure, local_cluster, median, progress
from benchmarks.failover import await_condition
from benchmarks.transaction_stage import BROKERS, Coordinators, Stage, await_whole, leader_of
from penstock.client import Admin, Consumer, Producer, TopicPartition
from penstock.core.transactions.config import TRANSACTIONS_TOPIC
from penstock.errors import PenstockError
from penstock_broker.local import LocalCluster

TOPIC = "deaths"
WARM_COMMITS = 20
COMMITS_LIMIT_S = 1.0
STABLE_LIMIT_S = 3.0
SETTLE_S = 60.0


def deaths(stage: Stage) -> None:
    """How long until commits go on, and until readers pass what a dead member left open."""
    kills = stage.sizes.kills
    with (
        local_cluster(BROKERS) as cluster,
        Admin(cluster.bootstrap, request_timeout_ms=5_000) as admin,
    ):
        admin.create_topic(TOPIC, 1, BROKERS)
        gaps = [_lose_coordinator(cluster, admin, turn) for turn in range(kills)]
        stood = _lose_members(cluster, admin, kills)
    name = "commits go on after kill -9 of the coordinator"
    for words, value in (("median", median(gaps)), ("worst", max(gaps))):
        figure(f"{name}, {words}", value, "s", "limit", COMMITS_LIMIT_S, goal="≤ 1 s")
    name = "the last stable offset moves after kill -9 of a pipe's member"
    for words, value in (("median", median(stood)), ("worst", max(stood))):
        figure(f"{name}, {words}", value, "s", "limit", STABLE_LIMIT_S, goal="≤ 3 s")


# ---------------------------------------------------------------- the coordinator


class Committing:
    """Commits a transaction of one record after the other, and keeps when each was committed."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self.times: list[float] = []
        self._bootstrap = bootstrap
        self._id = transactional_id
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with Producer(
            self._bootstrap, transactional_id=self._id, linger_ms=0, delivery_timeout_ms=20_000
        ) as producer:
            while not self._stop.wait(0.002):
                with suppress(PenstockError):  # aborted, then: no success, the next one may be
                    with producer.transaction() as tx:
                        tx.send(TOPIC, b"x" * 100)
                    self.times.append(time.monotonic())

    def await_commits(self, count: int) -> None:
        """So many more."""
        before = len(self.times)
        await_condition("commits", lambda: len(self.times) >= before + count)


def _lose_coordinator(cluster: LocalCluster, admin: Admin, turn: int) -> float:
    """Seconds without a commit. The leader of the records' partition is another broker."""
    with (
        Producer(cluster.bootstrap, transactional_id="first") as producer,
        producer.transaction() as tx,
    ):
        tx.send(TOPIC, b"x")
    await_whole(admin, TOPIC, TRANSACTIONS_TOPIC)
    coordinators, leader = Coordinators(admin), leader_of(admin, TOPIC)
    victim = next(broker for broker in coordinators.brokers if broker != leader)
    name = next(coordinators.ids(f"deaths-{turn}", on=victim))
    with Committing(cluster.bootstrap, name) as committing:
        committing.await_commits(WARM_COMMITS)
        at = time.monotonic()
        cluster.kill(victim, signal.SIGKILL)
        committing.await_commits(WARM_COMMITS)
        times = [when for when in committing.times if when > at - 1.0]
    gap = max(after - before for before, after in pairwise(times))
    progress(f"kill -9 of the coordinator, {turn + 1}: {gap:.2f} s without a commit")
    cluster.start_broker(victim)
    return gap


# ---------------------------------------------------------------- a member


def _lose_members(cluster: LocalCluster, admin: Admin, kills: int) -> list[float]:
    """Seconds from each kill until a reader has a record that stands behind what was open."""
    admin.create_topic("pipe-in", 1, BROKERS)
    admin.create_topic("pipe-out", 1, BROKERS)
    await_whole(admin, "pipe-in", "pipe-out", TOPIC, TRANSACTIONS_TOPIC)
    stood = []
    with Producer(cluster.bootstrap) as producer, Consumer(cluster.bootstrap) as reader:
        producer.send("pipe-in", b"in").result()
        reader.assign([TopicPartition("pipe-out", 0)])
        for turn in range(kills):
            with _member(cluster.bootstrap, f"pipe-{turn}") as member:
                behind = f"behind-{turn}".encode()
                producer.send("pipe-out", behind).result()
                if behind in _values(reader, 0.5):
                    raise SystemExit("a reader passed what is open: nothing to measure")
                at = time.monotonic()
                member.kill()
                while behind not in _values(reader, 1.0):
                    if time.monotonic() > at + SETTLE_S:
                        raise SystemExit(f"the LSO did not move within {SETTLE_S:.0f} s")
                stood.append(time.monotonic() - at)
            progress(f"kill -9 of a pipe's member, {turn + 1} of {kills}: {stood[-1]:.2f} s")
    return stood


def _values(reader: Consumer, timeout_s: float) -> list[bytes | None]:
    return [record.value for batch in reader.poll(timeout_s) for record in batch.records()]


@contextmanager
def _member(bootstrap: str, group: str) -> Iterator[subprocess.Popen[str]]:
    """A member with a transaction open; see `transaction_member.py`."""
    command = [sys.executable, "-m", "benchmarks.transaction_member", bootstrap, group]
    process = subprocess.Popen(
        [*command, "pipe-in", "pipe-out"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "open":
            raise SystemExit(f"the member of {group} ended: exit {process.wait()}")
        yield process
    finally:
        process.kill()
        process.communicate()
