"""One partition's batches in flight, in order, once. Pure: the sender carries it out.

A lane holds the batches that were sent and are not settled, oldest first, at most
`max_in_flight`. Each got the next sequence when it was taken, and keeps it over every retry,
so that the broker can tell a repeated batch from a new one and refuses a gap (I9):

    take ──▶ [ seq 0  sent ][ seq 40 sent ][ seq 95 sent ] ──▶ succeeded, in any order

- **A retriable failure rewinds.** Later batches will be refused for the gap, or were stored if the
  failed one was too. So the lane stops, waits until nothing is outstanding, then sends all
  remaining batches again, in order, with the same sequences.
- **A batch given up leaves a gap** (refused for good, or its delivery timeout passed). Once nothing
  is outstanding, the lane asks for a new epoch of the producer id (`needs_identity`), in which
  sequences start at 0 and late copies from the old epoch are refused (I10, as in KIP-360).
- **Only batches that were certainly not stored may be sent again with new numbers**: a batch with
  an attempt of unknown outcome is given up as unknown then, because its old copy may still be
  stored, and the broker could not recognize the new one as a repetition.
- **A batch that was too large is split** if it was certainly not stored: its parts take its place
  and share its sequences, so there is no gap.
- A batch whose timeout passes while it is outstanding is reported at once, and stays as a ghost
  until its answer or the end of its connection shows whether there is a gap.

**A transactional lane** never renews its identity. A batch that it gives up, as when its sequence
is lost, fails the transaction: its owner discards the window, and the next transaction has another
epoch.

Without idempotence there are no sequences: one batch is in flight, which keeps order.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from penstock.core.types import ProducerIdentity
from penstock.errors import Applied, ErrorCode, Lost, OverloadedError, PenstockError

SEQUENCE_MASK: Final = 0x7FFFFFFF
"""Sequences wrap from 2**31 - 1 to 0."""

Batch = TypeVar("Batch")


@dataclass(slots=True, eq=False)
class Entry(Generic[Batch]):
    """A batch in the window. `sequence` -1 = not idempotent. Times in ms of a monotonic clock."""

    batch: Batch
    record_count: int
    deadline_ms: int
    identity: ProducerIdentity | None = None
    sequence: int = -1
    outstanding: bool = True
    """Sent, not answered yet, and its connection is up."""
    unknown: bool = False
    """An attempt ended, and it is unknown whether the batch was stored."""
    ghost: bool = False
    """Already reported as given up."""
    discarded: bool = False
    """Its transaction has ended: later answers about it are ignored."""
    attempts: int = 1
    last_error: PenstockError | None = None


@dataclass(slots=True, eq=False)
class Lane(Generic[Batch]):
    """The window of one partition. Owned by the event loop; every method is instantaneous.

    Attributes:
        backoff_ms: First pause after a failure; doubles with each failure in a row.
        backoff_max_ms: Upper bound of the pause.
        retry_at_ms: Nothing is sent before.
    """

    max_in_flight: int
    idempotent: bool
    backoff_ms: int
    backoff_max_ms: int
    transactional: bool = False
    identity: ProducerIdentity | None = None
    window: deque[Entry[Batch]] = field(default_factory=deque)
    retry_at_ms: int = 0
    _next_sequence: int = 0
    _rewinding: bool = False
    _renewing: bool = False
    _failures: int = 0

    @property
    def outstanding(self) -> bool:
        """An attempt of any batch is in flight."""
        return any(entry.outstanding for entry in self.window)

    @property
    def needs_identity(self) -> bool:
        """The sender must call `adopt` with a newer identity before anything can be sent."""
        if not self.idempotent or self.transactional:
            return False
        return self.identity is None or (self._renewing and not self.outstanding)

    def can_take(self, now_ms: int) -> bool:
        """Whether a new batch may be sent now."""
        return (
            len(self.window) < self.max_in_flight
            and not self._rewinding
            and not self._renewing
            and all(entry.outstanding for entry in self.window)
            and (self.identity is not None or not self.idempotent)
            and now_ms >= self.retry_at_ms
        )

    def take(self, batch: Batch, record_count: int, deadline_ms: int) -> Entry[Batch]:
        """Puts a batch into the window, as sent; the caller sends it."""
        assert len(self.window) < self.max_in_flight, "asked can_take?"
        entry = Entry(batch, record_count, deadline_ms)
        self._number(entry)
        self.window.append(entry)
        return entry

    def resend(self, now_ms: int) -> Entry[Batch] | None:
        """The next batch to send again, as sent; None if there is none or it is too early."""
        if now_ms < self.retry_at_ms or self._renewing:
            return None
        if self._rewinding:
            if self.outstanding:
                return None
            self._rewinding = False
        # A window that was split has more entries; the broker recognizes only the last few batches.
        if sum(entry.outstanding for entry in self.window) >= self.max_in_flight:
            return None
        for entry in self.window:
            if not entry.outstanding:
                entry.outstanding = True
                entry.attempts += 1
                return entry
        return None

    def succeeded(self, entry: Entry[Batch]) -> None:
        """The batch is stored."""
        if entry.discarded:
            return
        entry.outstanding = False
        self.window.remove(entry)
        self._failures = 0

    def failed(self, entry: Entry[Batch], error: PenstockError, now_ms: int) -> bool:
        """An attempt ended with `error`. True: the batch is given up, the caller reports it.

        `entry.unknown` then tells whether it may be in the log nevertheless.
        """
        if entry.discarded:
            return False
        entry.outstanding = False
        entry.last_error = error
        if error.applied is not Applied.NO:
            entry.unknown = True
        if entry.ghost:
            self._drop(entry)
            return False
        sequence_lost = self.idempotent and error.lost is Lost.SEQUENCE
        if self.transactional and sequence_lost:
            # Only a gap that an earlier batch is going to fill can be cured within the transaction.
            gap = error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE
            sequence_lost = gap and self.window[0] is not entry
        if not error.retriable and not sequence_lost:
            self._drop(entry)
            return True
        self._back_off(error, now_ms)
        self._rewinding = True
        if sequence_lost and self.window[0] is entry:
            # Nothing earlier can fill the gap: the broker no longer knows this producer.
            self._renewing = True
        return False

    def split(self, entry: Entry[Batch], parts: Sequence[tuple[Batch, int]]) -> None:
        """Puts `parts`, each with its number of records, in place of a batch that was refused: they
        are sent in order, as after a failure. No attempt of it may be stored."""
        assert not entry.unknown, "an old copy could not be told apart"
        assert sum(count for _, count in parts) == entry.record_count
        index = self.window.index(entry)
        del self.window[index]
        sequence = entry.sequence
        for at, (batch, count) in enumerate(parts, index):
            part = Entry(batch, count, entry.deadline_ms, entry.identity, outstanding=False)
            if sequence >= 0:
                part.sequence = sequence
                sequence = (sequence + count) & SEQUENCE_MASK
            self.window.insert(at, part)
        self._rewinding = True

    def expire(self, now_ms: int) -> list[Entry[Batch]]:
        """Gives up batches whose deadline has passed; the caller reports those returned."""
        expired = [
            entry for entry in self.window if entry.deadline_ms <= now_ms and not entry.ghost
        ]
        for entry in expired:
            if entry.outstanding:
                entry.ghost = True
                entry.unknown = True
            else:
                self._drop(entry)
        return expired

    def adopt(self, identity: ProducerIdentity) -> list[Entry[Batch]]:
        """Renumbers the remaining batches under `identity`.

        Returns the batches given up because an old copy of them may still be stored; the caller
        reports them as unknown.
        """
        assert not self.outstanding, "a late answer could not be told apart"
        given_up = [entry for entry in self.window if entry.unknown]
        self.window = deque(entry for entry in self.window if not entry.unknown)
        self.identity = identity
        self._next_sequence = 0
        self._renewing = False
        for entry in self.window:
            self._number(entry)
        return given_up

    def discard(self) -> list[Entry[Batch]]:
        """Drops the window, outstanding or not; returns the batches not reported yet.

        For transactions: the next one has another epoch, under which late copies are refused.
        """
        dropped = [entry for entry in self.window if not entry.ghost]
        for entry in self.window:
            entry.discarded = True
        self.window.clear()
        self._rewinding = False
        self._failures = 0
        self.retry_at_ms = 0
        return dropped

    def retry_now(self) -> None:
        """There is a new leader: the pause after a failure is no longer needed."""
        self.retry_at_ms = 0

    def _number(self, entry: Entry[Batch]) -> None:
        if not self.idempotent:
            return
        assert self.identity is not None
        entry.identity = self.identity
        entry.sequence = self._next_sequence
        self._next_sequence = (self._next_sequence + entry.record_count) & SEQUENCE_MASK

    def _drop(self, entry: Entry[Batch]) -> None:
        self.window.remove(entry)
        self._rewinding = True
        self._renewing = self.idempotent and not self.transactional

    def _back_off(self, error: PenstockError, now_ms: int) -> None:
        pause_ms = 0
        if not self._rewinding:  # batches after it fail for the same reason
            pause_ms = min(self.backoff_ms << min(self._failures, 16), self.backoff_max_ms)
            self._failures += 1
        if isinstance(error, OverloadedError):
            pause_ms = max(pause_ms, error.throttle_ms)
        self.retry_at_ms = max(self.retry_at_ms, now_ms + pause_ms)
