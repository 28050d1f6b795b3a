"""Every program of examples/recipes, run as its docstring says, against real brokers."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from support.cluster import Cluster
from support.waiting import wait_until

from penstock.client import Admin, Consumer, Producer, TopicPartition

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "examples/recipes"


@contextmanager
def running(cluster: Cluster, name: str, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """The program, which is killed at the end if it has not ended by then."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-m", f"examples.recipes.{name}",
         "--bootstrap", cluster.bootstrap, *words],
        cwd=ROOT, stdout=pipe, stderr=pipe, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=300)


def run(cluster: Cluster, name: str, *words: str) -> str:
    with running(cluster, name, *words) as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def read(cluster: Cluster, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
    """The key and value of each record, as soon as there are `count`; committed ones only."""
    found: list[tuple[bytes | None, bytes | None]] = []
    with (
        Admin(cluster.bootstrap) as admin,
        Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        partitions = admin.describe_topics([topic])[topic].partitions
        consumer.assign(TopicPartition(topic, one.partition) for one in partitions)

        def complete() -> bool:
            for batch in consumer.poll(0.1):
                found.extend((record.key, record.value) for record in batch.records())
            return len(found) >= count

        wait_until(complete, what=f"{count} records in {topic}")
    return found


def test_every_recipe_is_short_and_listed() -> None:
    listing = (ROOT / "examples/README.md").read_text()
    for file in RECIPES.glob("[!_]*.py"):
        assert f"recipes/{file.name}" in listing, file.name
        assert len(file.read_text().splitlines()) <= 90, file.name


def test_hello(shared_broker: Cluster) -> None:
    shared_broker.create_topic("hello", partitions=2)
    out = run(shared_broker, "hello", "--topic", "hello").splitlines()
    assert out[0].startswith("stored in partition ")
    assert out[1].endswith(" 0 b'UA' b'on time'")


def test_hello_async(shared_broker: Cluster) -> None:
    shared_broker.create_topic("numbers", partitions=3)
    assert run(shared_broker, "hello_async") == "the sum of 100 numbers is 4,950\n"


def test_bills_exist_once_although_the_program_is_killed(shared_broker: Cluster) -> None:
    shared_broker.create_topic("orders", partitions=2)
    shared_broker.create_topic("orders.dead")
    shared_broker.create_topic("bills", partitions=2)

    def order(*keys: int) -> None:
        with Producer(shared_broker.bootstrap) as producer:
            for key in keys:
                body = json.dumps({"amount": key}) if key != 13 else "{}"
                producer.send("orders", body.encode(), key=str(key).encode())

    order(*range(100))
    with running(shared_broker, "bill"):
        read(shared_broker, "bills", 1)
    order(*range(100, 200))
    with running(shared_broker, "bill") as process:
        bills = read(shared_broker, "bills", 199)
        assert read(shared_broker, "orders.dead", 1)[0][0] == b"13"
        process.send_signal(signal.SIGTERM)
        _, complaints = process.communicate(timeout=300)
        assert process.returncode == 0, complaints
    counted = Counter(key for key, _ in bills)
    assert set(counted.values()) == {1}
    assert counted.keys() == {str(key).encode() for key in range(200) if key != 13}
    assert json.loads(dict(bills)[b"10"] or b"")["tax"] == 2


def test_a_table_counts_each_record_once_although_the_program_is_killed(
    shared_broker: Cluster, tmp_path: Path
) -> None:
    shared_broker.create_topic("counted", partitions=3)
    file = tmp_path / "totals.db"

    def send(count: int) -> None:
        with Producer(shared_broker.bootstrap) as producer:
            for number in range(count):
                producer.send("counted", b"x", key=f"k{number % 5}".encode())

    def total() -> int:
        if not file.exists():
            return 0
        with closing(sqlite3.connect(file, timeout=60)) as database:
            try:
                return int(database.execute("SELECT sum(count) FROM totals").fetchone()[0] or 0)
            except sqlite3.OperationalError:
                return 0  # the tables are being made

    words = ("--topic", "counted", "--database", str(file))
    send(500)
    with running(shared_broker, "to_sqlite", *words):
        wait_until(lambda: total() > 0, what="the first records are in the table")
    send(500)
    with running(shared_broker, "to_sqlite", *words):
        wait_until(lambda: total() >= 1_000, what="all records are in the table")
    with closing(sqlite3.connect(file, timeout=60)) as database:
        counts = dict(database.execute("SELECT key, count FROM totals"))
    assert counts == {f"k{number}": 200 for number in range(5)}


def test_a_topic_is_summed_up_as_columns(shared_broker: Cluster) -> None:
    shared_broker.create_topic("columns", partitions=2)
    with Producer(shared_broker.bootstrap) as producer:
        for number in range(30):
            producer.send("columns", b"1234", key=b"UA" if number % 3 else b"AA")
    out = run(shared_broker, "analyse", "--topic", "columns").splitlines()
    assert [line.split() for line in out] == [
        ["UA", "20", "records,", "4", "bytes", "each"],
        ["AA", "10", "records,", "4", "bytes", "each"],
    ]
