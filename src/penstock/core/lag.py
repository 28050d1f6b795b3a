"""The lag of a reader, in records and in time: the only definition.

      log start        committed              first unread     end (last stable offset)
    ─────┬────────────────┬─────── gap ───────────┬────────────────┬──▶ offsets
                                                  └─── records ────┘
                                      lag_ms = now − its timestamp

Computed by `oldest_unread` from the result of a fetch at `fetch_from`. Expired records do not
count: reading would begin at the log start. Nor do gaps that compaction, markers or aborted
transactions left: a reader with only gaps after it has read everything. Records after an open
transaction do not count either: no reader of committed records could get them. Without a committed
offset, lag is unknown, not 0: autoscaling must then pause.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.core.batch import Batch, BatchFlags
from penstock.core.limits import MAX_UNCOMPRESSED_BYTES
from penstock.core.records import decode_batch
from penstock.errors import PenstockError


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition of a group.

    Attributes:
        committed: -1 = no committed offset.
        records: Offsets from the first unread record to the end; None = unknown.
        lag_ms: How long that record has waited, by its own timestamp; 0 = nothing is unread or
            the timestamp is in the future; None = unknown.
    """

    committed: int
    log_start: int
    end: int
    records: int | None
    lag_ms: int | None


@dataclass(frozen=True, slots=True)
class Unread:
    """The first record at or after a position."""

    offset: int
    timestamp_ms: int


def fetch_from(committed: int, log_start: int, end: int) -> int | None:
    """Where to look for the oldest unread record; None = there is none, or it is unknown."""
    position = max(committed, log_start)
    return position if committed >= 0 and position < end else None


def oldest_unread(
    batches: Iterable[Batch],
    position: int,
    *,
    max_uncompressed_bytes: int = MAX_UNCOMPRESSED_BYTES,
) -> Unread | None:
    """The first record at or after `position` in these batches; None = they have none.

    For a batch that cannot be decoded (corrupt, its codec is missing, or it is larger than
    `max_uncompressed_bytes`) the header answers: its first timestamp, which is at most one batch
    older than the record's.
    """
    for batch in batches:
        header = batch.header
        if header.flags & BatchFlags.CONTROL or batch.next_offset <= position:
            continue
        try:
            columns = decode_batch(batch, max_uncompressed_bytes=max_uncompressed_bytes)
        except PenstockError:
            first_ms = header.append_time_ms or header.first_timestamp_ms
            return Unread(max(position, batch.base_offset), first_ms)
        index = columns.index_of(position)
        if index < columns.record_count:
            record = columns.record(index)
            return Unread(record.offset, record.timestamp_ms)
    return None


def partition_lag(
    committed: int, log_start: int, end: int, unread: Unread | None, now_ms: int
) -> PartitionLag:
    """The lag, given what `oldest_unread` found all the way to `end` (None: nothing)."""
    if committed < 0:
        return PartitionLag(committed, log_start, end, None, None)
    if unread is None or unread.offset >= end:
        return PartitionLag(committed, log_start, end, 0, 0)
    waited_ms = max(0, now_ms - unread.timestamp_ms)
    return PartitionLag(committed, log_start, end, end - unread.offset, waited_ms)
