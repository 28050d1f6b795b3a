"""What runs in an executor: one task's ranges, as Arrow batches of the source's schema.

Imported by the first task of a worker process and not before: a driver that only plans needs
neither pyarrow nor a channel.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.spark.arrow import to_arrow
from penstock.spark.options import SourceOptions
from penstock.spark.planning import ReadRange
from penstock.spark.ranges import read_with_own_reader
from penstock.spark.schema import schema_of


def read_as_arrow(options: SourceOptions, ranges: Sequence[ReadRange]) -> Iterator[pa.RecordBatch]:
    """The records of the ranges. Spark compares the schema with its own, exactly."""
    schema = to_arrow_schema(schema_of(options.columns), timezone="UTC")
    return to_arrow(read_with_own_reader(options, ranges), schema)
