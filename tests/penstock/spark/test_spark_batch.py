"""Batch reads on a real Spark session and a real cluster."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

from penstock.core.types import TopicPartition
from penstock.spark.source import PenstockDataSource

if TYPE_CHECKING:
    from .conftest import Bench

pytestmark = pytest.mark.spark
GOLDEN = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
    "timestamp:timestamp,timestampType:int>"
)
GOLDEN_HEADERS = GOLDEN[:-1] + ",headers:array<struct<key:string,value:binary>>>"


def error_of(run: Callable[[], object]) -> str:
    """The text a user sees; the last line of the source's own part."""
    with pytest.raises(PySparkException) as caught:
        run()
    return str(caught.value)


def test_the_schema_is_that_of_sparks_kafka_source(spark: SparkSession) -> None:
    reader = spark.read.format("penstock").option("penstock.bootstrap.servers", "127.0.0.1:1")
    reader = reader.option("subscribe", "orders")
    assert reader.load().schema.simpleString() == GOLDEN
    assert reader.option("includeHeaders", "true").load().schema.simpleString() == GOLDEN_HEADERS
    some = reader.option("columns", "timestamp,value,headers").load().schema
    assert some.fieldNames() == ["timestamp", "value", "headers"]
    assert all(field.nullable for field in some)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "subscribe and assign are set"),
        ({"subscribe": "a", "subscribePattern": "a"}, "subscribe and subscribePattern are set"),
        ({}, "exactly one of subscribe, subscribePattern, assign"),
        ({"subscribe": "a", "startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({"subscribe": "a", "failOnDataLoss": "no"}, "expected true or false"),
    ],
)
def test_wrong_options_are_refused_by_load_in_one_line(
    spark: SparkSession, options: dict[str, str], words: str
) -> None:
    reader = spark.read.format("penstock").option("penstock.bootstrap.servers", "127.0.0.1:1")
    message = error_of(lambda: reader.options(**options).load())
    [line] = [line for line in message.splitlines() if line.startswith("penstock.errors.")]
    assert words in line


def test_a_schema_of_the_users_own_is_refused(spark: SparkSession) -> None:
    reader = spark.read.format("penstock").option("penstock.bootstrap.servers", "127.0.0.1:1")
    frame = reader.option("subscribe", "a").schema("value string").load()
    assert "the schema is fixed: struct<key:binary" in error_of(frame.collect)


def test_a_cluster_that_does_not_answer_is_one_clear_error(spark: SparkSession) -> None:
    reader = spark.read.format("penstock").option("penstock.bootstrap.servers", "127.0.0.1:1")
    reader = reader.options(
        **{
            "subscribe": "a",
            "penstock.connect.timeout.ms": "500",
            "penstock.request.timeout.ms": "500",
            "fetchOffset.numRetries": "1",
            "fetchOffset.retryIntervalMs": "10",
        }
    )
    message = error_of(reader.load().collect)
    assert "127.0.0.1:1" in message


def test_every_column_has_what_was_sent(bench: "Bench") -> None:
    topic = bench.create(2)
    send = bench.producer.send
    sent = [
        send(topic, b"plain", b"k", partition=0, timestamp_ms=1_700_000_000_123),
        send(topic, None, b"", partition=0, timestamp_ms=1_700_000_000_456),
        send(topic, b"", None, partition=0, timestamp_ms=1, headers=[("a", b"1"), ("b", None)]),
        send(topic, b"other", partition=1, timestamp_ms=5),
    ]
    bench.producer.flush(120)
    assert [delivery.result(120).offset for delivery in sent] == [0, 1, 2, 0]
    rows = bench.reader(includeHeaders="true").load().orderBy("partition", "offset").collect()
    assert [(r.key, r.value) for r in rows] == [
        (b"k", b"plain"), (b"", None), (None, b""), (None, b"other"),
    ]  # fmt: skip
    assert [(r.topic, r.partition, r.offset) for r in rows] == [
        (topic, 0, 0), (topic, 0, 1), (topic, 0, 2), (topic, 1, 0),
    ]  # fmt: skip
    assert [r.timestampType for r in rows] == [0] * 4
    ordered = bench.reader().load().orderBy("partition", "offset")
    millis = ordered.selectExpr("unix_millis(timestamp) AS ms").collect()
    assert [r.ms for r in millis] == [1_700_000_000_123, 1_700_000_000_456, 1, 5]
    headers = [[(h.key, h.value) for h in r.headers] for r in rows]
    assert headers == [[], [], [("a", b"1"), ("b", None)], []]
    chosen = bench.reader(columns="offset,value").load().orderBy("value", "offset").collect()
    assert [tuple(row) for row in chosen] == [(1, None), (2, b""), (0, b"other"), (0, b"plain")]


def test_append_time_is_marked(bench: "Bench") -> None:
    bench.create(1, message_timestamp_type="LogAppendTime")
    before = datetime.now(UTC).timestamp() * 1000
    bench.producer.send(bench.topic, b"v", timestamp_ms=1)
    bench.producer.flush(120)
    [row] = bench.reader().load().selectExpr("timestampType", "unix_millis(timestamp) ms").collect()
    assert row.timestampType == 1
    assert row.ms >= before - 1000


def test_an_empty_topic_is_an_empty_frame(bench: "Bench") -> None:
    bench.create(3)
    assert bench.reader().load().collect() == []


def test_offsets_and_times_bound_a_read(bench: "Bench") -> None:
    topic = bench.create(2)
    for partition in (0, 1):
        values = [b"%d-%d" % (partition, i) for i in range(10)]
        times = [1000 * i for i in range(10)]
        bench.producer.send_columns(topic, values, timestamps_ms=times, partition=partition)
    bench.producer.flush(120)
    starting = json.dumps({topic: {"0": 7, "1": -2}})
    ending = json.dumps({topic: {"0": -1, "1": 2}})
    assert bench.values(startingOffsets=starting, endingOffsets=ending) == [
        "0-7", "0-8", "0-9", "1-0", "1-1",
    ]  # fmt: skip
    assert bench.values(startingTimestamp="7500", endingTimestamp="9000") == ["0-8", "1-8"]
    by_time = json.dumps({topic: {"0": 9000, "1": 8001}})
    assert bench.values(startingOffsetsByTimestamp=by_time) == ["0-9", "1-9"]
    assert bench.values(assign=json.dumps({topic: [1]}), startingTimestamp="9000") == ["1-9"]
    message = error_of(lambda: bench.values(startingTimestamp="99000"))
    assert f"{topic}/0 has no record at or after 99000 ms" in message
    missing = json.dumps({topic: {"0": 0}})
    message = error_of(lambda: bench.values(startingOffsets=missing))
    assert f"option startingOffsets leaves out {topic}/1" in message


def test_a_pattern_reads_every_topic_whose_whole_name_matches(bench: "Bench") -> None:
    topic = bench.create()
    bench.send("a")
    bench.topic = f"{topic}-more"
    bench.create()
    bench.send("b")
    assert bench.values(subscribePattern=f"{topic}") == ["a"]
    assert sorted(bench.values(subscribePattern=f"{topic}.*")) == ["a", "b"]
    assert bench.values(subscribePattern="nothing-here-.*") == []


def test_a_topic_that_does_not_exist_is_named(bench: "Bench") -> None:
    message = error_of(lambda: bench.values(subscribe="no-such-topic"))
    assert "option subscribe names topic no-such-topic, which does not exist" in message


def test_many_batches_and_tasks_lose_nothing(bench: "Bench") -> None:
    bench.create(3)
    expected = []
    for partition in range(3):
        for chunk in range(7):
            values = [f"{partition}:{chunk}:{i}" for i in range(997)]
            bench.send(*values, partition=partition)
            expected += values
    assert bench.values() == expected
    frame = bench.reader(minPartitions="8").load()
    assert frame.rdd.getNumPartitions() >= 8
    assert frame.count() == len(expected)
    assert bench.values(minPartitions="8") == expected
    assert bench.values(maxRecordsPerPartition="1500", maxTasks="4") == expected
    assert bench.reader().load().rdd.getNumPartitions() <= 2  # small ranges share a task


def test_records_deleted_before_the_start_fail_or_are_skipped(bench: "Bench") -> None:
    topic = bench.create()
    for i in range(10):
        bench.send(str(i))
    [partition] = bench.admin.delete_records({TopicPartition(topic, 0): 4})
    assert partition == TopicPartition(topic, 0)
    assert bench.values() == ["4", "5", "6", "7", "8", "9"]
    early = json.dumps({topic: {"0": 1}})
    message = error_of(lambda: bench.values(startingOffsets=early))
    assert f"{topic}/0 lost 3 records to retention: requested offset 1, available are 4 to 10" in (
        message
    )
    assert "failOnDataLoss" in message
    assert bench.values(startingOffsets=early, failOnDataLoss="false") == [
        "4", "5", "6", "7", "8", "9",
    ]  # fmt: skip


def test_conditions_of_one_query_narrow_no_other_query_of_the_frame(bench: "Bench") -> None:
    bench.create(2)
    for partition in (0, 1):
        bench.send(*(f"{partition}-{i}" for i in range(100)), partition=partition)
    conf = "spark.sql.python.filterPushdown.enabled"
    bench.spark.conf.set(conf, "true")
    try:
        frame = bench.reader().load()
        picked = frame.where((col("partition") == 1) & (col("offset") >= 97) & (col("offset") < 99))
        assert sorted(bytes(r.value) for r in picked.collect()) == [b"1-97", b"1-98"]
        assert frame.count() == 200
        assert frame.where("partition = 1 OR offset = 3").count() == 101
    finally:
        bench.spark.conf.unset(conf)


def test_a_frame_is_read_as_of_its_first_query_and_a_new_one_has_what_arrived(
    bench: "Bench",
) -> None:
    bench.create()
    bench.send("a")
    frame = bench.reader().load()
    assert frame.count() == 1
    bench.send("b")
    assert frame.count() == 1, "as documented; if Spark plans again, change docs/spark.md"
    assert bench.reader().load().count() == 2


def test_sql_reads_topics_as_views(bench: "Bench") -> None:
    topic = bench.create()
    bench.send("x", "y")
    options = f"subscribe '{topic}', `penstock.bootstrap.servers` '{bench.cluster.bootstrap}'"
    bench.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING penstock OPTIONS ({options})")
    rows = bench.spark.sql("SELECT CAST(value AS STRING) AS v FROM v ORDER BY offset").collect()
    assert [row.v for row in rows] == ["x", "y"]
    message = error_of(
        lambda: bench.spark.sql(f"CREATE TABLE t USING penstock OPTIONS ({options})")
    )
    assert "CREATE TEMPORARY VIEW" in message


def test_the_class_can_be_registered_by_hand(bench: "Bench") -> None:
    bench.create()
    bench.send("x")
    bench.spark.dataSource.register(PenstockDataSource)
    assert bench.values() == ["x"]


def test_a_broken_installation_does_not_break_the_shim(tmp_path: Path) -> None:
    (tmp_path / "penstock").mkdir()
    (tmp_path / "penstock" / "__init__.py").write_text("raise RuntimeError('broken')")
    script = (
        "import sys, pyspark_penstock as shim\n"
        "assert shim.DefaultSource.name() == 'penstock'\n"
        "assert not {'penstock', 'grpc'} & sys.modules.keys()\n"
        "try:\n"
        "    shim.DefaultSource(options={}).schema()\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("broken\n", 0), done.stderr
