"""How the transactions of a log ended, for a pass that stays below the last stable offset.

Below the last stable offset every transaction has ended, and the aborted ones are in the replica's
own index, which is complete by construction; all others were committed. A pass that knew only half
of them would publish aborted data (redpanda#7143). (producer id, epoch) identifies one transaction
for ever, the producer id alone does not. Kept here: I11, I20.
"""

from collections.abc import Iterable

from penstock.core.aborted import AbortedTransaction
from penstock.core.batch import BatchHeader
from penstock.core.types import Offset, ProducerId


class Outcomes:
    """Which batches were aborted."""

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        """`aborted`: every entry whose transaction has a batch in the part that is compacted."""
        self._aborted: dict[tuple[ProducerId, int], tuple[Offset, Offset]] = {
            (each.producer_id, each.producer_epoch): (each.first_offset, each.marker_offset)
            for each in aborted
        }

    def aborted(self, header: BatchHeader) -> bool:
        """The batch has records of an aborted transaction."""
        if not header.is_transactional or header.is_control:
            return False
        found = self._aborted.get((header.producer_id, header.producer_epoch))
        return found is not None and found[0] <= header.base_offset < found[1]
