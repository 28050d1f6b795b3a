"""Counts and adds up a topic, exactly: once (`batch`) or for ever (`stream`).

    topic ──▶ per key: records, sum, distinct values ──▶ one JSON line of totals on stdout

Keys are texts, values whole numbers in decimal; anything else ends the job. `distinct` counts the
different values of each key: it equals `records` exactly if nothing was read twice.

The stream keeps its state in Spark (`--work`/checkpoint) and gets from every micro-batch the keys
that changed, whole: their present numbers, not differences. So a batch that Spark plays again after
a crash changes nothing. What it merged is in `--work`/totals.json before the batch counts as done,
hence a restarted driver continues where the last one stopped. `--work` must be one directory
for driver and executors. SIGTERM lets the current batch end, then stops query and session.

The set of values per key makes `distinct` exact, and the state as large as the topic: leave it out
of anything but a demonstration.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

SHUFFLE_PARTITIONS = 2
RECORDS_PER_BATCH_MAX = 50_000
TRIGGER = "1 second"
POLL_S = 1
LAST_BATCH_S = 30.0
"""How long a batch may go on after SIGTERM; half of a pod's grace."""


def say(**event: object) -> None:
    print(json.dumps(event), flush=True)


def session(name: str) -> SparkSession:
    """Master, ports and pods come from spark-submit or spark-defaults.conf."""
    # Spark looks for data sources with the `python3` it finds first, which need not be this one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.appName(name)
        .config("spark.sql.shuffle.partitions", SHUFFLE_PARTITIONS)
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("WARN")
    return spark


def per_key(records: DataFrame) -> DataFrame:
    """Columns key, records, sum, distinct. A null value is a record that adds nothing."""
    number = fn.col("value").cast("string").cast("bigint")
    return (
        records.select(fn.col("key").cast("string").alias("key"), number.alias("number"))
        .groupBy("key")
        .agg(
            fn.count("*").alias("records"),
            fn.coalesce(fn.sum("number"), fn.lit(0)).alias("sum"),
            fn.size(fn.collect_set("number")).alias("distinct"),
        )
    )


class Totals:
    """The newest numbers of every key, kept in a file.

    Args:
        file: read now if it is there, replaced by every `merge`.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._keys: dict[str | None, list[int]] = {}
        if file.exists():
            self._keys = {key: numbers for key, *numbers in json.loads(file.read_text())}

    def merge(self, rows: Iterable[Any]) -> None:
        """Takes rows of `per_key`; each replaces what was known of its key."""
        for row in rows:
            self._keys[row["key"]] = [row["records"], row["sum"], row["distinct"]]
        written = self._file.with_suffix(".new")
        written.write_text(json.dumps([[key, *numbers] for key, numbers in self._keys.items()]))
        written.replace(self._file)

    def line(self) -> dict[str, int]:
        """What is printed."""
        records, total, distinct = (
            sum(numbers[column] for numbers in self._keys.values()) for column in range(3)
        )
        return {"records": records, "sum": total, "keys": len(self._keys), "distinct": distinct}


def batch(spark: SparkSession, args: argparse.Namespace) -> None:
    """Reads what is in the topic now."""
    records = spark.read.format("penstock").options(**source_options(args)).load()
    say(reading=args.topic)
    row = (
        per_key(records)
        .agg(
            fn.coalesce(fn.sum("records"), fn.lit(0)).alias("records"),
            fn.coalesce(fn.sum("sum"), fn.lit(0)).alias("sum"),
            fn.count("*").alias("keys"),
            fn.coalesce(fn.sum("distinct"), fn.lit(0)).alias("distinct"),
        )
        .first()
    )
    assert row is not None, "an aggregation without groups has one row"
    say(**row.asDict())


def stream(spark: SparkSession, args: argparse.Namespace, stopping: threading.Event) -> None:
    """Reads from the first record on, until `stopping`. Raises what ended the query."""
    args.work.mkdir(parents=True, exist_ok=True)
    totals = Totals(args.work / "totals.json")

    def update(changed: DataFrame, batch_id: int) -> None:
        totals.merge(changed.collect())
        say(batch=batch_id, **totals.line())

    limits = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(RECORDS_PER_BATCH_MAX)}
    records = spark.readStream.format("penstock").options(**(limits | source_options(args))).load()
    query = (
        per_key(records)
        .writeStream.outputMode("update")
        .foreachBatch(update)
        .option("checkpointLocation", (args.work / "checkpoint").as_uri())
        .trigger(processingTime=TRIGGER)
        .start()
    )
    while not stopping.is_set() and not query.awaitTermination(POLL_S):
        pass
    end = time.monotonic() + LAST_BATCH_S
    while query.status["isTriggerActive"] and time.monotonic() < end:
        time.sleep(POLL_S / 10)
    query.stop()
    say(stopped=True, **totals.line())


def source_options(args: argparse.Namespace) -> dict[str, str]:
    named = dict(option.split("=", 1) for option in args.option)
    return {"penstock.bootstrap.servers": args.bootstrap, "subscribe": args.topic, **named}


def name_and_value(text: str) -> str:
    if "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r}: wanted NAME=VALUE")
    return text


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=["batch", "stream"])
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--work", type=Path, metavar="DIR", help="the stream's, kept over restarts")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE",
                        type=name_and_value, help="of the source; repeatable")  # fmt: skip
    args = parser.parse_args(argv)
    if args.mode == "stream" and args.work is None:
        parser.error("stream needs --work DIR")
    return args


def main() -> int:
    args = parse()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    spark = session(f"totals-{args.mode}")
    try:
        if args.mode == "batch":
            batch(spark, args)
        else:
            stream(spark, args, stopping)
    except StreamingQueryException as error:
        print(f"totals: the query ended: {error}", file=sys.stderr)
        return 1
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
