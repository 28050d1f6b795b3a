"""Batches before and after a pass: records go, offsets stay (I6), sequences stay known (I9).

    chunk of neighbouring batches ──▶ which records stay ──▶ groups ──▶ fewer, smaller batches

Batches stay without gaps between them, so that no other code must handle gaps: what covered offsets
[a, b) before is covered after. Neighbours of one leader epoch become one batch, because epochs must
begin at the same offsets in every replica's log. The last five batches of a producer
(`producers.WINDOW_BATCHES`) keep their headers, even when emptied, and are never merged: so a
replica that copies the compacted log checks the producer's next batch like all others. From the
newest chunk to the oldest, these five are the first to be found.

Transactions have ended here, because a pass stays below the last stable offset (`outcomes`).
Aborted batches lose all records; committed ones lose their flag, and are then like any other. A
marker is removed like a null value, below the end of an *earlier* pass: in its own pass it would be
removed before its data, as the newest chunk comes first, and a replica that copies in between would
keep the data open for ever. Data without the flag and with a marker after it is harmless.

A batch that cannot be decoded stays as it is, except for the flag; an aborted one need not be
decoded.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Final

from penstock.core.batch import Batch, BatchFlags, Codec, compute_crc
from penstock.core.columns import NULL, Columns, Headers
from penstock.core.compaction.keymap import KeyMap
from penstock.core.compaction.outcomes import Outcomes
from penstock.core.compaction.plan import Plan
from penstock.core.limits import MAX_COVERED_OFFSETS, MAX_RECORDS
from penstock.core.records import build_batch, decode_batch, encode_columns
from penstock.core.replication.producers import PRODUCERS_MAX, WINDOW_BATCHES
from penstock.core.types import NO_PRODUCER, Offset, ProducerId
from penstock.errors import PenstockError

MERGED_BYTES_MAX: Final = 256 * 1024
"""Uncompressed size up to which neighbouring batches are merged."""


@dataclass(slots=True)
class Statistics:
    """Results of a pass so far. Sizes in stored bytes, before and after.

    tombstones: null values and markers that stayed, to be removed when they are due.
    """

    records: int = 0
    removed: int = 0
    tombstones: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class _Part:
    """A batch being rewritten: its columns, and per record whether it stays (None: all do)."""

    batch: Batch
    columns: Columns
    stays: list[bool] | None
    left: int
    """Records that stay."""

    @property
    def left_bytes(self) -> int:
        """About the size of the uncompressed message."""
        count = self.columns.record_count
        return self.batch.header.uncompressed_bytes * self.left // count if count else 0

    @property
    def is_thin(self) -> bool:
        """Has lost records, now or earlier."""
        return self.stays is not None or bool(self.batch.header.flags & BatchFlags.COMPACTED)


class _Group:
    """Neighbours that may become one batch, and their totals."""

    def __init__(self) -> None:
        self.parts: list[_Part] = []
        self._records = 0
        self._bytes = 0
        self._is_thin = False

    def takes(self, part: _Part) -> bool:
        """Adds the part if it fits into the group."""
        if self.parts and not self._fits(part):
            return False
        self.parts.append(part)
        self._records += part.left
        self._bytes += part.left_bytes
        self._is_thin = self._is_thin or part.is_thin
        return True

    def _fits(self, part: _Part) -> bool:
        first, last, batch = self.parts[0].batch, self.parts[-1].batch, part.batch
        return (
            last.next_offset == batch.base_offset
            and first.header.leader_epoch == batch.header.leader_epoch
            and batch.next_offset - first.base_offset <= MAX_COVERED_OFFSETS
            and self._records + part.left <= MAX_RECORDS
            and self._bytes + part.left_bytes <= MERGED_BYTES_MAX
        )

    @property
    def is_worth_it(self) -> bool:
        """Merging saves bytes, or reduces the batches that lost records."""
        return self._is_thin and (len(self.parts) > 1 or self.parts[0].stays is not None)


class Rewriter:
    """One pass over a log. Give it chunks from the newest to the oldest, each once."""

    def __init__(
        self,
        keys: KeyMap,
        plan: Plan,
        outcomes: Outcomes,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        """`between` is called between two batches, for pauses."""
        self.statistics = Statistics()
        self.sweeps_markers = False
        """A marker was removed from a rewritten chunk (`Cleaned.before_markers_go`)."""
        self._keys = keys
        self._plan = plan
        self._outcomes = outcomes
        self._between = between
        self._sequences: dict[ProducerId, tuple[int, int]] = {}
        """Epoch and number of batches seen so far, per producer."""

    def rewrite(self, chunk: Sequence[Batch]) -> list[Batch]:
        """The batches that replace `chunk` (in log order, not empty).

        A batch that needs no change is the same object. They cover the same offsets.
        """
        kept_headers = self._kept_headers(chunk)
        done: list[Batch] = []
        group = _Group()
        for each in chunk:
            self._between()
            batch = _without_flag(each)
            part = self._examined(batch, aborted=self._outcomes.aborted(each.header))
            if part is not None and batch.base_offset not in kept_headers:
                if not group.takes(part):
                    done += self._merged(group)
                    group = _Group()
                    group.takes(part)
                continue
            done += self._merged(group)
            group = _Group()
            done.append(batch if part is None else self._alone(part))
        done += self._merged(group)
        self.statistics.bytes_before += sum(batch.size_bytes for batch in chunk)
        self.statistics.bytes_after += sum(batch.size_bytes for batch in done)
        assert done[0].base_offset == chunk[0].base_offset
        assert done[-1].next_offset == chunk[-1].next_offset
        return done

    def _kept_headers(self, chunk: Sequence[Batch]) -> set[Offset]:
        """Base offsets of the batches against which a producer's next one is checked."""
        kept = set()
        for batch in reversed(chunk):
            header = batch.header
            if header.producer_id == NO_PRODUCER or header.is_control:
                continue
            epoch, met = self._sequences.get(header.producer_id, (header.producer_epoch, 0))
            known = met > 0 or len(self._sequences) < PRODUCERS_MAX
            if known and header.producer_epoch == epoch and met < WINDOW_BATCHES:
                self._sequences[header.producer_id] = (epoch, met + 1)
                kept.add(header.base_offset)
        return kept

    def _examined(self, batch: Batch, *, aborted: bool) -> _Part | None:
        """Which records stay; None for a batch that is not changed."""
        header = batch.header
        if header.is_control:
            if header.is_marker and batch.base_offset < self._plan.tombstones_end:
                self.sweeps_markers = True
                return _emptied(batch, None)
            self.statistics.tombstones += header.is_marker
            return None
        if aborted:
            self.statistics.records += header.record_count
            self.statistics.removed += header.record_count
            return _emptied(batch, batch)
        try:
            columns = decode_batch(batch)
        except PenstockError:
            self.statistics.unreadable += 1
            return None
        offsets, keys = columns.offsets(), columns.keys()
        goes = self._keys.superseded(offsets, keys)
        tombstones = _tombstones(columns, keys)
        if tombstones is not None:
            end = self._plan.tombstones_end
            for index in compress(range(columns.record_count), tombstones):
                goes[index] = goes[index] or offsets[index] < end
                self.statistics.tombstones += not goes[index]
        removed = sum(goes)
        self.statistics.records += columns.record_count
        self.statistics.removed += removed
        left = columns.record_count - removed
        return _Part(batch, columns, [not gone for gone in goes] if removed else None, left)

    def _alone(self, part: _Part) -> Batch:
        """A batch whose header is still needed: it only loses records."""
        if part.stays is None:
            return part.batch
        return (self._built([part], part.batch) or [part.batch])[0]

    def _merged(self, group: _Group) -> list[Batch]:
        """One batch for the group if merging helps, else the group as it is."""
        built = self._built(group.parts, None) if group.parts and group.is_worth_it else []
        return built or [part.batch for part in group.parts]

    def _built(self, parts: list[_Part], sequenced: Batch | None) -> list[Batch]:
        """The batch that replaces `parts`, none if it cannot be built (a codec is missing)."""
        try:
            return [_built(parts, sequenced)]
        except PenstockError:
            self.statistics.unreadable += len(parts)
            return []


def _without_flag(batch: Batch) -> Batch:
    """The batch as if it was never in a transaction: the outcome is known, and applied."""
    header = batch.header
    if not header.is_transactional or header.is_control:
        return batch
    plain = replace(header, flags=header.flags & ~BatchFlags.TRANSACTIONAL)
    return Batch(replace(plain, crc=compute_crc(plain, batch.payload)), batch.payload)


def _emptied(batch: Batch, sequenced: Batch | None) -> _Part:
    """No record of it stays, regardless of its neighbours; it need not be decoded."""
    nothing = _Part(batch, Columns(0, 0), [], 0)
    return replace(nothing, batch=_built([nothing], sequenced))


def _built(parts: list[_Part], sequenced: Batch | None) -> Batch:
    first, last = parts[0].batch, parts[-1].batch
    rows = [part for part in parts if part.left]
    times = {part.batch.header.append_time_ms for part in rows}
    append_time_ms = times.pop() if len(times) == 1 else 0
    columns = replace(
        _selected(rows, first.base_offset),
        covered_offsets=last.next_offset - first.base_offset,
    )
    header = sequenced.header if sequenced is not None else None
    return build_batch(
        columns,
        codec=rows[0].batch.header.codec if rows else Codec.NONE,
        producer_id=header.producer_id if header else NO_PRODUCER,
        producer_epoch=header.producer_epoch if header else -1,
        base_sequence=header.base_sequence if header else -1,
    ).stamped(first.base_offset, first.header.leader_epoch, append_time_ms)


def trimmed(batch: Batch, start: Offset) -> Batch:
    """The part from `start` on, for a replica whose log ends there, inside the batch.

    A batch that was never merged is returned whole: all of it was copied, or nothing. So the log is
    empty and begins inside it, because records can be deleted up to any offset, and accepts it as
    it is (`LocalLog.fits`). Raises ClusterError if a merged batch cannot be decoded.
    """
    assert batch.base_offset < start < batch.next_offset
    is_merged = batch.header.flags & BatchFlags.COMPACTED and batch.header.producer_id < 0
    if not is_merged:
        return batch
    columns = decode_batch(batch)
    first = columns.index_of(start)
    stays = [index >= first for index in range(columns.record_count)]
    part = _Part(batch, columns, stays, columns.record_count - first)
    times_ms = batch.header.append_time_ms if part.left else 0
    selected = _selected([part] if part.left else [], start)
    selected = replace(selected, covered_offsets=batch.next_offset - start)
    codec = batch.header.codec if part.left else Codec.NONE
    return build_batch(selected, codec=codec).stamped(start, batch.header.leader_epoch, times_ms)


def _selected(parts: Sequence[_Part], base: Offset) -> Columns:
    """Columns of the records that stay, with the timestamps that readers saw."""
    deltas: array[int] = array("i")
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    times: list[int] = []
    headers: list[Headers] = []
    for part in parts:
        columns, stays = part.columns, part.stays or [True] * part.columns.record_count
        deltas.extend(offset - base for offset in compress(columns.offsets(), stays))
        keys += compress(columns.keys(), stays)
        values += compress(columns.values(), stays)
        times += compress(columns.timestamps(), stays)
        headers += compress(columns.headers(), stays)
    if not deltas:
        return Columns(0, 0)
    some = headers if any(headers) else None
    encoded = encode_columns(values, keys, timestamps_ms=times, headers=some)
    return replace(encoded, offset_deltas=memoryview(deltas))


def _tombstones(columns: Columns, keys: list[bytes | None]) -> list[bool] | None:
    """For each record, whether it deletes its key; None if none does."""
    if columns.value_lengths is None:
        found = [key is not None for key in keys]
    else:
        lengths = columns.value_lengths.tolist()
        if NULL not in lengths:
            return None
        found = [size == NULL and key is not None for size, key in zip(lengths, keys, strict=True)]
    return found
