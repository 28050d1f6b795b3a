"""Small records stored beside the batches: checkpoint, producers, aborts, compaction.

Encoded as one version byte and msgpack; an unknown version is DATA_CORRUPTED, never guessed.
Producers get version 2 only once one of them has used transactions: before that, a broker that does
not know transactions can read everything this one wrote (an upgrade can be undone). The rules are
pure and shared by both stores, so that a truncated log reads the same in both (I2, I9).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import msgspec

from penstock.core.aborted import AbortedTransaction
from penstock.core.compaction.plan import Cleaned, CleanPoint
from penstock.core.replication.contract import Checkpoint, EpochStart, ProducerEntry, SequencedBatch
from penstock.core.types import NO_EPOCH, LeaderEpoch, Offset, ProducerId
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.store.interface import PartitionWrite

_T = TypeVar("_T")
_VERSION: Final = 1
_TRANSACTIONAL: Final = 2
"""Version of producer snapshots and compaction passes that support transactions."""
_Producer = tuple[int, int, int, list[tuple[int, int, int]]]
EMPTY_CHECKPOINT: Final = Checkpoint(NO_EPOCH, Offset(0), Offset(0), ())


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    return _encode(
        (
            checkpoint.leader_epoch,
            checkpoint.high_watermark,
            checkpoint.log_start_offset,
            [(start.epoch, start.start_offset) for start in checkpoint.epochs],
        )
    )


def decode_checkpoint(stored: bytes) -> Checkpoint:
    """Raises ClusterError(DATA_CORRUPTED)."""
    epoch, high_watermark, log_start, epochs = _decode(stored, tuple[int, int, int, Any])
    return Checkpoint(
        LeaderEpoch(epoch),
        Offset(high_watermark),
        Offset(log_start),
        tuple(EpochStart(LeaderEpoch(e), Offset(start)) for e, start in epochs),
    )


def encode_producers(producers: Iterable[ProducerEntry]) -> bytes:
    """Version 1, unless one of them has used transactions."""
    known = tuple(producers)
    rows = [
        (
            entry.producer_id,
            entry.producer_epoch,
            entry.last_timestamp_ms,
            [(b.base_sequence, b.last_sequence, b.base_offset) for b in entry.batches],
        )
        for entry in known
    ]
    if not any(map(_has_used_transactions, known)):
        return _encode(rows)
    places = [(entry.open_offset, entry.marker_offset, entry.ended_first_offset) for entry in known]
    return _encode(list(zip(rows, places, strict=True)), _TRANSACTIONAL)


def _has_used_transactions(entry: ProducerEntry) -> bool:
    return entry.open_offset is not None or entry.marker_offset >= 0


def decode_producers(stored: bytes) -> list[ProducerEntry]:
    """Either version. Raises ClusterError(DATA_CORRUPTED)."""
    if stored[:1] != bytes((_TRANSACTIONAL,)):
        return [_producer(row) for row in _decode(stored, list[_Producer])]
    pairs = _decode(stored, list[tuple[_Producer, tuple[int | None, int, int]]], _TRANSACTIONAL)
    return [
        replace(
            _producer(row),
            open_offset=None if open_offset is None else Offset(open_offset),
            marker_offset=Offset(marker),
            ended_first_offset=Offset(ended_first),
        )
        for row, (open_offset, marker, ended_first) in pairs
    ]


def _producer(row: _Producer) -> ProducerEntry:
    producer_id, epoch, timestamp_ms, batches = row
    return ProducerEntry(
        producer_id=ProducerId(producer_id),
        producer_epoch=epoch,
        batches=tuple(SequencedBatch(base, last, Offset(offset)) for base, last, offset in batches),
        last_timestamp_ms=timestamp_ms,
    )


def encode_aborted(aborted: AbortedTransaction) -> bytes:
    """All fields but the marker's offset, which is in the key."""
    return _encode(
        (
            aborted.first_offset,
            aborted.producer_id,
            aborted.producer_epoch,
            aborted.stable_offset,
        )
    )


def decode_aborted(marker_offset: Offset, stored: bytes) -> AbortedTransaction:
    """Raises ClusterError(DATA_CORRUPTED)."""
    first_offset, producer_id, epoch, stable_offset = _decode(stored, tuple[int, int, int, int])
    return AbortedTransaction(
        marker_offset=marker_offset,
        first_offset=Offset(first_offset),
        producer_id=ProducerId(producer_id),
        producer_epoch=epoch,
        stable_offset=Offset(stable_offset),
    )


def encode_cleaned(cleaned: Cleaned) -> bytes:
    """Version 1, unless markers may be missing."""
    points = [(point.end_offset, point.at_ms) for point in cleaned.points]
    known = (points, cleaned.swept_end, cleaned.tombstones)
    if not cleaned.markers_end:
        return _encode(known)
    return _encode((known, cleaned.markers_end), _TRANSACTIONAL)


def decode_cleaned(stored: bytes | None) -> Cleaned:
    """None: no pass has finished yet. Raises ClusterError(DATA_CORRUPTED)."""
    if stored is None:
        return Cleaned()
    markers_end = 0
    if stored[:1] == bytes((_TRANSACTIONAL,)):
        known, markers_end = _decode(
            stored, tuple[tuple[list[tuple[int, int]], int, int], int], _TRANSACTIONAL
        )
    else:
        known = _decode(stored, tuple[list[tuple[int, int]], int, int])
    points, swept_end, tombstones = known
    return Cleaned(
        tuple(CleanPoint(Offset(end), at_ms) for end, at_ms in points),
        Offset(swept_end),
        tombstones,
        Offset(markers_end),
    )


def cleaned_after(known: Cleaned, write: PartitionWrite, log_end: Offset) -> Cleaned:
    """What is known of compaction after `write`; without its batches, the log ends at `log_end`.

    Markers that may be missing stay recorded as such, even if the pass did not know of them.
    """
    missing, own = known.markers_end, Offset(0)
    if write.swept_end is not None:
        missing = max(min(missing, log_end), write.swept_end)
    if write.cleaned is not None:
        known, own = write.cleaned, write.cleaned.markers_end
    return replace(known, markers_end=max(missing, own))


def compacted_end_after(known: Offset, write: PartitionWrite, log_end: Offset) -> Offset:
    """The compacted end after `write`; without its batches, the log ends at `log_end`."""
    if write.compacted_end == 0:
        known = min(known, log_end)
    return max([known, write.compacted_end or known, *(each.end for each in write.rewrites)])


def truncated(checkpoint: Checkpoint, to: Offset) -> Checkpoint:
    """What remains valid of a checkpoint when the log ends at `to`, and no newer one was written.

    Epochs that began at or after `to` are removed, because divergence look-up must not return them.
    """
    return replace(
        checkpoint,
        high_watermark=min(checkpoint.high_watermark, to),
        log_start_offset=min(checkpoint.log_start_offset, to),
        epochs=tuple(start for start in checkpoint.epochs if start.start_offset < to),
    )


def log_start_after(checkpoint: Checkpoint, write: PartitionWrite) -> Offset:
    """The log start after `write`; records before it are already dead."""
    told = write.checkpoint.log_start_offset if write.checkpoint else Offset(0)
    return max(checkpoint.log_start_offset, told, write.log_start_offset or Offset(0))


def with_log_start(checkpoint: Checkpoint, log_start: Offset) -> Checkpoint:
    """The checkpoint with its log start moved up; never down; the HW is at least that."""
    return replace(
        checkpoint,
        log_start_offset=max(checkpoint.log_start_offset, log_start),
        high_watermark=max(checkpoint.high_watermark, log_start),
    )


def outdated_snapshots(as_of: Sequence[Offset], high_watermark: Offset) -> list[Offset]:
    """Which producer snapshots (ascending) can never be the newest again.

    Nothing below the high watermark is truncated (I4), so everything older than the newest snapshot
    at or below it can be removed.
    """
    safe = [offset for offset in as_of if offset <= high_watermark]
    return safe[:-1]


def _encode(value: object, version: int = _VERSION) -> bytes:
    return bytes((version,)) + msgspec.msgpack.encode(value)


def _decode(stored: bytes, shape: type[_T], version: int = _VERSION) -> _T:
    if stored[:1] != bytes((version,)):
        raise ClusterError(
            f"stored partition state has version {stored[:1]!r}, but this broker reads "
            f"{version}; start the version that wrote it, or rebuild the replica",
            ErrorCode.DATA_CORRUPTED,
        )
    try:
        return msgspec.msgpack.decode(stored[1:], type=shape)
    except msgspec.DecodeError as error:
        raise ClusterError(
            f"stored partition state cannot be read: {error}", ErrorCode.DATA_CORRUPTED
        ) from error
