"""Produce: turns a request into events for machines, and their replies into an answer.

    opening ─▶ submit: ProducePartition ─▶ locate ─▶ check batch ─▶ ProduceRequested ─▶ machine …
                                             └──────────┴─ error of this partition alone

A request is submitted in one go: all its partitions are passed to their machines before anything
else runs, so that requests are appended in the order in which they are submitted (I9). Until its
last partition is answered, only a `PendingProduce` is kept, no payload. Payloads are not decoded,
except for compacted topics: their records need keys. What takes long to decode is decoded before,
in a thread (`opening`); so callers await `Producing.opening`, if it gives them anything to wait
for, before they `submit`, in the order in which requests arrived.

The machines answer in time. A periodic check for those that do not replaces a timer per request.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final, NamedTuple, TypeVar

from penstock.core.authorization import Kind, Operation
from penstock.core.authorization.producers import check_producer_id
from penstock.core.batch import Batch
from penstock.core.records import check_batch
from penstock.core.replication.contract_leader import ProduceReply, ProduceRequested
from penstock.core.topic import refuse_internal
from penstock.core.transactions.config import check_transactional_id
from penstock.core.types import Acks, LeaderEpoch, Sync
from penstock.errors import ClusterError, ErrorCode, OverloadedError, PenstockError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.batches import batch_from_wire
from penstock.rpc.errors import error_to_wire
from penstock_broker.clock import Clock
from penstock_broker.counts import Probe
from penstock_broker.metrics import Metrics
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.services.limits import PARTITIONS_MAX, ByteBudget, Bytes, check_count
from penstock_broker.services.locate import Locator, unknown_outcome
from penstock_broker.services.opening import Opened, Opener, check_opened
from penstock_broker.services.settings import check_settings
from penstock_broker.serving.callers import NOBODY, Caller, Role, caller
from penstock_broker.serving.edge import waiting_for_others
from penstock_broker.serving.quotas import Quotas

_DEFAULT_TIMEOUT_MS: Final = 30_000
_MAX_TIMEOUT_MS: Final = 600_000
GRACE_MS: Final = 2_000
"""A request is answered here this long after its deadline if its machines have not done so."""
SWEEP_S: Final = 1.0
"""How often such requests are searched: their answers can be late by this."""
_ACKS: Final = {0: Acks.ALL, **{int(acks): acks for acks in Acks}}
_SYNC: Final = {0: Sync.OS, **{int(sync): sync for sync in Sync}}
_E = TypeVar("_E")


class PendingProduce:
    """A request until its last partition is answered; then `response` is complete.

    `answered` is called once at that moment, possibly before `Producing.submit` returns, and never
    after `Producing.give_up`. It must not raise, because it runs among a machine's replies.
    """

    __slots__ = (
        "_answered",
        "budget",
        "late_ms",
        "response",
        "taken_bytes",
        "timeout_ms",
        "waits_for",
    )

    def __init__(
        self,
        request: pb.ProduceRequest,
        timeout_ms: int,
        late_ms: int,
        answered: "Callable[[PendingProduce], None]",
        budget: Bytes,
    ) -> None:
        """`late_ms`: when it is answered even if its machines have not replied. `budget`: where
        its bytes are taken from."""
        self.budget = budget
        self._answered: Callable[[PendingProduce], None] | None = answered
        self.timeout_ms = timeout_ms
        self.late_ms = late_ms
        self.taken_bytes = 0
        self.response = pb.ProduceResponse(correlation_id=request.correlation_id)
        for part in request.partitions:
            self.response.results.add(topic=part.topic, partition=part.partition)
        self.waits_for = set(range(len(self.response.results)))
        """Indexes of partitions without a result."""

    @property
    def is_over(self) -> bool:
        """It has been answered or given up."""
        return self._answered is None

    def end(self) -> "Callable[[PendingProduce], None] | None":
        """Marks it as over; returns the callback to call, None if it was over before."""
        answered, self._answered = self._answered, None
        return answered


class Producing:
    """Answers produce requests."""

    def __init__(
        self,
        locator: Locator,
        replicas: ReplicaSet,
        budget: ByteBudget,
        metrics: Metrics,
        refusal: Callable[[], PenstockError | None],
        clock: Clock,
        *,
        opener: Opener,
    ) -> None:
        """`refusal` says why no record is taken now (disk full, stopping, hibernating), or None."""
        self._locator = locator
        self._replicas = replicas
        self._budget = budget
        self._metrics = metrics
        self._refusal = refusal
        self._clock = clock
        self.opening = opener.open
        self._request_ids = count(1)
        self._pending: dict[PendingProduce, None] = {}
        self._sweeping = False

    @property
    def quotas(self) -> Quotas:
        """What users may take here."""
        return self._locator.access.quotas

    async def produce(self, request: pb.ProduceRequest) -> pb.ProduceResponse:
        """Appends what can be appended; each partition has its own result. Raises as `submit`."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def answered(_: PendingProduce) -> None:
            if not done.done():  # otherwise it was cancelled, which is noticed a turn later
                done.set_result(None)

        opening = self.opening(request)
        who = caller()
        pending = self.submit(request, answered, None if opening is None else await opening, who)
        try:
            with waiting_for_others():
                await done
        finally:
            self.give_up(pending)
        return pending.response

    def submit(
        self,
        request: pb.ProduceRequest,
        answered: Callable[[PendingProduce], None],
        opened: Opened | None = None,
        who: Caller = NOBODY,
    ) -> PendingProduce:
        """Appends what can be appended, at once; calls `answered` once all have results.

        `opened`: what `opening` found, None if it had nothing to wait for. `who`: the caller.
        Raises ClusterError for an invalid request; then nothing was appended.
        """
        check_count("partitions", len(request.partitions), PARTITIONS_MAX)
        if request.transactional_id:
            check_transactional_id(request.transactional_id)
            self._locator.access.check(
                Operation.WRITE, Kind.TRANSACTIONAL_ID, request.transactional_id, who
            )
        acks = _known(_ACKS, request.acks, "acks")
        sync = _known(_SYNC, request.sync, "sync")
        timeout_ms = min(request.timeout_ms or _DEFAULT_TIMEOUT_MS, _MAX_TIMEOUT_MS)
        deadline_ms = self._clock.now_ms() + timeout_ms
        terms = _Terms(acks, sync, deadline_ms, request.transactional_id, opened, who)
        late_ms = deadline_ms + GRACE_MS
        pending = PendingProduce(request, timeout_ms, late_ms, answered, self._budget.of(who))
        try:
            self._append_all(pending, request, terms)
        except BaseException:
            self.give_up(pending)
            raise
        if pending.waits_for:
            self._watch(pending)
        elif not pending.is_over:
            self._end(pending)  # it has no partitions
        return pending

    def give_up(self, pending: PendingProduce) -> None:
        """The caller no longer waits for the answer. What was appended stays; no-op if answered.

        The machines still reply; the replies are only counted.
        """
        if pending.end() is not None:
            self._release(pending)

    def _append_all(
        self, pending: PendingProduce, request: pb.ProduceRequest, terms: "_Terms"
    ) -> None:
        refusal = self._refusal()
        for index, part in enumerate(request.partitions):
            if refusal is not None:
                self._fail(pending, index, refusal)
                continue
            try:
                self._append(pending, index, part, terms)
            except PenstockError as error:
                if isinstance(error, OverloadedError):
                    pending.response.throttle_ms = error.throttle_ms
                self._fail(pending, index, error)

    def _append(
        self,
        pending: PendingProduce,
        index: int,
        part: pb.ProducePartition,
        terms: "_Terms",
    ) -> None:
        refuse_internal(part.topic, "written by producers")
        topic, replica = self._locator.replica(
            part.topic, part.topic_id, part.partition, Operation.WRITE, terms.who
        )
        if not part.HasField("batch"):
            raise ClusterError(
                f"the request has no batch for {replica}; send one", ErrorCode.INVALID_REQUEST
            )
        batch = batch_from_wire(part.batch)
        if terms.who.role is Role.USER:
            check_producer_id(batch.header.producer_id, terms.who.principal)
        self._reserve(pending, batch)
        check_batch(batch)
        append_time_ms, refusal = 0, None
        try:
            is_opened = topic.config.cleanup_policy.compacts and check_opened(
                part, index, terms.opened
            )
            append_time_ms = check_settings(
                batch, topic.config, replica, self._clock.wall.look(), is_opened=is_opened
            )
        except OverloadedError:
            raise  # says nothing about the batch
        except PenstockError as error:
            refusal = error
        request_id = next(self._request_ids)
        probe = None
        if replica.probe is None:
            replica.probe = probe = Probe(self._clock.now_s())
        size = _Size(batch.header.record_count, len(batch.payload), probe)
        replica.pending[request_id] = partial(self._replied, pending, index, replica, size)
        self._replicas.handle(
            replica,
            ProduceRequested(
                request_id=request_id,
                batch=batch,
                acks=terms.acks,
                sync=terms.sync,
                deadline_ms=terms.deadline_ms,
                expected_epoch=LeaderEpoch(part.leader_epoch),
                append_time_ms=append_time_ms,
                transactional_id=terms.transactional_id,
                refusal=refusal,
            ),
        )
        if probe is not None and not probe.persist_id and replica.probe is probe:
            replica.probe = None  # it waits for its transaction's coordinator first

    def _reserve(self, pending: PendingProduce, batch: Batch) -> None:
        try:
            pending.budget.take(batch.size_bytes)
        except OverloadedError:
            self._metrics.overloads.inc()
            raise
        pending.taken_bytes += batch.size_bytes

    # ------------------------------------------------------------ results

    def _replied(
        self,
        pending: PendingProduce,
        index: int,
        replica: Replica,
        size: "_Size",
        reply: ProduceReply,
    ) -> None:
        """A machine's reply, also to a request that is late or given up."""
        if size.probe is not None:
            self._timed(replica, size.probe, reply)
        error = None
        if reply.error is not None:
            error = self._locator.explained(replica, reply.error)
            self._metrics.produce_errors.labels(error.code.name).inc()
        elif not reply.duplicate:
            self._metrics.bytes_in.inc(size.payload_bytes)
            self._metrics.records_in.inc(size.records)
            replica.flow.took(size.records, size.payload_bytes)
        if pending.is_over:
            return
        result = pending.response.results[index]
        if error is not None:
            result.error.CopyFrom(error_to_wire(error))
        result.base_offset = reply.base_offset
        result.append_time_ms = reply.append_time_ms
        result.log_start_offset = replica.machine.log_start_offset
        result.leader_epoch = reply.leader_epoch
        result.acks = pb.Acks.ValueType(int(reply.acks))
        result.sync = pb.Sync.ValueType(int(reply.sync))
        result.duplicate = reply.duplicate
        self._has_result(pending, index)

    def _timed(self, replica: Replica, probe: Probe, reply: ProduceReply) -> None:
        if replica.probe is probe:
            replica.probe = None
        if reply.error is None:
            self._metrics.produce_times.observe(probe, self._clock.now_s())

    def _fail(self, pending: PendingProduce, index: int, error: PenstockError) -> None:
        """The partition's part was refused before a machine got it, or is late."""
        self._metrics.produce_errors.labels(error.code.name).inc()
        result = pending.response.results[index]
        result.error.CopyFrom(error_to_wire(error))
        result.base_offset = -1
        self._has_result(pending, index)

    def _has_result(self, pending: PendingProduce, index: int) -> None:
        pending.waits_for.remove(index)
        if not pending.waits_for:
            self._end(pending)

    def _end(self, pending: PendingProduce) -> None:
        answered = pending.end()
        assert answered is not None, "one answer per request"
        self._release(pending)
        answered(pending)

    def _release(self, pending: PendingProduce) -> None:
        self._pending.pop(pending, None)
        pending.budget.give(pending.taken_bytes)

    # ------------------------------------------------------------ deadlines

    def _watch(self, pending: PendingProduce) -> None:
        self._pending[pending] = None
        if not self._sweeping:
            self._sweep_later()

    def _sweep_later(self) -> None:
        self._sweeping = True
        self._clock.call_at(self._clock.now_s() + SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Answers requests whose machines are late; schedules the next check if others wait."""
        now_ms = self._clock.now_ms()
        late = [pending for pending in self._pending if pending.late_ms <= now_ms]
        self._sweeping = False
        if len(late) < len(self._pending):
            self._sweep_later()
        for pending in late:
            error = unknown_outcome(
                f"no answer within {pending.timeout_ms} ms; the outcome is unknown"
            )
            for index in sorted(pending.waits_for):
                self._fail(pending, index, error)


class _Terms(NamedTuple):
    """The settings of a request, for all its partitions."""

    acks: Acks
    sync: Sync
    deadline_ms: int
    transactional_id: str
    opened: Opened | None
    who: Caller


class _Size(NamedTuple):
    """What is counted when a batch has been appended."""

    records: int
    payload_bytes: int
    probe: Probe | None


def _known(table: dict[int, _E], value: int, field: str) -> _E:
    known = table.get(value)
    if known is None:
        raise ClusterError(
            f"{field} is {value}; known are " + ", ".join(str(value) for value in table),
            ErrorCode.INVALID_REQUEST,
        )
    return known
