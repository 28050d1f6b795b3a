"""The machine's view of its own log: what was appended, what is written, what is synced.

    log_start <= last_stable_offset <= high_watermark <= written_end <= log_end (I2)
                                                         └─ writes in flight ─┘
    synced_end <= written_end

The machine appends here first and emits the same batches in a `Ready`; `persisted` and `failed`
report the outcome. A failed write invalidates every later one, because they were built on it: log
end, epochs, producers and their open transactions are restored to the state before it. Leader and
follower share this view and add the parts of their roles.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from penstock.core.aborted import AbortedTransaction
from penstock.core.batch import Batch
from penstock.core.replication.contract import (
    UNPROMISED,
    Checkpoint,
    ProducerEntry,
    RecoveredLog,
)
from penstock.core.replication.epochs import EpochHistory
from penstock.core.replication.producers import ProducerTable
from penstock.core.types import NO_PRODUCER, LeaderEpoch, Offset, ProducerId

Bounds = tuple[LeaderEpoch, Offset, Offset, Offset, Offset, Offset]
"""Leader epoch, log start, last stable offset, high watermark, written end, log end."""


@dataclass(slots=True, kw_only=True)
class _Write:
    """A write in flight, and what undoes it."""

    persist_id: int
    log_end_offset: Offset
    epochs_before: EpochHistory
    log_end_before: Offset
    producers_before: list[tuple[ProducerId, ProducerEntry | None]]
    unpromised_before: Offset | None


class LocalLog:
    """Offsets, epochs and producers of one replica's log; mutable, owned by its machine."""

    def __init__(self, recovered: RecoveredLog, now_ms: int) -> None:
        self.leader_epoch = recovered.checkpoint.leader_epoch
        self._last_persist_id = 0
        self._in_flight: deque[_Write] = deque()
        self._truncating = False
        self._producers_before_reset: ProducerTable | None = None
        self._load(recovered, now_ms)
        known = recovered.checkpoint.high_watermark
        self._unpromised = known if known <= UNPROMISED else None
        """What checkpoints have in place of a high watermark; None: they have one."""
        self.last_stable_offset = self._stable_offset()
        # The last run may have left writes that are only in the page cache.
        self.synced_end = self.log_start_offset

    def _load(self, recovered: RecoveredLog, now_ms: int) -> None:
        checkpoint = recovered.checkpoint
        self.log_start_offset = checkpoint.log_start_offset
        # An emptied log has no batch in the store that shows its end.
        self.log_end = Offset(max(recovered.log_end_offset, self.log_start_offset))
        self.written_end = self.log_end
        self.compacted_end = recovered.compacted_end
        high_watermark = checkpoint.high_watermark
        if high_watermark > UNPROMISED:
            # It is stored lazily: a pass may have gone further, up to what was committed.
            high_watermark = max(high_watermark, self.compacted_end)
        self.high_watermark = Offset(max(self.log_start_offset, min(high_watermark, self.log_end)))
        self.epochs = EpochHistory(checkpoint.epochs).cut(self.log_end)
        self.producers = ProducerTable(recovered.producers, now_ms, self.high_watermark)
        self.swept_end = recovered.swept_end

    def _stable_offset(self) -> Offset:
        """The current LSO. An open transaction that lost its beginning holds back only the rest."""
        return max(self.log_start_offset, self.producers.stable_offset(self.high_watermark))

    @property
    def is_still(self) -> bool:
        """No write is in flight: the end of the log is certain."""
        return not self._in_flight and not self._truncating

    @property
    def is_promised(self) -> bool:
        """False: this log lost writes and has acknowledged nothing since. No other replica relies
        on it.

        What is missing here may be missing from the next leader too: its high watermark is its
        start, and stays there over restarts until it follows or leads.
        """
        return self._unpromised is None

    @property
    def is_part(self) -> bool:
        """It ends before what may have superseded records in it, so it was copied from a compacted
        log, and not to the end: it has no seat, and never had one since."""
        return self.log_end < self.compacted_end

    def take_back(self) -> None:
        """No other replica relies on this log from now on."""
        self._unpromised = UNPROMISED

    def promise(self, now_ms: int) -> tuple[int, Checkpoint]:
        """Others may rely on this log once this is stored.

        Returns the id of the write and the checkpoint that goes with it.
        """
        persist_id = self.checkpointed(now_ms)
        self._unpromised = None
        return persist_id, self.checkpoint()

    @property
    def last_persist_id(self) -> int:
        return self._last_persist_id

    def bounds(self) -> Bounds:
        """The log's part of `Marks`, as of now."""
        return (
            self.leader_epoch,
            self.log_start_offset,
            self.last_stable_offset,
            self.high_watermark,
            self.written_end,
            self.log_end,
        )

    def checkpoint(self) -> Checkpoint:
        """State to store with, or after, everything appended so far."""
        known = self._stored(self.high_watermark)
        return Checkpoint(self.leader_epoch, known, self.log_start_offset, self.epochs.starts)

    def _stored(self, high_watermark: Offset) -> Offset:
        return high_watermark if self._unpromised is None else self._unpromised

    def begin_epoch(self, epoch: LeaderEpoch) -> None:
        """A leader's first act: its epoch starts at the end of its log, which is at rest."""
        assert self.is_still, "an epoch begins on a still log"
        self._unpromised = None
        self.compacted_end = min(self.compacted_end, self.log_end)
        self.epochs = self.epochs.begun(epoch, self.log_end)

    def checkpointed(self, now_ms: int) -> int:
        """A write without batches. Returns the id under which its outcome is reported."""
        persist_id, _ = self.append((), now_ms)
        return persist_id

    def append(
        self, batches: tuple[Batch, ...], now_ms: int, *, within: int = 0
    ) -> tuple[int, tuple[AbortedTransaction, ...]]:
        """Adds stamped batches that continue the log.

        Args:
            batches: To be written in this order.
            now_ms: On the machine's clock.
            within: The id of the newest write, to make them part of it: then nothing of it
                was passed to the shell yet. 0: they are a separate write.

        Returns:
            The id under which the outcome of the write is reported, and the transactions that
            markers among `batches` abort.
        """
        if within:
            write = self._in_flight[-1]
            assert write.persist_id == within, f"write {within}, the newest is {write.persist_id}"
        else:
            self._last_persist_id += 1
            write = _Write(
                persist_id=self._last_persist_id,
                log_end_offset=self.log_end,
                epochs_before=self.epochs,
                log_end_before=self.log_end,
                producers_before=[],
                unpromised_before=self._unpromised,
            )
            self._in_flight.append(write)
        aborted: list[AbortedTransaction] = []
        for batch in batches:
            assert self.fits(batch, self.log_end), f"{batch.header} at {self.log_end}"
            producer_id = batch.header.producer_id
            if producer_id != NO_PRODUCER:
                write.producers_before.append((producer_id, self.producers.get(producer_id)))
                ended = self.producers.apply(batch.header, now_ms)
                if ended is not None:
                    aborted.append(ended)
            self.log_end = batch.next_offset
        write.log_end_offset = self.log_end
        self.epochs = self.epochs.extended(batches)
        return self._last_persist_id, tuple(aborted)

    def fits(self, batch: Batch, end: Offset) -> bool:
        """Whether `batch` continues a log that begins as this one does and ends at `end`.

        The first batch of an empty log may contain the log start: records can be deleted up to any
        offset, batches are copied whole.
        """
        if end == self.log_start_offset:
            return batch.base_offset <= end < batch.next_offset
        return batch.base_offset == end

    def truncate(self, target: Offset, now_ms: int) -> tuple[int, Checkpoint]:
        """Records that the shell is asked to truncate at `target`; `truncated` has the result.

        Returns the id of the write and the checkpoint that goes with it.
        """
        assert self.is_still, "only a still log is truncated"
        assert target >= self.high_watermark, f"{target} < high watermark {self.high_watermark}"
        persist_id = self.checkpointed(now_ms)
        self._truncating = True
        cut = replace(self.checkpoint(), epochs=self.epochs.cut(target).starts)
        return persist_id, cut

    def reset(self, log_start_offset: Offset, now_ms: int) -> tuple[int, Checkpoint]:
        """Records that the log is to be emptied, and continue at `log_start_offset`.

        For a follower that was offline until retention had removed what it lacked: the leader's log
        starts after the end of this one. Everything here is below that start, so nothing readable
        is lost. And for a log that no other replica relies on, back to any offset.
        """
        assert self.is_still, "only a still log is reset"
        assert log_start_offset > self.high_watermark or not self.is_promised, "nothing to skip"
        persist_id = self.checkpointed(now_ms)
        self._truncating = True
        # Known producers end before the gap: taking that state for the current one would let a
        # batch in the gap be appended twice (I9).
        self._producers_before_reset = self.producers
        self.producers = ProducerTable()
        known = self._stored(log_start_offset)
        return persist_id, Checkpoint(self.leader_epoch, known, log_start_offset, ())

    def persisted(self, persist_id: int, *, synced: bool) -> None:
        """The write and all before it are done. Ids of rolled back writes change nothing."""
        while self._in_flight and self._in_flight[0].persist_id <= persist_id:
            self.written_end = self._in_flight.popleft().log_end_offset
            if synced:
                self.synced_end = self.written_end
        assert self.high_watermark <= self.written_end <= self.log_end

    def failed(self, persist_id: int) -> None:
        """The write did not happen: it and all later ones are undone."""
        undone: list[tuple[ProducerId, ProducerEntry | None]] = []
        while self._in_flight and self._in_flight[-1].persist_id >= persist_id:
            write = self._in_flight.pop()
            undone = write.producers_before + undone
            self.epochs = write.epochs_before
            self.log_end = write.log_end_before
            self._unpromised = write.unpromised_before
            self._truncating = False
            if self._producers_before_reset is not None:
                self.producers = self._producers_before_reset
                self._producers_before_reset = None
        if undone:
            self.producers.restore(undone)

    def truncated(self, recovered: RecoveredLog, now_ms: int) -> None:
        """Adopts what the shell found after a truncation or a reset."""
        assert self._truncating, "no truncation was asked for"
        self._truncating = False
        known, was_reset = self.high_watermark, self._producers_before_reset is not None
        self._producers_before_reset = None
        self._load(recovered, now_ms)
        if was_reset:
            self.producers = ProducerTable()
        self.high_watermark = max(self.high_watermark, min(known, self.log_end))
        self.last_stable_offset = self._stable_offset()
        self.synced_end = min(self.synced_end, self.log_end)
        for write in self._in_flight:
            # The write that carries the truncation, if its outcome is reported after this.
            write.log_end_offset = write.log_end_before = self.log_end
            write.epochs_before = self.epochs

    def raise_high_watermark(self, offset: Offset) -> bool:
        """Moves the high watermark up to `offset`, never down; True if it moved (I2).

        The last stable offset moves with it, or stays.
        """
        if offset <= self.high_watermark:
            return False
        assert offset <= self.written_end, f"high watermark {offset} past {self.written_end}"
        self.high_watermark = offset
        stable = self._stable_offset()
        assert stable >= self.last_stable_offset, f"{stable} < {self.last_stable_offset}"
        self.last_stable_offset = stable
        return True

    def raise_log_start(self, offset: Offset) -> bool:
        """Moves the log start up to `offset`, never past the LSO; True if it moved.

        Data of an open transaction stays: it is undecided whether it will ever be read.
        """
        offset = min(offset, self.last_stable_offset)
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.epochs = self.epochs.trimmed(offset)
        return True
