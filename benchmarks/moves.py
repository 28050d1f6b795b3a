"""What moves of replicas cost, and how fast they are (ADR 64, 66, 76). One cluster of four brokers.

Topics have one replica or two, so that a broker is free to move to. `--mib` is what a copy moves;
rates are bytes over the time from the request until the partition is settled, so they have the wait
for a turn in them (a second at most) and the fsync that a seat needs.
"""

import argparse
import os
import shutil
import socket
import tempfile
import threading
import time
from itertools import count, pairwise
from pathlib import Path

from benchmarks.catch_up import await_condition, in_sync
from benchmarks.common import (
    counted,
    cpu_seconds,
    figure,
    local_cluster,
    median,
    percentile,
    progress,
    run_parts,
)
from benchmarks.load import LIVE, PARTITIONS, Load, Probe, top_rate
from penstock.client import Admin, Producer, ReplicaMove, TopicPartition
from penstock_broker.local import LocalCluster

MIB = 1 << 20
DEFAULT_RATE = 40 * MIB
BROKERS = 4
SPARE = BROKERS - 1
"""The broker that copies go to."""
EMPTY_WAVE = 500
PARTS = ("rates", "gap", "drain", "empty", "latency", "speed")
_BLOCK = os.urandom(1_000)
_topics = count()


class Moves:
    """The cluster, and what every figure does to it."""

    def __init__(self, cluster: LocalCluster, admin: Admin, mib: int) -> None:
        self.cluster = cluster
        self.admin = admin
        self.mib = mib

    def filled(self, *assignment: list[int], mib: int | None = None) -> str:
        """A new topic with as many MiB in its partitions together; 1 MiB if 0."""
        topic = f"moves-{next(_topics)}"
        self.admin.create_topic(topic, assignment=list(assignment))
        blocks = max(self.mib if mib is None else mib, 1) * MIB // (100 * len(_BLOCK))
        with Producer(self.cluster.bootstrap) as producer:
            for number in range(blocks + 1):
                partition = number % len(assignment)
                producer.send_columns(topic, [_BLOCK] * 100, partition=partition).result(120)
        return topic

    def move(self, topic: str, source: int, partitions: range = range(1)) -> None:
        """From the broker that has the only replicas to the spare one."""
        moves = [
            ReplicaMove(TopicPartition(topic, at), target=(SPARE,), expected=(source,))
            for at in partitions
        ]
        for outcome in self.admin.alter_replicas(moves):
            if outcome.error is not None:
                raise outcome.error

    def settle(self, topic: str) -> None:
        await_condition(
            f"the end of the moves of {topic}",
            lambda: not any(one.target for one in self.admin.describe_moves([topic]).moves),
        )

    def bytes_of(self, topic: str, broker: int) -> int:
        (found,) = self.admin.describe_logs([topic], broker_ids=[broker])
        return sum(log.size_bytes for log in found.logs)

    def copy(self, rate: int | None) -> float:
        """A partition moves at this copy rate; MiB per second."""
        self.admin.alter_throttle(rate or 0)
        topic = self.filled([0])
        size = self.bytes_of(topic, 0)
        began = time.monotonic()
        self.move(topic, 0)
        self.settle(topic)
        took_s = time.monotonic() - began
        self.admin.delete_topic(topic)
        return size / MIB / took_s


def over_tcp(mib: int) -> float:
    """A file that is sent over loopback and fsynced; MiB per second."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        source, target = Path(scratch) / "source", Path(scratch) / "target"
        source.write_bytes(os.urandom(MIB) * mib)
        server = socket.create_server(("127.0.0.1", 0))
        began = time.monotonic()
        sender = threading.Thread(target=_send, args=(source, server.getsockname()), daemon=True)
        sender.start()
        connection, _ = server.accept()
        with server, connection, target.open("wb") as file:
            while data := connection.recv(MIB):
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        took_s = time.monotonic() - began
        sender.join()
    return mib / took_s


def _send(source: Path, address: tuple[str, int]) -> None:
    with socket.create_connection(address) as connection, source.open("rb") as file:
        connection.sendfile(file)


def speed(moves: Moves) -> None:
    """Unthrottled, beside what a restarted empty follower and a plain file need."""
    moves.admin.alter_throttle(0)
    topic = moves.filled([0, 2])
    moves.cluster.kill(2)
    await_condition("broker 2's end", lambda: moves.cluster.broker_pid(2) is None)
    await_condition("its removal", lambda: in_sync(moves.admin, 2, [topic]) == 0)
    shutil.rmtree(moves.cluster.directory.root / "broker-2")
    moves.cluster.start_broker(2)
    began = time.monotonic()
    await_condition("catching up", lambda: in_sync(moves.admin, 2, [topic]) == 1)
    caught_up = moves.mib / (time.monotonic() - began)
    moves.admin.delete_topic(topic)
    moved, file = moves.copy(None), over_tcp(moves.mib)
    figure("move, no limit", moved, "MiB/s", "empty follower", caught_up, goal="ratio ≥ 0.9")
    figure("move, no limit", moved, "MiB/s", "file over TCP, fsynced", file)


def rates(moves: Moves) -> None:
    """What a copy rate of 10 and of 40 MiB/s comes to."""
    for mib in (10, 40):
        figure(
            f"move at a copy rate of {mib} MiB/s",
            moves.copy(mib * MIB),
            "MiB/s",
            "the copy rate",
            mib,
            goal="ratio 0.9 to 1.1 if the copy takes 10 s or more",
        )


class Busy:
    """Processor time of the brokers and of this process, which writes the load, from now on."""

    def __init__(self, cluster: LocalCluster) -> None:
        found = (cluster.broker_pid(broker) for broker in range(BROKERS))
        self._pids = [os.getpid(), *(pid for pid in found if pid is not None)]
        self._began = time.monotonic()
        self._before_s = self._used_s()

    def _used_s(self) -> float:
        return sum(cpu_seconds(pid) for pid in self._pids)

    def cores(self) -> float:
        """How many were busy with them, on average."""
        return (self._used_s() - self._before_s) / (time.monotonic() - self._began)


def latency(moves: Moves, seconds: float) -> None:
    """acks=all at half of the top rate: beside a move at the default rate, beside one without a
    limit, and without any."""
    moves.admin.create_topic(LIVE, PARTITIONS, 3)
    load = Load(moves.cluster.bootstrap, LIVE, top_rate(moves.cluster, seconds) / 2)
    try:
        time.sleep(2)
        beside_a_move(moves, seconds, DEFAULT_RATE, "a move", "ratio ≤ 1.25")
        beside_a_move(moves, seconds, None, "a move without a limit", "ratio ≤ 2")
    finally:
        load.stop()
    moves.admin.delete_topic(LIVE)  # a follower that comes back empty would copy it, too


def beside_a_move(moves: Moves, seconds: float, rate: int | None, name: str, goal: str) -> None:
    """The probe's p99, and how often replicas left an ISR meanwhile."""
    moves.admin.alter_throttle(rate or 0)
    topic = moves.filled([0])
    probe, busy = Probe(moves.cluster.bootstrap), Busy(moves.cluster)
    time.sleep(seconds)
    cores_without = busy.cores()
    without_s = percentile(probe.latencies_s(), 0.99)
    before = counted(moves.cluster, "penstock_isr_shrinks_total")
    probe, busy = Probe(moves.cluster.bootstrap), Busy(moves.cluster)
    try:
        moves.move(topic, 0)
        moves.settle(topic)
        cores = busy.cores()
    finally:
        took_s = probe.latencies_s()
    shrinks = counted(moves.cluster, "penstock_isr_shrinks_total") - before
    moves.admin.delete_topic(topic)
    figure(
        f"acks=all p99 at half the top rate, beside {name}",
        percentile(took_s, 0.99) * 1e3,
        "ms",
        "without",
        without_s * 1e3,
        goal=goal,
    )
    name_of_cores = f"cores that brokers and load keep busy beside {name}, of {os.cpu_count()}"
    figure(name_of_cores, cores, "cores", "without", cores_without)
    figure(f"replicas that left an ISR beside {name}", int(shrinks), "", goal="0")


def gap(moves: Moves, rounds: int) -> None:
    """The longest time without an acknowledged write while a switch changes the leader."""
    gaps = []
    for _ in range(rounds):
        topic = moves.filled([0], mib=0)
        with Producer(moves.cluster.bootstrap, linger_ms=0) as producer:
            acknowledged = [time.monotonic()]
            moves.move(topic, 0)
            ended = False
            while not ended or time.monotonic() - acknowledged[0] < 1:
                producer.send(topic, b"x", partition=0).result(120)
                acknowledged.append(time.monotonic())
                found = moves.admin.describe_topics([topic])[topic].partitions[0]
                ended = ended or found.leader == SPARE
        gaps.append(max(after - before for before, after in pairwise(acknowledged)))
        moves.admin.delete_topic(topic)
    name = "write gap at a switch that changes the leader"
    figure(f"{name}, worst of {rounds}", max(gaps), "s", goal="≤ 0.3")
    figure(f"{name}, median", median(gaps), "s")


def drain(moves: Moves, partitions: int) -> None:
    """A broker's replicas go to the spare one at 40 MiB/s; over their bytes at that rate."""
    moves.admin.alter_throttle(DEFAULT_RATE)
    topic = moves.filled(*([[1]] * partitions))
    size = moves.bytes_of(topic, 1)
    began = time.monotonic()
    moves.move(topic, 1, range(partitions))
    moves.settle(topic)
    moved_s = time.monotonic() - began
    await_condition("deletion", lambda: moves.bytes_of(topic, 1) == 0)
    deleted_s = time.monotonic() - began - moved_s
    ideal_s = size / DEFAULT_RATE
    name = f"a broker of {partitions} replicas emptied at 40 MiB/s"
    figure(name, moved_s, "s", "bytes ÷ rate", ideal_s, goal="ratio ≤ 1.15")
    figure("… until its data is deleted", deleted_s, "s", goal="≤ 15")
    moves.admin.delete_topic(topic)


def empty(moves: Moves, partitions: int) -> None:
    """Empty partitions: time, and how many versions of the metadata were stored for them."""
    topic = f"moves-{next(_topics)}"
    moves.admin.create_topic(topic, assignment=[[0]] * partitions)
    before = moves.admin.describe_cluster().metadata_version
    began = time.monotonic()
    for first in range(0, partitions, EMPTY_WAVE):
        moves.move(topic, 0, range(first, min(first + EMPTY_WAVE, partitions)))
    moves.settle(topic)
    took_s = time.monotonic() - began
    versions = moves.admin.describe_cluster().metadata_version - before
    figure(f"{partitions} empty partitions moved", took_s, "s", goal="≤ 60 for 1,000")
    figure("… stored versions", versions / took_s, "per second", goal="≤ 3")
    moves.admin.delete_topic(topic)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=4_096, help="of each copy")
    parser.add_argument("--quick", action="store_true", help="only shows that it works")
    parser.add_argument("--only", action="append", choices=PARTS)
    args = parser.parse_args()
    quick, mib = args.quick, 4 if args.quick else args.mib
    with local_cluster(BROKERS) as cluster, Admin(cluster.bootstrap) as admin:
        moves = Moves(cluster, admin, mib)
        progress(f"copies of {mib} MiB")
        parts = {
            "rates": lambda: rates(moves),
            "gap": lambda: gap(moves, 1 if quick else 10),
            "drain": lambda: drain(moves, 4 if quick else 300),
            "empty": lambda: empty(moves, 20 if quick else 1_000),
            "latency": lambda: latency(moves, 1 if quick else 20),
            "speed": lambda: speed(moves),
        }
        return run_parts({name: parts[name] for name in PARTS if name in (args.only or PARTS)})


if __name__ == "__main__":
    raise SystemExit(main())
