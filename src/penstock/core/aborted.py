"""Aborted transactions of a partition's log: what a read_committed reader does not get to see.

    … data (pid 7, epoch 3) … data … ABORT marker of (7, 3) …
        └ first_offset                 └ marker_offset          stable_offset: LSO behind the marker

Every replica keeps one entry per ABORT marker, written with the marker itself, so that whoever
leads can answer. An entry covers the batches of its (producer id, producer epoch) between first
offset and marker; epochs count transactions, so that names one transaction for ever (KIP-890).
Readers scan entries from their fetch offset and stop at the first whose stable offset is at or past
the end of the answer: no later one can begin before it (the rule of Kafka's transaction index).
Kept here: I11, I12.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.types import Offset, ProducerId


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """One aborted transaction of one partition.

    `stable_offset` is the last stable offset behind the marker, as the log alone tells it: the
    first offset of the oldest transaction still open there, else the marker's offset + 1.
    """

    marker_offset: Offset
    first_offset: Offset
    producer_id: ProducerId
    producer_epoch: int
    stable_offset: Offset
