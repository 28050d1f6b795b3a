"""Part of `transactions.py`: reading committed records beside reading all of the same topic."""

from __future__ import annotations

import os
import time
from functools import partial

from benchmarks.common import figure_of_rounds, in_turns, local_cluster, median, progress
from benchmarks.transaction_stage import BROKERS, PARTITIONS, Stage, processor_s
from penstock.client import Admin, Consumer, Producer, TopicPartition
from penstock.client.config import IsolationLevel

RECORD_BYTES = 100
CHUNK = 1_000
CHUNKS_PER_TRANSACTION = 10
POLLS = 20
TOPICS = {
    "no transactions": ("reading-plain", 1.0, "ratio ≥ 0.98"),
    "all committed": ("reading-committed", 1.0, "ratio ≥ 0.95"),
    "half aborted": ("reading-aborted", 0.5, "ratio ≥ 0.9"),
}
"""By what is in it: the topic, the share of its records that is visible, the goal."""


def reading(stage: Stage) -> None:
    """To Arrow tables, by one consumer, from the beginning to the end.

    Where half is aborted, visible records per second count: half of what reading all gives.
    """
    sizes = stage.sizes
    count = sizes.read // (2 * CHUNK * CHUNKS_PER_TRANSACTION) * 2 * CHUNK * CHUNKS_PER_TRANSACTION
    spent: dict[tuple[str, str], list[float]] = {}
    with local_cluster(BROKERS) as cluster:

        def read(topic: str, isolation: IsolationLevel, expected: int) -> float:
            before = processor_s(cluster)
            rate = _read(cluster.bootstrap, topic, isolation, expected, count // POLLS)
            spent.setdefault((topic, isolation), []).append(processor_s(cluster) - before)
            return rate

        for topic, visible, _ in TOPICS.values():
            _fill(cluster.bootstrap, topic, count, visible, plain=topic == "reading-plain")
        progress(f"{count:,} records in each of {len(TOPICS)} topics")
        levels: tuple[IsolationLevel, IsolationLevel] = ("read_committed", "read_uncommitted")
        runs = {
            (topic, isolation): partial(read, topic, isolation, expected)
            for topic, visible, _ in TOPICS.values()
            for isolation, expected in zip(levels, (int(count * visible), count), strict=True)
        }
        for run in runs.values():
            run()  # what is read for the first time comes from disk
        spent.clear()
        found = in_turns(sizes.reads, runs)
    for words, (topic, visible, goal) in TOPICS.items():
        everything = [visible * rate for rate in found[topic, "read_uncommitted"]]
        vs = "read_uncommitted" if visible == 1.0 else "visible share of read_uncommitted"
        name = f"read_committed to Arrow, {words}, {RECORD_BYTES} B"
        committed = found[topic, "read_committed"]
        figure_of_rounds(name, committed, "records/s", vs, everything, goal=goal)
        busy = [median(spent[topic, isolation]) for isolation in levels]
        progress(
            f"{words}: {busy[0]:.3f} s of processor time a run, read_uncommitted {busy[1]:.3f}"
        )


def _fill(bootstrap: str, topic: str, count: int, visible: float, *, plain: bool) -> None:
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, PARTITIONS, BROKERS)
    values = [os.urandom(RECORD_BYTES)] * CHUNK
    turns = count // (CHUNK * CHUNKS_PER_TRANSACTION)
    with Producer(bootstrap, transactional_id=None if plain else topic) as producer:
        for turn in range(turns):
            if plain:
                for _ in range(CHUNKS_PER_TRANSACTION):
                    producer.send_columns(topic, values)
                continue
            tx = producer.transaction()
            tx.begin()
            for _ in range(CHUNKS_PER_TRANSACTION):
                tx.send_columns(topic, values)
            producer.flush()  # else an abort would find it unsent
            if visible < 1.0 and turn % 2:
                tx.abort()
            else:
                tx.commit(wait_visible=turn == turns - 1)
        if producer.close():
            raise SystemExit(f"{topic} could not be filled")


def _read(
    bootstrap: str, topic: str, isolation: IsolationLevel, expected: int, max_records: int
) -> float:
    """Records per second from the first table on; all that is `expected` must come, and no more."""
    partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    first = seen = 0
    began = time.perf_counter()
    with Consumer(bootstrap, isolation_level=isolation) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        while seen < expected:
            rows = consumer.poll_arrow(10.0, max_records).num_rows
            if not rows:
                raise SystemExit(f"{topic}, {isolation}: only {seen} of {expected} records came")
            if not first:
                first, began = rows, time.perf_counter()
            seen += rows
        rate = (seen - first) / (time.perf_counter() - began)
    if seen > expected:
        raise SystemExit(f"{topic}, {isolation}: {seen} records came, {expected} were expected")
    return rate
