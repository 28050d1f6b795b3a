"""What README.md and docs/spark.md show of Spark runs as it stands there."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from support.cluster import Cluster
from support.documents import ROOT

from penstock.client import Producer
from tools.snippets.page import How, Snippet, read_page

HERE = "tests/penstock/spark/test_spark_pages.py"
ORDERS = [b"1", b"2", b"3"]


class Programs:
    """The programs of a page that are left to this file, in their order, in one namespace."""

    def __init__(self, page: str, spark: SparkSession, cluster: Cluster, home: Path) -> None:
        self.names: dict[str, Any] = {"spark": spark}
        self.left = [one for one in read_page(ROOT, page) if _is_ours(one)]
        self._spark, self._cluster, self._home = spark, cluster, home

    def run(self) -> None:
        """The next one; `finish` ends the queries that it has started."""
        snippet = self.left.pop(0)
        text = snippet.text
        folder = self._home / str(snippet.line)  # pages use one name for several checkpoints
        for stands, here in {
            "localhost:9092": self._cluster.bootstrap,
            "penstock:9092": self._cluster.bootstrap,
            '"/data/': f'"{folder}/data/',
            '"/checkpoints/': f'"{folder}/checkpoints/',
        }.items():
            text = text.replace(stands, here)
        exec(compile(text, snippet.place, "exec"), self.names)

    def finish(self) -> None:
        """Queries read what there is, and end."""
        assert self._spark.streams.active
        for query in self._spark.streams.active:
            query.processAllAvailable()
            query.stop()
            assert query.exception() is None

    def values(self, topic: str) -> list[str]:
        """All that is committed there."""
        read = self._spark.read.format("penstock").option("subscribe", topic)
        rows = read.option("penstock.bootstrap.servers", self._cluster.bootstrap).load()
        return sorted(bytes(row.value).decode() for row in rows.collect())


def _is_ours(snippet: Snippet) -> bool:
    return snippet.how is How.ELSEWHERE and snippet.detail == HERE


@pytest.fixture
def orders(tmp_path: Path) -> Any:
    """A cluster with orders, and a topic for those that are paid."""
    with Cluster(tmp_path / "cluster", brokers=1) as cluster:
        for topic in ("flights", "orders", "paid"):
            cluster.create_topic(topic, partitions=2)
        with Producer(cluster.bootstrap) as producer:
            for topic in ("flights", "orders"):
                producer.send_columns(topic, ORDERS, partition=0).result(120)
        yield cluster


def test_the_program_of_the_readme_reads_a_topic(
    spark: SparkSession, orders: Cluster, tmp_path: Path
) -> None:
    programs = Programs("README.md", spark, orders, tmp_path)
    programs.run()
    assert not programs.left
    flights: DataFrame = programs.names["flights"]
    flights.writeStream.format("memory").queryName("flights").start()
    programs.finish()
    assert spark.table("flights").count() == len(ORDERS)


def test_the_programs_of_the_page_on_spark_read_and_write(
    spark: SparkSession, orders: Cluster, tmp_path: Path
) -> None:
    programs = Programs("docs/spark.md", spark, orders, tmp_path)
    programs.run()
    programs.finish()
    (written,) = tmp_path.glob("*/data/orders")
    assert {row.value for row in spark.read.parquet(str(written)).collect()} == {"1", "2", "3"}

    read: DataFrame = programs.names["orders"]
    programs.names["paid"] = read.selectExpr("CAST(CAST(value AS STRING) AS INT) AS id")
    programs.run()
    programs.finish()
    paid = ['{"id":1}', '{"id":2}', '{"id":3}']
    assert programs.values("paid") == paid

    programs.names["paid"] = read.selectExpr("CONCAT('once ', CAST(value AS STRING)) AS value")
    programs.run()
    programs.finish()
    paid = sorted([*paid, "once 1", "once 2", "once 3"])
    assert programs.values("paid") == paid

    programs.run()
    write = programs.names["write"]
    batch = spark.createDataFrame([("batch 0",)], ["value"])
    write(batch, 0)
    write(batch, 0)  # replayed: it is there already
    assert programs.values("paid") == sorted([*paid, "batch 0"])
    assert not programs.left
