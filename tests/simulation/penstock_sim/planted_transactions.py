"""Bugs of transactions, planted on purpose as in `planted` (guarantees §5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from penstock.core.replication import contract_leader as lc
from penstock.core.replication.appending import failed
from penstock.core.replication.leader import Leader
from penstock.core.replication.local_log import LocalLog
from penstock.core.replication.outbox import Outbox
from penstock.core.replication.producers import ProducerTable, fenced
from penstock.core.replication.stable import OpenTransactions
from penstock.core.replication.transactions import Transactions
from penstock.core.transactions import contract as tc
from penstock.core.transactions import ending, producers
from penstock.core.transactions.loading import Loader
from penstock.core.transactions.records import BranchRecord, EndReason
from penstock.core.transactions.state import Book, Branch
from penstock.core.types import Offset
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.services import metadata
from penstock_broker.store.memory import MemoryLogStore, _Log
from penstock_sim.committed_reader import CommittedReader
from penstock_sim.latest_reader import LatestReader
from penstock_sim.planted_hosts import (
    answer_before_it_is_committed,
    coordinate_before_the_log_is_committed,
)
from penstock_sim.scheduler import RATE

_CROWD: Final = 3
_SELDOM_MS: Final = 10_000 * RATE

# ---------------------------------------------------------------- the coordinator


def keep_the_epoch_after_a_decision(patch: Any) -> None:
    """The next transaction has the epoch of the last: late batches and Ends apply to it."""
    patch.setattr(ending, "next_epoch", lambda record: (record.producer_id, record.epoch))


def keep_the_epoch_of_an_empty_transaction(patch: Any) -> None:
    """Nothing has joined, so nothing is written: a late copy of the End ends the next one."""
    decide = ending.decide

    def lazy(book: Book, branch: Branch, *, commit: bool, reason: EndReason) -> None:
        if branch.record.is_open or reason is not EndReason.PRODUCER:
            decide(book, branch, commit=commit, reason=reason)

    patch.setattr(ending, "decide", lazy)


def keep_joins_in_memory_only(patch: Any) -> None:
    """A failover forgets who has joined: their records stay open, or end with the wrong outcome."""
    put_branch = Book.put_branch

    def forgetful(self: Book, branch: Branch, record: BranchRecord) -> None:
        is_join = len(record.joined) > len(branch.record.joined)
        put_branch(self, branch, record)
        if is_join:
            self.records.clear()

    patch.setattr(Book, "put_branch", forgetful)


def refuse_a_repeated_end(patch: Any) -> None:
    """A producer whose answer was lost asks again, and is told that its epoch is old."""

    def strict(_book: Book, _branch: Branch, _event: Any) -> Any:
        raise ClusterError("an older epoch", ErrorCode.PRODUCER_FENCED)

    patch.setattr(producers, "_decided_before", strict)


def look_for_timeouts_every_ten_seconds(patch: Any) -> None:
    """An abandoned transaction stays open until then, and blocks readers."""
    put_branch = Book.put_branch

    def seldom(self: Book, branch: Branch, record: BranchRecord) -> None:
        known = branch.deadline_ms
        put_branch(self, branch, record)
        if known is None and branch.deadline_ms is not None:
            branch.deadline_ms += -branch.deadline_ms % _SELDOM_MS

    patch.setattr(Book, "put_branch", seldom)


def change_the_outcome_when_asked_again(patch: Any) -> None:
    """A transaction that timed out is committed after all, if its producer asks for it."""
    decided_before = producers._decided_before

    def obliging(book: Book, branch: Branch, event: tc.EndRequested) -> Any:
        record, last = branch.record, branch.record.last
        if last is not None and last.epoch == event.producer_epoch and last.commit != event.commit:
            ended = replace(last, commit=event.commit)
            endings = {
                p: replace(e, commit=event.commit) if e.epoch == last.epoch else e
                for p, e in record.finishing.items()
            }
            book.put_branch(branch, replace(record, last=ended, finishing=endings))
            return None
        return decided_before(book, branch, event)

    patch.setattr(producers, "_decided_before", obliging)


def forget_who_has_yet_to_hear(patch: Any) -> None:
    """A new coordinator sends no Ends for decisions made before it."""
    fill = Loader.fill

    def lossy(self: Loader, book: Book) -> None:
        fill(self, book)
        book.unsettled.clear()

    patch.setattr(Loader, "fill", lossy)


def give_a_zombie_the_next_epoch(patch: Any) -> None:
    """A producer that lost its id aborts, and is given the next epoch."""
    decided_before = producers._decided_before

    def generous(book: Book, branch: Branch, event: tc.EndRequested) -> Any:
        last = branch.record.last
        if last is not None and last.reason is EndReason.FENCED:
            last = replace(last, reason=EndReason.PRODUCER, commit=event.commit)
            if last.epoch == event.producer_epoch and not event.commit:
                return None
        return decided_before(book, branch, event)

    patch.setattr(producers, "_decided_before", generous)


def abort_a_timeout_without_a_new_epoch(patch: Any) -> None:
    """The transaction is aborted, and its producer continues to write in it."""
    decide = ending.decide

    def soft(book: Book, branch: Branch, *, commit: bool, reason: EndReason) -> None:
        epoch = branch.record.epoch
        decide(book, branch, commit=commit, reason=reason)
        if reason is EndReason.TIMEOUT:
            book.put_branch(branch, replace(branch.record, epoch=epoch))

    patch.setattr(ending, "decide", soft)


def join_again_before_the_end_was_heard(patch: Any) -> None:
    """A participant that has no marker yet joins the next transaction."""

    def hasty(book: Book, branch: Branch, event: tc.JoinRequested) -> None:
        record = branch.record
        left = {p: e for p, e in record.finishing.items() if p != event.participant}
        joined = record.joined | {event.participant}
        book.put_branch(branch, replace(record, is_open=True, joined=joined, finishing=left))
        book.say(tc.Reply(event.request_id, tc.Joined()))

    patch.setattr(ending, "park", hasty)


def give_plain_producers_the_ids_of_others(patch: Any) -> None:
    """A caller that names the id of a transactional producer gets its next epoch."""
    patch.setattr(metadata, "is_transactional_producer", lambda _producer_id: False)


def abort_whatever_epoch_is_open(patch: Any) -> None:
    """An operator's late abort hits a transaction that the operator never saw."""
    abort = producers.abort

    def blunt(book: Book, event: tc.AbortRequested) -> tc.Aborted:
        return abort(book, replace(event, producer_epoch=-1))

    patch.setattr(producers, "abort", blunt)


# ---------------------------------------------------------------- the partition


def append_without_joining(patch: Any) -> None:
    """A transaction begins in a partition, and its coordinator is not told."""

    def produce(self: Transactions, request: lc.ProduceRequested, out: Outbox, now_ms: int) -> bool:
        refusal = self._fenced(request) or self._shortage(request.acks, 0)
        if refusal is not None:
            out.replies.append(failed(request, refusal))
            return False
        return self._appending.land(request, out, now_ms)

    patch.setattr(Transactions, "produce", produce)


def refuse_a_repeated_end_where_the_marker_is(patch: Any) -> None:
    """The coordinator does not learn that it is there, asks again, and is told the epoch is old."""
    original = Transactions.end

    def end(self: Transactions, request: lc.EndRequested, out: Outbox, now_ms: int) -> bool:
        entry = self._log.producers.get(request.producer_id)
        if entry is not None and entry.producer_epoch > request.producer_epoch:
            out.replies.append(failed(request, fenced(entry, request.producer_epoch)))
            return False
        return original(self, request, out, now_ms)

    patch.setattr(Transactions, "end", end)


def keep_guards_at_the_end(patch: Any) -> None:
    """The guard outlives the End, and batches that wait there keep waiting.

    Alone it does no harm: the marker has raised the epoch, and what joins then is checked again and
    refused as fenced. So it is not a bug to be found, but half of `append_behind_the_marker`.
    """
    original = Transactions.end

    def end(self: Transactions, request: lc.EndRequested, out: Outbox, now_ms: int) -> bool:
        guards, self._guards = self._guards, {}
        try:
            return original(self, request, out, now_ms)
        finally:
            self._guards = guards

    patch.setattr(Transactions, "end", end)


def append_without_a_second_look(patch: Any) -> None:
    """When "joined" arrives, the waiting batches are appended without checking their epoch again.

    Alone it does no harm: an End that comes in between removes the guard and all that wait, and
    "joined" finds none. So it is the other half.
    """
    original = Transactions.joined

    def joined(self: Transactions, answer: lc.Joined, out: Outbox, now_ms: int) -> bool:
        asked = self._asked.get(answer.number)
        entry = None if asked is None else self._log.producers.get(asked[0])
        is_late = entry is not None and asked is not None and entry.producer_epoch > asked[1].epoch
        if asked is None or not is_late or answer.error is not None:
            return original(self, answer, out, now_ms)
        for request in self._take(*asked):
            self._appending._append(request, out, now_ms)
        return True

    patch.setattr(Transactions, "joined", joined)


def append_behind_the_marker(patch: Any) -> None:
    """The guard outlives the End, and a late "joined" appends what waited there."""
    keep_guards_at_the_end(patch)
    append_without_a_second_look(patch)


def answer_without_a_marker_when_nothing_is_open(patch: Any) -> None:
    """A deposed leader sees nothing open in its old log, and answers that all is done."""
    original = Transactions.end

    def end(self: Transactions, request: lc.EndRequested, out: Outbox, now_ms: int) -> bool:
        entry = self._log.producers.get(request.producer_id)
        if entry is None or entry.open_offset is None:
            out.replies.append(
                lc.ProduceReply(request_id=request.request_id, base_offset=Offset(-1))
            )
            return False
        return original(self, request, out, now_ms)

    patch.setattr(Transactions, "end", end)


def pass_markers_that_are_not_committed(patch: Any) -> None:
    """The last stable offset moves with the marker, not with the high watermark after it."""

    def eager(self: ProducerTable, high_watermark: Offset) -> Offset:
        first = self._transactions.first_open()
        return high_watermark if first is None else min(first, high_watermark)

    patch.setattr(ProducerTable, "stable_offset", eager)


def take_the_high_watermark_for_the_last_stable_offset(patch: Any) -> None:
    """As long as a new leader has not seen a batch itself, it knows of no open transaction."""
    init, stable_offset = Leader.__init__, LocalLog._stable_offset

    def start(self: Leader, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self._log.__dict__["blind_until"] = self._log.log_end

    def blind(self: LocalLog) -> Offset:
        if self.__dict__.get("blind_until") == self.log_end:
            return self.high_watermark
        return stable_offset(self)

    patch.setattr(Leader, "__init__", start)
    patch.setattr(LocalLog, "_stable_offset", blind)


def evict_producers_with_open_transactions(patch: Any) -> None:
    """The table of producers is full, and the oldest entry is removed, open or not."""
    apply = ProducerTable.apply

    def crowded(self: ProducerTable, header: Any, now_ms: int = 0) -> Any:
        aborted = apply(self, header, now_ms)
        if len(self._entries) > _CROWD:
            del self._entries[next(iter(self._entries))]
            self._transactions = OpenTransactions(self._entries.values())
            self._used_ms = {p: ms for p, ms in self._used_ms.items() if p in self._entries}
        return aborted

    patch.setattr(ProducerTable, "apply", crowded)


def forget_open_transactions_at_recovery(patch: Any) -> None:
    """A snapshot of producers has no open transactions."""
    load = LocalLog._load

    def forgetful(self: LocalLog, recovered: Any, now_ms: int) -> None:
        closed = tuple(replace(entry, open_offset=None) for entry in recovered.producers)
        load(self, replace(recovered, producers=closed), now_ms)

    patch.setattr(LocalLog, "_load", forgetful)


def expire_what_is_not_decided(patch: Any) -> None:
    """Retention goes up to the high watermark, beyond open transactions."""
    original = LocalLog.raise_log_start

    def eager(self: LocalLog, offset: Offset) -> bool:
        stable, self.last_stable_offset = self.last_stable_offset, self.high_watermark
        try:
            return original(self, offset)
        finally:
            self.last_stable_offset = max(stable, self.log_start_offset)

    patch.setattr(LocalLog, "raise_log_start", eager)


def lose_the_index_of_aborted_transactions(patch: Any) -> None:
    """The index is not written: aborted data is returned."""
    patch.setattr(MemoryLogStore, "aborted", lambda _self, _slot, _start, _end: ())


def keep_the_index_when_the_log_is_cut(patch: Any) -> None:
    """Markers that were truncated are still reported."""
    truncate = _Log._truncate

    def careless(self: _Log, to: Offset, log_start: Offset) -> None:
        aborted = self.aborted
        truncate(self, to, log_start)
        self.aborted = aborted

    patch.setattr(_Log, "_truncate", careless)


# ---------------------------------------------------------------- the reader


def hide_by_producer_id_only(patch: Any) -> None:
    """All data of a producer is hidden once one of its transactions was aborted."""
    fetch = CommittedReader._read

    def careless(self: CommittedReader, batch: Any, *, is_hidden: bool) -> None:
        aborted = self.__dict__.setdefault("aborted", set())
        if is_hidden and not batch.header.is_control:
            aborted.add(batch.header.producer_id)
        hidden = is_hidden or batch.header.producer_id in aborted
        fetch(self, batch, is_hidden=hidden)

    patch.setattr(CommittedReader, "_read", careless)


def list_the_high_watermark_for_committed_readers(patch: Any) -> None:
    """A reader that begins at the end skips what is open there and committed later."""
    patch.setattr(LatestReader, "_latest", lambda _self, marks: marks.high_watermark)


TRANSACTION_BUGS: Final[dict[str, Callable[[Any], None]]] = {
    "answer_before_the_decision_is_committed": answer_before_it_is_committed,
    "coordinate_before_the_log_is_committed": coordinate_before_the_log_is_committed,
} | {
    bug.__name__: bug
    for bug in (
        keep_the_epoch_after_a_decision,
        keep_the_epoch_of_an_empty_transaction,
        keep_joins_in_memory_only,
        refuse_a_repeated_end,
        change_the_outcome_when_asked_again,
        forget_who_has_yet_to_hear,
        give_a_zombie_the_next_epoch,
        abort_a_timeout_without_a_new_epoch,
        join_again_before_the_end_was_heard,
        give_plain_producers_the_ids_of_others,
        append_without_joining,
        refuse_a_repeated_end_where_the_marker_is,
        append_behind_the_marker,
        answer_without_a_marker_when_nothing_is_open,
        pass_markers_that_are_not_committed,
        take_the_high_watermark_for_the_last_stable_offset,
        evict_producers_with_open_transactions,
        forget_open_transactions_at_recovery,
        expire_what_is_not_decided,
        keep_the_index_when_the_log_is_cut,
        lose_the_index_of_aborted_transactions,
        hide_by_producer_id_only,
        list_the_high_watermark_for_committed_readers,
    )
}
"""How each is planted. Found with all faults."""

OPERATOR_BUGS: Final[dict[str, Callable[[Any], None]]] = {
    abort_whatever_epoch_is_open.__name__: abort_whatever_epoch_is_open
}
"""In histories with an operator."""
LATE_BUGS: Final[dict[str, Callable[[Any], None]]] = {
    look_for_timeouts_every_ten_seconds.__name__: look_for_timeouts_every_ten_seconds
}
"""Everything is right in the end, but too late."""
