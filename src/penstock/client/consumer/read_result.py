"""What a read to the end has found: batches as they were sent, converted when somebody asks.

    batches ──▶ records            decoded, an object each
            └─▶ to_arrow ──▶ to_pandas, to_polars

Without decoders, Arrow shares the batches' memory. A decoder makes Python objects, and Arrow gets
the type that all of them have: objects become structs, which `flatten` turns into columns.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.client.decoders import DecodedRecord, Decoding, plain
from penstock.client.model import ConsumedBatch, Record
from penstock.core.types import TopicPartition
from penstock.errors import MisuseError

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


@dataclass(frozen=True, repr=False)
class ReadResult:
    """Records that `read_to_end` has read; plain data, nothing is connected.

    Within a partition, they are in the order of their offsets; partitions come in no certain order.

    Attributes:
        batches: The records in the columns in which they were sent, not decoded.
        next_offsets: Where each partition goes on: give it as `start` to read what came since.
        truncated: `max_records` was reached before the end.
    """

    batches: tuple[ConsumedBatch, ...]
    next_offsets: Mapping[TopicPartition, int]
    truncated: bool
    decoding: Decoding

    def __repr__(self) -> str:
        """Short, because notebooks show what an expression returns."""
        topics = ", ".join(sorted({where.topic for where in self.next_offsets}))
        rest = ", truncated" if self.truncated else ""
        return f"<ReadResult: {len(self)} records of {topics or 'no topic'}{rest}>"

    def __len__(self) -> int:
        return sum(batch.record_count for batch in self.batches)

    @property
    def records(self) -> list[DecodedRecord]:
        """An object per record, decoded. Raises DecodeError, unless on_undecodable is "keep"."""
        return self._decoded

    def to_arrow(self, *, include_headers: bool = False, flatten: bool = False) -> "pyarrow.Table":
        """The records as an Arrow table: key, value, topic, partition, offset, timestamp.

        Decoded keys and values have the type that Arrow finds in them. With on_undecodable="keep",
        the column `error` says why a record could not be decoded, or is null.

        Args:
            include_headers: Adds the column `headers`.
            flatten: Makes a column of each field of decoded objects: `value.price`.

        Raises DecodeError; MisuseError if decoded values have no common type, or if pyarrow is not
        installed.
        """
        from penstock.client import arrow  # noqa: PLC0415 - pyarrow only on demand

        table = arrow.batches_to_table(self.batches, include_headers=include_headers)
        decoding = self.decoding
        for name, decoder in (("key", decoding.key), ("value", decoding.value)):
            if decoder is not None:
                values = [plain(getattr(record, name)) for record in self.records]
                table = arrow.with_values(table, name, values)
        if decoding.on_undecodable == "keep":
            errors = [None if one.error is None else one.error.message for one in self.records]
            table = arrow.with_texts(table, "error", errors)
        return table.flatten() if flatten else table

    def to_pandas(
        self, *, include_headers: bool = False, flatten: bool = True
    ) -> "pandas.DataFrame":
        """The records as a pandas data frame, with the columns of `to_arrow`.

        Decoded integers are nullable (Int64), so that none is rounded because another is missing.
        Arguments and errors as `to_arrow`; needs pandas.
        """
        table = self.to_arrow(include_headers=include_headers, flatten=flatten)
        try:
            import pandas  # noqa: PLC0415 - an optional package, only on demand
        except ImportError as error:
            raise _missing("to_pandas", "pandas") from error
        nullable = {"int64": pandas.Int64Dtype(), "uint64": pandas.UInt64Dtype()}

        def kind(arrow_type: Any) -> Any:
            return nullable.get(str(arrow_type))

        return pandas.DataFrame(
            {
                name: table[name].to_pandas(types_mapper=None if name == "offset" else kind)
                for name in table.column_names
            }
        )

    def to_polars(
        self, *, include_headers: bool = False, flatten: bool = True
    ) -> "polars.DataFrame":
        """The records as a polars data frame, with the columns of `to_arrow`.

        Arguments and errors as `to_arrow`; needs polars.
        """
        table = self.to_arrow(include_headers=include_headers, flatten=flatten)
        try:
            import polars  # noqa: PLC0415 - an optional package, only on demand
        except ImportError as error:
            raise _missing("to_polars", "polars") from error
        frame = polars.from_arrow(table)
        assert isinstance(frame, polars.DataFrame), "a table becomes a frame"
        return frame

    @cached_property
    def _decoded(self) -> list[DecodedRecord]:
        return list(self.decoding.apply(self._raw()))

    def _raw(self) -> Iterator[Record]:
        for batch in self.batches:
            yield from batch.records()


def _missing(what: str, package: str) -> MisuseError:
    return MisuseError(
        f"{what} needs the package {package}, which is not installed: pip install {package}"
    )
