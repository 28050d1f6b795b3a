"""The partitions that a consumer reads, and the user's progress in each. Pure.

        done              handed out          fetched
    ─────────────────┬──────────────────┬────────────────▶ offsets
                  by an earlier      FetchState.position
                  poll

`done` is what an automatic commit may cover: a poll says that its caller has finished what earlier
polls returned (I18). Records taken one by one count one by one: taking the next record finishes the
previous one. A loop that is left in the middle of a batch skips nothing: the next poll continues
after the last record that was taken.

The order of partitions is decided here too: a poll empties one partition's buffer after the other,
and starts with a different one each time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from penstock.client.consumer.fetch_state import FetchState
from penstock.client.group.commit_queue import Offsets
from penstock.client.group.model import OffsetAndMetadata
from penstock.client.model import ConsumedBatch, Record
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, MisuseError, PenstockError

TOPIC_CHANGED: Final = frozenset({ErrorCode.UNKNOWN_TOPIC, ErrorCode.TOPIC_ID_MISMATCH})


@dataclass(slots=True, eq=False)
class Progress:
    """The user's progress in one partition. Offsets; -1 and None = not known.

    Attributes:
        began: The first offset returned, or the last one seeked to.
        done: Everything before it was returned by an earlier poll.
        done_epoch: Leader epoch of the record before `done`.
        taken: While records are taken one by one: after the last one. None = the position.
        epoch: Leader epoch of the last record returned.
        moved: The partition was revoked or seeked: a loop's current records of it are void.
        committed: The group's committed offset, as far as this consumer knows, with its metadata.
        rewind_epoch: Of what is committed next. Counts up when the user seeks back, or when a
            shorter log moves the position back: commits of a new epoch may go back (I18). It does
            not for a return to the committed offset: what that is, a deposed coordinator may not
            know, and then a commit must be refused (I15). 0 = not known.
        resets: Of `state.resets`, those that are taken into account.
        tenure: Another one whenever the partition comes to this consumer.
    """

    state: FetchState
    began: int | None = None
    done: int | None = None
    done_epoch: int = -1
    taken: int | None = None
    epoch: int = -1
    moved: bool = False
    committed: OffsetAndMetadata | None = None
    rewind_epoch: int = 0
    resets: int = 0
    tenure: int = 0

    @property
    def position(self) -> int | None:
        """The next offset to return."""
        return self.state.position if self.taken is None else self.taken

    @property
    def known(self) -> tuple[int, int]:
        """Rewind epoch and offset that are committed, as far as known."""
        return (0, -1) if self.committed is None else self.committed.order

    def seek(self, offset: int) -> None:
        """The next record returned is at `offset`. What was returned and is not done stays so."""
        if self.done is not None and self.done > offset:
            self.done, self.done_epoch = offset, -1
        self.state.seek(offset)
        self.moved, self.taken = True, None

    def user_seeks(self, offset: int) -> None:
        """As `seek`; and commits go back with it."""
        done = -1 if self.done is None else self.done
        epoch, committed = self.known
        if epoch == self.rewind_epoch and committed > done:
            self.done, self.done_epoch = committed, -1
        position = self.position
        if position is None or offset < max(position, committed):
            self._go_back()
        self.seek(offset)
        self.began, self.epoch = offset, -1

    def follow_resets(self) -> None:
        """After the position was moved back: nothing was returned from there yet."""
        state = self.state
        if self.resets != state.resets and self.taken is None and state.position is not None:
            self.resets = state.resets
            self._go_back()
            self.done, self.done_epoch, self.epoch = state.position, -1, -1

    def _go_back(self) -> None:
        """Where the epoch is not known, 1 could be less than the coordinator's, and refused for
        ever: commits there never go back."""
        if self.rewind_epoch:
            self.rewind_epoch += 1

    def is_former(self, offset: OffsetAndMetadata) -> bool:
        """Whether it counts in a topic that had this name before."""
        return offset.topic_id not in ("", self.state.topic_id)

    def decided(self, offset: OffsetAndMetadata) -> OffsetAndMetadata:
        """To be committed, as of now."""
        return replace(
            offset,
            rewind_epoch=self.rewind_epoch,
            topic_id=self.state.topic_id,
            tenure=self.tenure,
            goes_back=self.rewind_epoch > _epoch_of(self.committed),
        )

    def is_newer(self, offset: int) -> bool:
        """Whether a commit of this offset would change what is committed."""
        return (self.rewind_epoch, offset) > self.known


def _epoch_of(committed: OffsetAndMetadata | None) -> int:
    """In which a reader begins that knows this of the group."""
    return 1 if committed is None else committed.rewind_epoch


@dataclass(frozen=True, slots=True, eq=False)
class Returned:
    """Of a poll and one partition: the first offset returned, and the position after the last."""

    state: FetchState
    first_offset: int
    position: int | None


class Assignment:
    """Owned by the consumer. `states` is shared with the fetcher."""

    def __init__(self) -> None:
        self.states: dict[TopicPartition, FetchState] = {}
        self.yielded = 0
        """Total number of records taken one by one."""
        self._progress: dict[TopicPartition, Progress] = {}
        self._tenures = count(1)
        self._turn: list[FetchState] = []
        self._loop: object | None = None

    def add(self, state: FetchState, committed: OffsetAndMetadata | None = None) -> None:
        """A new partition, last in turn. `committed`: where the group is; None: nowhere yet."""
        assert state.where not in self.states, f"{state.where} added twice"
        self.states[state.where] = state
        self._progress[state.where] = Progress(
            state,
            committed=committed,
            rewind_epoch=_epoch_of(committed),
            tenure=next(self._tenures),
        )
        self._turn.append(state)

    def remove(self, where: TopicPartition) -> None:
        """Drops a partition and its buffer; a loop over its records ends."""
        state = self.states.pop(where, None)
        if state is not None:
            self._progress.pop(where).moved = True
            self._turn.remove(state)

    def seek(self, where: TopicPartition, offset: int) -> None:
        """The user's seek: the next record returned is at `offset`; a loop over older ones skips
        them. A commit then goes back to it."""
        self.progress(where).user_seeks(offset)

    def pause(self, where: TopicPartition) -> None:
        """Drops what was prefetched; a loop over its records ends after the current one, and the
        next poll after a resume continues behind it."""
        progress = self.progress(where)
        progress.state.paused = True
        if progress.taken is not None:
            progress.seek(progress.taken)
        progress.state.drop_buffer()

    def rewind(self, where: TopicPartition, committed: OffsetAndMetadata | None) -> None:
        """Back to the committed offset; None = there is none: to where the user started."""
        progress = self.progress(where)
        progress.committed, progress.rewind_epoch = committed, _epoch_of(committed)
        offset = progress.began if committed is None else committed.offset
        if offset is not None:
            progress.seek(offset)

    def progress(self, where: TopicPartition) -> Progress:
        """Raises MisuseError for a partition that is not assigned."""
        found = self._progress.get(where)
        if found is None:
            raise MisuseError(f"{where} is not assigned; {len(self.states)} other partitions are")
        return found

    def poll_began(self) -> None:
        """The user has finished the records it has, or has left a loop over them."""
        for progress in self._progress.values():
            taken, progress.taken = progress.taken, None
            state = progress.state
            if taken is not None and taken != state.position:
                state.seek(taken)
            progress.follow_resets()
            progress.done = state.position
            progress.done_epoch = progress.epoch
        self._loop = None

    def collect(self, max_records: int) -> list[ConsumedBatch]:
        """Whole buffers, at most `max_records` records in total; positions move after them."""
        batches: list[ConsumedBatch] = []
        left = max_records
        for state in self._turn:
            self._progress[state.where].follow_resets()
            while left > 0 and not state.paused:
                try:
                    batch = state.next_batch(left)
                except ClusterError:
                    break  # it is the state's error now: raised when all good batches were returned
                if batch is None:
                    break
                batches.append(batch)
                progress = self._progress[state.where]
                progress.epoch = batch.leader_epoch
                if progress.began is None:
                    progress.began = batch.first_offset
                left -= batch.record_count
        self._turn = self._turn[1:] + self._turn[:1]
        return batches

    def returned(self, batches: Sequence[ConsumedBatch]) -> list[Returned]:
        """What to tell `take_back`; called before anything else happens."""
        first = {batch.topic_partition: batch.first_offset for batch in reversed(batches)}
        return [
            Returned(state, offset, state.position)
            for where, offset in first.items()
            if (state := self.states.get(where)) is not None
        ]

    def take_back(self, returned: Iterable[Returned]) -> None:
        """The last poll's records did not reach the user: the next poll returns them again.

        Except for partitions that were revoked, seeked or read further in the meantime.
        """
        for each in returned:
            where = each.state.where
            if self.states.get(where) is each.state and each.state.position == each.position:
                progress = self.progress(where)
                progress.seek(each.first_offset)
                progress.epoch = progress.done_epoch

    def one_by_one(self, batches: Sequence[ConsumedBatch]) -> Iterator[Record]:
        """The records of a poll's batches, each counted when it is taken.

        Ends early for revoked partitions, and completely with the next poll.
        """
        entered = [
            (batch, progress)
            for batch in batches
            if (progress := self._progress.get(batch.topic_partition)) is not None
        ]
        for batch, progress in reversed(entered):
            progress.taken = batch.first_offset
            progress.moved = False
        self._loop = object()
        return self._take(entered, self._loop)

    def put_back(self, record: Record) -> None:
        """The last record from `one_by_one` must be returned again by the next poll."""
        progress = self._progress.get(TopicPartition(record.topic, record.partition))
        if progress is not None and not progress.moved and progress.taken == record.offset + 1:
            progress.done = progress.taken = record.offset
            self.yielded -= 1

    def _take(
        self, entered: list[tuple[ConsumedBatch, Progress]], loop: object
    ) -> Iterator[Record]:
        for batch, progress in entered:
            if progress.moved:
                continue
            progress.epoch = batch.leader_epoch
            for record in batch.records():
                if progress.moved or self._loop is not loop:
                    break
                progress.done = record.offset
                progress.taken = record.offset + 1
                self.yielded += 1
                yield record
            if self._loop is not loop:
                return
            if not progress.moved:
                progress.done = progress.taken = batch.next_offset
                progress.done_epoch = batch.leader_epoch
        for _, progress in entered:
            progress.taken = None
        self._loop = None

    def to_commit(self, *, only_done: bool) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets to commit: what would change the committed ones, as far as known.

        Args:
            only_done: What an earlier poll returned; otherwise, everything returned.
        """
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for where, progress in self._progress.items():
            progress.follow_resets()
            offset = progress.done if only_done else progress.position
            epoch = progress.done_epoch if only_done else progress.epoch
            if offset is not None and progress.is_newer(offset):
                found[where] = progress.decided(OffsetAndMetadata(offset, leader_epoch=epoch))
        return found

    def unchanged(self, *, only_done: bool) -> dict[TopicPartition, OffsetAndMetadata]:
        """What is committed already, as far as known. `only_done`: see `to_commit`."""
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for where, progress in self._progress.items():
            offset, committed = (
                progress.done if only_done else progress.position,
                progress.committed,
            )
            if committed is not None and (progress.rewind_epoch, offset) == committed.order:
                found[where] = committed
        return found

    def decided(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Offsets:
        """Offsets that the user gives, to be committed as of now (`Progress.decided`)."""
        found = {}
        for where, offset in offsets.items():
            progress = self._progress.get(where)
            if progress is None:
                found[where] = OffsetAndMetadata(
                    offset.offset, offset.metadata, offset.leader_epoch, offset.commit_time_ms
                )
            else:
                progress.follow_resets()
                found[where] = progress.decided(offset)
        return found

    def may_be_sent(self, offsets: Offsets) -> Offsets:
        """Those that may be sent now of commits that were decided earlier.

        Not what goes back, once the partition has left this consumer, even if it came back: whoever
        has it was told where to begin before that was stored. Not what counts in a former topic, if
        the present one of that name is assigned. And nothing goes back for a partition that was
        rewound to the committed offset.
        """
        found = {}
        for where, offset in offsets.items():
            progress = self._progress.get(where)
            if progress is None or progress.tenure != offset.tenure:
                is_former = progress is not None and progress.is_former(offset)
                if not (offset.goes_back or is_former):
                    found[where] = offset
            elif offset.rewind_epoch <= progress.rewind_epoch:
                found[where] = offset
            else:
                found[where] = replace(offset, rewind_epoch=progress.rewind_epoch)
        return found

    @property
    def uncommitted(self) -> bool:
        """A commit would move something."""
        return bool(self.to_commit(only_done=False))

    def committed(self, where: TopicPartition, commit: OffsetAndMetadata) -> bool:
        """The cluster has stored a commit, with its metadata. One of a former topic of this name
        says nothing.

        Its rewind epoch may be later than this consumer's: it took the commit for lost, or a former
        owner made it. Then it counts, and this consumer commits in that epoch from now on, if it
        began there, or before. Elsewhere, its commits would undo that a reader went back. Returns
        whether it commits in that epoch, or in a later one.
        """
        progress = self._progress.get(where)
        if progress is None or progress.is_former(commit):
            return False
        if commit.rewind_epoch > progress.rewind_epoch:
            if progress.began is None or progress.began > commit.offset:
                return False
            progress.rewind_epoch = commit.rewind_epoch
        if commit.order >= progress.known:
            progress.committed = commit
        return True

    def first_error(self, *, in_group: bool) -> PenstockError | None:
        """What a poll raises now. In a group, the coordinator handles deleted topics."""
        for state in self.states.values():
            if state.error is None or state.paused:
                continue
            if not (in_group and state.error.code in TOPIC_CHANGED):
                return state.error
        return None

    def of(self, partitions: Iterable[TopicPartition] | None) -> list[FetchState]:
        """The states of these partitions, or of all; raises MisuseError for one that is not
        assigned."""
        if partitions is None:
            return list(self.states.values())
        return [self.progress(where).state for where in partitions]
