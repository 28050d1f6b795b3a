"""`PenstockDataSource`: what `spark.read.format("penstock")` finds.

Spark builds an instance from the user's options in short-lived planning processes, asks for the
schema, then for readers. Options are parsed at once, so that a mistake shows at `load()` in one
line and not in the middle of a job. Everything heavy is imported by the readers when they run.

Register it by `spark.dataSource.register(PenstockDataSource)`, or not at all: where the package
is installed, Spark finds the shim `pyspark_penstock` by its name.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
)
from pyspark.sql.types import StructType

from penstock.errors import MisuseError
from penstock.spark.batch import BatchReader
from penstock.spark.exactly_once import ExactlyOnceBatchWriter, ExactlyOnceStreamWriter
from penstock.spark.options import SourceOptions, parse
from penstock.spark.schema import check_schema, schema_of
from penstock.spark.sink import BatchWriter, StreamWriter
from penstock.spark.sink_options import Delivery, SinkOptions, parse_sink
from penstock.spark.sink_schema import check_sink_schema
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
        """A bounded read. Raises MisuseError for an invalid option or schema."""
        return BatchReader(self._checked(schema))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 (Spark's name)
        """An endless read. Raises MisuseError for an invalid option or schema."""
        return StreamReader(self._checked(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Appends a DataFrame. Raises MisuseError for an invalid option or column."""
        _refuse_overwrite(overwrite, "mode('append')")
        options = self._checked_sink(schema, streaming=False)
        if options.delivery is Delivery.EXACTLY_ONCE:
            return ExactlyOnceBatchWriter(options)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 (Spark's name)
        """Appends micro-batches. Raises MisuseError for an invalid option or column."""
        _refuse_overwrite(overwrite, "outputMode('append')")
        options = self._checked_sink(schema, streaming=True)
        if options.delivery is Delivery.EXACTLY_ONCE:
            return ExactlyOnceStreamWriter(options)
        return StreamWriter(options)

    def _checked_sink(self, schema: StructType, *, streaming: bool) -> SinkOptions:
        options = parse_sink(self.options, streaming=streaming)
        check_sink_schema(schema, options.topic)
        return options

    def _checked(self, schema: StructType) -> SourceOptions:
        options = parse(self.options)
        check_schema(schema, options.columns)
        return options


def _refuse_overwrite(overwrite: bool, instead: str) -> None:
    if overwrite:
        raise MisuseError(
            f"a topic cannot be overwritten: records are appended to it; write with {instead}, "
            "and delete the topic yourself if you want to remove its records"
        )
