"""Part of `transactions.py`: Spark's exactly-once sink beside the same sink at least once.

Spark's own source of numbered rows gives every trigger the same number, 100 B each, from four
tasks on local[2]. Two queries take turns; what counts is the time of their triggers as Spark
reports it, without the first, which starts Python workers. Brokers, driver and tasks share the
machine.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from benchmarks.common import figure, figure_of_rounds, in_turns, local_cluster, median, progress
from benchmarks.spark_source import spark_session
from benchmarks.transaction_stage import BROKERS, PARTITIONS, Stage
from penstock.client import Admin

TASKS = 4
RECORD_BYTES = 100
TRIGGER = "1 second"
TIMEOUT_S = 180.0
Triggers = list[float]


def sink(stage: Stage) -> None:
    """Throughput of the triggers, and what exactly-once adds to the median one."""
    sizes = stage.sizes
    with tempfile.TemporaryDirectory(prefix="penstock-spark-") as scratch:
        home = Path(scratch)
        with local_cluster(BROKERS) as cluster:
            with Admin(cluster.bootstrap) as admin:
                admin.create_topic("sink", PARTITIONS, BROKERS)
            spark = spark_session(home)
            try:
                runs = {
                    delivery: lambda d=delivery: _triggers(
                        spark, cluster.bootstrap, d, sizes.trigger_rows, sizes.triggers, home
                    )
                    for delivery in ("exactly-once", "at-least-once")
                }
                found = in_turns(max(2, sizes.rounds), runs)
            finally:
                spark.stop()
    once, least = (
        [sizes.trigger_rows / median(each) for each in found[delivery]]
        for delivery in ("exactly-once", "at-least-once")
    )
    name = f"Spark sink, exactly-once, {sizes.trigger_rows:,} rows per trigger of {TRIGGER}"
    figure_of_rounds(name, once, "rows/s of a trigger", "at-least-once", least, goal="ratio ≥ 0.8")
    medians = {
        delivery: 1e3 * median([one for each in found[delivery] for one in each])
        for delivery in found
    }
    progress(", ".join(f"{delivery}: {ms:.0f} ms" for delivery, ms in medians.items()))
    added = medians["exactly-once"] - medians["at-least-once"]
    name = "Spark sink, exactly-once, added to a trigger, p50"
    figure(name, added, "ms", goal="≤ 40 ms")


def _triggers(
    spark: SparkSession, bootstrap: str, delivery: str, rows: int, triggers: int, home: Path
) -> Triggers:
    """Seconds of so many triggers of a new query, behind its first."""
    numbered = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows)
        .option("numPartitions", TASKS)
        .load()
    )
    query = (
        numbered.select(f.lpad(f.col("value").cast("string"), RECORD_BYTES, "0").alias("value"))
        .writeStream.format("penstock")
        .option("penstock.bootstrap.servers", bootstrap)
        .option("topic", "sink")
        .option("delivery", delivery)
        .option("checkpointLocation", tempfile.mkdtemp(dir=home))
        .trigger(processingTime=TRIGGER)
        .start()
    )
    try:
        limit = time.monotonic() + TIMEOUT_S
        while True:
            found = {p.batchId: p for p in query.recentProgress if p.numInputRows}
            if len(found) > triggers:
                break
            if query.exception() is not None or time.monotonic() > limit:
                raise SystemExit(
                    f"{delivery}: {len(found)} triggers in {TIMEOUT_S:.0f} s; {query.exception()}"
                )
            time.sleep(0.2)
    finally:
        query.stop()
    first = min(found)
    return [
        one.durationMs["triggerExecution"] / 1e3
        for batch, one in sorted(found.items())
        if batch > first
    ][:triggers]
