"""One partition's committed history, as the checks record it beside the machines (I6, I9, I10).

Grows by what leaders commit. After a loss beyond the promise it returns to what the last replica
still has, and may continue after a gap.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.batch import Batch
from penstock.core.types import NO_PRODUCER
from penstock_sim.scheduler import RuleError


class Canon:
    """One partition's committed history."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.by_base: dict[int, Batch] = {}
        self.payloads: set[bytes] = set()
        self.end = 0
        self.disk_end = 0
        self._sequences: dict[int, tuple[int, int]] = {}
        self._ends: dict[int, int] = {}
        """End of the last batch of each producer."""
        self._skipped = False

    def extend(self, batch: Batch, who: str, log_start: int = 0) -> None:
        """Adds the next committed batch; checks I9.

        `log_start`: of the log that has it. A replica that copied a log from there does not know
        producers whose records have all been removed: their first batch may be stored again.
        """
        header = batch.header
        if header.is_marker:
            known = self._sequences.get(header.producer_id, (-1, 0))
            self._sequences[header.producer_id] = max(known, (header.producer_epoch + 1, 0))
        elif header.producer_id != NO_PRODUCER:
            unknown = (
                (-1, 0) if not self._skipped else (header.producer_epoch, header.base_sequence)
            )
            epoch, expected = self._sequences.get(header.producer_id, unknown)
            if header.producer_epoch != epoch:
                if header.producer_epoch < epoch:
                    raise RuleError(f"I10: {who} committed {header} after producer epoch {epoch}")
                expected = 0
            forgotten = (
                header.base_sequence == 0 and self._ends.get(header.producer_id, 0) <= log_start
            )
            if header.base_sequence != expected and not forgotten:
                raise RuleError(f"I9: {who} committed {header}, expected sequence {expected}")
            following = header.last_sequence + 1
            self._sequences[header.producer_id] = (header.producer_epoch, following)
            self._ends[header.producer_id] = batch.next_offset
        self.batches.append(batch)
        self.by_base[batch.base_offset] = batch
        self.payloads.add(batch.payload)
        self.end = batch.next_offset

    def rewind_to(self, end: int, left: Sequence[Batch]) -> None:
        """Forgets what is at or after `end` (a loss beyond what is promised).

        A batch that contains `end` stays if it is in the remaining log.
        """
        kept = [
            batch
            for batch in self.batches
            if batch.next_offset <= end or (batch.base_offset < end and batch in left)
        ]
        disk_end = self.disk_end
        self.__init__()  # type: ignore[misc]  # starts over on purpose
        self.disk_end = disk_end
        for batch in kept:
            self.extend(batch, "rewind", batch.base_offset)  # it was checked when it was added
        self.end = max(self.end, end)

    def adopt(self, batches: Sequence[Batch]) -> None:
        """Takes over what an unclean leader knew to be committed; any sequence may follow it."""
        self._sequences, self._ends, self._skipped = {}, {}, True
        for batch in batches:
            self.extend(batch, "unclean election")

    def skip_to(self, end: int, left: Sequence[Batch]) -> None:
        """Retention removed everything before `end` in a history that had lost records."""
        self._sequences, self._ends, self._skipped, self.end = {}, {}, True, end
        for batch in left:
            if batch.base_offset < end < batch.next_offset:
                self.extend(batch, "skip")
