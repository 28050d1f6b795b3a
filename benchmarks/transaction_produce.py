"""Parts of `transactions.py`: what producing in transactions costs, beside producing without."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial

from benchmarks import transaction_kafka as theirs
from benchmarks.common import (
    cpu_seconds,
    figure,
    figure_of_rounds,
    in_turns,
    local_cluster,
    median,
    progress,
)
from benchmarks.transaction_stage import (
    BROKERS,
    PARTITIONS,
    Coordinators,
    Sizes,
    Stage,
    await_whole,
    processor_s,
)
from penstock.client import Admin, AsyncProducer, Producer
from penstock.client.loop_thread import shared_loop
from penstock.core.transactions.config import TRANSACTIONS_TOPIC
from penstock_broker.local import LocalCluster

INTERVALS_S = (0.1, 1.0)
RECORD_BYTES = 1_000
CHUNK = 500
KEPT = {0.1: 0.80, 1.0: 0.95}
"""By interval: how much of an idempotent producer's throughput a transactional one keeps."""
Produced = tuple[float, int]


def produce(stage: Stage) -> None:
    """1 KB through the batch API, committed every 100 ms and every second, and without."""
    sizes, value = stage.sizes, os.urandom(RECORD_BYTES)
    spent: dict[float, list[float]] = {}
    with local_cluster(BROKERS) as cluster:
        runs = {
            ("ours", interval): partial(_produce_turn, cluster, value, sizes, interval, spent)
            for interval in (0.0, *INTERVALS_S)
        }
        peer = stage.kafka()
        if peer is not None:
            for interval in (0.0, *INTERVALS_S):
                run = partial(_kafka_produce_turn, peer.bootstrap, value, sizes, interval)
                runs["theirs", interval] = run
        found = in_turns(sizes.rounds, runs)
    rates = {who: [rate for rate, _ in results] for who, results in found.items()}
    for interval in (0.0, *INTERVALS_S):
        words = f"commit every {interval:g} s" if interval else "idempotent"
        progress(
            f"ours, {words}: {1e6 * median(spent[interval]):.1f} µs of processor time a record"
        )
    for interval in INTERVALS_S:
        _report_produce(stage, rates, interval, with_peer=peer is not None)
        for who in ("ours", "theirs")[: 2 if peer is not None else 1]:
            made = median([transactions for _, transactions in found[who, interval]])
            progress(f"{who}, commit every {interval:g} s: {made:g} in {sizes.seconds:g} s")


def _report_produce(
    stage: Stage, rates: dict[tuple[str, float], list[float]], interval: float, *, with_peer: bool
) -> None:
    ours, plain = rates["ours", interval], rates["ours", 0.0]
    words = f"{RECORD_BYTES} B, commit every {1e3 * interval:g} ms"
    name = f"produce in transactions, batch API, {words}"
    goal = f"ratio ≥ {KEPT[interval]:.2f}"
    figure_of_rounds(name, ours, "records/s", "idempotent producer", plain, goal=goal)
    if with_peer:
        peer, peer_plain = rates["theirs", interval], rates["theirs", 0.0]
        figure_of_rounds(name, ours, "records/s", stage.label, peer, goal="ratio ≥ 1")
        name = f"Kafka's own: produce in transactions, {words}"
        figure_of_rounds(name, peer, "records/s", "its idempotent producer", peer_plain)


def _produce_turn(
    cluster: LocalCluster,
    value: bytes,
    sizes: Sizes,
    interval_s: float,
    spent: dict[float, list[float]],
) -> Produced:
    """Adds to `spent` the seconds of processor time per record."""
    topic = f"produce-{time.monotonic_ns()}"
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(topic, PARTITIONS, BROKERS)
        try:
            before = processor_s(cluster)
            rate, records, made = _produce(
                cluster.bootstrap, topic, value, sizes.seconds, interval_s
            )
            used_s = processor_s(cluster) - before
            spent.setdefault(interval_s, []).append(used_s / records)
            return rate, made
        finally:
            admin.delete_topic(topic)


def _produce(
    bootstrap: str, topic: str, value: bytes, seconds: float, interval_s: float
) -> tuple[float, int, int]:
    """Records per second, how many, and in how many transactions; `interval_s` 0: none."""
    values = [value] * CHUNK
    records = transactions = 0
    transactional_id = f"{topic}-id" if interval_s else None
    with Producer(
        bootstrap, transactional_id=transactional_id, buffer_bytes=theirs.BUFFER_BYTES
    ) as producer:
        if interval_s:
            with producer.transaction() as tx:
                tx.send(topic, value)
        else:
            producer.send(topic, value).result()
        began = time.perf_counter()
        while (now := time.perf_counter()) < began + seconds:
            if not interval_s:
                producer.send_columns(topic, values)
                records += CHUNK
                continue
            with producer.transaction() as tx:
                while time.perf_counter() < now + interval_s:
                    tx.send_columns(topic, values)
                    records += CHUNK
            transactions += 1
        producer.flush()
        took = time.perf_counter() - began
        undelivered = producer.close()
    if undelivered:
        raise SystemExit(f"{topic}: {undelivered} records were not delivered")
    return records / took, records, transactions


def _kafka_produce_turn(bootstrap: str, value: bytes, sizes: Sizes, interval_s: float) -> Produced:
    topic = f"produce-{time.monotonic_ns()}"
    theirs.create_topic(bootstrap, topic, PARTITIONS, BROKERS)
    try:
        return theirs.produce(bootstrap, topic, value, sizes.seconds, interval_s)
    finally:
        theirs.delete_topic(bootstrap, topic)


# ---------------------------------------------------------------- commit


def commit(stage: Stage) -> None:
    """How long commit() takes, beside an acks=all produce of one record; records lie before."""
    sizes, value = stage.sizes, os.urandom(RECORD_BYTES)
    peer_times: list[tuple[list[float], ...]] = []
    our_times = []
    with local_cluster(BROKERS) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("commit", PARTITIONS, BROKERS)
        peer = stage.kafka()
        if peer is not None:
            theirs.create_topic(peer.bootstrap, "commit", PARTITIONS, BROKERS)
        loop = shared_loop()
        each = max(1, sizes.latencies // sizes.rounds)
        for _ in range(sizes.rounds):
            our_times.append(loop.run(_latencies(cluster.bootstrap, "commit", value, each)))
            if peer is not None:
                peer_times.append(theirs.latencies(peer.bootstrap, "commit", value, each))
    produced, committed, visible = (
        [1e3 * median(round_[kind]) for round_ in our_times] for kind in range(3)
    )
    beside = "acks=all produce of one record"
    figure_of_rounds("commit(), p50", committed, "ms", beside, produced, goal="ratio ≤ 1.3")
    name = "commit(wait_visible=True), p50"
    figure_of_rounds(name, visible, "ms", beside, produced, goal="ratio ≤ 2.5")
    if peer_times:
        their_produced, their_committed = (
            [1e3 * median(round_[kind]) for round_ in peer_times] for kind in range(2)
        )
        name = "Kafka's own: commit, p50"
        figure_of_rounds(name, their_committed, "ms", f"its {beside}", their_produced)


async def _latencies(
    bootstrap: str, topic: str, value: bytes, count: int
) -> tuple[list[float], list[float], list[float]]:
    """Seconds of `count` produces, of as many commits, and of as many that wait for visibility.

    In turns, so that all three see the same machine. What a commit decides about is stored before.
    """
    produced: list[float] = []
    committed: list[float] = []
    visible: list[float] = []
    async with (
        AsyncProducer(bootstrap, linger_ms=0) as plain,
        AsyncProducer(bootstrap, linger_ms=0, transactional_id=f"{topic}-id") as producer,
    ):
        for turn in range(count + 1):
            began = time.perf_counter()
            await (await plain.send(topic, value))
            produced.append(time.perf_counter() - began)
            for times, wait_visible in ((committed, False), (visible, True)):
                tx = producer.transaction()
                await tx.begin()
                await (await tx.send(topic, value))
                began = time.perf_counter()
                await tx.commit(wait_visible=wait_visible)
                times.append(time.perf_counter() - began)
            if not turn:  # connects, and finds leaders and coordinator
                for times in (produced, committed, visible):
                    times.clear()
    return produced, committed, visible


# ---------------------------------------------------------------- one record per transaction


def single(stage: Stage) -> None:
    """Transactions of one record each, of one producer and of many at once."""
    sizes, value = stage.sizes, os.urandom(RECORD_BYTES)
    with local_cluster(BROKERS) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("single", PARTITIONS, BROKERS)
        peer = stage.kafka()
        if peer is not None:
            theirs.create_topic(peer.bootstrap, "single", PARTITIONS, BROKERS)
        for producers in (1, sizes.producers):
            ids = [f"single-{number}" for number in range(producers)]
            runs = {"ours": partial(_one_by_one_now, cluster.bootstrap, ids, value, sizes.seconds)}
            if peer is not None:
                runs["theirs"] = partial(
                    theirs.one_by_one, peer.bootstrap, "single", value, producers, sizes.seconds
                )
            found = in_turns(sizes.rounds, runs)
            name = f"transactions of one record, {producers} producer{'s' * (producers > 1)}"
            if peer is None:
                figure(name, median(found["ours"]), "transactions/s")
            else:
                figure_of_rounds(
                    name,
                    found["ours"],
                    "transactions/s",
                    stage.label,
                    found["theirs"],
                    goal="ratio ≥ 0.25",
                )
        _per_core(cluster, value, sizes)


def _per_core(cluster: LocalCluster, value: bytes, sizes: Sizes) -> None:
    """All ids on one coordinator: what its broker's processor time comes to per transaction.

    That broker leads a third of the partitions as well, and follows the others.
    """
    with Admin(cluster.bootstrap) as admin:
        await_whole(admin, TRANSACTIONS_TOPIC)
        coordinators = Coordinators(admin)
    broker = coordinators.of("single-0")
    pid = cluster.broker_pid(broker) or 0
    names = coordinators.ids("same", on=broker)
    rates = []
    for _ in range(sizes.rounds):
        ids = [next(names) for _ in range(sizes.producers)]
        one_by_one = _one_by_one(cluster.bootstrap, ids, value, sizes.seconds, pid)
        done, took_s, busy_s = shared_loop().run(one_by_one)
        rates.append(done / max(busy_s, 1e-3))
        progress(
            f"{done / took_s:.0f} transactions/s, their coordinator's broker uses "
            f"{busy_s / took_s:.0%} of a core"
        )
    figure(
        f"transactions of one record, {sizes.producers} producers, per core of their coordinator",
        median(rates),
        "transactions per CPU second",
        goal="≥ 300",
    )


def _one_by_one_now(bootstrap: str, ids: list[str], value: bytes, seconds: float) -> float:
    one_by_one = _one_by_one(bootstrap, ids, value, seconds, os.getpid())
    done, took_s, _ = shared_loop().run(one_by_one)
    return done / took_s


async def _one_by_one(
    bootstrap: str, ids: list[str], value: bytes, seconds: float, watched: int
) -> tuple[int, float, float]:
    """Transactions of one record by one producer per id, all in this process, for `seconds`.

    Returns how many, how long it took, and the processor time of the process `watched` meanwhile.
    """
    ready, done = asyncio.Barrier(len(ids)), 0
    began = 0.0

    async def run(transactional_id: str) -> None:
        nonlocal began, done
        async with AsyncProducer(bootstrap, transactional_id=transactional_id) as producer:
            await _send_one(producer, value)
            await ready.wait()
            if not began:
                began = time.perf_counter()
                marks.append((began, cpu_seconds(watched)))
            while time.perf_counter() < began + seconds:
                await _send_one(producer, value)
                done += 1
            marks.append((time.perf_counter(), cpu_seconds(watched)))
            await ready.wait()

    marks: list[tuple[float, float]] = []
    async with asyncio.TaskGroup() as tasks:
        for transactional_id in ids:
            tasks.create_task(run(transactional_id))
    return done, marks[-1][0] - marks[0][0], marks[-1][1] - marks[0][1]


async def _send_one(producer: AsyncProducer, value: bytes) -> None:
    async with producer.transaction() as tx:
        await tx.send("single", value)
