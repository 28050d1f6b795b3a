"""`PenstockDataSource`: what `spark.read.format("penstock")` finds.

Spark builds an instance from the user's options in short-lived planning processes, asks for the
schema, then for readers. Options are parsed at once, so that a mistake shows at `load()` in one
line and not in the middle of a job. Everything heavy is imported by the readers when they run.

Register it by `spark.dataSource.register(PenstockDataSource)`, or not at all: where the package
is installed, Spark finds the shim `pyspark_penstock` by its name.
"""

from typing import NoReturn

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from penstock.errors import MisuseError
from penstock.spark.batch import BatchReader, PushdownBatchReader
from penstock.spark.options import SourceOptions, parse
from penstock.spark.schema import check_schema, schema_of
from penstock.spark.stream import StreamReader

NAME = "penstock"


class PenstockDataSource(DataSource):
    """Topics as DataFrames."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return NAME

    def schema(self) -> StructType:
        """The columns that the options `columns` and `includeHeaders` ask for."""
        return schema_of(parse(self.options).columns)

    def reader(self, schema: StructType) -> BatchReader:
        """A bounded read. Raises MisuseError for options or a schema that cannot be."""
        options = self._checked(schema)
        return PushdownBatchReader(options) if options.filter_pushdown else BatchReader(options)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 (Spark's name)
        """An endless read. Raises MisuseError for options or a schema that cannot be."""
        return StreamReader(self._checked(schema))

    # Spark passes both by name, used or not.
    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002
        """Not yet: raises MisuseError."""
        raise _cannot_write()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002, N802
        """Not yet: raises MisuseError."""
        raise _cannot_write()

    def _checked(self, schema: StructType) -> SourceOptions:
        options = parse(self.options)
        check_schema(schema, options.columns)
        return options


def _cannot_write() -> MisuseError:
    return MisuseError(
        "this release reads from Penstock only: the exactly-once sink is not there yet; write "
        "from foreachBatch with penstock.client.Producer, which is at-least-once"
    )
