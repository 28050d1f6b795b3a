"""Faults that are made in a cluster of real processes on this machine, for alerts to fire over.

Each cluster has a controller and three brokers, the topics `flights` (on all, min.insync.replicas
2), `alone` (on broker 2) and `lossy` (brokers 0 and 1, unclean elections), and a producer that
needs `flights`. What a fault starts lasts until its `stack` is closed.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from support.background import Background
from support.cluster import Cluster
from support.connection_faults import FEW_DESCRIPTORS, connections_full
from support.differing import logs_differ
from support.disk_faults import (
    DAY_MS,
    MIB,
    disk_slow,
    disk_to_slow_down,
    leaves_free,
    scrub_held_up,
    scrub_recorded,
    small_disk,
)
from support.fault_scene import Scene
from support.faults import Faults
from support.processes import HOST
from support.waiting import wait_until

from penstock.client import Acks, Admin, Consumer, Producer, ReplicaMove, TopicPartition
from penstock.core.types import BrokerId
from penstock.errors import PenstockError
from penstock_broker.certificates.authority import Authority
from penstock_broker.datadir import DataDirectory
from penstock_broker.groups.lag import PARTITIONS_MAX as WATCHED_MAX

Make = Callable[[Cluster, ExitStack], None]
GROUPS: Final = 40


def _nothing(_cluster: Cluster, _stack: ExitStack) -> None:
    """A cluster as it comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFault:
    """`before` the processes start, `work` once they run, `make` when they were seen in health."""

    make: Make
    before: Make = _nothing
    work: Make = _nothing
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the `Cluster`."""

    @contextmanager
    def scene(self, folder: Path) -> Iterator[Scene]:
        """In health."""
        with ExitStack() as stack:
            cluster = Cluster(folder, **{"brokers": 3, "start": False, **self.options})
            self.before(cluster, stack)
            stack.callback(cluster.close)
            cluster.start()
            _make_topics(cluster)
            if cluster.certificates is None:
                stack.enter_context(Load(cluster))
            self.work(cluster, stack)
            ports = {f"broker-{id_}": port for id_, port in cluster.metrics_ports.items()}
            ports["controller-0"] = cluster.controller_metrics_port
            targets = {instance: f"{HOST}:{port}" for instance, port in ports.items()}
            yield Scene(targets, lambda: self.make(cluster, stack))


def _make_topics(cluster: Cluster) -> None:
    cluster.create_topic("flights", replication_factor=3, configs={"min.insync.replicas": "2"})
    cluster.create_topic("alone", assignment=[[2]])
    configs = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    cluster.create_topic("lossy", assignment=[[0, 1]], configs=configs)


class Load(Background):
    """Produces a record every 50 ms, whatever comes back."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._bootstrap = cluster.bootstrap

    def _run(self) -> None:
        while not self._stop.is_set():
            with Producer(self._bootstrap, acks=Acks.ALL, delivery_timeout_ms=2_000) as producer:
                while not self._stop.wait(0.05):
                    try:
                        producer.send("flights", b"value").result(5)
                    except (PenstockError, TimeoutError):
                        break


# ── Processes end ─────────────────────────────────────────────────────────────────────────────


def broker_killed(cluster: Cluster, _: ExitStack) -> None:
    """Broker 2 of three, which alone has the topic `alone`."""
    cluster.brokers[2].kill()


def two_brokers_killed(cluster: Cluster, _: ExitStack) -> None:
    """Of three, with min.insync.replicas 2 and a producer that needs them."""
    cluster.brokers[1].kill()
    cluster.brokers[2].kill()


def controller_killed(cluster: Cluster, _: ExitStack) -> None:
    """The only one."""
    cluster.controller.kill()


def unclean_election(cluster: Cluster, _: ExitStack) -> None:
    """Broker 1 falls behind, the leader dies, and broker 1 has to lead without all records."""
    cluster.brokers[1].kill()
    wait_until(
        lambda: list(cluster.partition("lossy", 0).isr) == [0], what="broker 1 is out of the ISR"
    )
    with Producer(cluster.bootstrap) as producer:
        producer.send("lossy", b"value").result(30)
    cluster.brokers[0].kill()
    cluster.brokers[1].start()


# ── Disks ─────────────────────────────────────────────────────────────────────────────────────


def power_lost(cluster: Cluster, _: ExitStack) -> None:
    """All brokers and the controller, at once; and they are started again."""
    cluster.controller.kill()
    for broker in cluster.brokers.values():
        broker.kill()
    for id_ in cluster.brokers:
        folder, before = cluster.data_dir(id_), "of the machine before it lost power"
        directory = DataDirectory.open(
            folder, cluster_id=None, broker_id=BrokerId(id_), boot_id=before
        )
        directory.close(clean=False)
    cluster.controller.start()
    for broker in cluster.brokers.values():
        broker.start(wait=False)


def _value(number: int) -> bytes:
    """2 KB that no other record has: a batch of its own in a blob file."""
    return f"<{number:07}>".encode() * 230


def _write(cluster: Cluster, topic: str, count: int) -> None:
    """With keys of their own."""
    with Producer(cluster.bootstrap, linger_ms=0, batch_bytes=1024) as producer:
        sent = [
            producer.send(topic, _value(number), b"%d" % number, partition=0)
            for number in range(count)
        ]
        for delivery in sent:
            delivery.result(60)


def _flip(cluster: Cluster, broker_id: int, number: int) -> None:
    """A bit of a record on the disk of a broker that has stopped."""
    wanted = _value(number)[:600]
    flipped = 0
    for path in cluster.data_dir(broker_id).rglob("*.blob"):
        content = bytearray(path.read_bytes())
        at = content.find(wanted)
        if at >= 0:
            content[at + 900] ^= 0x10
            path.write_bytes(content)
            flipped += 1
    assert flipped, f"broker {broker_id} has record {number} in no blob file"


def replica_damaged(cluster: Cluster, _: ExitStack) -> None:
    """The only replica of `alone`: a scrub finds it, and nobody has what was there."""
    _write(cluster, "alone", 50)
    assert cluster.brokers[2].stop() == 0
    _flip(cluster, 2, 20)
    cluster.brokers[2].start()
    cluster.wait_leader("alone", 0, 2)
    with Admin(cluster.bootstrap) as admin:
        assert admin.start_scrub("alone", 0) == 1


def table_damaged(cluster: Cluster, _: ExitStack) -> None:
    """Of the index, on one of three brokers: its replica is copied again, and the table stays."""
    _write(cluster, "flights", 300)
    assert cluster.brokers[2].stop() == 0
    tables = cluster.data_dir(2).rglob("*.sst")
    largest = max(tables, key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 0x10
    largest.write_bytes(content)
    cluster.brokers[2].start()
    with Admin(cluster.bootstrap) as admin:
        assert admin.start_scrub("flights", 0) == 3


# ── Compaction ────────────────────────────────────────────────────────────────────────────────


def _make_compacted(cluster: Cluster) -> None:
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    cluster.create_topic("latest", assignment=[[2]], configs=configs)


def compaction_failing(cluster: Cluster, _: ExitStack) -> None:
    """A pass over the only replica of a compacted topic meets a damaged batch."""
    _make_compacted(cluster)
    _write(cluster, "latest", 50)
    assert cluster.brokers[2].stop() == 0
    _flip(cluster, 2, 20)
    cluster.brokers[2].start()
    cluster.wait_leader("latest", 0, 2)


def compaction_held_up(cluster: Cluster, _: ExitStack) -> None:
    """More is written to a compacted topic than compaction may read."""
    _make_compacted(cluster)
    _write(cluster, "latest", 500)


# ── Load, moves, formats ──────────────────────────────────────────────────────────────────────


class Flood(Background):
    """Sends as fast as it can, more at a time than brokers take."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._bootstrap = cluster.bootstrap

    def _run(self) -> None:
        with Producer(self._bootstrap, acks=Acks.ALL, batch_bytes=32_000) as producer:
            while not self._stop.is_set():
                sent = [producer.send("flights", bytes(30_000)) for _ in range(16)]
                for delivery in sent:
                    try:
                        delivery.result(30)
                    except (PenstockError, TimeoutError):
                        continue


def producers_flood(cluster: Cluster, stack: ExitStack) -> None:
    """Four of them, where 64 KB may be in flight."""
    for _ in range(4):
        stack.enter_context(Flood(cluster))


def target_killed(cluster: Cluster, _: ExitStack) -> None:
    """Broker 1, while `alone` is copied to it slowly."""
    _write(cluster, "alone", 500)
    where = TopicPartition("alone", 0)
    with Admin(cluster.bootstrap) as admin:
        (outcome,) = admin.alter_replicas([ReplicaMove(where, (1,), (2,))])
        assert outcome.error is None, outcome.error

        def copies() -> bool:
            return any(move.copies for move in admin.describe_moves(["alone"]).moves)

        wait_until(copies, what="alone is copied")
    cluster.brokers[1].kill()


def not_finalized(cluster: Cluster, _: ExitStack) -> None:
    """The metadata has the format of the release before, as after every upgrade."""
    with Admin(cluster.bootstrap) as admin:
        assert admin.finalize(1).after == 1


# ── Clocks ────────────────────────────────────────────────────────────────────────────────────


def _clock_of(cluster: Cluster) -> Faults:
    return Faults(cluster.brokers[1], cluster.path / "clock-1")


def clock_to_be_set(cluster: Cluster, _: ExitStack) -> None:
    """The clock of broker 1 is right at first."""
    _clock_of(cluster).set_clock(0)


def clock_wrong(cluster: Cluster, _: ExitStack) -> None:
    """Somebody sets the clock of broker 1 a day ahead."""
    _clock_of(cluster).set_clock(DAY_MS)


# ── Certificates ──────────────────────────────────────────────────────────────────────────────


def certificate_not_renewed(cluster: Cluster, _: ExitStack) -> None:
    """Three of its days are left: it should have been renewed at ten."""
    assert cluster.certificates is not None
    cluster.certificates.renew(days=3)


def authority_ends(cluster: Cluster, _: ExitStack) -> None:
    """All trust a CA besides that has 60 days left."""
    assert cluster.certificates is not None
    old = cluster.certificates.authority
    cluster.certificates.trust(old, Authority.new("CA of last year", days=60))


# ── Groups ────────────────────────────────────────────────────────────────────────────────────


def consumer_stopped(cluster: Cluster, _: ExitStack) -> None:
    """A group has committed once, and commits nothing any more."""
    with Consumer(cluster.bootstrap, group_id="readers", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["flights"])
        while not consumer.poll(1.0):
            pass
        consumer.commit()


def too_many_groups(cluster: Cluster, _: ExitStack) -> None:
    """With twice the offsets that three brokers export."""
    partitions = 6 * WATCHED_MAX // GROUPS
    cluster.create_topic("wide", partitions=partitions, replication_factor=1)
    offsets = {TopicPartition("wide", number): 0 for number in range(partitions)}
    with Admin(cluster.bootstrap) as admin:
        for number in range(GROUPS):
            admin.reset_offsets(f"group-{number}", offsets)


class Restless(Background):
    """A member that joins its group, is assigned something, and leaves, again and again."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._bootstrap = cluster.bootstrap

    def _run(self) -> None:
        while not self._stop.is_set():
            with Consumer(self._bootstrap, group_id="restless") as consumer:
                consumer.subscribe(["flights"])
                consumer.poll(0.5)


def members_come_and_go(cluster: Cluster, stack: ExitStack) -> None:
    stack.enter_context(Restless(cluster))


def _faults_of(cluster: Cluster) -> list[Faults]:
    return [
        Faults(broker, cluster.path / f"coordinators-{broker_id}")
        for broker_id, broker in cluster.brokers.items()
    ]


def coordinators_to_end(cluster: Cluster, _: ExitStack) -> None:
    """All is well at first."""
    _faults_of(cluster)


def coordinators_work(cluster: Cluster, _: ExitStack) -> None:
    """A group has committed, and a transaction."""
    with Admin(cluster.bootstrap) as admin:
        admin.reset_offsets("readers", {TopicPartition("alone", 0): 0})
    with Producer(cluster.bootstrap, transactional_id="commits") as producer:
        transaction = producer.transaction()
        transaction.begin()
        transaction.send("flights", b"value", partition=0).result(60)
        transaction.commit()


def coordinators_end(cluster: Cluster, _: ExitStack) -> None:
    """Broker 1 is restarted, and who takes its coordinators over cannot read their logs."""
    for faults in _faults_of(cluster):
        faults.hide_coordinators_logs()
    cluster.brokers[1].kill()
    cluster.brokers[1].start(wait=False)


# ── Transactions ──────────────────────────────────────────────────────────────────────────────


def transaction_stays_open(cluster: Cluster, stack: ExitStack) -> None:
    """Its producer says no more, and its coordinator can store nothing: two of three brokers die.
    So it is not aborted at its timeout."""
    producer = stack.enter_context(
        Producer(cluster.bootstrap, transactional_id="stays", transaction_timeout_ms=10_000)
    )
    transaction = producer.transaction()
    transaction.begin()
    transaction.send("flights", b"value", partition=0).result(60)
    two_brokers_killed(cluster, stack)


def partition_cannot_finish(cluster: Cluster, _: ExitStack) -> None:
    """A transaction commits after the only replica that it wrote to has died."""
    with Producer(cluster.bootstrap, transactional_id="commits") as producer:
        transaction = producer.transaction()
        transaction.begin()
        transaction.send("alone", b"value", partition=0).result(60)
        cluster.brokers[2].kill()
        transaction.commit()


_SECURE: Final = {"secure": True}
LOCAL_FAULTS: Final[dict[str, LocalFault]] = {
    "broker-killed": LocalFault(make=broker_killed),
    "two-brokers-killed": LocalFault(make=two_brokers_killed),
    "controller-killed": LocalFault(make=controller_killed),
    "unclean-election": LocalFault(make=unclean_election),
    "power-lost": LocalFault(make=power_lost),
    "disk-filling": LocalFault(make=leaves_free(100 * MIB), before=small_disk),
    "disk-full": LocalFault(make=leaves_free(32 * MIB), before=small_disk),
    "scrub-held-up": LocalFault(make=scrub_held_up, before=small_disk, work=scrub_recorded),
    "disk-slow": LocalFault(make=disk_slow, before=disk_to_slow_down),
    "replica-damaged": LocalFault(make=replica_damaged),
    "table-damaged": LocalFault(make=table_damaged),
    "clock-wrong": LocalFault(make=clock_wrong, before=clock_to_be_set),
    "logs-differ": LocalFault(make=logs_differ),
    "compaction-failing": LocalFault(
        make=compaction_failing,
        options={"broker_config": {"log.cleaner.backoff.ms": "3000"}},
    ),
    "compaction-held-up": LocalFault(
        make=compaction_held_up,
        options={
            "broker_config": {
                "log.cleaner.backoff.ms": "1000",
                "log.cleaner.io.max.bytes.per.second": "1024",
            }
        },
    ),
    "producers-flood": LocalFault(
        make=producers_flood, options={"broker_config": {"produce.inflight.bytes": "65536"}}
    ),
    "connections-full": LocalFault(make=connections_full, options={"launcher": FEW_DESCRIPTORS}),
    "target-killed": LocalFault(
        make=target_killed,
        options={"broker_config": {"replica.copy.bytes.per.second": "4096"}},
    ),
    "not-finalized": LocalFault(make=not_finalized),
    "certificate-not-renewed": LocalFault(make=certificate_not_renewed, options=_SECURE),
    "authority-ends": LocalFault(make=authority_ends, options=_SECURE),
    "coordinators-end": LocalFault(
        make=coordinators_end, before=coordinators_to_end, work=coordinators_work
    ),
    "consumer-stopped": LocalFault(make=consumer_stopped),
    "too-many-groups": LocalFault(make=too_many_groups),
    "members-come-and-go": LocalFault(make=members_come_and_go),
    "transaction-stays-open": LocalFault(make=transaction_stays_open),
    "partition-cannot-finish": LocalFault(make=partition_cannot_finish),
}
