"""Consumer groups: partitions that move, commits, reading, members at rest, a handler per record.

Members are real clients, most of them in processes of their own (`group_members.py`). What moves
and who dies is in `group_moves.py`. Reading through a group is measured beside reading assigned
partitions, and the handler loop beside aiokafka on a real Kafka, on the same data in the same run.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.common import best_of, cpu_seconds, figure, local_cluster, progress
from benchmarks.group_commits import PROCESSES, committing_members
from benchmarks.group_members import MemberProcess
from benchmarks.group_moves import measure_deaths, measure_rebalance
from benchmarks.kafka_peer import available, kafka
from benchmarks.throughput import CHUNK, PARTITIONS, kafka_produce, kafka_topic
from penstock.client import Admin, Consumer, Producer, TopicPartition

HANDLER_TIMEOUT_S = 300.0
COMMITS_PER_S = 3_000
IDLE_PERCENT = 5.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done. Times in seconds."""

    topics: int = 9
    partitions: int = 100
    members: int = 30
    interval_s: float = 1.0
    times: int = 3
    committers: int = 64
    commit_s: float = 6.0
    megabytes: int = 200
    rounds: int = 2
    idle_groups: int = 1_000
    idle_s: float = 30.0
    handled: int = 1_000_000


QUICK = Sizes(
    topics=2,
    partitions=6,
    members=4,
    interval_s=0.4,
    times=1,
    committers=4,
    commit_s=1.0,
    megabytes=40,
    rounds=1,
    idle_groups=10,
    idle_s=1.0,
    handled=20_000,
)


def rebalance(sizes: Sizes, _with_kafka: bool) -> None:
    with local_cluster(3) as cluster:
        measure_rebalance(cluster, sizes.topics, sizes.partitions, sizes.members, sizes.interval_s)


def deaths(sizes: Sizes, _with_kafka: bool) -> None:
    with local_cluster(3) as cluster:
        measure_deaths(cluster, sizes.times)


def commits(sizes: Sizes, _with_kafka: bool) -> None:
    """What one coordinator stores, of many members of one group at once.

    Waited for: a member makes its next commit when the one before is answered. Pipelined: it
    commits after every record and waits at the end, so that the client merges commits; each has
    its own answer, and these are counted. Kafka's metric `offset-commit-rate` of a coordinator is
    "the rate of committed offsets": it counts offsets and not calls (GroupCoordinatorMetrics.java,
    and `record(OFFSET_COMMITS_SENSOR_NAME, records.size())` in OffsetMetadataManager.java).
    Members and three brokers share the machine's cores; what the coordinator's broker could store
    with one to itself is told as well, from the processor time that a commit cost it.
    """
    each = sizes.committers // PROCESSES
    with local_cluster(3) as cluster, committing_members(cluster, each, 1) as measure:
        waited_for, alone = measure(sizes.commit_s, "commit_rate", 1)
        ten, _ = measure(sizes.commit_s, "commit_rate", 10)
        pipelined, _ = measure(sizes.commit_s, "pipelined_rate")
        members = f"{PROCESSES * each} members of one group"
        figure(f"commits waited for, {members}", waited_for, "commits/s", "goal", COMMITS_PER_S)
        core = "commits waited for, per core of the coordinator's broker"
        figure(core, alone, "commits per CPU second", "goal", COMMITS_PER_S)
        figure(f"offsets, ten per call, {members}", 10 * ten, "offsets/s", "goal", COMMITS_PER_S)
        figure(f"commits pipelined, {members}", pipelined, "commits/s", "goal", COMMITS_PER_S)


def consuming(sizes: Sizes, _with_kafka: bool) -> None:
    """The same records to Arrow, by a group's only member and by a consumer of its own."""
    with local_cluster(1) as cluster:
        for size in (100, 1_000):
            topic, count = f"consume-{size}", sizes.megabytes * 1_000_000 // size // CHUNK * CHUNK
            _fill(cluster.bootstrap, topic, size, count)
            assigned = through_group = 0.0
            for turn in range(sizes.rounds):
                assigned = max(assigned, _read(cluster.bootstrap, topic, "", count))
                group = f"{topic}-{turn}"
                through_group = max(through_group, _read(cluster.bootstrap, topic, group, count))
            figure(
                f"consume to Arrow through a group, {size} B",
                through_group,
                "records/s",
                "assigned partitions, same data",
                assigned,
            )


def idle(sizes: Sizes, _with_kafka: bool) -> None:
    """One broker coordinates all groups. Its members fetch nothing: what is left is membership.

    For two heartbeats of each, one of which is answered: members that joined together beat
    together, and a shorter time would count too much or too little of that.
    """
    with local_cluster(1) as cluster, ExitStack() as ended:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("idle", 1, 1)
        pid = cluster.broker_pid(0) or 0
        processes = []
        for number in range(2):
            process = MemberProcess(cluster.bootstrap, f"idle-{number}-%", ["idle"], resting=True)
            ended.callback(process.kill)
            process.tell("start", sizes.idle_groups // 2)
            processes.append(process)
        for process in processes:
            process.await_done("start")
        time.sleep(sizes.idle_s)  # joins are compacted away
        before = cpu_seconds(pid)
        time.sleep(sizes.idle_s)
        percent = 100 * (cpu_seconds(pid) - before) / sizes.idle_s
        figure(
            f"CPU of a broker that coordinates {sizes.idle_groups:,} groups of one idle member",
            percent,
            "% of a core",
            "limit",
            IDLE_PERCENT,
        )


def handler(sizes: Sizes, with_kafka: bool) -> None:
    """`async for record in consumer` through a group, with automatic commits."""
    value = os.urandom(100)
    with local_cluster(1) as cluster:
        _fill(cluster.bootstrap, "handled", 100, sizes.handled)
        ours = _best_handled("ours", cluster.bootstrap, sizes)
    theirs = None
    if with_kafka:
        with kafka(1) as peer:
            kafka_topic(peer.bootstrap, "handled", 1)
            kafka_produce(peer.bootstrap, "handled", value, sizes.handled)
            theirs = _best_handled("aiokafka", peer.bootstrap, sizes)
    figure(
        "handler per record through a group, 100 B",
        ours,
        "records/s",
        "aiokafka on Kafka 4.3" if theirs else None,
        theirs,
    )


PARTS: dict[str, Callable[[Sizes, bool], None]] = {
    "rebalance": rebalance,
    "deaths": deaths,
    "commits": commits,
    "consuming": consuming,
    "idle": idle,
    "handler": handler,
}


def _best_handled(client: str, bootstrap: str, sizes: Sizes) -> float:
    turn = iter(range(sizes.rounds))

    def run() -> float:
        command = [sys.executable, "-m", "benchmarks.group_handler", client, bootstrap, "handled"]
        command += [f"handler-{next(turn)}", str(sizes.handled)]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, timeout=HANDLER_TIMEOUT_S
        )
        return float(done.stdout)

    rate = best_of(sizes.rounds, run)
    progress(f"handler, {client}: {rate:,.0f} records/s")
    return rate


def _fill(bootstrap: str, topic: str, size: int, count: int) -> None:
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, PARTITIONS, 1)
    values = [os.urandom(size)] * CHUNK
    with Producer(bootstrap) as producer:
        deliveries = [producer.send_columns(topic, values) for _ in range(count // CHUNK)]
        for delivery in deliveries:
            delivery.result()


def _read(bootstrap: str, topic: str, group: str, count: int) -> float:
    """Records per second from the first poll that had any; without a group if `group` is ""."""
    seen, began = 0, 0.0
    with Consumer(
        bootstrap, group_id=group, auto_offset_reset="earliest", auto_commit_interval_ms=250
    ) as consumer:
        if group:
            consumer.subscribe(topic)
        else:
            consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        first = 0
        while seen < count:
            rows = consumer.poll_arrow(10.0).num_rows
            if not rows:
                raise SystemExit(f"{topic}: only {seen} of {count} records came")
            if not began:
                began, first = time.perf_counter(), rows
            seen += rows
    return (seen - first) / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all")
    parser.add_argument("--quick", action="store_true", help="small: shows only that it works")
    parser.add_argument("--no-kafka", action="store_true", help="only ours")
    args = parser.parse_args()
    missing = "not asked for" if args.no_kafka else available()
    if missing:
        progress(f"no peer: {missing}")
    for name in args.part or PARTS:
        progress(name)
        PARTS[name](QUICK if args.quick else Sizes(), missing is None)


if __name__ == "__main__":
    main()
