"""Produce: from a request to events for machines, from their replies to an answer.

    ProducePartition ─▶ locate ─▶ check batch ─▶ ProduceRequested ─▶ machine … ProduceReply
                         └──────────┴─ error of this partition alone

All partitions of a request are handed to their machines before the first await, so that requests
on one connection are appended in the order they came (I9). Payloads stay closed, but for topics
that are compacted: they need keys.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count
from time import time_ns
from typing import Final, NamedTuple, TypeVar

from penstock.core.batch import Batch
from penstock.core.compaction.keymap import check_keys
from penstock.core.records import check_batch
from penstock.core.replication.contract_leader import ProduceReply, ProduceRequested
from penstock.core.topic import TimestampType, TopicConfig
from penstock.core.transactions.config import check_transactional_id
from penstock.core.types import Acks, LeaderEpoch, Sync
from penstock.errors import ClusterError, ErrorCode, OverloadedError, PenstockError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.batches import batch_from_wire
from penstock.rpc.errors import error_to_wire
from penstock_broker.metrics import Metrics
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.services.limits import ByteBudget
from penstock_broker.services.locate import Locator, refuse_internal, unknown_outcome

_DEFAULT_TIMEOUT_MS: Final = 30_000
_MAX_TIMEOUT_MS: Final = 600_000
_GRACE_S: Final = 2.0
_ACKS: Final = {0: Acks.ALL, **{int(acks): acks for acks in Acks}}
_SYNC: Final = {0: Sync.OS, **{int(sync): sync for sync in Sync}}
_E = TypeVar("_E")


class Producing:
    """Answers produce requests."""

    def __init__(
        self,
        locator: Locator,
        replicas: ReplicaSet,
        budget: ByteBudget,
        metrics: Metrics,
        refusal: Callable[[], PenstockError | None],
    ) -> None:
        """`refusal` says why nothing may be written now (disk full, stopping), or None."""
        self._locator = locator
        self._replicas = replicas
        self._budget = budget
        self._metrics = metrics
        self._refusal = refusal
        self._request_ids = count(1)

    async def produce(self, request: pb.ProduceRequest) -> pb.ProduceResponse:
        """Appends what can be appended; each partition has its own result."""
        if request.transactional_id:
            check_transactional_id(request.transactional_id)
        acks = _known(_ACKS, request.acks, "acks")
        sync = _known(_SYNC, request.sync, "sync")
        refusal = self._refusal()
        if refusal is not None:
            return self._all_refused(request, refusal)
        pending = _Pending(len(request.partitions))
        try:
            return await self._append(request, pending, acks, sync)
        finally:
            self._budget.give(pending.taken_bytes)

    def _all_refused(self, request: pb.ProduceRequest, error: PenstockError) -> pb.ProduceResponse:
        return pb.ProduceResponse(
            correlation_id=request.correlation_id,
            results=[self._failed(part, error) for part in request.partitions],
        )

    async def _append(
        self, request: pb.ProduceRequest, pending: "_Pending", acks: Acks, sync: Sync
    ) -> pb.ProduceResponse:
        timeout_ms = min(request.timeout_ms or _DEFAULT_TIMEOUT_MS, _MAX_TIMEOUT_MS)
        terms = _Terms(acks, sync, timeout_ms, request.transactional_id)
        throttle_ms = 0
        for index, part in enumerate(request.partitions):
            try:
                self._submit(pending, index, part, terms)
            except PenstockError as error:
                pending.set(index, self._failed(part, error))
                if isinstance(error, OverloadedError):
                    throttle_ms = error.throttle_ms
        if not pending.done.done():
            # The machines answer in time; the grace is for a machine that was stopped.
            await asyncio.wait([pending.done], timeout=timeout_ms / 1000 + _GRACE_S)
        late = unknown_outcome(f"no answer within {timeout_ms} ms; the outcome is unknown")
        return pb.ProduceResponse(
            correlation_id=request.correlation_id,
            throttle_ms=throttle_ms,
            results=[
                result or self._failed(part, late)
                for part, result in zip(request.partitions, pending.results, strict=True)
            ],
        )

    def _submit(
        self,
        pending: "_Pending",
        index: int,
        part: pb.ProducePartition,
        terms: "_Terms",
    ) -> None:
        refuse_internal(part.topic, "written by producers")
        topic, replica = self._locator.replica(part.topic, part.topic_id, part.partition)
        if not part.HasField("batch"):
            raise ClusterError(
                f"the request has no batch for {replica}; send one", ErrorCode.INVALID_REQUEST
            )
        batch = batch_from_wire(part.batch)
        self._reserve(pending, batch)
        check_batch(batch, max_bytes=topic.config.max_message_bytes)
        if topic.config.cleanup_policy.compacts:
            check_keys(batch, str(replica))
        append_time_ms = check_timestamps(batch, topic.config, time_ns() // 1_000_000)
        request_id = next(self._request_ids)
        replica.pending[request_id] = partial(self._answered, pending, index, replica, batch)
        self._replicas.handle(
            replica,
            ProduceRequested(
                request_id=request_id,
                batch=batch,
                acks=terms.acks,
                sync=terms.sync,
                deadline_ms=self._replicas.now_ms() + terms.timeout_ms,
                expected_epoch=LeaderEpoch(part.leader_epoch),
                append_time_ms=append_time_ms,
                transactional_id=terms.transactional_id,
            ),
        )

    def _reserve(self, pending: "_Pending", batch: Batch) -> None:
        try:
            self._budget.take(batch.size_bytes)
        except OverloadedError:
            self._metrics.overloads.inc()
            raise
        pending.taken_bytes += batch.size_bytes

    def _answered(
        self,
        pending: "_Pending",
        index: int,
        replica: Replica,
        batch: Batch,
        reply: ProduceReply,
    ) -> None:
        if reply.error is not None:
            error = self._locator.explained(replica, reply.error)
            self._metrics.produce_errors.labels(error.code.name).inc()
        else:
            error = None
            if not reply.duplicate:
                self._metrics.bytes_in.inc(len(batch.payload))
                self._metrics.records_in.inc(batch.header.record_count)
        pending.set(
            index,
            pb.ProduceResult(
                topic=replica.topic,
                partition=replica.key.partition,
                error=None if error is None else error_to_wire(error),
                base_offset=reply.base_offset,
                append_time_ms=reply.append_time_ms,
                log_start_offset=replica.marks.log_start_offset,
                leader_epoch=reply.leader_epoch,
                acks=pb.Acks.ValueType(int(reply.acks)),
                sync=pb.Sync.ValueType(int(reply.sync)),
                duplicate=reply.duplicate,
            ),
        )

    def _failed(self, part: pb.ProducePartition, error: PenstockError) -> pb.ProduceResult:
        self._metrics.produce_errors.labels(error.code.name).inc()
        return pb.ProduceResult(
            topic=part.topic,
            partition=part.partition,
            error=error_to_wire(error),
            base_offset=-1,
        )


class _Terms(NamedTuple):
    """What a request says for all of its partitions."""

    acks: Acks
    sync: Sync
    timeout_ms: int
    transactional_id: str


class _Pending:
    """Results of one request as they come in; `done` once all are there."""

    __slots__ = ("_missing", "done", "results", "taken_bytes")

    def __init__(self, partitions: int) -> None:
        self._missing = partitions
        self.taken_bytes = 0
        self.results: list[pb.ProduceResult | None] = [None] * partitions
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not partitions:
            self.done.set_result(None)

    def set(self, index: int, result: pb.ProduceResult) -> None:
        """Takes a partition's result; each comes once."""
        assert self.results[index] is None, "one reply per partition"
        self.results[index] = result
        self._missing -= 1
        if not self._missing and not self.done.done():
            self.done.set_result(None)


def check_timestamps(batch: Batch, config: TopicConfig, now_ms: int) -> int:
    """The append time to stamp (ms), 0 if records keep their own timestamps.

    Raises ClusterError(INVALID_TIMESTAMP) when the producer's are too far from the broker's clock.
    """
    if config.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return now_ms
    earliest = now_ms - config.timestamp_before_max_ms
    latest = now_ms + config.timestamp_after_max_ms
    header = batch.header
    for name, seen in (
        ("first", header.first_timestamp_ms),
        ("largest", header.max_timestamp_ms),
    ):
        if not earliest <= seen <= latest:
            raise ClusterError(
                f"the batch's {name} timestamp is {seen} ms, {seen - now_ms:+} ms from the "
                f"broker's clock; the topic accepts {-config.timestamp_before_max_ms} to "
                f"+{config.timestamp_after_max_ms} (message.timestamp.before.max.ms, "
                "message.timestamp.after.max.ms); check the clock and the unit",
                ErrorCode.INVALID_TIMESTAMP,
            )
    return 0


def _known(table: dict[int, _E], value: int, field: str) -> _E:
    known = table.get(value)
    if known is None:
        raise ClusterError(
            f"{field} is {value}; known are " + ", ".join(str(value) for value in table),
            ErrorCode.INVALID_REQUEST,
        )
    return known
