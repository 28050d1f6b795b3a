"""Part of `transactions.py`: a loop that consumes, transforms and produces, exactly once.

Beside the same loop of ours at least once (it flushes and commits the group's offsets at the same
interval), and beside confluent-kafka's loop with `send_offsets_to_transaction`. All hand records
on one by one.
"""

from __future__ import annotations

import os
import time
from functools import partial

from benchmarks import transaction_kafka as theirs
from benchmarks.common import figure_of_rounds, in_turns, local_cluster, median, progress
from benchmarks.transaction_stage import BROKERS, PARTITIONS, Stage, processor_s
from penstock.client import Admin, ConsumedBatch, Consumer, Producer, Transformer
from penstock_broker.local import LocalCluster

RECORD_BYTES = 1_000
CHUNK = 500
INTERVAL_S = 0.1
SOURCE = "pipe-source"


def pipe(stage: Stage) -> None:
    """1 KB records from 3 partitions to 3 others, committed every 100 ms."""
    count = stage.sizes.piped // CHUNK * CHUNK
    value = os.urandom(RECORD_BYTES)
    spent: list[tuple[float, float]] = []
    with local_cluster(BROKERS) as cluster:
        _fill(cluster.bootstrap, value, count)
        runs = {
            "exactly once": partial(_weighed_turn, cluster, count, spent),
            "at least once": partial(_turn, cluster.bootstrap, count, exactly_once=False),
        }
        peer = stage.kafka()
        if peer is not None:
            _fill_kafka(peer.bootstrap, value, count)
            runs["theirs"] = partial(_kafka_turn, peer.bootstrap, count)
        found = in_turns(stage.sizes.rounds, runs)
    for name, rates in found.items():
        progress(f"pipe, {name}: " + ", ".join(f"{rate:,.0f}" for rate in rates))
    loop_s, all_s = (median(list(each)) for each in zip(*spent, strict=True))
    progress(
        f"pipe, exactly once: {1e6 * loop_s:.1f} µs of processor time a record in the loop, "
        f"{1e6 * (all_s - loop_s):.1f} µs in the brokers"
    )
    name = f"pipe, exactly once, {RECORD_BYTES} B, commit every {1e3 * INTERVAL_S:g} ms"
    ours = found["exactly once"]
    beside = "at-least-once pipe"
    figure_of_rounds(name, ours, "records/s", beside, found["at least once"], goal="ratio ≥ 0.8")
    if peer is not None:
        figure_of_rounds(name, ours, "records/s", stage.label, found["theirs"], goal="ratio ≥ 1")


def _fill(bootstrap: str, value: bytes, count: int) -> None:
    with Admin(bootstrap) as admin:
        admin.create_topic(SOURCE, PARTITIONS, BROKERS)
    with Producer(bootstrap) as producer:
        for _ in range(count // CHUNK):
            producer.send_columns(SOURCE, [value] * CHUNK)
        if producer.close():
            raise SystemExit(f"{SOURCE} could not be filled")


def _fill_kafka(bootstrap: str, value: bytes, count: int) -> None:
    theirs.create_topic(bootstrap, SOURCE, PARTITIONS, BROKERS)
    producer = theirs.producer_of(bootstrap)
    for _ in range(count):
        theirs.put(producer, SOURCE, value)
    if producer.flush(theirs.TIMEOUT_S):
        raise SystemExit(f"{SOURCE} could not be filled")


def _weighed_turn(cluster: LocalCluster, count: int, spent: list[tuple[float, float]]) -> float:
    """Adds to `spent` the seconds of processor time per record: of the loop, and of all."""
    mine, everybody = time.process_time(), processor_s(cluster)
    rate = _turn(cluster.bootstrap, count, exactly_once=True)
    used = time.process_time() - mine, processor_s(cluster) - everybody
    spent.append((used[0] / count, used[1] / count))
    return rate


def _turn(bootstrap: str, count: int, *, exactly_once: bool) -> float:
    target = f"pipe-{time.monotonic_ns()}"
    with Admin(bootstrap) as admin:
        admin.create_topic(target, PARTITIONS, BROKERS)
        try:
            run = _exactly_once if exactly_once else _at_least_once
            return run(bootstrap, target, count)
        finally:
            admin.delete_topic(target)


def _exactly_once(bootstrap: str, target: str, count: int) -> float:
    """Records per second from the first ones on, until all are committed."""
    first = done = 0
    began = time.perf_counter()
    with Transformer(
        bootstrap,
        group_id=target,
        source=SOURCE,
        commit_interval_ms=round(1e3 * INTERVAL_S),
        max_records=theirs.POLLED,
    ) as loop:
        for batches, out in loop:
            if not first and batches:
                first, began = _records_in(batches), time.perf_counter()
            for batch in batches:
                for record in batch.records():
                    out.send(target, record.value, record.key)
            done += _records_in(batches)
            if done >= count:
                loop.commit()
                break
        return (done - first) / (time.perf_counter() - began)


def _at_least_once(bootstrap: str, target: str, count: int) -> float:
    with (
        Consumer(
            bootstrap, group_id=target, enable_auto_commit=False, auto_offset_reset="earliest"
        ) as consumer,
        Producer(bootstrap) as producer,
    ):
        consumer.subscribe(SOURCE)

        def work() -> int:
            batches = consumer.poll(5.0, theirs.POLLED)
            for batch in batches:
                for record in batch.records():
                    producer.send(target, record.value, record.key)
            return _records_in(batches)

        def commit() -> None:
            producer.flush()
            consumer.commit()

        return theirs.drive_pipe(work, lambda: None, commit, count, INTERVAL_S)


def _records_in(batches: list[ConsumedBatch]) -> int:
    return sum(len(batch) for batch in batches)


def _kafka_turn(bootstrap: str, count: int) -> float:
    target = f"pipe-{time.monotonic_ns()}"
    theirs.create_topic(bootstrap, target, PARTITIONS, BROKERS)
    try:
        return theirs.pipe(bootstrap, SOURCE, target, count, INTERVAL_S)
    finally:
        theirs.delete_topic(bootstrap, target)
