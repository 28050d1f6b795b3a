"""Commits that wait while another one is in flight, merged into as few calls as possible. Pure.

    add ─▶ [ collecting ] ─▶ the next call, when the one in flight is done
              └─ other patience, going back, or full ─▶ a call of its own, behind it

For each partition, the newest offset is sent: it also answers commits of older ones, because a
stored offset says that everything before it is done. A commit that goes back behind a waiting one
is not merged: the coordinator decides on it separately, in turn. The same holds for a commit with a
different timeout, or one that is not repeated, so that no other commit has to wait for it; and for
one of another topic of the same name.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.client.group.model import OffsetAndMetadata
from penstock.core.limits import COMMIT_METADATA_SUM_MAX, COMMIT_PARTITIONS_MAX
from penstock.core.types import TopicPartition
from penstock.errors import PenstockError

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Done = Callable[[PenstockError | None], None]
"""Called once, with the outcome. Must not raise."""

MERGED_PARTITIONS_MAX: Final = 500
"""Limit of offsets in merged commits; with 4 KiB of metadata each, they fit into one call."""


def in_parts(offsets: Offsets) -> Iterator[Offsets]:
    """What one call takes at a time; at least one part, if an empty one."""
    part: dict[TopicPartition, OffsetAndMetadata] = {}
    metadata_bytes = 0
    for where, offset in offsets.items():
        size = len(offset.metadata.encode())
        metadata_bytes += size
        if len(part) == COMMIT_PARTITIONS_MAX or metadata_bytes > COMMIT_METADATA_SUM_MAX:
            yield part
            part, metadata_bytes = {}, size
        part[where] = offset
    yield part


@dataclass(slots=True)
class CommitBatch:
    """The commits that one call answers: it stores `offsets` and tries for `timeout_s`; `repeats`:
    also partitions that are refused for now."""

    timeout_s: float
    repeats: bool = True
    offsets: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    _waiting: list[tuple[Offsets, Done]] = field(default_factory=list)

    def takes(self, offsets: Offsets, timeout_s: float, *, repeats: bool) -> bool:
        """Whether a commit may be merged into this one."""
        if (timeout_s, repeats) != (self.timeout_s, self.repeats):
            return False
        known = self.offsets
        new = 0
        for where, offset in offsets.items():
            before = known.get(where)
            if before is None:
                new += 1
            elif (
                offset.topic_id != before.topic_id
                or offset.order < before.order
                or offset.offset < before.offset
            ):
                return False
        return not new or len(known) + new <= MERGED_PARTITIONS_MAX

    def add(self, offsets: Offsets, done: Done) -> None:
        """Merges a commit that is the first, or that it `takes`."""
        self.offsets.update(offsets)
        self._waiting.append((offsets, done))

    def answer(
        self,
        refused: Mapping[TopicPartition, PenstockError],
        again: Collection[TopicPartition] = (),
    ) -> None:
        """The call's outcome: each commit gets the error of its first refused partition, unless it
        has a partition that is sent `again`."""
        waiting, self._waiting = self._waiting, []
        for offsets, done in waiting:
            if any(where in again for where in offsets):
                self._waiting.append((offsets, done))
            else:
                done(next((refused[where] for where in offsets if where in refused), None))

    def fail(self, error: PenstockError) -> None:
        """Every commit without an answer gets `error`."""
        for _, done in self._waiting:
            done(error)
        self._waiting.clear()


class CommitQueue:
    """Batches in the order in which they are to be sent."""

    def __init__(self) -> None:
        self._batches: deque[CommitBatch] = deque()
        self._sent: CommitBatch | None = None

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add(self, offsets: Offsets, timeout_s: float, done: Done, *, repeats: bool = True) -> None:
        """Merges a commit into the last batch, or makes a new one."""
        if not self._batches or not self._batches[-1].takes(offsets, timeout_s, repeats=repeats):
            self._batches.append(CommitBatch(timeout_s, repeats))
        self._batches[-1].add(offsets, done)

    def covers(self, where: TopicPartition, offset: OffsetAndMetadata) -> bool:
        """Whether this commit or a newer one is already in flight."""
        sent = () if self._sent is None else (self._sent,)
        found = (batch.offsets.get(where) for batch in (*sent, *self._batches))
        return any(
            known is not None and known.tenure == offset.tenure and known.order >= offset.order
            for known in found
        )

    def take(self) -> CommitBatch:
        """The next batch, in flight until `over`; nothing more is merged into it."""
        self._sent = self._batches.popleft()
        return self._sent

    def over(self) -> None:
        """The call of the batch that was taken has ended, successfully or not."""
        self._sent = None

    def take_all(self) -> Iterator[CommitBatch]:
        """The waiting commits, when there will be no more calls."""
        while self._batches:
            yield self._batches.popleft()
