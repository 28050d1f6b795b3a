"""The steps that batch and stream share: check a range of offsets for losses, plan tasks for it.

Nothing is read here. `checked_tasks` compares [begin, end) with what the cluster has, raises or
clips (failOnDataLoss), and plans tasks. A task carries everything its executor needs: Spark
pickles one reader for all batches of a query, so nothing may be left on `self`.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from penstock.core.types import TopicPartition
from penstock.spark.admission import Positions
from penstock.spark.data_loss import Known, LogView, Loss, clip, find_losses, raise_losses
from penstock.spark.edge import iterated_at_edge
from penstock.spark.lookup import OffsetsClient, no_longer_selected, selects
from penstock.spark.options import SourceOptions
from penstock.spark.planning import Limits, ReadRange, plan

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


class ReadTask(InputPartition):
    """The ranges one Spark task reads; no ranges for the empty task Spark makes up."""

    def __init__(self, ranges: Sequence[ReadRange]) -> None:
        super().__init__(tuple(ranges))


def tasks_of(
    begin: Positions, end: Positions, topic_ids: Mapping[str, str], options: SourceOptions
) -> list[InputPartition]:
    """Plans [begin, end) into tasks."""
    limits = Limits(options.min_partitions, options.max_records_per_partition, options.max_tasks)
    return [ReadTask(ranges) for ranges in plan(begin, end, topic_ids, limits)]


def check_stretch(
    begin: Positions, end: Positions, topic_ids: Mapping[str, str], view: LogView
) -> dict[TopicPartition, Loss]:
    """Losses in a range that is about to be read: at its start, or else at its end.

    A partition out of sight of which nothing is read is none.
    """
    at_begin = find_losses(Known(begin, topic_ids), view)
    at_end = find_losses(Known(end, topic_ids), view)
    return {
        loss.partition: loss
        for loss in (*at_end, *at_begin)
        if not loss.out_of_sight or begin[loss.partition] < end[loss.partition]
    }


def checked_tasks(
    begin: Positions,
    end: Positions,
    topic_ids: Mapping[str, str],
    view: LogView,
    options: SourceOptions,
) -> list[InputPartition]:
    """Tasks for [begin, end); raises DataLossError, or warns and reads what is left.

    With failOnDataLoss=false it still raises for partitions out of sight: without proof that their
    topic is gone, a batch without their records would lose them.
    """
    begin = {tp: begin[tp] for tp in end}
    losses = check_stretch(begin, end, topic_ids, view)
    excluded = {tp for tp in end if not selects(options.selection, tp)}
    raise_losses(
        [
            loss
            for tp, loss in losses.items()
            if options.fail_on_data_loss or (loss.out_of_sight and tp not in excluded)
        ],
        planned=True,
    )
    for tp, loss in losses.items():
        why = no_longer_selected(options.selection, tp) if tp in excluded else loss.message
        logger.warning("records are lost, reading what is left: %s", why)
    if losses:
        begin, end = clip(begin, end, losses, view)
    return tasks_of(begin, end, view.topic_ids, options)


def client_of(options: SourceOptions) -> OffsetsClient:
    """The real cluster."""
    from penstock.spark.cluster import cluster_of  # noqa: PLC0415 (executors never need it)

    return cluster_of(options)


def read_task(options: SourceOptions, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
    """Executor side: the records of one task; of none for the empty task Spark makes up."""
    if not partition.value:
        return iter(())
    from penstock.spark.execute import read_as_arrow  # noqa: PLC0415 (drivers never need it)

    return iterated_at_edge(read_as_arrow(options, partition.value))
