"""The records of a task's ranges, in an executor: the client's range reader, on the user's terms.

What Spark adds: a reader per process and settings, because a worker process serves many tasks of
many batches and a channel costs more than a fetch; the meaning of failOnDataLoss for lost records;
and the option's name in the error after waiting too long.
"""

import logging
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Final

from penstock.client import ConsumedBatch
from penstock.client.consumer.range_fetcher import open_range_reader
from penstock.client.consumer.range_reader import (
    LostRecords,
    NoProgressError,
    RangeConfig,
    RangeReader,
    RecordRange,
)
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.spark.data_loss import DataLossError
from penstock.spark.given import ClientSettings
from penstock.spark.options import SourceOptions
from penstock.spark.planning import ReadRange

logger = logging.getLogger(__name__)

_readers: Final[dict[tuple[int, ClientSettings, RangeConfig], RangeReader]] = {}


def reader_of(options: SourceOptions) -> RangeReader:
    """This process's reader with these settings; made at first use, kept until it ends.

    The process id is part of the key: channels do not survive a fork.
    """
    settings, config = options.client, config_of(options)
    key = (os.getpid(), settings, config)
    if key not in _readers:
        _readers[key] = open_range_reader(
            settings.bootstrap, config, cluster_id=settings.cluster_id
        )
    return _readers[key]


def read_with_own_reader(
    options: SourceOptions, ranges: Sequence[ReadRange]
) -> Iterator[ConsumedBatch]:
    """`read_ranges` with this process's reader, or with a new one if that knows a cluster that
    another one has replaced at its addresses."""
    settings, config = options.client, config_of(options)
    for is_last in (bool(settings.cluster_id), True):
        is_begun = False
        try:
            with closing(read_ranges(reader_of(options), ranges, options)) as batches:
                for batch in batches:
                    is_begun = True
                    yield batch
        except PenstockError as problem:
            if problem.code is not ErrorCode.CLUSTER_ID_MISMATCH:
                raise
            del _readers[os.getpid(), settings, config]
            if is_begun or is_last:
                raise
        else:
            return


def config_of(options: SourceOptions) -> RangeConfig:
    """Records below the last stable offset only: a batch never ends beyond it."""
    return RangeConfig(
        fetch_max_bytes=options.client.fetch_max_bytes,
        fetch_max_wait_ms=options.client.fetch_max_wait_ms,
        request_timeout_ms=options.client.request_timeout_ms,
        progress_timeout_ms=options.poll_timeout_ms,
        isolation_level="read_committed",
        **options.client.files,
    )


def read_ranges(
    reader: RangeReader, ranges: Sequence[ReadRange], options: SourceOptions
) -> Generator[ConsumedBatch]:
    """All records of the ranges. Raises DataLossError (failOnDataLoss) or ClusterError, both with
    topic, partition and offset; Spark tries the task again."""

    def on_lost(lost: LostRecords) -> None:
        if options.fail_on_data_loss:
            advice = (
                "set the option failOnDataLoss to false to continue with the records that are left"
            )
            raise DataLossError(f"{lost}; {advice}") from None
        logger.warning("skipping lost records: %s, continuing at offset %d", lost, lost.resume_at)

    wanted = [
        RecordRange(TopicPartition(r.topic, r.partition), r.lo, r.hi, r.topic_id) for r in ranges
    ]
    try:
        yield from reader.read(wanted, on_lost)
    except NoProgressError as problem:
        raise ClusterError(f"{problem.message}, or raise pollTimeoutMs", problem.code) from None
