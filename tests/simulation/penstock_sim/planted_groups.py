"""Bugs of consumer groups, planted on purpose as in `planted` (guarantees §5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from penstock.client.consumer.assignment import Assignment
from penstock.client.group.contract import Ready
from penstock.client.group.membership import Membership
from penstock.client.group.model import OffsetAndMetadata
from penstock.core.groups import GroupCoordinator, loading, offsets, reconcile
from penstock.core.groups import contract as gc
from penstock.core.groups.catalog import NO_PARTS, Catalog, Part, Parts
from penstock.core.groups.records import OffsetRecord, decode_value
from penstock.core.groups.state import Book, Group, Member
from penstock.core.lag import PartitionLag, partition_lag
from penstock.core.types import TopicPartition
from penstock_sim import group_checks
from penstock_sim.planted_hosts import (
    answer_before_it_is_committed,
    coordinate_before_the_log_is_committed,
)


def accept_commits_of_an_old_member_epoch(patch: Any) -> None:
    """The member is known, and that is enough."""
    committer = offsets.committer

    def careless(book: Book, group: Group | None, event: gc.CommitRequested) -> Member | None:
        member = None if group is None else group.members.get(event.member_id)
        if member is not None:
            event = replace(event, member_epoch=member.current.epoch)
        return committer(book, group, event)

    patch.setattr(offsets, "committer", careless)


def accept_commits_of_former_owners(patch: Any) -> None:
    """The owner of a partition is not checked."""
    commit_one = offsets._commit_one

    def anybody(book: Book, group: Group, _member: Member | None, new: gc.NewOffset) -> None:
        commit_one(book, group, None, new)

    patch.setattr(offsets, "_commit_one", anybody)


def take_commits_from_before_a_seek(patch: Any) -> None:
    """A late copy of an older commit counts again after its reader has gone back."""
    check = offsets.check_not_back

    def only_offsets(new: gc.NewOffset, known: OffsetRecord, which: str) -> None:
        epoch = max(new.rewind_epoch, known.rewind_epoch)
        check(replace(new, rewind_epoch=epoch), known, which)

    patch.setattr(offsets, "check_not_back", only_offsets)


def send_what_goes_back_after_its_partition_left(patch: Any) -> None:
    """A commit after a seek is tried until it is stored, though another member has the partition,
    or this one has it again."""
    patch.setattr(Assignment, "may_be_sent", lambda _self, offsets: offsets)


def forget_rewind_epochs_at_failover(patch: Any) -> None:
    """A coordinator that loads its log takes each offset for one of the first epoch."""
    decode = decode_value

    def forgetting(key: Any, value: bytes) -> Any:
        record = decode(key, value)
        if isinstance(record, OffsetRecord):
            record = replace(record, rewind_epoch=1)
        return record

    patch.setattr(loading, "decode_value", forgetting)


def let_commits_go_back(patch: Any) -> None:
    """The last commit wins, even if it was sent before the others."""
    commit_one = offsets._commit_one

    def last(book: Book, group: Group, member: Member | None, new: gc.NewOffset) -> None:
        part = offsets.resolve(book, new.where)
        known = group.offsets.pop(part, None)
        try:
            commit_one(book, group, member, new)
        except Exception:
            if known is not None:
                group.offsets[part] = known
            raise

    patch.setattr(offsets, "_commit_one", last)


def give_a_partition_to_two_members(patch: Any) -> None:
    """What a member must give up goes to the next member at once, not when it was given up."""
    original = reconcile._reconcile

    def eager(book: Book, group: Group, member: Member) -> Parts:
        surplus = member.current.parts - member.target
        if not surplus:
            return original(book, group, member)
        kept = member.current.parts - surplus
        return book.put_current(group, member, member.current, kept, NO_PARTS)

    patch.setattr(reconcile, "_reconcile", eager)


def release_before_the_user_lets_go(patch: Any) -> None:
    """A member says that it gave up partitions that its user still reads until the next poll."""
    reconcile_member = Membership._reconcile

    def early(self: Membership, ready: Ready) -> None:
        reconcile_member(self, ready)
        self.owned -= ready.revoke

    patch.setattr(Membership, "_reconcile", early)


def keep_offsets_in_memory_only(patch: Any) -> None:
    """A commit changes the state, but is not written."""

    def put_offset(self: Book, group: Group, part: Part, record: OffsetRecord | None) -> None:
        if record is None:
            group.offsets.pop(part, None)
        else:
            group.offsets[part] = record

    patch.setattr(Book, "put_offset", put_offset)


def lose_offsets_at_failover(patch: Any) -> None:
    """A new coordinator knows the members of its log and forgets the offsets."""
    start = GroupCoordinator.start

    def forgetful(self: GroupCoordinator, catalog: Catalog, now_ms: int) -> gc.Ready:
        ready = start(self, catalog, now_ms)
        for group in self.groups.values():
            group.offsets.clear()
        return ready

    patch.setattr(GroupCoordinator, "start", forgetful)


def auto_commit_what_is_in_hand(patch: Any) -> None:
    """An automatic commit covers everything handed out, even what is still being processed."""
    to_commit = Assignment.to_commit

    def everything(self: Assignment, *, only_done: bool) -> dict[TopicPartition, OffsetAndMetadata]:
        return to_commit(self, only_done=only_done and not self.states)

    patch.setattr(Assignment, "to_commit", everything)


def auto_commit_what_was_fetched(patch: Any) -> None:
    """An automatic commit covers what is in the buffers, handed out or not."""
    to_commit = Assignment.to_commit

    def fetched(self: Assignment, *, only_done: bool) -> dict[TopicPartition, OffsetAndMetadata]:
        found = to_commit(self, only_done=only_done)
        for where, state in self.states.items():
            if only_done and self.progress(where).is_newer(state.fetch_offset):
                found[where] = OffsetAndMetadata(state.fetch_offset)
        return found

    patch.setattr(Assignment, "to_commit", fetched)


def skip_what_a_loop_left(patch: Any) -> None:
    """After a loop over records is left in the middle, the next poll continues after its batch."""
    poll_began = Assignment.poll_began

    def forget(self: Assignment) -> None:
        for progress in self._progress.values():
            progress.taken = None
        poll_began(self)

    patch.setattr(Assignment, "poll_began", forget)


def go_back_to_what_was_committed(patch: Any) -> None:
    """A commit that is stored moves the position to it."""
    committed = Assignment.committed

    def seek(self: Assignment, where: TopicPartition, commit: OffsetAndMetadata) -> None:
        committed(self, where, commit)
        if where in self.states:
            self.seek(where, commit.offset)

    patch.setattr(Assignment, "committed", seek)


def count_expired_records_as_lag(patch: Any) -> None:
    """The lag is the distance from the committed offset, even if retention removed records."""

    def distance(committed: int, start: int, end: int, *others: Any) -> PartitionLag:
        told = partition_lag(committed, start, end, *others)
        return told if told.records is None else replace(told, records=end - committed)

    patch.setattr(group_checks, "partition_lag", distance)


GROUP_BUGS: Final[dict[str, Callable[[Any], None]]] = {
    **{
        bug.__name__: bug
        for bug in (
            accept_commits_of_an_old_member_epoch,
            accept_commits_of_former_owners,
            let_commits_go_back,
            give_a_partition_to_two_members,
            release_before_the_user_lets_go,
            keep_offsets_in_memory_only,
            lose_offsets_at_failover,
            auto_commit_what_is_in_hand,
            auto_commit_what_was_fetched,
            skip_what_a_loop_left,
            go_back_to_what_was_committed,
            count_expired_records_as_lag,
        )
    },
    "coordinate_before_the_log_is_committed": coordinate_before_the_log_is_committed,
    "answer_before_it_is_committed": answer_before_it_is_committed,
}
"""Name of each bug: how it is planted. All faults, in histories with groups."""

SEEK_BUGS: Final[dict[str, Callable[[Any], None]]] = {
    bug.__name__: bug
    for bug in (
        take_commits_from_before_a_seek,
        forget_rewind_epochs_at_failover,
    )
}
"""The same, where users seek back."""

LEFT_BUGS: Final[dict[str, Callable[[Any], None]]] = {
    "send_what_goes_back_after_its_partition_left": send_what_goes_back_after_its_partition_left
}
"""As `SEEK_BUGS`. Whoever has the partition then may commit in an epoch that is over, for ever, or
has begun where the group no longer is."""
