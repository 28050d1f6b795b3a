"""The batch reader: a bounded read of [starting, ending), both resolved once, when planned.

`partitions` runs in a planner worker when Spark optimizes the first query of a DataFrame, `read` in
executors. Spark 4.3 keeps the plan for all queries of the frame: those that come later read the
same offsets. That is why a query's conditions do not narrow it (`pushFilters`): other queries would
read no more than what that one asked for.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.core.types import TopicPartition
from penstock.errors import MisuseError
from penstock.spark.admission import Positions
from penstock.spark.boundary import AtOffsets, AtTimestamp, AtTimestamps, Boundary
from penstock.spark.edge import at_edge
from penstock.spark.lookup import OffsetsClient, require_selected, resolve, starts
from penstock.spark.options import SourceOptions
from penstock.spark.plan_read import checked_tasks, client_of, read_task

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(DataSourceReader):
    """Reads the selected partitions from the starting to the ending boundary."""

    def __init__(
        self,
        options: SourceOptions,
        connect: Callable[[SourceOptions], OffsetsClient] = client_of,
    ) -> None:
        self._options = options
        self._connect = connect
        # Asked here, so that a contradiction is an error before anything is planned.
        self._starting, self._ending = options.batch_starting, options.batch_ending

    @at_edge
    def partitions(self) -> Sequence[InputPartition]:
        """The tasks. Raises PenstockError with one line for everything a user can fix."""
        client = self._connect(self._options)
        view = client.view()
        require_selected(self._options.selection, view)
        begin = resolve(client, self._starting, view.ends, "startingOffsets")
        end = resolve(client, self._ending, view.ends, "endingOffsets")
        self._check_order(begin, end)
        begin = _not_past(begin, view.ends, self._starting)
        end = _not_past(end, view.ends, self._ending)
        view = replace(view, starts=starts(client, end))
        return checked_tasks(begin, end, view.topic_ids, view, self._options)

    def _check_order(self, begin: Positions, end: Positions) -> None:
        """Times may cross (then nothing is read); offsets that do are a mistake."""
        backwards = sorted(tp for tp in begin if begin[tp] > end[tp])
        if backwards and isinstance(self._ending, AtOffsets):
            tp = backwards[0]
            raise MisuseError(
                f"option endingOffsets: {tp} would end at {end[tp]}, before its start at "
                f"{begin[tp]}; correct startingOffsets or endingOffsets"
            )

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Executor side."""
        return read_task(self._options, partition)


def _not_past(
    found: dict[TopicPartition, int], ends: Positions, boundary: Boundary
) -> dict[TopicPartition, int]:
    """Times are looked up after the ends, and records may have arrived between: they are not read.

    Offsets that the user gave stay: past the end, they are a loss.
    """
    if not isinstance(boundary, AtTimestamp | AtTimestamps):
        return found
    return {tp: min(at, ends[tp]) for tp, at in found.items()}
