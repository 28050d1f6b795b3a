"""The columns a DataFrame of this source has: those of Spark's Kafka source, in its order.

All are nullable, as Spark's DDL makes them; only key and value ever hold a null (a null value
is a tombstone). A record without headers has an empty array, never null: a null array makes
every Python consumer behind it quadratically slow.
"""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import MisuseError

TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}


def schema_of(columns: tuple[str, ...]) -> StructType:
    """The schema for these columns, in this order."""
    return StructType([StructField(name, TYPES[name]) for name in columns])


def check_schema(given: StructType, columns: tuple[str, ...]) -> None:
    """Raises MisuseError if Spark passes a different schema: a user's `.schema(...)`."""
    expected = schema_of(columns)
    if given != expected:
        raise MisuseError(
            f"the schema is fixed: {expected.simpleString()}, not {given.simpleString()[:500]}; "
            "remove .schema(...), use the options columns and includeHeaders, and cast in the "
            "query"
        )
