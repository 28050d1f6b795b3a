"""A Spark query that copies a topic exactly once and stands still in its batch until it is let go.

`gated_copy` starts it in a session that there is. As a program it is a driver of its own, a second
one of the same query if the checkpoint is the same:

    python spark_copy.py BOOTSTRAP SOURCE TARGET CHECKPOINT GATE

GATE is a FIFO: tasks hand on their rows and then wait until somebody has written to it.
"""

import sys
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

PADDING = 20_000
"""Bytes per row. Rows go to the sink's worker through buffers, which many large ones fill."""
ROWS_PER_ARROW_BATCH = "10"


def gated(gate: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For mapInArrow. Runs in Spark's Python workers, so it names nothing of the tests."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pathlib import Path  # noqa: PLC0415 - of the worker

        yield from batches
        if gate:
            Path(gate).read_bytes()

    return pass_on


def gated_copy(
    spark: SparkSession, bootstrap: str, source: str, target: str, checkpoint: str, gate: str
) -> StreamingQuery:
    """Copies what there is, then ends; "": without a gate. Values become `value:xxx…`."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", ROWS_PER_ARROW_BATCH)
    cluster = {"penstock.bootstrap.servers": bootstrap}
    stream = spark.readStream.format("penstock").options(**cluster, subscribe=source)
    padded = f"CONCAT(CAST(value AS STRING), ':', REPEAT('x', {PADDING})) AS value"
    rows = stream.option("startingOffsets", "earliest").load().selectExpr(padded)
    writing = rows.mapInArrow(gated(gate), "value string").writeStream.format("penstock")
    settings = {"topic": target, "delivery": "exactly-once", "checkpointLocation": checkpoint}
    return writing.options(**cluster, **settings).trigger(availableNow=True).start()


def main(bootstrap: str, source: str, target: str, checkpoint: str, gate: str) -> None:
    spark = (
        SparkSession.builder.master("local[2,2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.warehouse.dir", f"{checkpoint}.warehouse")
        .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={checkpoint}.derby")
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )
    query = gated_copy(spark, bootstrap, source, target, checkpoint, gate)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
