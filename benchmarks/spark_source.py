"""Rows per second from a topic into Spark, beside a Python source of prebuilt Arrow batches.

Records of 100 B without keys, 4 partitions, replication 1, local[2], into the noop sink (a JVM
consumer). The peer yields the same Arrow batches again and again without fetching or decoding:
what is left is Spark's own cost, so the ratio says what the source adds. Broker, driver and
executors share the machine.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.common import figure, local_cluster, progress
from penstock.client import Admin, Producer
from penstock.spark.schema import schema_of
from penstock.spark.values import COLUMNS, HEADERS

PARTITIONS = 4
RECORD_BYTES = 100
ROWS_PER_BATCH = 10_000
HEADER = ("trace", b"0123456789abcdef")
PEER = "Python source of prebuilt Arrow batches"


class PrebuiltReader(DataSourceReader):
    """Yields one Arrow batch over and over: `rows` in all, over PARTITIONS tasks."""

    def __init__(self, rows: int, headers: bool) -> None:
        self._rows, self._headers = rows, headers

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(self._rows // PARTITIONS) for _ in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = prebuilt_batch(self._headers)
        for _ in range(partition.value // ROWS_PER_BATCH):
            yield batch


class PrebuiltSource(DataSource):
    """The peer."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def schema(self) -> StructType:
        return schema_of((*COLUMNS, HEADERS) if self.options["headers"] == "true" else COLUMNS)

    def reader(self, schema: StructType) -> PrebuiltReader:
        return PrebuiltReader(int(self.options["rows"]), HEADERS in schema.fieldNames())


def prebuilt_batch(headers: bool) -> pa.RecordBatch:
    """The same columns and sizes as the real source's."""
    rows = ROWS_PER_BATCH
    arrays = [
        pa.nulls(rows, pa.binary()),
        pa.array([bytes(RECORD_BYTES)] * rows, pa.binary()),
        pa.array(["bench-topic"] * rows, pa.string()),
        pa.array(np.zeros(rows, np.int32)),
        pa.array(np.arange(rows, dtype=np.int64)),
        pa.array(np.arange(rows, dtype=np.int64)).cast(pa.timestamp("us", tz="UTC")),
        pa.array(np.zeros(rows, np.int32)),
    ]
    names = list(COLUMNS)
    if headers:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        arrays.append(pa.array([[HEADER]] * rows, kind))
        names.append(HEADERS)
    return pa.RecordBatch.from_arrays(arrays, names=names)


def spark_session(home: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Spark's JVM resolves the machine's own name before it reads settings, and exits if it cannot.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.local.dir", str(home / "local"))
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(PrebuiltSource)
    return session


def fill(bootstrap: str, topic: str, rows: int, headers: bool) -> None:
    """Puts `rows` records into the topic, spread over its partitions."""
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, PARTITIONS, 1)
    chunk = 5_000
    values = [os.urandom(RECORD_BYTES) for _ in range(chunk)]
    extra = [[HEADER]] * chunk if headers else None
    with Producer(bootstrap) as producer:
        for index in range(rows // chunk):
            producer.send_columns(topic, values, partition=index % PARTITIONS, headers=extra)
        producer.flush()


def rate_of(rows: int, frame: Callable[[], DataFrame]) -> Callable[[], float]:
    def run() -> float:
        began = time.perf_counter()
        frame().write.format("noop").mode("overwrite").save()
        return rows / (time.perf_counter() - began)

    return run


def stream_rate(spark: SparkSession, options: dict[str, str], rows: int, home: Path) -> float:
    """Records per second of the batches' own time (addBatch), over the query's batches."""
    checkpoint = tempfile.mkdtemp(dir=home)
    frame = spark.readStream.format("penstock").options(**options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    if not query.awaitTermination(300):
        raise SystemExit("the stream did not end within 300 s")
    batches = [p for p in query.recentProgress if p.numInputRows]
    seen = sum(p.numInputRows for p in batches)
    if seen != rows:
        raise SystemExit(f"the stream read {seen} of {rows} records")
    return seen / (sum(p.durationMs["triggerExecution"] for p in batches) / 1000)


def measure(spark: SparkSession, bootstrap: str, rows: int, rounds: int, home: Path) -> None:
    topics = {False: "plain", True: "headed"}
    for headers, topic in topics.items():
        fill(bootstrap, topic, rows, headers)
        progress(f"{rows} records in {topic}")
    base = {"penstock.bootstrap.servers": bootstrap, "startingOffsets": "earliest"}
    plain = base | {"subscribe": "plain"}

    def ours(**options: str) -> Callable[[], DataFrame]:
        return lambda: spark.read.format("penstock").options(**options).load()

    def theirs(headers: bool = False) -> DataFrame:
        return spark.read.format("prebuilt").options(rows=rows, headers=headers).load()

    best = best_of_each(
        rounds,
        {
            "peer": rate_of(rows, theirs),
            "batch": rate_of(rows, ours(**plain)),
            "value": rate_of(rows, ours(**plain, columns="value")),
            "peer, headers": rate_of(rows, lambda: theirs(headers=True)),
            "headers": rate_of(rows, ours(**base, subscribe="headed", includeHeaders="true")),
            "stream": lambda: stream_rate(spark, plain, rows, home),
        },
    )
    lines = [
        ("batch source, 7 columns", "batch", PEER, "peer"),
        ("batch source, columns=value", "value", "all 7 columns", "batch"),
        ("batch source, with headers", "headers", "without headers", "batch"),
        ("batch source, with headers, beside Spark alone", "headers", PEER, "peer, headers"),
        ("stream source, 7 columns", "stream", "batch source", "batch"),
    ]
    for name, run, vs, peer in lines:
        figure(f"Spark {name}", best[run], "rows/s", vs, best[peer])


def best_of_each(rounds: int, runs: dict[str, Callable[[], float]]) -> dict[str, float]:
    """The best of each; rounds alternate, so that all see the same disturbances. One warms up."""
    results = [{name: run() for name, run in runs.items()} for _ in range(rounds + 1)]
    return {name: max(result[name] for result in results[1:]) for name in runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-spark-") as scratch:
        home = Path(scratch)
        with local_cluster(1) as cluster:
            spark = spark_session(home)
            try:
                measure(spark, cluster.bootstrap, args.rows, args.rounds, home)
            finally:
                spark.stop()


if __name__ == "__main__":
    main()
