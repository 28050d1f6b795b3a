"""Where readers of committed records must stop: a partition's open transactions and LSO.

    offset   10        20        30       40        50
             A data …  B data …  A marker A data …           HW
             └─ closed ──────────┘        └─ open ─────────▶
                       └─ open ─────────────────────────────▶      LSO = 20

    LSO = min( HW,
               first offset of every open transaction,
               first offset of every ended one whose marker is at or past the HW )

The third term is for a marker that is not committed yet. If the leader dies, the marker may be
lost: its successor finds the transaction open again, and readers must not have seen more meanwhile.
With it, the LSO moves only when the HW does, and never falls, within and across leaders (I14).

Nothing here is stored: it follows from the producers' entries, which follow from headers. So
leader, followers and recovery agree. Every query costs O(1), however many are open.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator

from penstock.core.replication.contract import ProducerEntry
from penstock.core.types import Offset, ProducerId


class OpenTransactions:
    """The open transactions of one partition, oldest first, and those that ended recently."""

    def __init__(self, entries: Iterable[ProducerEntry]) -> None:
        known = tuple(entries)
        self._open = OrderedDict(
            sorted(
                (
                    (entry.producer_id, entry.open_offset)
                    for entry in known
                    if entry.open_offset is not None
                ),
                key=lambda pair: pair[1],
            )
        )
        # (marker, first offset), both ascending: of two ended transactions, the one that ends later
        # and began earlier makes the other irrelevant.
        self._ended: deque[tuple[Offset, Offset]] = deque()
        for marker, first in sorted(
            (entry.marker_offset, entry.ended_first_offset)
            for entry in known
            if entry.ended_first_offset >= 0
        ):
            self._remember(marker, first)

    def __iter__(self) -> Iterator[ProducerId]:
        """Their producers, in the order in which the transactions began here."""
        return iter(self._open)

    def began(self, producer_id: ProducerId, first_offset: Offset) -> None:
        """The transaction's first batch is at the log's end."""
        assert producer_id not in self._open, f"producer {producer_id} has one open"
        self._open[producer_id] = first_offset

    def ended(self, producer_id: ProducerId, marker_offset: Offset) -> None:
        """Its marker is at the log's end."""
        self._remember(marker_offset, self._open.pop(producer_id))

    def first_open(self) -> Offset | None:
        """Where the oldest open transaction begins; None when there is none."""
        return next(iter(self._open.values())) if self._open else None

    def stable_offset(self, high_watermark: Offset) -> Offset:
        """The LSO at this high watermark, which never falls from call to call."""
        stable = high_watermark
        if not self._open and not self._ended:
            return stable
        if self._open:
            stable = min(stable, next(iter(self._open.values())))
        while self._ended and self._ended[0][0] < high_watermark:
            self._ended.popleft()
        if self._ended:
            stable = min(stable, self._ended[0][1])
        return stable

    def _remember(self, marker_offset: Offset, first_offset: Offset) -> None:
        while self._ended and self._ended[-1][1] >= first_offset:
            self._ended.pop()
        self._ended.append((marker_offset, first_offset))
