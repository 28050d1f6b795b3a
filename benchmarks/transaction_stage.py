"""What the parts of `transactions.py` share: sizes, a peer that is started once, coordinators."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count

from benchmarks.common import cpu_seconds, progress
from benchmarks.failover import await_condition
from benchmarks.kafka_peer import Peer, available, kafka
from benchmarks.transaction_kafka import protocol
from penstock.client import Admin, PartitionDescription
from penstock.core.transactions.config import (
    TRANSACTIONS_PARTITIONS,
    TRANSACTIONS_TOPIC,
    coordinator_partition,
)
from penstock.errors import PenstockError
from penstock_broker.local import LocalCluster

BROKERS = 3
PARTITIONS = 3


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done. `seconds`: of one measurement of a rate, taken `rounds` times.

    Rounds and reads are even numbers, so that each of those that take turns is as often early in
    its round. `settle_s`: until compaction, which looks every 15 seconds by default, has been
    through what was just written.
    """

    rounds: int = 6
    seconds: float = 3.0
    latencies: int = 300
    producers: int = 16
    piped: int = 100_000
    read: int = 1_000_000
    reads: int = 12
    machine_batches: int = 1_000
    machine_rounds: int = 5
    kills: int = 5
    triggers: int = 8
    trigger_rows: int = 100_000
    open_ids: int = 1_000
    idle_s: float = 15.0
    settle_s: float = 40.0


QUICK = Sizes(
    rounds=1,
    seconds=0.4,
    latencies=10,
    producers=3,
    piped=2_000,
    read=20_000,
    reads=1,
    machine_batches=100,
    machine_rounds=1,
    kills=1,
    triggers=2,
    trigger_rows=1_000,
    open_ids=20,
    idle_s=1.0,
    settle_s=0.3,
)


class Stage:
    """Sizes, and the peer, which is started when it is first asked for and stays."""

    def __init__(self, sizes: Sizes, *, with_kafka: bool) -> None:
        self.sizes = sizes
        self.label = ""
        """Of figures that are compared with the peer."""
        self._missing = None if with_kafka else "not asked for"
        self._running = ExitStack()
        self._peer: Peer | None = None

    def kafka(self) -> Peer | None:
        """Three brokers of Kafka; None if there can be none, which is said once."""
        if self._peer is None and self._missing is None:
            self._missing = available()
            if self._missing is None:
                progress("starting Kafka")
                self._peer = self._running.enter_context(kafka(BROKERS))
                self.label = f"confluent-kafka on Kafka 4.3, {protocol(self._peer.bootstrap)}"
                progress(f"the peer: {self.label}")
        if self._peer is None:
            progress(f"no peer: {self._missing}")
        return self._peer

    def close(self) -> None:
        """Ends the peer: what follows has the machine to itself."""
        self._running.close()
        self._peer = None


class Coordinators:
    """Which broker coordinates which transactional id, as of now."""

    def __init__(self, admin: Admin) -> None:
        """Waits until every partition of the coordinators has a leader."""
        self._leaders: list[int] = []

        def led() -> bool:
            self._leaders = [each.leader for each in _partitions(admin, TRANSACTIONS_TOPIC)]
            return len(self._leaders) == TRANSACTIONS_PARTITIONS and min(self._leaders) >= 0

        await_condition("coordinators of transactions", led)

    def of(self, transactional_id: str) -> int:
        return self._leaders[coordinator_partition(transactional_id, len(self._leaders))]

    @property
    def brokers(self) -> list[int]:
        """Those that coordinate something."""
        return sorted(set(self._leaders))

    def ids(self, prefix: str, *, on: int) -> Iterator[str]:
        """New ids for ever, all coordinated by broker `on`, one of `brokers`."""
        assert on in self.brokers, f"broker {on} coordinates nothing"
        return (name for name in (f"{prefix}-{n}" for n in count()) if self.of(name) == on)


def processor_s(cluster: LocalCluster) -> float:
    """What all brokers and this process have used so far, in seconds of one core."""
    pids = (cluster.broker_pid(broker) for broker in cluster.broker_ids)
    return sum(cpu_seconds(pid) for pid in pids if pid is not None) + time.process_time()


def await_whole(admin: Admin, *topics: str) -> None:
    """Waits until every replica of these topics is in sync."""

    def whole() -> bool:
        return all(
            len(each.isr) == len(each.replicas) and each.leader >= 0
            for topic in topics
            for each in _partitions(admin, topic)
        )

    await_condition("full replication", whole)


def leader_of(admin: Admin, topic: str, partition: int = 0) -> int:
    return admin.describe_topics([topic])[topic].partitions[partition].leader


def _partitions(admin: Admin, topic: str) -> tuple[PartitionDescription, ...]:
    with suppress(PenstockError):
        return admin.describe_topics([topic])[topic].partitions
    return ()
