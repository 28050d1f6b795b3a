"""ListOffsets and DeleteRecords: where a log starts and ends, and the offset at a timestamp.

For a timestamp, the store's index gives the batch; only that batch is opened to find the record.
Where a log ends depends on the reader: with the default isolation level, `read_committed`, it ends
at the last stable offset, and records that the reader will never see are not returned. After a
failover, "latest" is unknown until the ISR has confirmed the new leader's log (KIP-207): until then
the answer is LEADER_NOT_AVAILABLE, because an offset that consumers saw must not appear to be past
the end.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from penstock.core.authorization import Operation
from penstock.core.batch import Batch
from penstock.core.isolation import NONE_ABORTED, Isolation, is_hidden, named
from penstock.core.records import decode_batch
from penstock.core.replication.contract import Marks
from penstock.core.replication.contract_leader import LogStartMoved
from penstock.core.topic import refuse_internal
from penstock.core.types import Offset
from penstock.errors import (
    ClusterError,
    ErrorCode,
    OffsetOutOfRangeError,
    OffsetRange,
    PenstockError,
)
from penstock.proto.v1 import admin_pb2, broker_pb2
from penstock.rpc.errors import error_to_wire
from penstock_broker.replication.reads import waiting_for_others
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.services.fetching import isolation_from_wire, readable_end
from penstock_broker.services.limits import PARTITIONS_MAX, begins_slice, check_count
from penstock_broker.services.locate import Locator
from penstock_broker.store.interface import LogStore

_A = TypeVar("_A")


class Offsets:
    """Answers calls about offsets."""

    def __init__(
        self, locator: Locator, replicas: ReplicaSet, store: LogStore, executor: Executor
    ) -> None:
        self._locator = locator
        self._replicas = replicas
        self._store = store
        self._executor = executor

    async def list_offsets(
        self, request: broker_pb2.ListOffsetsRequest
    ) -> broker_pb2.ListOffsetsResponse:
        """One result per partition, in the request's order."""
        check_count("partitions", len(request.partitions), PARTITIONS_MAX)
        results = []
        isolation = isolation_from_wire(request.isolation_level)
        for index, part in enumerate(request.partitions):
            if begins_slice(index):
                await asyncio.sleep(0)
            try:
                results.append(await self._list(part, isolation))
            except PenstockError as error:
                results.append(
                    broker_pb2.ListOffsetsResult(
                        topic=part.topic,
                        partition=part.partition,
                        offset=-1,
                        timestamp_ms=-1,
                        error=error_to_wire(error),
                    )
                )
        return broker_pb2.ListOffsetsResponse(results=results)

    async def _list(
        self, part: broker_pb2.ListOffsetsPartition, isolation: Isolation
    ) -> broker_pb2.ListOffsetsResult:
        refuse_internal(part.topic, "read by clients")
        replica, marks = self._locator.led(
            part.topic, part.topic_id, part.partition, part.leader_epoch, Operation.DESCRIBE
        )
        offset, timestamp_ms = await self._find(replica, marks, part, isolation)
        # A log that was dropped meanwhile, as its partition moved away, has no record of any time.
        now, _ = self._locator.led(
            part.topic, part.topic_id, part.partition, part.leader_epoch, Operation.DESCRIBE
        )
        if now is not replica:
            raise ClusterError(
                f"the log of {replica} was replaced while it was read; ask again",
                ErrorCode.LEADER_NOT_AVAILABLE,
            )
        return broker_pb2.ListOffsetsResult(
            topic=part.topic,
            topic_id=replica.key.topic_id,
            partition=part.partition,
            offset=offset,
            timestamp_ms=timestamp_ms,
            leader_epoch=marks.leader_epoch,
        )

    async def _find(
        self,
        replica: Replica,
        marks: Marks,
        part: broker_pb2.ListOffsetsPartition,
        isolation: Isolation,
    ) -> tuple[int, int]:
        match part.WhichOneof("spec"):
            case "earliest":
                return marks.log_start_offset, -1
            case "latest":
                _check_settled(replica, marks)
                return readable_end(marks, isolation), -1
            case "timestamp_ms":
                _check_settled(replica, marks)
                return await self._at_time(replica, marks, part.timestamp_ms, isolation)
            case _:
                raise ClusterError(
                    f"the request does not say which offset of {replica} to list; set earliest, "
                    "latest or timestamp_ms",
                    ErrorCode.INVALID_REQUEST,
                )

    async def _at_time(
        self, replica: Replica, marks: Marks, timestamp_ms: int, isolation: Isolation
    ) -> tuple[int, int]:
        start, end = marks.log_start_offset, readable_end(marks, isolation)

        def blocking() -> tuple[int, int]:
            entry = self._store.find_timestamp(replica.slot, timestamp_ms, end)
            if entry is None:
                return -1, -1
            offset = max(entry.offset, start)
            aborted = NONE_ABORTED
            if isolation is Isolation.COMMITTED:
                aborted = named(self._store.aborted(replica.slot, offset, end))
            while batches := self._store.read(replica.slot, offset, 1, end):
                if not is_hidden(batches[0], aborted):
                    found = record_at(batches[0], timestamp_ms, start)
                    if found is not None:
                        return found
                offset = batches[0].next_offset
            return -1, -1

        with waiting_for_others(replica):
            try:
                return await self._in_thread(blocking)
            except PenstockError as error:
                self._replicas.unreadable(replica, error)
                raise

    async def delete_records(
        self, request: admin_pb2.DeleteRecordsRequest
    ) -> admin_pb2.DeleteRecordsResponse:
        """Moves the log start, never past the last stable offset; the answer has the new one."""
        try:
            replica, marks = self._locator.led(
                request.topic, request.topic_id, request.partition, 0, Operation.DELETE
            )
            _check_settled(replica, marks)
            before = marks.high_watermark if request.before_offset == -1 else request.before_offset
            if not 0 <= before <= marks.high_watermark:
                raise OffsetOutOfRangeError(
                    f"records of {replica} before {before} cannot be deleted; the offset must be "
                    f"{marks.log_start_offset} to {marks.high_watermark}",
                    OffsetRange(marks.log_start_offset, marks.high_watermark),
                )
            self._replicas.handle(replica, LogStartMoved(Offset(before)))
            return admin_pb2.DeleteRecordsResponse(log_start_offset=replica.marks.log_start_offset)
        except PenstockError as error:
            return admin_pb2.DeleteRecordsResponse(error=error_to_wire(error), log_start_offset=-1)

    async def _in_thread(self, blocking: Callable[[], _A]) -> _A:
        return await asyncio.get_running_loop().run_in_executor(self._executor, blocking)


def record_at(batch: Batch, timestamp_ms: int, start: int) -> tuple[int, int] | None:
    """Offset and timestamp of the first record at or after `timestamp_ms`, from `start` on.

    None if this batch has none: only records before `start` qualify, or compaction removed them.
    Raises ClusterError(CORRUPT_BATCH, UNSUPPORTED_CODEC).
    """
    header = batch.header
    if header.append_time_ms and not header.flags:
        return max(header.base_offset, start), header.append_time_ms
    columns = decode_batch(batch)
    timestamps = columns.timestamps()
    for index in range(columns.index_of(start), len(timestamps)):
        if timestamps[index] >= timestamp_ms:
            return columns.offset_at(index), timestamps[index]
    return None


def _check_settled(replica: Replica, marks: Marks) -> None:
    if marks.high_watermark < marks.epoch_start_offset:
        raise ClusterError(
            f"the new leader of {replica} (epoch {marks.leader_epoch}) does not know the high "
            f"watermark yet: {marks.high_watermark} of at least {marks.epoch_start_offset} is "
            "confirmed by the ISR; try again",
            ErrorCode.LEADER_NOT_AVAILABLE,
        )
