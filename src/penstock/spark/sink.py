"""Writers: what runs in a task, and what the driver does when all tasks are done.

    task: Arrow batches ─▶ rows per topic ─▶ producer ─▶ all acknowledged ─▶ Written(rows)

At least once: a task that answered has its rows on all in-sync replicas; what a failed attempt had
sent before stays, and its retry sends it again. Within one attempt nothing is doubled: producers
are idempotent. A worker process keeps one producer per settings, as it keeps its connections;
it is made at the first use and never pickled.
"""

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from penstock.errors import MisuseError
from penstock.spark.edge import at_edge
from penstock.spark.given import ClientSettings
from penstock.spark.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client import Branches, ColumnsDelivery, Producer
    from penstock.spark.rows import Rows

UNSETTLED_MAX: Final = 256
"""Calls of a task that may wait for acknowledgement at a time; the producer's buffer limits the
bytes."""

_producers: "dict[tuple[int, SinkOptions], Producer]" = {}


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver."""

    rows: int


class BatchWriter(DataSourceArrowWriter):
    """`df.write`: rows are visible as they are written; a retried task writes its rows again."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    @at_edge
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        """Executor side. Raises PenstockError in one line; Spark retries the task."""
        return write_rows(self._options, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: the same, micro-batch by micro-batch."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    @at_edge
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        """Executor side. Raises PenstockError in one line; Spark retries the task."""
        return write_rows(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Everything is already acknowledged."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Written rows stay: at least once."""


def write_rows(options: SinkOptions, batches: "Iterator[pa.RecordBatch]") -> Written:
    """Sends all rows and waits until each is acknowledged. Raises PenstockError.

    After any error the next task takes another producer: this one may know a cluster that another
    one has replaced at its addresses, and has records in flight that nobody waits for.
    """
    try:
        return _write_all(options, batches)
    except BaseException:
        producer = _producers.pop((os.getpid(), options), None)
        if producer is not None:
            producer.close(0)
        raise


def _write_all(options: SinkOptions, batches: "Iterator[pa.RecordBatch]") -> Written:
    from penstock.spark.rows import rows_of  # noqa: PLC0415 - pyarrow, in executors only

    sending: Sending | None = None
    for batch in batches:
        for part in rows_of(batch, options.topic):
            if sending is None:  # at the first row: an empty task makes no connection
                sending = Sending(_producer(options))
            sending.send(part)
    if sending is None:
        return Written(0)
    _producer(options).flush()
    return Written(sending.finish())


class Sending:
    """One task's rows in flight.

    `rows`: how many were sent. `partitions`: where the acknowledged ones are.
    """

    def __init__(self, sender: "Producer | Branches") -> None:
        self._sender = sender
        self._waiting: deque[ColumnsDelivery] = deque()
        self.rows = 0
        self.partitions: set[tuple[str, int]] = set()

    def send(self, part: "Rows") -> None:
        """Waits when too much is in flight. Raises PenstockError, also for what was sent before."""
        delivery = self._sender.send_columns(
            part.topic,
            part.values,
            part.keys,
            partition=part.partition,
            headers=part.headers,
        )
        self.rows += len(part.values)
        self._waiting.append(delivery)
        if len(self._waiting) >= UNSETTLED_MAX:
            self._settle(self._waiting.popleft())

    def finish(self) -> int:
        """Waits for all that was flushed; returns how many rows. Raises PenstockError."""
        while self._waiting:
            self._settle(self._waiting.popleft())
        return self.rows

    def _settle(self, delivery: "ColumnsDelivery") -> None:
        self.partitions.update((part.topic, part.partition) for part in delivery.result())


def check_cluster(client: ClientSettings) -> None:
    """Raises MisuseError if a different cluster answers than the one that was named."""
    from penstock.client import Admin  # noqa: PLC0415 - grpc, in executors only

    if not client.cluster_id:
        return
    with Admin(
        client.bootstrap, connect_timeout_ms=client.connect_timeout_ms, **client.files
    ) as admin:
        seen = admin.cluster_id()
    if seen != client.cluster_id:
        raise MisuseError(
            f"option penstock.cluster.id is {client.cluster_id!r}, but {client.bootstrap[0]} is "
            f"cluster {seen!r}: nothing was written"
        )


def make_producer(options: SinkOptions, transactional_id: str | None = None) -> "Producer":
    """A producer with a sink's settings. Raises MisuseError: the address is another cluster's."""
    from penstock.client import Producer  # noqa: PLC0415 - grpc, in executors only

    client = options.client
    check_cluster(client)
    return Producer(
        client.bootstrap,
        connect_timeout_ms=client.connect_timeout_ms,
        request_timeout_ms=client.request_timeout_ms,
        delivery_timeout_ms=options.delivery_timeout_ms,
        codec=options.codec,  # type: ignore[arg-type]  # checked when it was parsed
        transactional_id=transactional_id,
        transaction_timeout_ms=options.transaction_timeout_ms,
        client_id="spark",
        **client.files,
    )


def _producer(options: SinkOptions) -> "Producer":
    """This process's producer with these settings."""
    key = (os.getpid(), options)
    if key not in _producers:
        _producers[key] = make_producer(options)
    return _producers[key]
