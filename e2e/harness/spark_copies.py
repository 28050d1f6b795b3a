"""A Spark query that copies one topic into another for ever, as a program.

The scenario puts its text beside Spark's settings in the driver's pod. What a copied record says is
what the record said that it was made of, so that nothing but the number of its copies can differ.
"""

import argparse
from typing import Final

from pyspark.sql import SparkSession

TRIGGER: Final = "500 milliseconds"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "source", "target", "checkpoint", "delivery", "batch"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    spark = SparkSession.builder.appName("copies").getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    cluster = {"penstock.bootstrap.servers": options.bootstrap}
    reading = {
        "subscribe": options.source,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": options.batch,
    }
    writing = {
        "topic": options.target,
        "delivery": options.delivery,
        "checkpointLocation": options.checkpoint,
    }
    records = spark.readStream.format("penstock").options(**cluster | reading).load()
    copies = records.select("key", "value").writeStream.format("penstock")
    copies.options(**cluster | writing).trigger(processingTime=TRIGGER).start().awaitTermination()


if __name__ == "__main__":
    main()
