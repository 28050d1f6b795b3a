"""Exactly once on a real Spark: batches that come again, and tasks that fail with rows in the log.

A batch is made to come again by removing its entry from the checkpoint's commit log, which is
what a driver that dies between the sink's commit and that entry leaves behind, or by a sink whose
commit raises after it took effect.
"""

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from support.waiting import wait_until

from penstock.client import Consumer, TopicPartition
from penstock.spark.exactly_once import ExactlyOnceBatchWriter, ExactlyOnceStreamWriter
from penstock.spark.source import PenstockDataSource

if TYPE_CHECKING:
    from .conftest import Bench

pytestmark = pytest.mark.spark
BATCH = 10
RUN_TIMEOUT_S = 300


def values_of(bench: "Bench", topic: str, isolation: Any) -> list[str]:
    """What a reader finds in partition 0 below the end that such a reader sees."""
    with Consumer(bench.cluster.bootstrap, isolation_level=isolation) as consumer:
        where = TopicPartition(topic, 0)
        consumer.assign([where])
        found: list[str] = []

        def at_end() -> bool:
            for batch in consumer.poll(0.5):
                found.extend((value or b"").decode() for value in batch.values())
            return consumer.lag().get(where) == 0

        wait_until(at_end, what="the reader is at the end")
    return sorted(found)


def forget_last_commit(checkpoint: Path) -> Path:
    """The file of the last batch's entry, which is gone now."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for lost in (last, last.with_name(f".{last.name}.crc")):
        lost.unlink(missing_ok=True)
    return last


# ---------------------------------------------------------------- foreachBatch


class Copying:
    """A query that writes every batch itself, numbered. `runs`: the batch ids, as they came."""

    def __init__(self, bench: Any, target: str, checkpoint: Path) -> None:
        self._bench, self._target, self._checkpoint = bench, target, checkpoint
        self.app_id = f"copying-{uuid.uuid4()}"
        self.keep: Callable[[DataFrame], DataFrame] = lambda frame: frame
        self.extra: Callable[[DataFrame], DataFrame] | None = None
        self.sink = "penstock"
        self.runs: list[int] = []

    def _write(self, frame: DataFrame, batch_id: int) -> None:
        self.runs.append(batch_id)
        outputs = (self.keep,) if self.extra is None else (self.keep, self.extra)
        for output in outputs:
            (
                output(frame)
                .write.format(self.sink)
                .mode("append")
                .option("penstock.bootstrap.servers", self._bench.cluster.bootstrap)
                .option("topic", self._target)
                .option("txnAppId", self.app_id)
                .option("txnVersion", batch_id)
                .save()
            )

    def available_now(self, checkpoint: Path | None = None) -> None:
        """Copies what there is. Raises what the query raised."""
        stream = self._bench.stream(startingOffsets="earliest", maxOffsetsPerTrigger=str(BATCH))
        query = (
            stream.load()
            .select("key", "value")
            .writeStream.foreachBatch(self._write)
            .option("checkpointLocation", str(checkpoint or self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(RUN_TIMEOUT_S)


@pytest.fixture
def copying(bench: "Bench", tmp_path: Path) -> Copying:
    """Three batches, of the numbers 0 to 29, are in the target already."""
    source = bench.create(1)
    target = f"{source}-copy"
    bench.admin.create_topic(target, 1, 1, {})
    for start in range(0, 3 * BATCH, BATCH):
        bench.send(*(str(number) for number in range(start, start + BATCH)))
    made = Copying(bench, target, tmp_path / "checkpoint")
    made.available_now()
    assert values_of(bench, target, "read_committed") == sorted(map(str, range(3 * BATCH)))
    return made


def test_a_batch_of_foreach_batch_that_comes_again_is_in_once(
    bench: "Bench", copying: Copying, tmp_path: Path
) -> None:
    last = forget_last_commit(tmp_path / "checkpoint")
    before = list(copying.runs)
    bench.send("new")
    copying.available_now()
    assert copying.runs == [*before, int(last.name), int(last.name) + 1], "it came again"
    wanted = sorted([*map(str, range(3 * BATCH)), "new"])
    target = f"{bench.topic}-copy"
    assert values_of(bench, target, "read_committed") == wanted
    assert values_of(bench, target, "read_uncommitted") == wanted, "its rows were only counted"


def test_a_batch_of_foreach_batch_with_other_rows_ends_the_query(
    bench: "Bench", copying: Copying, tmp_path: Path
) -> None:
    last = forget_last_commit(tmp_path / "checkpoint")
    copying.keep = lambda frame: frame.limit(BATCH - 1)
    with pytest.raises(PySparkException) as ended:
        copying.available_now()
    assert f"batch {last.name} of application '{copying.app_id}'" in str(ended.value)
    assert f"is committed with {BATCH} rows and now has {BATCH - 1}" in str(ended.value)
    target = f"{bench.topic}-copy"
    assert len(values_of(bench, target, "read_committed")) == 3 * BATCH


def test_a_fresh_checkpoint_of_foreach_batch_is_refused(
    bench: "Bench", copying: Copying, tmp_path: Path
) -> None:
    with pytest.raises(PySparkException) as ended:
        copying.available_now(tmp_path / "fresh")
    assert f"penstock txn forget-ledger {copying.app_id}" in str(ended.value)
    assert len(values_of(bench, f"{bench.topic}-copy", "read_committed")) == 3 * BATCH


def test_a_second_output_of_a_batch_ends_the_query_and_its_restart(
    bench: "Bench", tmp_path: Path
) -> None:
    """As many rows as the first output, in the same topic, under the same application id."""
    target = f"{bench.create(1)}-copy"
    bench.admin.create_topic(target, 1, 1, {})
    twice = Copying(bench, target, tmp_path / "checkpoint")
    twice.extra = lambda frame: frame.selectExpr("key", "CONCAT('second ', value) AS value")
    bench.send("a", "b")
    for _ in range(2):  # the restarted query may replay the first output, not the second
        with pytest.raises(PySparkException, match="2 other rows and now has 2: nothing was"):
            twice.available_now()
        assert values_of(bench, target, "read_committed") == ["a", "b"]
    twice.extra = None
    twice.available_now()
    assert twice.runs == [0, 0, 0]
    assert values_of(bench, target, "read_committed") == ["a", "b"]


# ---------------------------------------------------------------- tasks that fail


def failing_once(bootstrap: str, topic: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For mapInArrow: passes rows on; the first attempt fails when some of them are in the log.

    Runs in Spark's Python workers, so it names nothing of the tests.
    """

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time  # noqa: PLC0415 - of the worker
        from itertools import islice  # noqa: PLC0415

        from pyspark import TaskContext  # noqa: PLC0415

        from penstock.client import Admin, TopicPartition  # noqa: PLC0415

        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() > 0:
            yield from batches
            return
        limit = time.monotonic() + 300
        with Admin(bootstrap) as admin:
            while time.monotonic() < limit:
                yield from islice(batches, 1)
                seen = admin.partition_transactions(TopicPartition(topic, 0))
                if seen.high_watermark > 0:
                    raise ValueError("the first attempt fails with rows in the log")
        raise ValueError("no row of the first attempt came into the log")

    return pass_on


def test_a_task_that_fails_with_rows_in_the_log_is_tried_again_and_its_rows_are_in_once(
    bench: "Bench", spark: SparkSession
) -> None:
    topic = bench.create(1)
    # Rows go from one Python worker to the next through buffers: many large ones fill them.
    rows = spark.range(2_000, numPartitions=1).selectExpr(
        "CONCAT(CAST(id AS STRING), ':', REPEAT('x', 20000)) AS value"
    )
    small = {"spark.sql.execution.arrow.maxRecordsPerBatch": "10"}
    for key, value in small.items():
        spark.conf.set(key, value)
    try:
        (
            rows.mapInArrow(failing_once(bench.cluster.bootstrap, topic), "value string")
            .write.format("penstock")
            .mode("append")
            .option("penstock.bootstrap.servers", bench.cluster.bootstrap)
            .option("topic", topic)
            .option("delivery", "exactly-once")
            .save()
        )
    finally:
        for key in small:
            spark.conf.unset(key)

    def numbers(isolation: str) -> list[int]:
        return sorted(int(v.partition(":")[0]) for v in values_of(bench, topic, isolation))

    assert numbers("read_committed") == list(range(2_000))
    every = numbers("read_uncommitted")
    assert len(every) > 2_000, "the first attempt left rows, which nobody sees"
    assert set(every) == set(range(2_000))


def dying() -> type[PenstockDataSource]:
    """The sink as it is, but for its worker processes, which are killed with rows in the log."""

    class Writer(ExactlyOnceBatchWriter):
        def write(self, iterator: Any) -> Any:
            import os  # noqa: PLC0415 - of the worker
            import signal  # noqa: PLC0415

            from penstock.spark import exactly_once  # noqa: PLC0415

            def last_words() -> Iterator[Any]:
                yield from iterator
                for producer in exactly_once._producers.values():
                    producer.flush()
                os.kill(os.getpid(), signal.SIGKILL)

            return super().write(last_words())

    class Source(PenstockDataSource):
        @classmethod
        def name(cls) -> str:
            return "penstock-dying"

        def writer(self, schema: Any, overwrite: bool) -> Writer:
            real = super().writer(schema, overwrite)
            assert isinstance(real, ExactlyOnceBatchWriter)
            return Writer(real._options)

    return Source


@pytest.mark.parametrize("named", [{}, {"txnAppId": "dying", "txnVersion": "0"}])
def test_a_job_whose_workers_are_killed_does_not_hold_readers_up(
    bench: "Bench", spark: SparkSession, named: dict[str, str]
) -> None:
    topic = bench.create(1)
    spark.dataSource.register(dying())
    rows = spark.range(BATCH, numPartitions=1).selectExpr("CAST(id AS STRING) AS value")
    job = rows.write.format("penstock-dying").mode("append").options(**named)
    job = job.option("penstock.bootstrap.servers", bench.cluster.bootstrap)
    with pytest.raises(Exception, match="Python worker exited unexpectedly"):
        job.option("topic", topic).option("delivery", "exactly-once").save()
    where = TopicPartition(topic, 0)
    assert bench.admin.partition_transactions(where).high_watermark > 0, "rows were in the log"
    wait_until(
        lambda: not bench.admin.partition_transactions(where).open,
        what="readers are not held up",
        timeout_s=60,
    )
    assert values_of(bench, topic, "read_committed") == []


def test_a_batch_of_foreach_batch_whose_workers_are_killed_does_not_hold_readers_up(
    bench: "Bench", spark: SparkSession, copying: Copying
) -> None:
    target = f"{bench.topic}-copy"
    before = values_of(bench, target, "read_uncommitted")
    spark.dataSource.register(dying())
    copying.sink = "penstock-dying"
    bench.send("new")
    with pytest.raises(PySparkException, match="Python worker exited unexpectedly"):
        copying.available_now()
    where = TopicPartition(target, 0)
    wait_until(
        lambda: not bench.admin.partition_transactions(where).open,
        what="readers are not held up",
        timeout_s=60,
    )
    assert len(values_of(bench, target, "read_uncommitted")) > len(before), "rows were in the log"
    copying.sink = "penstock"
    copying.available_now()
    assert values_of(bench, target, "read_committed") == sorted([*before, "new"])


# ---------------------------------------------------------------- writeStream


def copied(
    bench: "Bench",
    target: str,
    checkpoint: Path,
    sink: str = "penstock",
    value: str = "value",
    **options: str,
) -> StreamingQuery:
    """Copies what there is, in two tasks or more, and ends. Raises what the query raised."""
    stream = bench.stream(startingOffsets="earliest", minPartitions="2").load()
    writing = stream.selectExpr(value).writeStream.format(sink)
    named = {
        "penstock.bootstrap.servers": bench.cluster.bootstrap,
        "topic": target,
        "delivery": "exactly-once",
        "checkpointLocation": str(checkpoint),
    }
    query: StreamingQuery = writing.options(**named | options).trigger(availableNow=True).start()
    assert query.awaitTermination(RUN_TIMEOUT_S)
    return query


def test_the_newest_batch_of_a_copied_checkpoint_ends_the_query_if_its_rows_are_others(
    bench: "Bench", tmp_path: Path
) -> None:
    target = f"{bench.create(2)}-copy"
    bench.admin.create_topic(target, 1, 1, {})
    checkpoint, copy, restarted = (tmp_path / name for name in ("checkpoint", "copy", "restarted"))
    bench.send("a")
    copied(bench, target, checkpoint)
    shutil.copytree(checkpoint, copy)
    bench.send("b")
    copied(bench, target, checkpoint)
    others = {"value": "CONCAT('other ', value) AS value"}
    with pytest.raises(PySparkException, match="committed with 1 other rows and now has 1: noth"):
        copied(bench, target, copy, **others)
    forget_last_commit(checkpoint)
    copied(bench, target, checkpoint, **others)  # as a query that is not deterministic
    assert values_of(bench, target, "read_committed") == ["a", "b"]
    bench.send("c")
    copied(bench, target, checkpoint)
    shutil.move(checkpoint, restarted)
    forget_last_commit(restarted)
    copied(bench, target, restarted)
    assert values_of(bench, target, "read_committed") == ["a", "b", "c"], "moved, the same rows"


def losing_answers(calls: Path) -> type[PenstockDataSource]:
    """The sink as it is, but for its first commit, which takes effect and raises.

    `calls`: gets a line per call of the driver when that has done what it does. The classes are
    made in here because Spark's processes get such ones by value: they have no tests to import.
    """

    class Writer(ExactlyOnceStreamWriter):
        def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
            super().commit(messages, batchId)
            first = not calls.exists()
            self._tell(f"commit {batchId}")
            if first:
                raise ConnectionError("the answer is lost")

        def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
            super().abort(messages, batchId)
            self._tell(f"abort {batchId}")

        def _tell(self, call: str) -> None:
            with calls.open("a") as out:
                out.write(f"{call}\n")

    class Source(PenstockDataSource):
        @classmethod
        def name(cls) -> str:
            return "penstock-losing-answers"

        def streamWriter(self, schema: Any, overwrite: bool) -> Writer:  # noqa: N802 - Spark's name
            real = super().streamWriter(schema, overwrite)
            assert isinstance(real, ExactlyOnceStreamWriter)
            return Writer(real._options)

    return Source


def test_a_commit_that_raises_though_it_took_effect_is_neither_undone_nor_repeated(
    bench: "Bench", spark: SparkSession, tmp_path: Path
) -> None:
    bench.create(2)
    target, sink = f"{bench.topic}-copy", "penstock-losing-answers"
    checkpoint, calls = tmp_path / "checkpoint", tmp_path / "calls"
    bench.admin.create_topic(target, 1, 1, {})
    for partition in (0, 1):
        bench.send(*(f"{partition}-{number}" for number in range(BATCH)), partition=partition)
    spark.dataSource.register(losing_answers(calls))
    with pytest.raises(PySparkException, match="the answer is lost"):
        copied(bench, target, checkpoint, sink=sink)
    assert calls.read_text().split("\n")[:-1] == ["commit 0", "abort 0"]
    assert not (checkpoint / "commits" / "0").exists(), "for Spark the batch is not done"
    first = sorted(f"{partition}-{number}" for partition in (0, 1) for number in range(BATCH))
    assert values_of(bench, target, "read_committed") == first, "the abort has undone nothing"
    bench.send("new")
    copied(bench, target, checkpoint, sink=sink)
    assert calls.read_text().split("\n")[2:-1] == ["commit 0", "commit 1"], "it came again"
    assert values_of(bench, target, "read_committed") == [*first, "new"]
    assert values_of(bench, target, "read_uncommitted") == [*first, "new"], "rows were only counted"


def test_the_option_transaction_timeout_is_how_long_the_coordinator_keeps_a_branch_open(
    bench: "Bench", tmp_path: Path
) -> None:
    bench.create(2)
    target = f"{bench.topic}-copy"
    bench.admin.create_topic(target, 1, 1, {})

    def timeouts_ms(**options: str) -> set[int]:
        for partition in (0, 1):
            bench.send("a", partition=partition)
        query = copied(bench, target, tmp_path / "checkpoint", **options)
        seen = bench.admin.describe_transaction(f"spark/{query.id}")
        assert len(seen.branches) == 2
        return {branch.timeout_ms for branch in seen.branches}

    assert timeouts_ms(transactionTimeout="70s") == {70_000}
    assert timeouts_ms() == {900_000}, "the default, for branches that are used again"
