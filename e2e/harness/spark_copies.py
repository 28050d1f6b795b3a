"""A Spark query that copies one topic into another for ever, as a program.

The scenario puts its text beside Spark's settings in the driver's pod. What a copied record says is
what the record said that it was made of, so that nothing but the number of its copies can differ.

`--slow`: the first attempt of one task in each batch stops for up to this many seconds, once it
has passed on most of its rows. Keys are made long for it, so that these rows do not wait
in a buffer: the sink has begun its branch.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, rpad

if TYPE_CHECKING:
    import pyarrow as pa

TRIGGER: Final = "500 milliseconds"
TASKS: Final = 6
"""Of each batch; Spark starts a twin only of a task that is slower than others."""
SLOW_TASK: Final = 0
SLOW_AFTER: Final = 4
"""Arrow batches."""
KEY_BYTES: Final = 2_000

Batches = Iterator["pa.RecordBatch"]


def slowed(seconds: float) -> Callable[[Batches], Batches]:
    """For `mapInArrow`: hands on what it gets."""

    def hand_on(batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None, "runs in a task"
        slow = context.partitionId() == SLOW_TASK and context.attemptNumber() == 0
        for number, batch in enumerate(batches, 1):
            yield batch
            if slow and number == SLOW_AFTER:
                time.sleep(random.uniform(seconds / 4, seconds))  # noqa: S311 - no secret

    return hand_on


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "source", "target", "checkpoint", "delivery", "batch"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--slow", type=float, default=0.0, help="seconds at most")
    options = parser.parse_args()
    spark = SparkSession.builder.appName("copies").getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    cluster = {"penstock.bootstrap.servers": options.bootstrap}
    reading = {
        "subscribe": options.source,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": options.batch,
        "minPartitions": TASKS,
    }
    writing = {
        "topic": options.target,
        "delivery": options.delivery,
        "checkpointLocation": options.checkpoint,
    }
    records = spark.readStream.format("penstock").options(**cluster | reading).load()
    chosen = records.select("key", "value")
    if options.slow:
        key = rpad(col("key").cast("string"), KEY_BYTES, " ").cast("binary").alias("key")
        chosen = records.select(key, "value")
        chosen = chosen.mapInArrow(slowed(options.slow), chosen.schema)
    copies = chosen.writeStream.format("penstock")
    copies.options(**cluster | writing).trigger(processingTime=TRIGGER).start().awaitTermination()


if __name__ == "__main__":
    main()
