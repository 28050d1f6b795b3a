"""DataFrames written to topics by a real Spark, on a cluster of real processes."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.streaming import StreamingQuery
from support.waiting import wait_until

if TYPE_CHECKING:
    from .conftest import Bench, MakeRun

pytestmark = pytest.mark.spark
RUN_TIMEOUT_S = 300


def writer(bench: "Bench", frame: DataFrame, **options: str) -> DataFrameWriter:
    named = {"penstock.bootstrap.servers": bench.cluster.bootstrap, "topic": bench.topic}
    return frame.write.format("penstock").mode("append").options(**named | options)


def error_of(run: Callable[[], object]) -> str:
    with pytest.raises(PySparkException) as caught:
        run()
    return str(caught.value)


def test_what_is_written_is_read_again(bench: "Bench", spark: SparkSession) -> None:
    bench.create(3)
    rows = [
        (b"k", b"value", [("h", b"1"), ("h", None)]),
        (b"gone", None, []),
        (None, b"", None),
    ]
    ddl = "key binary, value binary, headers array<struct<key:string,value:binary>>"
    writer(bench, spark.createDataFrame(rows, ddl)).save()
    found = bench.reader(includeHeaders="true").load().collect()
    seen = {(r.key, r.value, tuple(tuple(h) for h in r.headers)) for r in found}
    assert seen == {
        (b"k", b"value", (("h", b"1"), ("h", None))),
        (b"gone", None, ()),
        (None, b"", ()),
    }


def test_keys_go_where_the_producer_would_send_them(bench: "Bench", spark: SparkSession) -> None:
    bench.create(4)
    frame = spark.range(200).selectExpr(
        "CONCAT('key-', id % 20) AS key", "CAST(id AS STRING) AS value"
    )
    writer(bench, frame.coalesce(1)).save()
    delivery = bench.producer.send(bench.topic, b"probe", b"key-7")
    bench.producer.flush(120)
    found = bench.reader().load().where("CAST(key AS STRING) = 'key-7'").orderBy("offset").collect()
    assert {row.partition for row in found} == {delivery.result(120).partition}
    values = [bytes(row.value).decode() for row in found]
    assert values == [str(number) for number in range(7, 200, 20)] + ["probe"]


def test_rows_name_topics_and_partitions_of_their_own(bench: "Bench", spark: SparkSession) -> None:
    topic = bench.create(2)
    rows = [(topic, 1, "a"), (topic, 0, "b"), (topic, 1, "c")]
    frame = spark.createDataFrame(rows, "topic string, partition int, value string").coalesce(1)
    named = {"penstock.bootstrap.servers": bench.cluster.bootstrap}
    frame.write.format("penstock").mode("append").options(**named).save()
    assert bench.values() == ["b", "a", "c"]


def test_mistakes_are_one_clear_error_before_anything_is_written(
    bench: "Bench", spark: SparkSession
) -> None:
    bench.create(1)
    frame = spark.range(1).selectExpr("CAST(id AS STRING) AS value")
    number = frame.selectExpr("CAST(value AS BIGINT) AS value")
    for frame_, options, words in (
        (spark.range(1), {}, "column 'id' is not written by this sink"),
        (number, {}, "column 'value' is bigint; it must be binary or string"),
        (frame, {"subscribe": "a"}, "option subscribe belongs to reading"),
        (frame, {"penstock.cluster.id": "other"}, "is cluster"),
    ):
        assert words in error_of(writer(bench, frame_, **options).save)
    assert "a topic cannot be overwritten" in error_of(writer(bench, frame).mode("overwrite").save)
    nowhere = frame.write.format("penstock").mode("append")
    nowhere = nowhere.option("penstock.bootstrap.servers", bench.cluster.bootstrap)
    assert "no topic: set the option topic" in error_of(nowhere.save)
    assert bench.values() == []


STREAM_MISTAKES = {
    "no-topic": (["value"], None, "no topic: set the option topic, or add a column 'topic'"),
    "unknown-column": (["value", "key AS keys"], "copy", "column 'keys' is not written by this"),
    "wrong-type": (["offset AS value"], "copy", "column 'value' is bigint; it must be binary or"),
    "no-value": (["key"], "copy", "there is no column 'value' among key"),
}


@pytest.mark.parametrize("mistake", STREAM_MISTAKES)
def test_a_stream_with_a_mistake_ends_at_its_start_with_one_clear_error(
    bench: "Bench", tmp_path: Path, mistake: str
) -> None:
    columns, target, words = STREAM_MISTAKES[mistake]
    source = bench.create(1)
    bench.admin.create_topic(f"{source}-copy", 1, 1, {})
    bench.send("a")
    options = {
        "penstock.bootstrap.servers": bench.cluster.bootstrap,
        "checkpointLocation": str(tmp_path / "checkpoint"),
        "delivery": "exactly-once",
    }
    if target is not None:
        options["topic"] = f"{source}-{target}"
    stream = bench.stream(startingOffsets="earliest").load().selectExpr(*columns)
    query = stream.writeStream.format("penstock").options(**options)
    message = error_of(
        lambda: query.trigger(availableNow=True).start().awaitTermination(RUN_TIMEOUT_S)
    )
    assert message.count(f"MisuseError: {words}") == 1, message
    assert "Task " not in message, "no task was started for it"
    assert bench.values(subscribe=f"{source}-copy") == []


def test_a_topic_that_does_not_exist_fails_the_job(bench: "Bench", spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr("CAST(id AS STRING) AS value")
    message = error_of(writer(bench, frame, topic="nosuch").save)
    assert "nosuch" in message


def test_a_stream_writes_every_micro_batch(bench: "Bench", run: "MakeRun", tmp_path: Path) -> None:
    source = bench.create(2)
    target = f"{source}-copy"
    bench.admin.create_topic(target, 2, 1, {})
    sent = [f"v{number}" for number in range(50)]
    bench.send(*sent[:20], partition=0)
    bench.send(*sent[20:], partition=1)
    stream = bench.stream(startingOffsets="earliest", maxOffsetsPerTrigger="20").load()
    query = (
        stream.select("key", "value")
        .writeStream.format("penstock")
        .option("penstock.bootstrap.servers", bench.cluster.bootstrap)
        .option("topic", target)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(RUN_TIMEOUT_S)
    assert sorted(bench.values(subscribe=target)) == sorted(sent)
    assert query.lastProgress is not None


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("complete", "a topic cannot be overwritten"),
        ("update", "penstock does not support Update mode"),  # says Spark, of all sinks in Python
    ],
)
def test_other_modes_than_append_are_refused(
    bench: "Bench", tmp_path: Path, mode: str, words: str
) -> None:
    bench.create(1)
    bench.send("a")
    counts = bench.stream(startingOffsets="earliest").load().groupBy("value").count()
    query = (
        counts.selectExpr("value")
        .writeStream.format("penstock")
        .outputMode(mode)
        .option("penstock.bootstrap.servers", bench.cluster.bootstrap)
        .option("topic", bench.topic)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert words in error_of(lambda: query.awaitTermination(RUN_TIMEOUT_S))


# ---------------------------------------------------------------- exactly once


def copied(bench: "Bench", target: str, checkpoint: Path, **options: str) -> StreamingQuery:
    """Copies what there is from the bench's topic and ends, exactly once."""
    stream = bench.stream(startingOffsets="earliest", maxOffsetsPerTrigger="10").load()
    named = {
        "penstock.bootstrap.servers": bench.cluster.bootstrap,
        "topic": target,
        "delivery": "exactly-once",
        "checkpointLocation": str(checkpoint),
    }
    writing = stream.select("key", "value").writeStream.format("penstock")
    started: StreamingQuery = writing.options(**named | options).trigger(availableNow=True).start()
    return started


def test_a_batch_whose_commit_log_was_lost_is_not_written_twice(
    bench: "Bench", tmp_path: Path
) -> None:
    source = bench.create(2)
    target = f"{source}-copy"
    bench.admin.create_topic(target, 2, 1, {})
    sent = [f"v{number}" for number in range(30)]
    bench.send(*sent[:15], partition=0)
    bench.send(*sent[15:], partition=1)
    checkpoint = tmp_path / "checkpoint"
    assert copied(bench, target, checkpoint).awaitTermination(RUN_TIMEOUT_S)
    (last,) = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))[-1:]
    assert int(last.name) > 0
    for lost in (last, last.with_name(f".{last.name}.crc")):
        lost.unlink(missing_ok=True)
    assert copied(bench, target, checkpoint).awaitTermination(RUN_TIMEOUT_S)
    assert last.exists(), "the batch was replayed"
    wait_until(lambda: len(bench.values(subscribe=target)) >= len(sent), what="all is visible")
    assert sorted(bench.values(subscribe=target)) == sorted(sent)


def test_a_fresh_checkpoint_is_refused_with_the_way_out(bench: "Bench", tmp_path: Path) -> None:
    source = bench.create(1)
    target, app_id = f"{source}-copy", f"app-{uuid.uuid4()}"
    bench.admin.create_topic(target, 1, 1, {})
    bench.send("a")
    assert copied(bench, target, tmp_path / "old", txnAppId=app_id).awaitTermination(RUN_TIMEOUT_S)
    again = copied(bench, target, tmp_path / "fresh", txnAppId=app_id)
    message = error_of(lambda: again.awaitTermination(RUN_TIMEOUT_S))
    assert f"penstock txn forget-ledger {app_id}" in message
    wait_until(lambda: bench.values(subscribe=target) == ["a"], what="the batch is visible")


def test_a_job_with_a_version_is_in_once(bench: "Bench", spark: SparkSession) -> None:
    bench.create(1)
    frame = spark.range(10).selectExpr("CAST(id AS STRING) AS value")
    named = {"txnAppId": f"job-{uuid.uuid4()}", "txnVersion": "3"}
    writer(bench, frame, **named).save()
    writer(bench, frame, **named).save()
    assert sorted(bench.values()) == [str(number) for number in range(10)]
    assert "is committed with 10 rows and now has 9" in error_of(
        writer(bench, frame.limit(9), **named).save
    )
    writer(bench, frame.limit(1), **named | {"txnVersion": "4"}).save()
    assert len(bench.values()) == 11
