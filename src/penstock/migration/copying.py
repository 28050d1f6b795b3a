"""The copy itself: row after row of each partition, once, resumable after any end.

    Reader ──rows──▶ append ──▶ in flight ──offset as expected──▶ Progress ──each second──▶ store
                                               └─ not: somebody else writes there, stop

The target's end is the truth about what was appended; the stored progress may be behind it, never
ahead. So a new run first reads what the target has beyond the progress, and the same number of
records of the source: if their digests agree, they are the copy's own. Therefore no record comes
twice and none is left out, whatever ended the run before, without transactions and their markers.
Two copies at the same time see each other's records at an unexpected offset, and both stop.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Final

from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.migration import reading
from penstock.migration.digest import extended
from penstock.migration.model import (
    Appending,
    Bounds,
    Progress,
    Reader,
    Rows,
    Source,
    Target,
    Topic,
)
from penstock.migration.plan import created_again, gone
from penstock.migration.reading import (
    CopyError,
    extend,
    quiet,
    read_exactly,
    up_to,
)

IN_FLIGHT_BYTES: Final = 32 * 1024 * 1024
STORE_EVERY_S: Final = 1.0
SAMPLE_KEYS: Final = 200
"""Per partition: enough to tell how keys are spread."""
WATCH_S: Final = 5.0
"""Between two looks whether the source's topics are still the same."""
_CHANGED_OVER: Final = (
    "but if producers have already changed over, the copy is finished: do not run it again"
)
FINISH_S: Final = 5.0
"""How long a copy that follows goes on for the source's end after it was told to stop."""


@dataclass(slots=True)
class _InFlight:
    where: TopicPartition
    rows: Rows
    appending: Appending
    size_bytes: int


class Copy:
    """Copies partitions until each has reached the source's end. Used by one thread."""

    def __init__(
        self, source: Source, target: Target, partitions: Iterable[TopicPartition]
    ) -> None:
        self._source = source
        self._target = target
        self._partitions = tuple(partitions)
        self._in_flight: deque[_InFlight] = deque()
        self._in_flight_bytes = 0
        self._stored_at = self._heard_at = monotonic()
        self._looked_at = self._seen_at = monotonic()
        """When it was last watched, and when that last had an answer."""
        self._finishes_by = 0.0
        """When a copy that follows ends at the latest; 0: it was not told to stop."""
        self._begun_with = 0
        self._ends: dict[TopicPartition, int] = {}
        """The source's when this run began, and again when a run that follows is told to stop: the
        copy is complete when it has come so far. A reader's own idea of the end may be older, or
        that of a leader that has just been elected."""
        self._read_to: dict[TopicPartition, int] = {}
        self.progress: dict[TopicPartition, Progress] = {}
        self.keys: dict[TopicPartition, list[bytes]] = {w: [] for w in self._partitions}
        """The first SAMPLE_KEYS that this run copied, of each partition."""

    @property
    def copied(self) -> int:
        """Records that this run has copied."""
        return sum(each.records for each in self.progress.values()) - self._begun_with

    def begin(self) -> None:
        """Finds out where each partition continues. Raises CopyError if the target has records
        that this copy did not write."""
        stored = self._target.progress(self._partitions)
        there = self._target.bounds(self._partitions)
        sources = self._source.bounds(self._partitions)
        topics = {each.name: each for each in self._source.topics(self.topics)}
        self._check_source(stored, sources, topics)
        for where in self._partitions:
            known, bounds = stored[where], there[where]
            if known is None:
                # Records before the first store of a run that ended are found as its surplus.
                known = Progress(
                    source_first=sources[where].first,
                    source_next=sources[where].first,
                    target_first=bounds.first,
                    target_next=bounds.first,
                )
            if bounds.end < known.target_next:
                raise CopyError(
                    f"{self._target.name}: {where.topic}/{where.partition} ends at {bounds.end}, "
                    f"and {known.target_next} was reached before: it has lost records or was "
                    "created again; delete the topic and start over"
                )
            known = replace(known, topic_id=topics[where.topic].topic_id)
            self.progress[where] = self._with_surplus(where, known, bounds)
            self._ends[where] = sources[where].end
            self._read_to[where] = self.progress[where].source_next
        self._begun_with = sum(each.records for each in self.progress.values())
        self._store()

    @property
    def topics(self) -> list[str]:
        return list(dict.fromkeys(where.topic for where in self._partitions))

    def _check_source(
        self,
        stored: Mapping[TopicPartition, Progress | None],
        sources: Mapping[TopicPartition, Bounds],
        topics: Mapping[str, Topic],
    ) -> None:
        """Raises CopyError if it no longer has what was copied, and goes on with something else."""
        lasts = {}
        for where, known in stored.items():
            if known is None:
                continue
            reason = created_again(topics[where.topic], known.topic_id)
            reason = reason or gone(where, known.source_next, sources[where])
            if reason:
                raise CopyError(f"{self._source.name}, topic {where.topic!r}: {reason}")
            if known.last_offset >= sources[where].first:
                lasts[where] = known
        if not lasts:
            return
        reader = self._source.read({where: each.last_offset for where, each in lasts.items()})
        for where, rows in up_to(reader, {w: each.last_offset + 1 for w, each in lasts.items()}):
            if rows and extended(0, rows) != lasts[where].last_digest:  # none: compacted since
                raise CopyError(
                    f"{self._source.name}: {where.topic}/{where.partition}, offset "
                    f"{rows.offsets[0]} is not the record that was copied: the source has lost "
                    "records and got others since; delete the target's topic and start over"
                )

    def run(
        self,
        *,
        follow: bool,
        stop: Callable[[], bool],
        report: Callable[["Copy"], None],
        watch: Callable[[], None] = lambda: None,
    ) -> bool:
        """Copies what the source had when it began; with `follow` until `stop`, and then for
        FINISH_S at most what it had at that moment. Returns whether that is copied. `watch` raises
        if the source's topics are others by now: asked now and then, and before that is said.

        Raises CopyError if the source sends nothing for QUIET_S before its end, and ClusterError if
        it does not say where that is: at `stop`, and when it has been silent for QUIET_S."""
        reader = self._source.read({w: p.source_next for w, p in self.progress.items()})
        self._heard_at = self._seen_at = monotonic()
        try:
            while self._goes_on(follow=follow, stop=stop):
                self._step(reader)
                self._look(watch)
                if monotonic() - self._stored_at >= STORE_EVERY_S:
                    self._store()
                    report(self)
            self._settle(wait_above=0)
            self._store()
            if not self._ended():
                return False
            watch()
            return True
        finally:
            reader.close()

    def _goes_on(self, *, follow: bool, stop: Callable[[], bool]) -> bool:
        if not stop():
            return follow or not self._ended()
        if follow and not self._finishes_by:
            self._see_ends()
            self._finishes_by = monotonic() + FINISH_S
        return not self._ended() and monotonic() < self._finishes_by

    def _look(self, watch: Callable[[], None]) -> None:
        """A source that is unavailable may come back, for QUIET_S."""
        if monotonic() - max(self._looked_at, self._seen_at) < WATCH_S:
            return
        try:
            watch()
        except ClusterError as error:
            passes = error.retriable or error.code is ErrorCode.UNREACHABLE
            if not passes or monotonic() - self._seen_at > reading.QUIET_S:
                raise
        else:
            self._seen_at = monotonic()
        self._looked_at = monotonic()

    def _step(self, reader: Reader) -> None:
        found = reader.poll(reading.POLL_S)
        for where, rows in found:
            self._append(where, rows)
        self._settle(wait_above=IN_FLIGHT_BYTES if found else 0)
        if not found and monotonic() - self._heard_at > reading.QUIET_S:
            if not self._ended():
                raise quiet(self._source.name)
            self._see_ends()
            self._heard_at = monotonic()
        elif found:
            self._heard_at = monotonic()

    def _see_ends(self) -> None:
        """Raises ClusterError if the source does not answer."""
        for where, bounds in self._source.bounds(self._partitions).items():
            self._ends[where] = max(self._ends[where], bounds.end)

    def _ended(self) -> bool:
        return all(self._read_to[where] >= self._ends[where] for where in self._partitions)

    def _append(self, where: TopicPartition, rows: Rows) -> None:
        self._read_to[where] = rows.next_offset
        if not rows:
            before = next((i for i in reversed(self._in_flight) if i.where == where), None)
            if before is not None:
                before.rows.next_offset = rows.next_offset
            else:
                self.progress[where] = replace(self.progress[where], source_next=rows.next_offset)
            return
        keys = self.keys[where]
        if len(keys) < SAMPLE_KEYS:
            keys += [key for key in rows.keys if key is not None][: SAMPLE_KEYS - len(keys)]
        size_bytes = rows.bytes + 64 * len(rows)
        try:
            appending = self._target.append(where, rows)
        except PenstockError as error:
            raise self._explained(where, rows, error) from None
        self._in_flight.append(_InFlight(where, rows, appending, size_bytes))
        self._in_flight_bytes += size_bytes

    def _explained(self, where: TopicPartition, rows: Rows, error: PenstockError) -> PenstockError:
        """The record that the target refuses, if there is one: its error cannot name it."""
        topic = self._target.find(where.topic)
        misfits = self._target.misfits(rows, topic) if topic else []
        if not misfits:
            return error
        return CopyError(
            f"{self._source.name}: record {where.topic}/{where.partition}, offset "
            f"{rows.offsets[misfits[0].index]}: {misfits[0].why}; then the same command continues"
        )

    def _settle(self, *, wait_above: int) -> None:
        """Takes over what was appended; waits while more bytes than that are in flight."""
        while self._in_flight:
            oldest = self._in_flight[0]
            if self._in_flight_bytes <= wait_above and not oldest.appending.done():
                return
            try:
                base = oldest.appending.base_offset()
            except PenstockError as error:
                raise self._explained(oldest.where, oldest.rows, error) from None
            self._in_flight.popleft()
            self._in_flight_bytes -= oldest.size_bytes
            before = self.progress[oldest.where]
            if base != before.target_next:
                raise CopyError(
                    f"{self._target.name}: {oldest.where.topic}/{oldest.where.partition} got a "
                    f"record at {base}, and {before.target_next} was expected: somebody else "
                    f"writes to the topic; end that, delete the topic and start over; "
                    f"{_CHANGED_OVER}"
                )
            self.progress[oldest.where] = advanced(before, oldest.rows)

    def _store(self) -> None:
        self._target.store(self.progress)
        self._stored_at = monotonic()

    def _with_surplus(self, where: TopicPartition, known: Progress, there: Bounds) -> Progress:
        """`known`, moved over what the target has beyond it."""
        count = there.end - known.target_next
        if count == 0:
            return known
        own = Rows(there.end)
        first = max(known.target_next, there.first)
        if first < there.end:
            for _, rows in up_to(self._target.read({where: first}), {where: there.end}):
                extend(own, rows)
        theirs = read_exactly(self._source.read({where: known.source_next}), where, count)
        # Compaction or retention may have run at the target: what is left is compared.
        places = [offset - known.target_next for offset in own.offsets]
        left = theirs.picked(places) if len(theirs) == count else theirs
        if extended(0, own) != extended(0, left):
            raise CopyError(
                f"{self._target.name}: {where.topic}/{where.partition} has {count} records from "
                f"{known.target_next} on that are not the source's: somebody else wrote to the "
                f"topic; delete it and start over; {_CHANGED_OVER}"
            )
        return advanced(known, theirs)


def advanced(progress: Progress, rows: Rows) -> Progress:
    """Progress after these rows."""
    return replace(
        progress,
        source_next=rows.next_offset,
        target_next=progress.target_next + len(rows),
        marks=progress.marked(),
        digest=extended(progress.digest, rows),
        last_offset=rows.offsets[-1] if rows else progress.last_offset,
        last_digest=extended(0, rows.cut(len(rows) - 1, len(rows)))
        if rows
        else progress.last_digest,
    )
