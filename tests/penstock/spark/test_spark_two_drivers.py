"""Two drivers of one exactly-once query are alive at once, as when a pod that was lost comes back.

first:   batch 0, rows in the log ── stands still ─────────────────────▶ refused, nothing is in
second:            the same batch 0, another run ── stands still ─▶ commits
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support import spark_copy
from support.gates import Gate
from support.waiting import wait_exit, wait_until

from penstock.client import Consumer, OpenTransaction, TopicPartition

if TYPE_CHECKING:
    from .conftest import Bench

pytestmark = pytest.mark.spark
COUNT = 300


@contextmanager
def driver(*words: str, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(spark_copy.__file__), *words], stdout=out, stderr=out
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def spark_settings(spark: SparkSession) -> Iterator[None]:
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.mark.usefixtures("spark_settings")
def test_of_two_drivers_of_one_query_the_superseded_one_is_refused_and_nothing_is_doubled(
    bench: "Bench", spark: SparkSession, tmp_path: Path
) -> None:
    source = bench.create(1)
    target = f"{source}-copy"
    bench.admin.create_topic(target, 1, 1, {})
    bench.send(*map(str, range(COUNT)))
    where = TopicPartition(target, 0)
    words = (bench.cluster.bootstrap, source, target, str(tmp_path / "checkpoint"))
    gates = Gate(tmp_path / "first"), Gate(tmp_path / "second")

    def written(but: tuple[OpenTransaction, ...] = ()) -> tuple[OpenTransaction, ...]:
        """What is open, if it is another one than before."""
        found: tuple[OpenTransaction, ...] = bench.admin.partition_transactions(where).open
        known = {(one.producer_id, one.producer_epoch) for one in but}
        return tuple(one for one in found if (one.producer_id, one.producer_epoch) not in known)

    log = tmp_path / "driver.log"
    first = spark_copy.gated_copy(spark, *words, str(gates[0].path))
    try:
        of_first = wait_until(written, what="the first has rows in the log", timeout_s=90)
        with driver(*words, str(gates[1].path), log=log) as second:
            wait_until(lambda: written(of_first), what="the second has, too", timeout_s=120)
            gates[0].open()
            wait_until(lambda: not first.isActive, what="the first has ended", timeout_s=90)
            with pytest.raises(PySparkException) as refused:
                first.awaitTermination(1)
            assert values_of(bench, where) == [], "nothing is in yet"
            gates[1].open()
            assert wait_exit(second, 120) == 0, log.read_text()
    finally:
        for gate in gates:
            gate.open()
        first.stop()
    assert "has replaced it" in str(refused.value)
    assert values_of(bench, where) == sorted(map(str, range(COUNT)))
    bench.send("new")
    again = spark_copy.gated_copy(spark, *words, "")
    wait_until(lambda: not again.isActive, what="a later batch is copied", timeout_s=90)
    assert again.exception() is None
    assert values_of(bench, where) == sorted([*map(str, range(COUNT)), "new"])


def values_of(bench: "Bench", where: TopicPartition) -> list[str]:
    """What a read_committed reader finds up to where such readers stand now."""
    found: list[str] = []
    with Consumer(bench.cluster.bootstrap) as consumer:
        consumer.assign([where])

        def at_end() -> bool:
            for batch in consumer.poll(0.5):
                found.extend((v or b"").decode().partition(":")[0] for v in batch.values())
            return consumer.lag().get(where) == 0

        wait_until(at_end, what="the reader is at the end")
    return sorted(found)
