"""The name under which Spark finds the source by itself.

At its first look-up of a Python source, Spark imports every top-level package called
`pyspark_…` and takes its `DefaultSource`. An exception in any of them breaks all of them, so
this one imports pyspark and nothing else; `penstock.spark` comes in when a query names the
format, and then its errors are that query's alone.

Nothing else belongs here. It must be installed on driver and executors alike: Spark sends the
class by reference.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from penstock.spark.source import PenstockDataSource


class DefaultSource(DataSource):
    """`PenstockDataSource`, imported when it is used."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "penstock"

    def schema(self) -> StructType:
        """See PenstockDataSource."""
        return self._source().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """See PenstockDataSource."""
        return self._source().reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """See PenstockDataSource."""
        return self._source().streamReader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """See PenstockDataSource."""
        return self._source().writer(schema, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """See PenstockDataSource."""
        return self._source().streamWriter(schema, overwrite)

    def _source(self) -> "PenstockDataSource":
        from penstock.spark.source import PenstockDataSource  # noqa: PLC0415 (see above)

        return PenstockDataSource(self.options)
