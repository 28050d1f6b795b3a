"""The recipe of docs/delivery.md for Spark runs as it stands, and is killed with a batch open."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from support.cluster import Cluster
from support.recipes import at, recipes
from support.waiting import Patience, wait_until

from penstock.client import Admin, Consumer, Producer, TopicPartition

SETTINGS = ("spark.ui.enabled=false", "spark.driver.host=127.0.0.1")
JVM_S = 300.0
"""How long a JVM may take until its query writes, on a machine that does other things."""
PAID = TopicPartition("paid", 0)


def recipe(cluster: Cluster, checkpoint: Path) -> str:
    """The block of Python below the heading, at this cluster and with this checkpoint."""
    (program,) = recipes("Exactly once into Spark and out again")
    return at(cluster, program).replace('"/checkpoints/paid"', repr(str(checkpoint)))


@contextmanager
def driver(program: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The program with a JVM of its own; both are killed when the block is left."""
    settings = " ".join(f"--conf {one}" for one in SETTINGS)
    with log.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=written,
            stderr=subprocess.STDOUT,
            process_group=0,
            cwd=log.parent,
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_SUBMIT_ARGS": f"--master local[2] {settings} pyspark-shell",
            },
        )
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


class Orders:
    """Sends one transaction after the other; every third is aborted. `sent`: those that count."""

    def __init__(self, producer: Producer) -> None:
        self._producer, self._numbers = producer, count()
        self.sent: list[str] = []

    def send(self) -> None:
        number = next(self._numbers)
        values = [f"order {number}.{part}" for part in range(5)]
        with self._producer.transaction() as transaction:
            for value in values:
                transaction.send("orders", value.encode(), b"key")
            if number % 3 == 2:
                transaction.abort()
                return
        self.sent += values


class Seen:
    """What a reader of `paid` finds, kept over polls."""

    def __init__(self, cluster: Cluster, isolation: Any) -> None:
        self.consumer = Consumer(cluster.bootstrap, isolation_level=isolation)
        self.consumer.assign([PAID])
        self.values: list[str] = []

    def poll(self) -> list[str]:
        for batch in self.consumer.poll(0.05):
            self.values.extend((value or b"").decode() for value in batch.values())
        return self.values


def test_the_recipe_for_spark_writes_each_order_once_though_its_driver_is_killed(
    cluster: Cluster, admin: Admin, tmp_path: Path
) -> None:
    for topic in ("orders", "paid"):
        admin.create_topic(topic, 1, 3, {})
    program = recipe(cluster, tmp_path / "checkpoint")
    log = tmp_path / "driver.log"
    committed, every = Seen(cluster, "read_committed"), Seen(cluster, "read_uncommitted")
    with (
        Producer(cluster.bootstrap, transactional_id="orders") as producer,
        committed.consumer,
        every.consumer,
    ):
        orders = Orders(producer)

        def a_batch_is_open(process: subprocess.Popen[bytes]) -> bool:
            """One that others were before; orders are sent when all before are paid."""
            assert process.poll() is None, log.read_text()[-3_000:]
            if len(committed.poll()) >= len(orders.sent):
                orders.send()
            return bool(committed.values) and bool(admin.partition_transactions(PAID).open)

        def stands_still_in_a_batch(process: subprocess.Popen[bytes]) -> bool:
            """Its batch might be committed between the look and the kill. So it is stopped first;
            what is open when nothing of it is under way any more stays open."""
            if not a_batch_is_open(process):
                return False
            os.killpg(process.pid, signal.SIGSTOP)
            soon = Patience(1.0)
            while not soon.is_over():
                if not admin.partition_transactions(PAID).open:
                    os.killpg(process.pid, signal.SIGCONT)
                    return False
            return True

        with driver(program, log) as process:
            wait_until(
                lambda: stands_still_in_a_batch(process), what="killed in a batch", timeout_s=JVM_S
            )
        orders.send()
        with driver(program, log) as process:
            wanted = len(orders.sent)

            def all_is_in() -> bool:
                assert process.poll() is None, log.read_text()[-3_000:]
                return len(committed.poll()) >= wanted

            wait_until(all_is_in, what="every order is paid", timeout_s=JVM_S)
        assert sorted(committed.values) == sorted(f"paid {order}" for order in orders.sent)
        wait_until(lambda: len(every.poll()) > wanted, what="rows of the killed batch are there")
        assert set(every.values) == set(committed.values)
