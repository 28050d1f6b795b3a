"""What the parts of `latency.py` share: sizes, the sides, which are started once, and one turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from benchmarks import bare_pattern, kafka_peer, nats_peer
from benchmarks import transaction_kafka as theirs
from benchmarks.common import cpu_seconds, local_cluster, progress
from benchmarks.latency_figures import Run, spent_s
from benchmarks.latency_job import PARTITIONS, Job
from benchmarks.latency_process import ClientProcess
from benchmarks.transaction_stage import await_whole
from penstock.client import Admin
from penstock_broker.local import LocalCluster

BROKERS = 3
KAFKA = "confluent-kafka on Kafka 4.3"
NATS = f"nats-py on NATS JetStream {nats_peer.VERSION}"
BARE = "bare pattern in grpc.aio"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done. Times in seconds.

    Four rounds: with four sides each follows each other one equally often, with two as well.
    """

    rounds: int = 4
    seconds: float = 4.0
    settle_s: float = 0.5
    warm_s: float = 4.0
    kafka_warm_s: float = 20.0
    clients: tuple[int, ...] = (1, 16, 64)
    pipelined: int = 10_000
    rates: tuple[int, ...] = (200, 1_000, 5_000)
    members: int = 64
    commit_s: float = 5.0


QUICK = Sizes(
    rounds=1,
    seconds=0.4,
    settle_s=0.1,
    warm_s=0.2,
    kafka_warm_s=0.2,
    clients=(1, 4),
    pipelined=200,
    rates=(200, 1_000),
    members=4,
    commit_s=0.5,
)


@dataclass(frozen=True, slots=True)
class Side:
    """Servers that run. `kind`: of their clients (`latency_job.py`). `warm_s`: before a part."""

    kind: str
    label: str
    bootstrap: str
    pids: Callable[[], Sequence[int]]
    warm_s: float
    create: Callable[[str, int], None]
    """Makes a topic of so many partitions and waits until all replicas follow."""
    delete: Callable[[str], None]

    def new_topic(self, name: str, partitions: int = PARTITIONS) -> str:
        """Its name, which no other topic has had."""
        topic = f"{name}-{time.monotonic_ns()}"
        self.create(topic, partitions)
        return topic


class Stage:
    """Sides are started when they are first asked for, and stay until `close`."""

    def __init__(self, sizes: Sizes, *, with_kafka: bool, with_nats: bool) -> None:
        self.sizes = sizes
        self._running = ExitStack()
        self._sides: dict[str, Side] = {}
        self._missing: dict[str, str | None] = {
            "kafka": None if with_kafka else "not asked for",
            "nats": None if with_nats else "not asked for",
        }

    def ours(self) -> Side:
        return self._sides.get("ours") or self._started("ours", self._start_ours)

    def bare(self) -> Side:
        return self._sides.get("bare") or self._started("bare", self._start_bare)

    def kafka(self) -> Side | None:
        """None if there can be none, which is said."""
        return self._peer("kafka", kafka_peer.available, self._start_kafka)

    def nats(self) -> Side | None:
        """None if there can be none, which is said."""
        return self._peer("nats", nats_peer.available, self._start_nats)

    def close(self) -> None:
        """Ends all sides: what follows has the machine to itself."""
        self._sides.clear()
        self._running.close()

    def _peer(
        self, kind: str, available: Callable[[], str | None], start: Callable[[], Side]
    ) -> Side | None:
        if kind not in self._sides and self._missing[kind] is None:
            self._missing[kind] = available()
        if self._missing[kind] is not None:
            progress(f"no {kind}: {self._missing[kind]}")
            return None
        return self._sides.get(kind) or self._started(kind, start)

    def _started(self, kind: str, start: Callable[[], Side]) -> Side:
        progress(f"starting {kind}")
        self._sides[kind] = side = start()
        return side

    def _start_ours(self) -> Side:
        cluster = self._running.enter_context(local_cluster(BROKERS))
        return Side(
            "ours",
            "",
            cluster.bootstrap,
            partial(_broker_pids, cluster),
            self.sizes.warm_s,
            partial(_create, cluster),
            partial(_delete, cluster),
        )

    def _start_kafka(self) -> Side:
        peer = self._running.enter_context(kafka_peer.kafka(BROKERS))
        return Side(
            "kafka",
            KAFKA,
            peer.bootstrap,
            lambda: [process.pid for process in peer.processes],
            self.sizes.kafka_warm_s,
            lambda topic, partitions: theirs.create_topic(
                peer.bootstrap, topic, partitions, BROKERS
            ),
            partial(theirs.delete_topic, peer.bootstrap),
        )

    def _start_nats(self) -> Side:
        servers = self._running.enter_context(nats_peer.nats(BROKERS))
        return Side(
            "nats",
            NATS,
            servers.bootstrap,
            lambda: [process.pid for process in servers.processes],
            self.sizes.warm_s,
            partial(nats_peer.create_streams, servers.bootstrap),
            lambda _topic: None,
        )

    def _start_bare(self) -> Side:
        nodes = self._running.enter_context(bare_pattern.nodes(BROKERS))
        return Side(
            "bare",
            BARE,
            nodes.bootstrap,
            lambda: [process.pid for process in nodes.processes],
            self.sizes.warm_s,
            lambda _topic, _partitions: None,
            lambda _topic: None,
        )


def take_turn(side: Side, jobs: Sequence[Job]) -> Run:
    """Starts a process per job, lets them begin together, and takes what they measured.

    The brokers' processor time is looked at when all are ready and when all are done, before
    their answers are read.
    """
    with ExitStack() as ended:
        processes = []
        for job in jobs:
            process = ClientProcess(job)
            ended.callback(process.kill)
            processes.append(process)
        for process in processes:
            process.await_event("ready")
        before = {pid: cpu_seconds(pid) for pid in side.pids()}
        for process in processes:
            process.go()
        for process in processes:
            process.await_event("done")
        after = {pid: cpu_seconds(pid) for pid in side.pids()}
        samples = [process.sample() for process in processes]
    return Run(samples=samples, brokers_s=spent_s(before, after))


def _broker_pids(cluster: LocalCluster) -> list[int]:
    pids = [cluster.broker_pid(broker) for broker in cluster.broker_ids]
    return [pid for pid in pids if pid is not None]


def _create(cluster: LocalCluster, topic: str, partitions: int) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(topic, partitions, BROKERS)
        await_whole(admin, topic)


def _delete(cluster: LocalCluster, topic: str) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.delete_topic(topic)
