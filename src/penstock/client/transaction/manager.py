"""A producer's transactions: carries out the machine's decisions, between user, sender and
coordinator.

    begin, commit, abort ──▶ Transactions.handle ──▶ gate, sender.discard / adopt, flush, End
    sender: a batch is given up ──▶ BatchLost ──┤
    a consumer's offsets are refused ▶ OffsetsLost ┘

The gate is in the accumulator: it is closed before a batch is discarded and opened after the lanes
have adopted the identity, so that no thread's record can end up in a different transaction than the
one it was sent in. One call at a time; a cancelled call leaves the machine where it is, and the
next call continues from there.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol

from penstock.client.clock import now_ms
from penstock.client.cluster.cluster import Cluster
from penstock.client.config import ProducerConfig
from penstock.client.consumer.transaction_offsets import Scope
from penstock.client.group.commit_queue import Offsets
from penstock.client.group.model import OffsetAndMetadata
from penstock.client.producer.accumulator import Accumulator
from penstock.client.producer.sender import Sender
from penstock.client.transaction.contract import (
    Abort,
    BatchLost,
    Begin,
    Commit,
    End,
    EndAnswered,
    EndFailed,
    Event,
    Flushed,
    HandOver,
    Identified,
    OffsetsLost,
    Ready,
)
from penstock.client.transaction.coordinator import TransactionCalls
from penstock.client.transaction.machine import State, Transactions
from penstock.core.types import ProducerIdentity, TopicPartition
from penstock.errors import ClusterError, ErrorCode, MisuseError, PenstockError

Flush = Callable[[float], Awaitable[None]]
"""Waits up to the given number of seconds until everything sent is settled; raises TimeoutError."""

_PAUSE_MIN_S: Final = 0.001

_log = logging.getLogger("penstock.client")


class OffsetSource(Protocol):
    """A consumer, as a transaction sees it."""

    async def offsets_in_hand(
        self, cluster_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None
    ) -> Offsets:
        """These offsets, checked, or those of returned records; raises MisuseError."""

    async def store_offsets(self, scope: Scope, offsets: Offsets) -> None:
        """Stores them as pending at the group's coordinator; raises PenstockError."""

    def offsets_counted(self, offsets: Offsets) -> None:
        """The transaction is committed."""


class TransactionManager:
    """Of one producer with a transactional id. Owned by its event loop."""

    def __init__(
        self, cluster: Cluster, sender: Sender, accumulator: Accumulator, flush: Flush
    ) -> None:
        config = cluster.config
        assert isinstance(config, ProducerConfig)
        assert config.transactional_id is not None
        self._cluster = cluster
        self._config = config
        self._sender = sender
        self._accumulator = accumulator
        self._flush = flush
        self._machine = Transactions(
            config.transactional_id, config.retry_backoff_ms, config.retry_backoff_max_ms
        )
        self.coordinator = TransactionCalls(cluster, config, config.transactional_id)
        self._instance_id = str(uuid.uuid4())
        self._busy = ""
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self._storing = asyncio.Lock()
        self._unstored = 0
        self._stored: list[tuple[OffsetSource, Offsets]] = []
        sender.on_given_up = self._batch_lost
        self._set_gate()

    @property
    def in_transaction(self) -> bool:
        """A transaction is open that an abort would end."""
        return self._machine.may_abort

    @property
    def number(self) -> int:
        """Of the last transaction that was opened: 1, 2, …"""
        return self._accumulator.transaction

    @property
    def over(self) -> bool:
        """The last transaction needs no further call."""
        return self._machine.state in (State.READY, State.FENCED)

    @property
    def fenced(self) -> bool:
        """Another producer has taken over the id."""
        return self._machine.state is State.FENCED

    @property
    def cluster_id(self) -> str:
        """ "" before any broker has answered."""
        return self._cluster.view.cluster_id

    async def begin(self) -> None:
        """Opens a transaction. Raises MisuseError, TransactionError, or the reason why there is no
        producer id."""
        deadline_ms = now_ms() + self._config.max_block_ms
        async with self._alone("begin"):
            if (
                not self._cluster.view.cluster_id
            ):  # an address at which nothing listens is reported soon
                await self._cluster.refresh(_left_s(deadline_ms))
            while self._machine.state is not State.OPEN:
                ready = await self._obey(Begin(deadline_ms), deadline_ms)
                if ready.adopt is not None:
                    return
            self._handle(Begin(deadline_ms))  # which refuses: one is open

    async def begin_as(self, take: Callable[[float], Awaitable[ProducerIdentity | None]]) -> bool:
        """Opens a transaction under the identity that `take` gets from the coordinator within the
        given number of seconds. False: it got None, and nothing is open. Raises as `begin`, or as
        `take`.
        """
        deadline_ms = now_ms() + self._config.max_block_ms
        async with self._alone("begin"):
            while self._machine.state is not State.READY:
                await self._obey(Begin(deadline_ms), deadline_ms)
            identity = await take(_left_s(deadline_ms))
            if identity is None:
                return False
            self._handle(Identified(identity))
            self._handle(Begin(deadline_ms))
            return True

    async def hand_over(self, timeout_s: float | None) -> None:
        """Waits until the whole transaction is stored and closes it without an end. Raises
        TransactionError: it can no longer be committed; abort it."""
        deadline_ms = self._deadline_ms(timeout_s)
        async with self._alone("hand_over"):
            unsettled = await self._flushed(deadline_ms)
            ready = self._handle(HandOver(unsettled))
            if ready.error is not None:
                raise ready.error

    async def commit(self, *, wait_visible: bool, timeout_s: float | None) -> None:
        """See `AsyncTransaction.commit`."""
        deadline_ms = self._deadline_ms(timeout_s)
        async with self._alone("commit"):
            await self._obey(Commit(deadline_ms, wait_visible), deadline_ms)
        for source, offsets in self._stored:
            source.offsets_counted(offsets)

    async def abort(self, timeout_s: float | None) -> None:
        """See `AsyncTransaction.abort`."""
        deadline_ms = self._deadline_ms(timeout_s)
        async with self._alone("abort"):
            await self._obey(Abort(deadline_ms), deadline_ms)

    async def rests(self, timeout_s: float) -> None:
        """Returns when nobody begins or ends a transaction, or after `timeout_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._at_rest.wait()

    async def commit_offsets(
        self,
        source: OffsetSource,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None,
    ) -> None:
        """See `AsyncTransaction.commit_offsets`. One after the other: they never go back."""
        identity = self._machine.identity
        self._check_open()
        assert identity is not None
        self._unstored += 1
        try:
            async with self._storing:
                wanted = await source.offsets_in_hand(self._cluster.view.cluster_id, offsets)
                self._check_not_over(identity)
                scope = Scope(self._config.transactional_id or "", identity)
                await source.store_offsets(scope, wanted)
                self._stored.append((source, wanted))
        except PenstockError as error:
            unsent = isinstance(error, MisuseError)
            if not unsent or self._machine.refusal is not None:  # a commit waits for them
                self._offsets_lost(identity, error)
            raise
        except asyncio.CancelledError:
            self._offsets_lost(
                identity,
                ClusterError(
                    "the call that commits the offsets of a consumer was cancelled",
                    ErrorCode.CLOSED,
                ),
            )
            raise
        finally:
            self._unstored -= 1

    def _check_open(self) -> None:
        if self._machine.refusal is not None:
            raise self._machine.refusal

    def _check_not_over(self, identity: ProducerIdentity) -> None:
        """A commit requested in the meantime waits for these offsets, so they are in time."""
        if self._machine.identity != identity or self._machine.state is State.READY:
            raise MisuseError("the transaction ended before the offsets of a consumer were sent")
        if self._machine.state is not State.ENDING or not self._machine.may_abort:
            self._check_open()

    def _offsets_lost(self, identity: ProducerIdentity, error: PenstockError) -> None:
        """Unless that transaction has already ended."""
        if self._machine.identity == identity and self._machine.may_abort:
            self._handle(OffsetsLost(error))

    def _deadline_ms(self, timeout_s: float | None) -> int:
        limit_ms = self._config.delivery_timeout_ms if timeout_s is None else int(timeout_s * 1000)
        return now_ms() + limit_ms

    @asynccontextmanager
    async def _alone(self, what: str) -> AsyncIterator[None]:
        if self._busy:
            raise MisuseError(
                f"transactional id {self._config.transactional_id!r}: {what} while {self._busy} "
                "is in progress; only one task or thread at a time may begin or end a "
                "transaction"
            )
        self._busy = what
        self._at_rest.clear()
        try:
            yield
        finally:
            self._busy = ""
            self._at_rest.set()

    async def _obey(self, event: Event, deadline_ms: int) -> Ready:
        """Handles an event and carries out everything that follows; returns the result, raises its
        error."""
        ready = self._handle(event)
        if ready.identify:
            identity = await self.coordinator.init(self._instance_id, _left_s(deadline_ms))
            self._instance_id = str(uuid.uuid4())
            return self._handle(Identified(identity))
        if ready.flush:
            ready = self._handle(Flushed(await self._flushed(deadline_ms)))
        while ready.end is not None:
            ready = self._handle(await self._ended(ready.end))
        if ready.error is not None:
            raise ready.error
        return ready

    async def _flushed(self, deadline_ms: int) -> int:
        """How many batches and offsets are not settled in time. No more are accepted in the
        meantime."""
        with suppress(TimeoutError):
            await self._flush(_left_s(deadline_ms))
            async with asyncio.timeout(_left_s(deadline_ms)), self._storing:
                pass
        with self._accumulator.lock:
            return len(self._accumulator.unsettled) + self._unstored

    async def _ended(self, end: End) -> EndAnswered | EndFailed:
        await asyncio.sleep(max(0, end.not_before_ms - now_ms()) / 1000)
        try:
            return await self.coordinator.end(end, _left_s(end.deadline_ms))
        except PenstockError as error:
            _log.info("no answer to the end of a transaction yet: %s", error)
            return EndFailed(error)

    # -- without waiting -----------------------------------------------------------------------

    def _batch_lost(self, error: PenstockError) -> None:
        if self._machine.state is State.OPEN:
            _log.warning("the transaction can no longer be committed: %s", error)
        self._handle(BatchLost(error))

    def _handle(self, event: Event) -> Ready:
        ready = self._machine.handle(event, now_ms())
        if self._machine.refusal is not None:
            self._set_gate()
        if ready.discard is not None:
            self._sender.discard(ready.discard)
        if ready.adopt is not None:
            self._sender.adopt(ready.adopt)
            self._stored = []
            with self._accumulator.lock:
                self._accumulator.transaction += 1
        self._set_gate()
        return ready

    def _set_gate(self) -> None:
        with self._accumulator.lock:
            self._accumulator.refusal = self._machine.refusal


def _left_s(deadline_ms: int) -> float:
    return max(_PAUSE_MIN_S, (deadline_ms - now_ms()) / 1000)
