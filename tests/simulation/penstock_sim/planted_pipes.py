"""Bugs of groups in transactions, and of clients that write them, planted as in `planted`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from penstock.client.consumer.transaction_offsets import TransactionOffsets
from penstock.client.group.coordinator import GroupCalls
from penstock.client.producer.lane import Entry, Lane
from penstock.client.transaction.contract import Commit, Ready
from penstock.client.transaction.machine import Transactions
from penstock.client.transformer.transformer import AsyncTransformer
from penstock.core import isolation
from penstock.core.batch import Batch
from penstock.core.groups import contract as gc
from penstock.core.groups import offsets, pending, resets
from penstock.core.groups.contract_views import OffsetAnswer
from penstock.core.groups.loading import Loader
from penstock.core.groups.records import EndedKey, PendingKey, PendingRecord
from penstock.core.groups.state import Book, Group, GuardKey, Member
from penstock.core.replication.contract import Marks
from penstock.core.types import Offset, ProducerIdentity, TopicPartition
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1.group_pb2 import CommitOffsetsRequest
from penstock_sim import lulls, world
from penstock_sim.pipe import CommittedFetcher

_AGAIN_MS: Final = 1_000

# ---------------------------------------------------------------- the group's coordinator


def apply_pending_offsets_of_an_abort(patch: Any) -> None:
    """The end is stored, but its outcome is ignored."""
    apply = pending._apply

    def careless(book: Book, group: Group, event: Any, record: PendingRecord) -> None:
        apply(book, group, replace(event, commit=True), record)

    patch.setattr(pending, "_apply", careless)


def refuse_a_repeated_end_in_a_group(patch: Any) -> None:
    """The coordinator does not learn that the end is stored, asks again, and is told it is
    fenced."""
    end = pending.end

    def strict(book: Book, event: gc.TransactionEnded) -> gc.EndStored:
        known = book.ended.get(EndedKey(event.group_id, event.producer_id))
        if known is not None and known.producer_epoch >= event.producer_epoch:
            raise ClusterError("an older epoch", ErrorCode.PRODUCER_FENCED)
        return end(book, event)

    patch.setattr(pending, "end", strict)


def lose_pending_offsets_at_failover(patch: Any) -> None:
    """A new coordinator does not load pending offsets: the commit moves nothing."""
    groups = Loader.groups

    def without(self: Loader) -> dict[str, Group]:
        found = self._found
        self._found = {k: v for k, v in found.items() if not isinstance(k, PendingKey)}
        try:
            return groups(self)
        finally:
            self._found = found

    patch.setattr(Loader, "groups", without)


def drop_pending_offsets_of_a_commit(patch: Any) -> None:
    """Pending offsets are dropped at the end, and nothing is written."""

    def forget(book: Book, group: Group, event: gc.TransactionEnded, _record: Any) -> None:
        book.put_pending(group, event.producer_id, None)

    patch.setattr(pending, "_apply", forget)


def tell_offsets_that_a_transaction_may_change(patch: Any) -> None:
    """A member that takes over a partition begins where the last transaction began, and duplicates
    it."""
    answer = offsets._stable_answer

    def hasty(group: Group, part: Any, topic: str, _allow_unstable: bool) -> OffsetAnswer:
        return answer(group, part, topic, True)

    patch.setattr(offsets, "_stable_answer", hasty)


def reset_offsets_that_a_transaction_may_change(patch: Any) -> None:
    """A reset ignores pending offsets."""
    reset, check_stable = resets.reset, offsets.check_stable

    def blind(book: Book, event: gc.ResetRequested) -> gc.ResetDone:
        offsets.check_stable = lambda *_args: None
        try:
            return reset(book, event)
        finally:
            offsets.check_stable = check_stable

    patch.setattr(resets, "reset", blind)


def expire_offsets_that_a_transaction_may_change(patch: Any) -> None:
    """Offsets expire when a group has no members, even if a transaction may change them."""
    sweep = resets.sweep

    def eager(book: Book, group: Group, gone: Any) -> None:
        kept, group.pending = group.pending, {}
        try:
            sweep(book, group, gone)
        finally:
            group.pending = kept

    patch.setattr(resets, "sweep", eager)
    patch.setattr(world, "EXPIRY_EVERY", 1)  # they expire in all histories


def store_offsets_without_a_member_epoch(patch: Any) -> None:
    """In a transaction any member epoch is accepted: a zombie's work counts (KIP-447)."""
    committer = offsets.committer

    def careless(book: Book, group: Group | None, event: gc.CommitRequested) -> Member | None:
        member = None if group is None else group.members.get(event.member_id)
        if event.transactional_id and member is not None:
            event = replace(event, member_epoch=member.current.epoch)
        return committer(book, group, event)

    patch.setattr(offsets, "committer", careless)


def keep_offsets_before_the_group_has_joined(patch: Any) -> None:
    """The transaction's coordinator is not asked: it never tells the group how it ended."""

    def commit(book: Book, event: gc.CommitRequested) -> gc.Committed | None:
        ended = EndedKey(event.group_id, event.producer_id)
        key = GuardKey(ended, event.transactional_id)
        pending._check_epoch(book, key, event.producer_epoch)
        return pending._commit_joined(book, key, event)

    patch.setattr(pending, "commit", commit)


# ---------------------------------------------------------------- clients


def commit_with_a_batch_on_its_way(patch: Any) -> None:
    """The end is sent with the flush, not after it."""
    commit = Transactions._commit

    def hasty(self: Transactions, event: Commit, now_ms: int) -> Ready:
        ready = commit(self, event, now_ms)
        return self._flushed(0, now_ms) if ready.flush else ready

    patch.setattr(Transactions, "_commit", hasty)
    _forget_windows(patch)


def commit_what_was_not_stored_in_time(patch: Any) -> None:
    """The flush gives up waiting, and the commit continues."""
    flushed = Transactions._flushed

    def careless(self: Transactions, _unsettled: int, now_ms: int) -> Ready:
        return flushed(self, 0, now_ms)

    patch.setattr(Transactions, "_flushed", careless)
    _forget_windows(patch)


def _forget_windows(patch: Any) -> None:
    """Otherwise a lane itself reports that something of the last transaction is in flight."""
    adopt = Lane.adopt

    def forget(self: Lane[Any], identity: ProducerIdentity) -> list[Entry[Any]]:
        self.discard()
        return adopt(self, identity)

    patch.setattr(Lane, "adopt", forget)


def send_a_given_up_batch_in_the_next_transaction(patch: Any) -> None:
    """What was not stored when its transaction was aborted is sent in the next one."""
    discard, adopt = Lane.discard, Lane.adopt
    left: dict[Lane[Any], list[Entry[Any]]] = {}

    def keep(self: Lane[Any]) -> list[Entry[Any]]:
        left[self] = list(self.window)
        return discard(self)

    def again(self: Lane[Any], identity: ProducerIdentity) -> list[Entry[Any]]:
        dropped = adopt(self, identity)
        for old in left.pop(self, []):
            self.take(old.batch, old.record_count, old.deadline_ms + _AGAIN_MS).outstanding = False
        return dropped

    patch.setattr(Lane, "discard", keep)
    patch.setattr(Lane, "adopt", again)


def stop_behind_what_is_hidden(patch: Any) -> None:
    """An answer ends at the last record that is shown: the reader asks for the rest for ever."""

    def uncovered(shown: Any, _start: Any, _last: Any) -> list[Any]:
        return list(shown)

    patch.setattr(isolation, "with_end_covered", uncovered)


def leave_a_partition_without_a_commit(patch: Any) -> None:
    """What was written from it is committed later, when others have already read it."""

    async def drop(self: AsyncTransformer, partitions: frozenset[TopicPartition]) -> None:
        self._model.leaves(partitions)

    patch.setattr(AsyncTransformer, "on_revoked", drop)


def store_offsets_of_partitions_that_left(patch: Any) -> None:
    """The partitions are back, perhaps in the same epoch; that others may have read them is
    ignored."""
    patch.setattr(TransactionOffsets, "_never_left", lambda _self, _held: True)
    patch.setattr(lulls, "EVERY", 1)  # in all histories they leave meanwhile


def commit_positions_outside_the_transaction(patch: Any) -> None:
    """They count at once, and what is then aborted is never read again."""
    commit_within = GroupCalls.commit_within

    async def outside(self: GroupCalls, request: CommitOffsetsRequest, timeout_s: float) -> None:
        for name in ("transactional_id", "producer_id", "producer_epoch"):
            request.ClearField(name)
        await commit_within(self, request, timeout_s)

    patch.setattr(GroupCalls, "commit_within", outside)


# ---------------------------------------------------------------- what members are shown


def read_what_is_open(patch: Any) -> None:
    """A fetch is answered up to the high watermark, without what is known to be aborted."""
    _serve(patch, to=lambda marks: marks.high_watermark, hides_aborted=True)


def ask_for_read_uncommitted(patch: Any) -> None:
    """The pipe does not set its isolation level."""
    _serve(patch, to=lambda marks: marks.high_watermark, hides_aborted=False)


def read_what_was_aborted(patch: Any) -> None:
    """An answer ends where it should, but the index is not read."""
    _serve(patch, to=lambda marks: marks.last_stable_offset, hides_aborted=False)


def _serve(patch: Any, *, to: Callable[[Marks], Offset], hides_aborted: bool) -> None:
    """The checks are not told what is served: they must find it in the results."""

    def read(_self: CommittedFetcher, broker: Any, replica: Any, offset: Offset) -> list[Batch]:
        found = broker.read(replica, offset, to(replica.machine.marks), 8)
        if not found:
            return []
        aborted = isolation.NONE_ABORTED
        if hides_aborted:
            aborted = isolation.named(
                broker.disk.aborted(replica.slot, offset, found[-1].next_offset)
            )
        shown = isolation.visible(found, aborted)
        return isolation.with_end_covered(shown, offset, found[-1])

    patch.setattr(CommittedFetcher, "_read", read)


PIPE_BUGS: Final[dict[str, Callable[[Any], None]]] = {
    bug.__name__: bug
    for bug in (
        apply_pending_offsets_of_an_abort,
        refuse_a_repeated_end_in_a_group,
        lose_pending_offsets_at_failover,
        drop_pending_offsets_of_a_commit,
        tell_offsets_that_a_transaction_may_change,
        reset_offsets_that_a_transaction_may_change,
        expire_offsets_that_a_transaction_may_change,
        store_offsets_without_a_member_epoch,
        keep_offsets_before_the_group_has_joined,
        commit_with_a_batch_on_its_way,
        commit_what_was_not_stored_in_time,
        send_a_given_up_batch_in_the_next_transaction,
        stop_behind_what_is_hidden,
        leave_a_partition_without_a_commit,
        store_offsets_of_partitions_that_left,
        commit_positions_outside_the_transaction,
    )
}
"""How each is planted. Found with all faults, in histories with pipes."""
RING_BUGS: Final[dict[str, tuple[Callable[[Any], None], str]]] = {
    "read_what_is_open": (read_what_is_open, "I13"),
    "ask_for_read_uncommitted": (ask_for_read_uncommitted, "I13"),
    "read_what_was_aborted": (read_what_was_aborted, "I11"),
}
"""How each is planted, and what finds it. With all faults, in histories with rings."""
