"""One Spark session and one cluster of real processes for all Spark tests of a run."""

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.streaming import DataStreamReader, StreamingQuery
from support.cluster import PATIENT, Cluster

from penstock.client import Admin, Producer
from penstock.errors import PenstockError

RUN_TIMEOUT_S = 300
"""Of a query that ends by itself, on a machine that does other things."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "spark: needs a JVM; one session is shared by all of them")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    home = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2,2]")  # a task may fail once
        .appName("penstock-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.local.dir", str(home / "local"))
        .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={home}")
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # A JVM that starts takes both cores: sessions must outlive that.
    with Cluster(
        tmp_path_factory.mktemp("cluster"), brokers=3, controller_config=PATIENT
    ) as running:
        yield running


@pytest.fixture(scope="session")
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap) as client:
        yield client


@pytest.fixture(scope="session")
def producer(cluster: Cluster) -> Iterator[Producer]:
    with Producer(cluster.bootstrap) as client:
        yield client


_numbers = count()


@dataclass
class Bench:
    """A topic of its own for a test, and what tests do with it."""

    spark: SparkSession
    cluster: Cluster
    admin: Admin
    producer: Producer
    home: Path
    topic: str = field(default_factory=lambda: f"topic-{next(_numbers)}")

    def create(self, partitions: int = 1, replication: int = 1, **configs: str) -> str:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        self.admin.create_topic(self.topic, partitions, replication, named)
        self.cluster.wait_leaders(self.topic)  # a query asks another broker, and soon gives up
        return self.topic

    def send(self, *values: str, partition: int = 0) -> None:
        """One batch per call, acknowledged by all."""
        encoded = [value.encode() for value in values]
        delivery = self.producer.send_columns(self.topic, encoded, partition=partition)
        self.producer.flush(120)
        delivery.result(120)

    def reader(self, **options: str) -> DataFrameReader:
        return self.spark.read.format("penstock").options(**self.options(options))

    def stream(self, **options: str) -> DataStreamReader:
        return self.spark.readStream.format("penstock").options(**self.options(options))

    def options(self, given: dict[str, str]) -> dict[str, str]:
        base = {"penstock.bootstrap.servers": self.cluster.bootstrap}
        if not given.keys() & {"subscribe", "subscribePattern", "assign"}:
            base["subscribe"] = self.topic
        return base | given

    def values(self, **options: str) -> list[str]:
        rows = self.reader(**options).load().orderBy("partition", "offset").collect()
        return [bytes(row.value).decode() for row in rows]


@pytest.fixture
def bench(
    spark: SparkSession, cluster: Cluster, admin: Admin, producer: Producer, tmp_path: Path
) -> Bench:
    return Bench(spark, cluster, admin, producer, tmp_path)


@dataclass
class Run:
    """Streaming queries over one checkpoint. `batches`: rows seen per batch id, by attempt."""

    bench: Bench
    options: dict[str, str]
    batches: list[tuple[int, list[Row]]] = field(default_factory=list)

    @property
    def checkpoint(self) -> Path:
        return self.bench.home / "checkpoint"

    def start(self, trigger: dict[str, Any] | None = None) -> StreamingQuery:
        frame = self.bench.stream(**self.options).load()
        writer = frame.writeStream.foreachBatch(self._collect)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**(trigger or {"processingTime": "200 milliseconds"})).start()

    def available_now(self) -> StreamingQuery:
        """Reads what there is and ends; raises what the query raised."""
        query = self.start({"availableNow": True})
        if not query.awaitTermination(RUN_TIMEOUT_S):
            query.stop()
            pytest.fail("the query did not end")
        return query

    def _collect(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.collect()
        for known, seen in self.batches:
            # Stopped before its commit, a batch comes again: the same records, or it is a defect.
            assert known != batch_id or sorted(seen) == sorted(rows), f"batch {batch_id} changed"
        self.batches.append((batch_id, rows))

    def rows(self) -> list[Row]:
        """Each batch once, as a foreachBatch sink keeps it: by its id."""
        return [row for rows in dict(self.batches).values() for row in rows]

    def values(self, partition: int | None = None) -> list[str]:
        """Of all partitions, or of one: in the order they were seen."""
        rows = (row for row in self.rows() if partition in (None, row.partition))
        return [bytes(row.value).decode() for row in rows]

    def offsets(self) -> dict[int, list[int]]:
        """Offsets per partition, in the order they were seen."""
        found: dict[int, list[int]] = {}
        for row in self.rows():
            found.setdefault(row.partition, []).append(row.offset)
        return found


MakeRun = Callable[..., Run]


@pytest.fixture
def run(bench: Bench) -> MakeRun:
    return lambda **options: Run(bench, options)


class Load:
    """A thread that keeps sending numbered values; `stop` returns those acknowledged."""

    def __init__(self, bench: Bench, partitions: Sequence[int], pause_s: float = 0.01) -> None:
        self._bench, self._partitions, self._pause_s = bench, partitions, pause_s
        self._ended = threading.Event()
        self.acknowledged: list[str] = []
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        try:
            for number in count():
                if self._ended.wait(self._pause_s):
                    return
                value = f"load-{number}"
                self._bench.send(value, partition=self._partitions[number % len(self._partitions)])
                self.acknowledged.append(value)
        except (PenstockError, TimeoutError) as problem:  # shown by `stop`
            self.failure = problem

    def stop(self) -> list[str]:
        self._ended.set()
        self._thread.join(250)
        assert not self._thread.is_alive()
        assert self.failure is None, self.failure
        return self.acknowledged


MakeLoad = Callable[..., Load]


@pytest.fixture
def load(bench: Bench) -> Iterator[MakeLoad]:
    started: list[Load] = []

    def start(partitions: Sequence[int], pause_s: float = 0.01) -> Load:
        started.append(Load(bench, partitions, pause_s))
        return started[-1]

    yield start
    for each in started:
        each.stop()
