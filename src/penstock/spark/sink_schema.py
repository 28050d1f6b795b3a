"""Which columns a DataFrame that is written may have, checked when the query is planned.

    key        binary or string   optional; null = no key
    value      binary or string   needed; null = a tombstone
    topic      string             needed without the option topic, which overrides it
    partition  int                optional; null = by key
    headers    array<struct<key:string, value:binary>>   optional

They are those of Spark's Kafka sink. Any other column is refused: if a misspelt `keys` were
dropped, records of one partition would be scattered.
"""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
)

from penstock.errors import MisuseError

_TEXT: Final = "binary or string"
EXPECTED: Final = {
    "key": _TEXT,
    "value": _TEXT,
    "topic": "string",
    "partition": "int",
    "headers": "array<struct<key:string,value:binary>>",
}


def check_sink_schema(schema: StructType, topic: str | None) -> None:
    """Raises MisuseError for a column that is missing, unknown or of another type."""
    names = [field.name for field in schema.fields]
    for field in schema.fields:
        if field.name not in EXPECTED:
            raise MisuseError(
                f"column {field.name!r} is not written by this sink, which takes "
                f"{', '.join(EXPECTED)}: select and rename in the query, or drop it"
            )
        if names.count(field.name) > 1:
            raise MisuseError(f"column {field.name!r} appears twice; select it once")
        if not _fits(field.name, field.dataType):
            raise MisuseError(
                f"column {field.name!r} is {field.dataType.simpleString()[:200]}; it must be "
                f"{EXPECTED[field.name]}: cast it in the query, or encode it, for example with "
                "to_json"
            )
    if "value" not in names:
        raise MisuseError(
            f"there is no column 'value' among {', '.join(names) or 'none'}: name the column that "
            "becomes the records' value"
        )
    if topic is None and "topic" not in names:
        raise MisuseError("no topic: set the option topic, or add a column 'topic' of type string")


def _fits(name: str, kind: DataType) -> bool:
    match name:
        case "key" | "value":
            return isinstance(kind, BinaryType | StringType)
        case "topic":
            return isinstance(kind, StringType)
        case "partition":
            return isinstance(kind, IntegerType)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType)
    )
