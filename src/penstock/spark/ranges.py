"""Reads offset ranges in an executor: exactly the records of [lo, hi), in order, or an error.

    ranges ──▶ fetch ──▶ trim ──▶ decode ──▶ Slice ──▶ arrow.to_arrow
                 ▲ one fetch is under way while the last answer is decoded and consumed

What may stand in the way, and what happens:

    the leader changed, is away, overloaded   ask again, with growing pauses
    offsets missing inside the range          normal: compaction, control batches
    the range starts before the log start,    data loss: raise, or (failOnDataLoss=false) log
    the topic is gone or created again        and go on behind it
    no progress for `pollTimeoutMs`           raise with topic, partition, offset; Spark retries

Records below the last stable offset only (read committed): a range never ends beyond it.
`Fetcher` is the seam; `ClusterFetcher` is the real one.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import grpc

from penstock.core.batch import Batch, BatchFlags
from penstock.core.records import decode_batch
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, OffsetOutOfRangeError, PenstockError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.batches import batch_from_wire
from penstock.rpc.errors import error_from_rpc, error_from_wire
from penstock.spark.arrow import Slice
from penstock.spark.connection import Connection
from penstock.spark.data_loss import DataLossError
from penstock.spark.options import SourceOptions
from penstock.spark.planning import OffsetRange

logger = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
UNKNOWN_TOPIC_PATIENCE_S: Final = 15.0
"""A topic unknown for so long is gone; before that, a broker may not have heard of it yet."""
FIRST_FETCH_RECORD_BYTES: Final = 1024
"""Guess before any record was seen, so that a short range does not fetch megabytes behind it."""
LEAST_FETCH_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Answer:
    """What a fetch found. `readable_end`: records below it are there (last stable offset)."""

    batches: Sequence[Batch]
    readable_end: int


class Pending(Protocol):
    """A fetch under way."""

    def result(self) -> Answer:
        """Waits; raises PenstockError."""

    def cancel(self) -> None:
        """The answer is not wanted any more."""


class Fetcher(Protocol):
    """Starts fetches of records at or after `offset`; never blocks for long."""

    def start(self, wanted: OffsetRange, offset: int, max_bytes: int, timeout_s: float) -> Pending:
        """Raises nothing: what is wrong comes out of `result`."""


@dataclass(slots=True)
class _Cursor:
    """Where a range is: records below `position` are done or were never there."""

    wanted: OffsetRange
    position: int
    record_bytes: float = FIRST_FETCH_RECORD_BYTES

    @property
    def done(self) -> bool:
        return self.position >= self.wanted.hi

    def fetch_bytes(self, most: int) -> int:
        left = (self.wanted.hi - self.position) * self.record_bytes
        return max(LEAST_FETCH_BYTES, min(most, int(left * 1.05) + 4096))

    def gets_on_with(self, answer: Answer) -> bool:
        """Whether `take` will move on: else the same fetch has to be tried again."""
        if not answer.batches:
            return answer.readable_end >= self.wanted.hi
        return answer.batches[-1].next_offset > self.position

    def take(self, answer: Answer) -> list[tuple[Batch, int, int]]:
        """Batches with the offsets [lo, hi) of each that belong to the range; moves on."""
        taken = []
        for batch in answer.batches:
            lo = max(batch.base_offset, self.position)
            hi = min(batch.next_offset, self.wanted.hi)
            if lo < hi and not batch.header.flags & BatchFlags.CONTROL:
                taken.append((batch, lo, hi))
                self.record_bytes = batch.size_bytes / batch.header.record_count
            self.position = max(self.position, batch.next_offset)
        if not answer.batches and answer.readable_end >= self.wanted.hi:
            self.position = self.wanted.hi  # the rest was compacted away
        return taken


@dataclass(frozen=True, slots=True)
class RangeReader:
    """Reads the ranges of a task, one after the other, fetching one answer ahead."""

    fetcher: Fetcher
    options: SourceOptions

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[Slice]:
        """All records of the ranges.

        Raises DataLossError (failOnDataLoss), or ClusterError past the deadline or for an error
        that waiting does not cure; both name topic, partition and offset.
        """
        cursors = [_Cursor(r, r.lo) for r in ranges if r.size > 0]
        index, pending = 0, None
        try:
            while index < len(cursors):
                cursor = cursors[index]
                answer = self._answer(cursor, pending)
                pending = None
                taken = cursor.take(answer) if answer else []
                index += cursor.done
                if index < len(cursors):
                    pending = self._start(cursors[index])
                for batch, lo, hi in taken:
                    part = self._slice(cursor.wanted, batch, lo, hi)
                    if part.lo < part.hi:
                        yield part
        finally:
            if pending is not None:
                pending.cancel()

    def _start(self, cursor: _Cursor) -> Pending:
        client = self.options.client
        timeout_s = (client.request_timeout_ms + client.fetch_max_wait_ms) / 1000
        timeout_s = min(timeout_s, self.options.poll_timeout_ms / 1000)
        size = cursor.fetch_bytes(client.fetch_max_bytes)
        return self.fetcher.start(cursor.wanted, cursor.position, size, timeout_s)

    def _answer(self, cursor: _Cursor, pending: Pending | None) -> Answer | None:
        """Waits for progress; None if the cursor was moved past what is lost."""
        started = time.monotonic()
        pause_s = FIRST_PAUSE_S
        while True:
            waited_s = time.monotonic() - started
            try:
                answer = (pending or self._start(cursor)).result()
            except PenstockError as problem:
                if self._skipped(cursor, problem, waited_s):
                    return None
                seen = problem.message
            else:
                if cursor.gets_on_with(answer):
                    return answer
                seen = f"records are readable up to {answer.readable_end} so far"
            pending = None
            if waited_s + pause_s > self.options.poll_timeout_ms / 1000:
                raise self._too_late(cursor, seen)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _skipped(self, cursor: _Cursor, problem: PenstockError, waited_s: float) -> bool:
        """Moves the cursor past records that are gone, if that is allowed.

        Returns False if waiting may help. Raises DataLossError, or the problem itself.
        """
        wanted, position = cursor.wanted, cursor.position
        where = f"{wanted.topic}/{wanted.partition}"
        resume_at = wanted.hi
        match problem:
            case OffsetOutOfRangeError(valid=valid):
                if valid is None or position >= valid.log_start_offset:
                    return False  # past the end: a new leader may not know its end yet
                resume_at = min(resume_at, valid.log_start_offset)
                available = f"available are {valid.log_start_offset} to {valid.high_watermark}"
            case PenstockError(code=ErrorCode.TOPIC_ID_MISMATCH):
                available = "the topic was deleted and created again"
            case PenstockError(code=ErrorCode.UNKNOWN_TOPIC | ErrorCode.UNKNOWN_PARTITION):
                if waited_s < UNKNOWN_TOPIC_PATIENCE_S:
                    return False
                available = "it does not exist any more"
            case _ if problem.retriable:
                return False
            case _:
                text = f"{where} at offset {position}: {problem.message}"
                raise ClusterError(text, problem.code) from None
        what = (
            f"{where} lost records while they were read: asked for offset {position}, {available}"
        )
        if self.options.fail_on_data_loss:
            advice = "set the option failOnDataLoss to false to go on with what is there"
            raise DataLossError(f"{what}; {advice}") from None
        logger.warning("skipping lost records: %s, going on at offset %d", what, resume_at)
        cursor.position = resume_at
        return True

    def _too_late(self, cursor: _Cursor, seen: str) -> ClusterError:
        wanted = cursor.wanted
        return ClusterError(
            f"{wanted.topic}/{wanted.partition}: no records at offset {cursor.position} (of "
            f"{wanted.lo} to {wanted.hi}) within {self.options.poll_timeout_ms} ms, the last "
            f"answer was: {seen}; check that the partition has a leader, or raise pollTimeoutMs",
            ErrorCode.REQUEST_TIMED_OUT,
        )

    def _slice(self, wanted: OffsetRange, batch: Batch, lo: int, hi: int) -> Slice:
        try:
            columns = decode_batch(batch)
        except PenstockError as problem:
            raise ClusterError(
                f"{wanted.topic}/{wanted.partition}, batch at offset {batch.base_offset}: "
                f"{problem.message}",
                problem.code,
            ) from None
        lo, hi = columns.index_of(lo), columns.index_of(hi)
        return Slice(wanted.topic, wanted.partition, columns, lo, hi)


class ClusterFetcher:
    """Fetches from the leaders of a cluster."""

    def __init__(self, connection: Connection, options: SourceOptions) -> None:
        self._connection = connection
        self._client = options.client

    def start(self, wanted: OffsetRange, offset: int, max_bytes: int, timeout_s: float) -> Pending:
        tp = TopicPartition(wanted.topic, wanted.partition)
        try:
            leader = self._connection.leader(tp)
        except PenstockError as problem:
            return _Failed(problem)
        part = pb.FetchPartition(
            topic=wanted.topic,
            topic_id=wanted.topic_id,
            partition=wanted.partition,
            offset=offset,
            max_bytes=max_bytes,
            leader_epoch=leader.leader_epoch,
        )
        request = pb.FetchRequest(
            cluster_id=self._client.cluster_id,
            max_wait_ms=self._client.fetch_max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=pb.ISOLATION_LEVEL_READ_COMMITTED,
            partitions=[part],
        )
        future = self._connection.fetch(leader.address, request, timeout_s)
        return _Call(self._connection, tp, leader.address, future)


@dataclass(frozen=True, slots=True)
class _Failed:
    """A fetch that could not even be sent."""

    problem: PenstockError

    def result(self) -> Answer:
        raise self.problem

    def cancel(self) -> None:
        """Nothing is under way."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A fetch sent to a leader. Errors that name a stale picture make the next one ask anew."""

    connection: Connection
    tp: TopicPartition
    address: str
    future: "grpc.Future[pb.FetchResponse]"

    def result(self) -> Answer:
        try:
            response = self.future.result()
        except grpc.RpcError as problem:
            self.connection.forget(self.tp)
            raise error_from_rpc(problem, self.address) from None
        for found in response.results:
            if (found.topic, found.partition) == (self.tp.topic, self.tp.partition):
                return self._answer(found)
        return Answer((), -1)

    def _answer(self, found: pb.FetchResult) -> Answer:
        if found.HasField("error"):
            error = error_from_wire(found.error)
            if error.refresh_metadata:
                self.connection.forget(self.tp)
            raise error
        return Answer([batch_from_wire(b) for b in found.batches], found.last_stable_offset)

    def cancel(self) -> None:
        self.future.cancel()
