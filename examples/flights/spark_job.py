"""The Spark side, a process of its own: flights with names in, hourly delays out, exactly once.

    enriched ─▶ read_committed ─▶ windows per carrier and hour ─▶ exactly-once sink ─▶ delays

Every change of a window is one record: key = carrier and hour, value = JSON with the window's new
result and the number of the batch. (Spark gives sinks in Python the changes of an aggregate in
`foreachBatch` only.) Killed at any moment and started again on its checkpoint, it goes on.

    stdout   {"ready": true} · {"late": …, "doing": …}       one JSON object per line
    SIGTERM  ends it
"""

import argparse
import json
import os
import signal
import sys
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import LongType, StringType, StructField, StructType

FLIGHT = StructType([StructField("carrier", StringType()), StructField("dep_delay", LongType())])
WINDOW = ("carrier", "hour")
APP_ID = "flights"
# Partitions run ahead of each other in event time: 60 seconds replay a year, and while one waits
# for its new leader the others go on for weeks. A stream that has to catch up takes the same share
# of each backlog, and the 32 flights of OO are nearly all from autumn: a fifth of them is August
# when a fifth of the others is March. No flight may count as late for that.
WATERMARK = "366 days"

# Spark gives a Python process ten seconds to begin, which a busy machine may not have. The query is
# started again then, as Kubernetes would: that is harmless, as the demo is about to show.
SLOW_START = "Python worker failed to connect back"
SLOW_STARTS_MAX = 5


def say(**event: object) -> None:
    print(json.dumps(event), flush=True)


def session() -> SparkSession:
    # Spark looks for data sources with the `python3` it finds first, which need not be this one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Spark's JVM resolves the machine's own name before it reads settings, and exits if it cannot.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return (
        SparkSession.builder.appName("flights")
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.metricsEnabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )


def hourly_delays(flights: DataFrame) -> DataFrame:
    """Columns hour (ms since 1970), carrier, flights, departed, delay."""
    parsed = fn.from_json(fn.col("value").cast("string"), FLIGHT).alias("flight")
    return (
        flights.select("timestamp", parsed)
        .select("timestamp", "flight.*")
        .withWatermark("timestamp", WATERMARK)
        .groupBy(fn.window("timestamp", "1 hour"), "carrier")
        .agg(
            fn.count("*").alias("flights"),
            fn.count("dep_delay").alias("departed"),
            fn.coalesce(fn.sum("dep_delay"), fn.lit(0)).alias("delay"),
        )
        .withColumn("hour", fn.unix_millis("window.start"))
    )


def start_query(spark: SparkSession, args: argparse.Namespace) -> StreamingQuery:
    flights = (
        spark.readStream.format("penstock")
        .option("penstock.bootstrap.servers", args.bootstrap)
        .option("subscribe", args.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 50_000)
        .load()
    )
    return (
        hourly_delays(flights)
        .writeStream.outputMode("update")
        .foreachBatch(lambda changed, batch_id: write_back(changed, batch_id, args))
        .option("checkpointLocation", args.checkpoint)
        .trigger(processingTime="1 second")
        .start()
    )


def write_back(changed: DataFrame, batch_id: int, args: argparse.Namespace) -> None:
    """One record per window that changed. A batch that comes again is in once, by its number."""
    value = fn.struct(*WINDOW, "flights", "departed", "delay", fn.lit(batch_id).alias("batch"))
    rows = changed.select(
        fn.concat_ws(" ", *(fn.col(name).cast("string") for name in WINDOW)).alias("key"),
        fn.to_json(value).alias("value"),
    )
    (
        rows.write.format("penstock")
        .mode("append")
        .option("penstock.bootstrap.servers", args.bootstrap)
        .option("topic", args.target)
        .option("txnAppId", APP_ID)
        .option("txnVersion", batch_id)
        .save()
    )


class Late:
    """Rows dropped behind the watermark, over all micro-batches so far."""

    def __init__(self) -> None:
        self.rows = 0
        self._batches: set[int] = set()

    def poll(self, query: StreamingQuery) -> None:
        for progress in query.recentProgress:
            batch_id = progress["batchId"]
            if batch_id in self._batches or not progress["numInputRows"]:
                continue
            self._batches.add(batch_id)
            operators: list[dict[str, Any]] = progress["stateOperators"]
            self.rows += sum(each.get("numRowsDroppedByWatermark", 0) for each in operators)


def run(spark: SparkSession, args: argparse.Namespace, late: Late) -> None:
    """The query, until SIGTERM."""
    query = start_query(spark, args)
    say(ready=True)
    try:
        while not query.awaitTermination(timeout=1):
            late.poll(query)
            say(late=late.rows, doing=query.status["message"])
    except KeyboardInterrupt:
        query.stop()
        late.poll(query)
        say(late=late.rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "source", "target", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    spark = session()
    spark.sparkContext.setLogLevel("ERROR")
    late = Late()
    for attempt in range(SLOW_STARTS_MAX + 1):
        try:
            run(spark, args, late)
            break
        except PySparkException as error:
            if SLOW_START not in str(error) or attempt == SLOW_STARTS_MAX:
                raise
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
