"""A partition's state of its idempotent producers (I9): pure, no I/O.

    leader:    check(header) ── Append ──▶ apply(header as stamped)
                             ├─ Duplicate ▶ answer with the offsets of the first append
                             └─ Refused ──▶ answer with the error, nothing is appended
    follower, recovery:       apply(header as stored), in log order, without checking

A producer numbers its records 0, 1, 2 … per partition and producer epoch, modulo 2**31. The
table keeps the newest epoch and the last five batches of each producer, as Kafka does (KIP-98):
a client with at most five batches in flight can only repeat one of these. The rules:

- the batch that continues the sequence is appended; the first of an epoch starts at 0;
- one of the last five is a duplicate with known offsets, an older one a duplicate with offset
  -1: everything before the window is in the log already, because gaps are never accepted;
- a gap, or a batch that overlaps others unevenly, is OUT_OF_ORDER_SEQUENCE; a lower epoch is
  PRODUCER_FENCED.

An unknown producer must start at sequence 0. State outlives retention, because it is stored in
snapshots and not looked up in the log. `apply` removes it when `PRODUCERS_MAX` others were used
since; `forget_idle` when it was not used for long, or when the partitions of a broker remember
more than `PRODUCERS_PER_BROKER` together (ADR 110). A forgotten producer that continues at a later
sequence is refused (it must get a new producer id) and never duplicated; only a retry of its very
first batch could be appended twice, so nobody who wrote within `KEPT_MS` is forgotten by
`forget_idle`.

An entry also says whether a transaction of its producer is open here (`stable`). The marker of
epoch e ends it, and makes e + 1 the epoch: late batches of the ended transaction are fenced, and
new ones begin at sequence 0. A producer with an open transaction is never forgotten: the
transaction could no longer be ended. Nor is one whose marker is not committed: the last stable
offset depends on it, here and in every log that begins with a snapshot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.core.aborted import AbortedTransaction
from penstock.core.batch import BatchHeader
from penstock.core.replication.contract import ProducerEntry, SequencedBatch
from penstock.core.replication.stable import OpenTransactions
from penstock.core.types import NO_PRODUCER, TRANSACTIONAL_PRODUCER_BIT, Offset, ProducerId
from penstock.errors import ClusterError, ErrorCode

WINDOW_BATCHES: Final = 5
"""Batches remembered per producer; clients keep at most this many in flight."""
PRODUCERS_MAX: Final = 20_000
"""Producers remembered per partition, of 350 to 800 bytes each; the longest idle are forgotten
first (I23)."""
PRODUCERS_PER_BROKER: Final = 100_000
"""Producers remembered by all partitions of a broker together, 35 to 80 MB."""
KEPT_MS: Final = 10 * 60 * 1000
"""Who wrote so recently may still repeat its first batch: no delivery timeout is that long by
default."""
_SEQUENCES: Final = 1 << 31
_UNKNOWN_OFFSET: Final = Offset(-1)
_NOTHING_COMMITTED: Final = Offset(0)


@dataclass(frozen=True, slots=True)
class Append:
    """The batch is new and in order."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The batch was appended before, at `base_offset` (-1: too long ago to know).

    It may be acknowledged once everything below `end_offset` would be.
    """

    base_offset: Offset
    end_offset: Offset


@dataclass(frozen=True, slots=True)
class Refused:
    """Append nothing; answer with this error."""

    error: ClusterError


Verdict = Append | Duplicate | Refused
_APPEND: Final = Append()


class ProducerTable:
    """Producers of one partition, least recently used first. Not thread-safe; owns its state.

    Entries are immutable, so `get` and `restore` are enough to undo an `apply`.
    """

    def __init__(
        self,
        entries: Iterable[ProducerEntry] = (),
        now_ms: int = 0,
        high_watermark: Offset = _NOTHING_COMMITTED,
    ) -> None:
        """`now_ms` starts the idle time of `entries`: a restart extends it, never shortens it.
        `high_watermark`: below it everything is committed, markers too."""
        self._entries = {entry.producer_id: entry for entry in entries}
        self._now_ms = now_ms
        self._high_watermark = high_watermark
        # Producers that may be forgotten, longest idle first.
        self._used_ms = {
            producer_id: now_ms
            for producer_id, entry in self._entries.items()
            if not self._is_needed(entry)
        }
        self._transactions = OpenTransactions(self._entries.values())
        self._uncommitted = self._uncommitted_markers()

    def __len__(self) -> int:
        return len(self._entries)

    def snapshot(self) -> tuple[ProducerEntry, ...]:
        """Everything that `ProducerTable(snapshot)` needs to continue."""
        return tuple(self._entries.values())

    def get(self, producer_id: ProducerId) -> ProducerEntry | None:
        """The entry, or None when the producer is unknown."""
        return self._entries.get(producer_id)

    def open_entries(self) -> tuple[ProducerEntry, ...]:
        """Producers with an open transaction, in the order in which these began."""
        return tuple(self._entries[producer_id] for producer_id in self._transactions)

    def stable_offset(self, high_watermark: Offset) -> Offset:
        """The last stable offset at this high watermark, which never falls from call to call."""
        self._high_watermark = high_watermark
        while self._uncommitted and self._uncommitted[0][0] < high_watermark:
            _, producer_id = self._uncommitted.popleft()
            entry = self._entries.get(producer_id)
            if entry is not None and not self._is_needed(entry):
                self._used_ms.setdefault(producer_id, self._now_ms)
        return self._transactions.stable_offset(high_watermark)

    def check(self, header: BatchHeader) -> Verdict:
        """Whether this batch may be appended. Pure. Not idempotent (-1): always `Append`."""
        if header.producer_id == NO_PRODUCER:
            return _APPEND
        entry = self._entries.get(header.producer_id)
        if entry is None or header.producer_epoch > entry.producer_epoch:
            return _APPEND if header.base_sequence == 0 else _refuse_gap(header, 0)
        if header.producer_epoch < entry.producer_epoch:
            return Refused(fenced(entry, header.producer_epoch))
        return _check_sequence(entry, header)

    def apply(self, header: BatchHeader, now_ms: int = 0) -> AbortedTransaction | None:
        """Records that the stamped batch `header` is in the log, regardless of `check`.

        Batches that are not idempotent change nothing. `now_ms` is any monotonic clock, always the
        same one; recovery passes none. Returns the transaction that this batch aborts here.
        """
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER:
            return None
        self._now_ms = now_ms
        if header.flags or producer_id >= TRANSACTIONAL_PRODUCER_BIT:
            return self._apply_transactional(header, now_ms)
        old = self._entries.pop(producer_id, None)
        self._entries[producer_id] = ProducerEntry(
            producer_id=producer_id,
            producer_epoch=header.producer_epoch,
            batches=_window(old, header),
            last_timestamp_ms=header.effective_max_timestamp_ms,
        )
        self._used_ms.pop(producer_id, None)
        self._used_ms[producer_id] = now_ms
        if old is None:
            self._make_room()
        return None

    def _apply_transactional(self, header: BatchHeader, now_ms: int) -> AbortedTransaction | None:
        """A batch of a transactional producer: data, open or compacted, or a marker."""
        producer_id = header.producer_id
        old = self._entries.pop(producer_id, None)
        self._used_ms.pop(producer_id, None)
        entry = _marked(old, header) if header.is_marker else _written(old, header)
        self._entries[producer_id] = entry
        was_open = old is not None and old.open_offset is not None
        if not self._is_needed(entry):
            self._used_ms[producer_id] = now_ms
        elif entry.open_offset is None:
            self._uncommitted.append((entry.marker_offset, producer_id))
        elif not was_open:
            self._transactions.began(producer_id, entry.open_offset)
        aborted = None
        if old is not None and was_open and entry.open_offset is None:
            self._transactions.ended(producer_id, header.base_offset)
            aborted = self._aborted(old, header)
        if old is None:
            self._make_room()
        return aborted

    def _aborted(self, old: ProducerEntry, marker: BatchHeader) -> AbortedTransaction | None:
        """The aborted transaction to hide from readers, now that `marker` ended what was open in
        `old`.

        A transaction is ended everywhere before its producer joins a partition with the next one.
        So a marker that ends an older epoch than its own proves that an older marker was lost, in
        an unclean election, and with it the outcome: what is not known to be committed stays
        hidden.
        """
        if marker.commits and marker.producer_epoch == old.producer_epoch:
            return None
        assert old.open_offset is not None, old
        still_open = self._transactions.first_open()
        return AbortedTransaction(
            marker_offset=marker.base_offset,
            first_offset=old.open_offset,
            producer_id=old.producer_id,
            producer_epoch=old.producer_epoch,
            stable_offset=marker.next_offset if still_open is None else still_open,
        )

    def restore(self, before: Sequence[tuple[ProducerId, ProducerEntry | None]]) -> None:
        """Undoes one `apply` for each of `before`, the results of `get` then, newest last."""
        for producer_id, entry in reversed(before):
            if entry is None:
                self._entries.pop(producer_id, None)
            else:
                self._entries[producer_id] = entry
            if entry is None or self._is_needed(entry):
                self._used_ms.pop(producer_id, None)
            else:
                self._used_ms.setdefault(producer_id, self._now_ms)
        self._transactions = OpenTransactions(self._entries.values())
        self._uncommitted = self._uncommitted_markers()

    def _is_needed(self, entry: ProducerEntry) -> bool:
        """It has an open transaction, or its last marker may be missing on a new leader."""
        if entry.open_offset is not None:
            return True
        return entry.ended_first_offset >= 0 and entry.marker_offset >= self._high_watermark

    def _uncommitted_markers(self) -> deque[tuple[Offset, ProducerId]]:
        """Markers whose producers may be forgotten once the high watermark has passed them."""
        return deque(
            sorted(
                (entry.marker_offset, producer_id)
                for producer_id, entry in self._entries.items()
                if entry.open_offset is None and self._is_needed(entry)
            )
        )

    def forget_idle(self, now_ms: int, expiry_ms: int, limit: int) -> None:
        """Forgets who did not write for `expiry_ms`, and the longest idle until `limit` are left.

        Those who wrote within `KEPT_MS` stay in any case, beyond `limit` too.
        """
        while self._used_ms:
            oldest, used_ms = next(iter(self._used_ms.items()))
            idle_ms = now_ms - used_ms
            if idle_ms <= KEPT_MS or (idle_ms <= expiry_ms and len(self._entries) <= limit):
                return
            self._forget(oldest)

    def _make_room(self) -> None:
        """Forgets the longest idle: both dicts are in order of use."""
        while len(self._used_ms) > PRODUCERS_MAX:
            self._forget(next(iter(self._used_ms)))

    def _forget(self, producer_id: ProducerId) -> None:
        del self._used_ms[producer_id]
        del self._entries[producer_id]


def fair_limit(sizes: Iterable[int], total: int) -> int:
    """The size down to which the largest of several tables must be cut so that all have `total`
    together: the small ones keep everything. `PRODUCERS_MAX` if nothing must be cut."""
    ascending = sorted(sizes)
    for index, size in enumerate(ascending):
        share = total // (len(ascending) - index)
        if size > share:
            return share
        total -= size
    return PRODUCERS_MAX


def fenced(entry: ProducerEntry, epoch: int) -> ClusterError:
    """The error for a batch of an older epoch than that of `entry`."""
    if entry.marker_offset >= 0:
        why = f"its transaction with epoch {entry.producer_epoch - 1} has ended here"
        advice = "ask the coordinator of the transactional id for the outcome"
    else:
        why = f"it has already written here with epoch {entry.producer_epoch}"
        advice = "another instance has taken over; close this one"
    return ClusterError(
        f"producer {entry.producer_id} has epoch {epoch}, but {why}: {advice}",
        ErrorCode.PRODUCER_FENCED,
    )


def _window(old: ProducerEntry | None, header: BatchHeader) -> tuple[SequencedBatch, ...]:
    """The last batches of the producer's epoch, with this one."""
    landed = SequencedBatch(header.base_sequence, header.last_sequence, header.base_offset)
    if old is not None and old.producer_epoch == header.producer_epoch:
        return (*old.batches[1 - WINDOW_BATCHES :], landed)
    return (landed,)


def _written(old: ProducerEntry | None, header: BatchHeader) -> ProducerEntry:
    """With a data batch. Compaction removes the flag: such a transaction is not open."""
    opened = old.open_offset if old is not None else None
    if opened is None and header.is_transactional:
        opened = header.base_offset
    return ProducerEntry(
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        batches=_window(old, header),
        last_timestamp_ms=header.effective_max_timestamp_ms,
        open_offset=opened,
        marker_offset=old.marker_offset if old is not None else Offset(-1),
        ended_first_offset=old.ended_first_offset if old is not None else Offset(-1),
    )


def ended_by_swept_markers(
    entries: Iterable[ProducerEntry], swept_end: Offset, log_end: Offset
) -> tuple[ProducerEntry, ...]:
    """A snapshot that is older than the sweep: what it has open below `swept_end` has ended.

    Markers are removed only below an offset that the last stable offset had reached: everything
    that began before it was decided, and a removed marker cannot show this. A log that ends before
    `swept_end` copies what is missing, or starts over: its snapshot does not change.
    """
    if log_end < swept_end:
        return tuple(entries)
    return tuple(
        replace(entry, producer_epoch=entry.producer_epoch + 1, batches=(), open_offset=None)
        if entry.open_offset is not None and entry.open_offset < swept_end
        else entry
        for entry in entries
    )


def _marked(old: ProducerEntry | None, header: BatchHeader) -> ProducerEntry:
    """With a marker. A marker of an epoch that has already ended ends nothing (I12)."""
    if old is not None and old.producer_epoch > header.producer_epoch:
        return old
    opened = old.open_offset if old is not None else None
    return ProducerEntry(
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch + 1,
        batches=(),
        last_timestamp_ms=header.effective_max_timestamp_ms,
        marker_offset=header.base_offset,
        ended_first_offset=opened if opened is not None else Offset(-1),
    )


def _check_sequence(entry: ProducerEntry, header: BatchHeader) -> Verdict:
    """Same epoch: next in order, one of the window, before it, or out of order."""
    base, last = header.base_sequence, header.last_sequence
    if not entry.batches:
        return _APPEND if base == 0 else _refuse_gap(header, 0)
    expected = (entry.batches[-1].last_sequence + 1) % _SEQUENCES
    if base == expected:
        return _APPEND
    for known in reversed(entry.batches):
        if known.base_sequence == base and known.last_sequence == last:
            end = known.base_offset + (last - base) % _SEQUENCES + 1
            return Duplicate(known.base_offset, Offset(end))
    oldest = entry.batches[0]
    epoch_begins_here = len(entry.batches) < WINDOW_BATCHES and oldest.base_sequence == 0
    if not epoch_begins_here and _is_before(last, oldest.base_sequence):
        return Duplicate(_UNKNOWN_OFFSET, oldest.base_offset)
    return _refuse_gap(header, expected)


def _is_before(sequence: int, other: int) -> bool:
    """Order on the circle of sequences: less than half of it is in between."""
    return 0 < (other - sequence) % _SEQUENCES < _SEQUENCES // 2


def _refuse_gap(header: BatchHeader, expected: int) -> Refused:
    return Refused(
        ClusterError(
            f"producer {header.producer_id} epoch {header.producer_epoch} sent sequences "
            f"{header.base_sequence} to {header.last_sequence}, expected {expected}: send the "
            "missing batches first, or get a new producer id if there are none",
            ErrorCode.OUT_OF_ORDER_SEQUENCE,
        )
    )
