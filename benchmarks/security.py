"""What TLS, tokens and rules cost: a secure cluster beside a plaintext one, in the same run.

Three brokers each, replication 3, acks=all, on one machine; the two take turns, and a ratio is the
median of the rounds' ratios. The secure one is what `penstock local up --secure` starts: TLS
everywhere, certificates between servers, a token and rules for every request of a user.
"""

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

from benchmarks.common import (
    cpu_seconds,
    figure,
    figure_of_rounds,
    in_turns,
    local_cluster,
    progress,
    run_parts,
)
from benchmarks.failover import TOPIC as FAILOVER_TOPIC
from benchmarks.failover import measure_gaps
from benchmarks.latency_figures import Run
from benchmarks.latency_job import PARTITIONS, Job
from benchmarks.latency_stage import Side, take_turn
from benchmarks.security_flood import PER_S, flooded
from benchmarks.transaction_stage import await_whole
from penstock.client import Admin, AsyncAdmin, Consumer, Producer, TopicPartition
from penstock.core.authorization import Kind, Operation, Resource, Rule, Rulebook
from penstock_broker.local import LocalCluster

BROKERS = 3
RECORD_BYTES = 1_000
CHUNK = 500
SMALL_GOAL = "ratio ≥ 0.9"
BULK_GOAL = "ratio ≥ 0.7"
DECISION_US = 10.0
RECONNECT_S = 15.0
FLOOD_GOAL = "ratio < 2"
FAILOVER_GOAL = "ratio ≤ 1.1"
PLAINTEXT = "plaintext"
SECURE = "secure"
TOPICS = 5_000


class Sides:
    """Both clusters, started once. `quick`: shows only that it works."""

    def __init__(self, running: ExitStack, *, quick: bool) -> None:
        self.rounds = 1 if quick else 4
        self.seconds = 0.4 if quick else 4.0
        self.records = 5_000 if quick else 300_000
        self.connections = 50 if quick else 1_000
        self.kills = 1 if quick else 5
        self.clusters: dict[str, LocalCluster] = {}
        for name in (PLAINTEXT, SECURE):
            progress(f"starting the {name} cluster")
            secure = name == SECURE
            self.clusters[name] = running.enter_context(local_cluster(BROKERS, secure=secure))

    def settings(self, name: str) -> dict[str, Any]:
        """Of every client."""
        return dict(self.clusters[name].directory.client_files)

    def topic(self, name: str, of: str) -> str:
        """A new topic whose replicas all follow."""
        topic = f"{of}-{time.monotonic_ns()}"
        with Admin(self.clusters[name].bootstrap, **self.settings(name)) as admin:
            admin.create_topic(topic, PARTITIONS, BROKERS)
            await_whole(admin, topic)
        return topic

    def pids(self, name: str) -> list[int]:
        """Of the brokers."""
        cluster = self.clusters[name]
        found = [cluster.broker_pid(broker) for broker in cluster.broker_ids]
        return [pid for pid in found if pid is not None]

    def beside(
        self, name: str, unit: str, runs: Mapping[str, list[float]], *, goal: str = ""
    ) -> None:
        """A figure of the secure side beside the other."""
        figure_of_rounds(name, runs[SECURE], unit, PLAINTEXT, runs[PLAINTEXT], goal=goal)


def small(sides: Sides) -> None:
    """Clients that each wait for the acknowledgement of one record of 100 B."""
    topics = {name: sides.topic(name, "small") for name in sides.clusters}

    def turn(name: str, clients: int) -> Run:
        cluster = sides.clusters[name]
        side = Side(
            "ours", "", cluster.bootstrap, partial(sides.pids, name), 0.0, _nothing, _nothing
        )
        job = Job(
            side="ours",
            role="append",
            bootstrap=cluster.bootstrap,
            topic=topics[name],
            clients=tuple(range(clients)),
            seconds=sides.seconds,
            settle_s=sides.seconds / 4,
            settings=sides.settings(name),
        )
        return take_turn(side, [job])

    for clients in (1, 16):
        runs = in_turns(sides.rounds, {name: partial(turn, name, clients) for name in topics})
        words = f"small appends, {clients} client{'s' * (clients > 1)}"
        for what, unit, value, goal in (
            ("acknowledged", "acks/s", _per_s, SMALL_GOAL),
            ("p50", "ms", _p50, ""),
            ("CPU of three brokers per ack", "ms", _brokers_ms, ""),
        ):
            found = {name: [value(run) for run in those] for name, those in runs.items()}
            sides.beside(f"{words}, {what}", unit, found, goal=goal)


def flood(sides: Sides) -> None:
    """A client that waits for each record's acknowledgement, while another host of bad tokens keeps
    one of three brokers busy; beside a minute of peace."""
    topic = sides.topic(SECURE, "flood")
    cluster = sides.clusters[SECURE]
    settings = sides.settings(SECURE)
    refused: list[float] = []

    def append() -> Run:
        side = Side(
            "ours", "", cluster.bootstrap, partial(sides.pids, SECURE), 0.0, _nothing, _nothing
        )
        job = Job(
            side="ours",
            role="append",
            bootstrap=cluster.bootstrap,
            topic=topic,
            clients=(0,),
            seconds=sides.seconds,
            settle_s=sides.seconds / 4,
            settings=settings,
        )
        return take_turn(side, [job])

    def under_attack() -> Run:
        address = cluster.bootstrap.split(",")[0]
        with flooded(address, settings["ca_file"], sides.seconds * 2 + 5) as said:
            run = append()
        refused.append(said[0]["refused"] / said[0]["seconds"])
        return run

    runs = in_turns(sides.rounds, {"in peace": append, "flooded": under_attack})
    for what, share in (("p50", 0.5), ("p99", 0.99)):
        found = {name: [run.latency_ms(share) for run in those] for name, those in runs.items()}
        figure_of_rounds(
            f"small appends, 1 client, while bad tokens arrive, {what}",
            found["flooded"], "ms", "in peace", found["in peace"],
            goal=FLOOD_GOAL if share > 0.5 else "",
        )  # fmt: skip
    figure("bad tokens refused", median(refused), "1/s", "asked", PER_S)


def bulk(sides: Sides) -> None:
    """One producer of records of 1 KB, then one consumer of them to Arrow."""
    topics: dict[str, str] = {}

    def produce(name: str) -> float:
        topics[name] = sides.topic(name, "bulk")
        values = [b"." * RECORD_BYTES] * CHUNK
        with Producer(sides.clusters[name].bootstrap, **sides.settings(name)) as producer:
            began = time.perf_counter()
            for _ in range(sides.records // CHUNK):
                producer.send_columns(topics[name], values)
            producer.flush()
            return sides.records / (time.perf_counter() - began)

    def consume(name: str) -> float:
        partitions = [TopicPartition(topics[name], number) for number in range(PARTITIONS)]
        seen, began = 0, time.perf_counter()
        with Consumer(sides.clusters[name].bootstrap, **sides.settings(name)) as consumer:
            consumer.assign(partitions)
            consumer.seek_to_beginning(partitions)
            while seen < sides.records:
                table = consumer.poll_arrow(10.0)
                if table is None or not table.num_rows:
                    raise SystemExit(f"{name}: {seen} of {sides.records} records, and no more")
                seen += table.num_rows
        return seen / (time.perf_counter() - began)

    def both(name: str) -> tuple[float, float]:
        return produce(name), consume(name)

    runs = in_turns(sides.rounds, {name: partial(both, name) for name in sides.clusters})
    for at, what in enumerate(("produce", "consume to Arrow")):
        found = {name: [run[at] for run in those] for name, those in runs.items()}
        sides.beside(f"bulk of 1 KB, {what}", "records/s", found, goal=BULK_GOAL)


def connections(sides: Sides) -> None:
    """Clients that all connect at once, ask for metadata, and hang up."""

    async def connect(name: str) -> None:
        settings = {**sides.settings(name), "connect_timeout_ms": 60_000}
        admin = AsyncAdmin(sides.clusters[name].bootstrap, **settings)
        try:
            await admin.describe_cluster()
        finally:
            await admin.close()

    async def all_of(name: str) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(sides.connections):
                tasks.create_task(connect(name))

    def turn(name: str) -> tuple[float, float]:
        before = sum(map(cpu_seconds, sides.pids(name)))
        began = time.perf_counter()
        asyncio.run(all_of(name))
        took_s = time.perf_counter() - began
        spent_s = sum(map(cpu_seconds, sides.pids(name))) - before
        return took_s, 1e3 * spent_s / sides.connections

    runs = in_turns(sides.rounds, {name: partial(turn, name) for name in sides.clusters})
    words = f"{sides.connections} clients connect at once"
    took = {name: [run[0] for run in those] for name, those in runs.items()}
    sides.beside(f"{words}, until all have an answer", "s", took)
    figure(
        f"{words}, until all have an answer",
        max(took[SECURE]),
        "s",
        "limit",
        RECONNECT_S,
        goal=f"≤ {RECONNECT_S:g} s",
    )
    cost = {name: [run[1] for run in those] for name, those in runs.items()}
    sides.beside("a connection and its first call, CPU of the brokers", "ms", cost)


def failover(sides: Sides) -> None:
    """The leader of a partition is killed with -9; how long nothing can be written."""
    for name, cluster in sides.clusters.items():
        with Admin(cluster.bootstrap, **sides.settings(name)) as admin:
            admin.create_topic(FAILOVER_TOPIC, 1, BROKERS)
            await_whole(admin, FAILOVER_TOPIC)

    def turn(name: str) -> float:
        return median(measure_gaps(sides.clusters[name], sides.kills, signal.SIGKILL))

    runs = in_turns(sides.rounds, {name: partial(turn, name) for name in sides.clusters})
    sides.beside("write gap after kill -9 of the leader, median", "s", runs, goal=FAILOVER_GOAL)


def decisions(_sides: Sides) -> None:
    """Rules of 5,000 topics; a user who asks about each of them for the first time, and again."""
    book = Rulebook()
    user = "serviceaccount:etl/spark"
    rule = Rule(principals=(user, "*"), operations=(Operation.READ, Operation.WRITE))
    resources = [Resource(Kind.TOPIC, f"topic-{number}") for number in range(TOPICS)]
    for each in resources:
        book.put_topic(each.name, (rule,))
    for when in ("for the first time", "made before"):
        began = time.perf_counter()
        allowed = sum(book.decide(user, (), Operation.WRITE, each).allowed for each in resources)
        took_us = 1e6 * (time.perf_counter() - began) / TOPICS
        if allowed != TOPICS:
            raise SystemExit(f"{allowed} of {TOPICS} were allowed")
        goal = f"≤ {DECISION_US:g} µs"
        figure(f"a decision by rules, {when}", took_us, "µs", "limit", DECISION_US, goal=goal)


def _per_s(run: Run) -> float:
    return run.per_s


def _p50(run: Run) -> float:
    return run.latency_ms(0.5)


def _brokers_ms(run: Run) -> float:
    return run.brokers_ms


def _nothing(*_: object) -> None:
    return None


PARTS: dict[str, Callable[[Sides], None]] = {
    "small": small,
    "flood": flood,
    "bulk": bulk,
    "connections": connections,
    "failover": failover,
    "decisions": decisions,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", choices=PARTS, metavar="PART", help=", ".join(PARTS)
    )
    parser.add_argument("--quick", action="store_true", help="small: shows only that it works")
    args = parser.parse_args()
    wanted = {name: PARTS[name] for name in PARTS if not args.only or name in args.only}
    with ExitStack() as running:
        sides = Sides(running, quick=args.quick)
        return run_parts({name: partial(measure, sides) for name, measure in wanted.items()})


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
