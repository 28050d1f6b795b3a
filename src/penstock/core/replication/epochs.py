"""Leader epochs of one log: where each begins, and where two logs diverge (KIP-101, KIP-279).

    epoch   1        3              4         history ((1, 0), (3, 20), (4, 70))
            ├────────┼──────────────┼──────▶
    offset  0        20             70     log end

Every leader begins its epoch at its log end, and followers copy batches with the epoch they were
written in, so two logs are identical below the end of the largest epoch they share. Asking the
leader for that end, instead of trusting the high watermark, preserves acknowledged records (I4): a
follower learns the high watermark late, and would truncate committed records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.core.batch import Batch
from penstock.core.replication.contract import EpochStart
from penstock.core.types import NO_EPOCH, LeaderEpoch, Offset


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The largest epoch at or below the requested one, and the offset after its last record.

    `epoch` -1: every epoch in this log is larger; `end_offset` is then where the first begins.
    """

    epoch: LeaderEpoch
    end_offset: Offset


class EpochHistory:
    """Epochs and start offsets, both strictly ascending; epochs without records are kept too.

    Immutable: every change creates a new one; a failed write is undone by keeping the old one.
    """

    __slots__ = ("starts",)

    def __init__(self, starts: Iterable[EpochStart] = ()) -> None:
        self.starts = tuple(starts)

    @property
    def last_epoch(self) -> LeaderEpoch:
        """-1 for an empty history."""
        return self.starts[-1].epoch if self.starts else NO_EPOCH

    def begun(self, epoch: LeaderEpoch, start_offset: Offset) -> EpochHistory:
        """With `epoch` beginning at `start_offset`; removes earlier epochs that begin there.

        An earlier epoch that began at the same offset has no record: no log can share one with it.
        """
        assert epoch > self.last_epoch, f"epoch {epoch} after {self.last_epoch}"
        kept = [start for start in self.starts if start.start_offset < start_offset]
        return EpochHistory((*kept, EpochStart(epoch, start_offset)))

    def extended(self, batches: Iterable[Batch]) -> EpochHistory:
        """With the epochs that `batches` begin; self if they begin none."""
        history = self
        for batch in batches:
            if batch.header.leader_epoch > history.last_epoch:
                history = history.begun(batch.header.leader_epoch, batch.base_offset)
        return history

    def cut(self, log_end_offset: Offset) -> EpochHistory:
        """Without epochs that have no record below `log_end_offset`."""
        kept = tuple(start for start in self.starts if start.start_offset < log_end_offset)
        return self if len(kept) == len(self.starts) else EpochHistory(kept)

    def trimmed(self, log_start_offset: Offset) -> EpochHistory:
        """Without epochs that end at or before `log_start_offset`; the newest always stays."""
        first = 0
        while first + 1 < len(self.starts) and (
            self.starts[first + 1].start_offset <= log_start_offset
        ):
            first += 1
        return EpochHistory(self.starts[first:]) if first else self

    def end_of(self, epoch: LeaderEpoch, log_end_offset: Offset) -> EpochEnd:
        """Where the largest epoch <= `epoch` ends in this log; see `EpochEnd`."""
        found = NO_EPOCH
        for start in self.starts:
            if start.epoch > epoch:
                return EpochEnd(found, start.start_offset)
            found = start.epoch
        return EpochEnd(found, log_end_offset)
