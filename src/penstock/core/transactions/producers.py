"""Owners of transactional ids, joins of their transactions, and ends by their producers.

    init ─▶ (producer id, epoch) ─▶ join, join, … ─▶ end ─▶ epoch + 1 ─▶ join …

There is no "begin": the first participant that joins opens the transaction (KIP-890). Every end
increases the epoch, even if nothing has joined: otherwise a late copy of the End would end the next
transaction halfway, and a late batch of an aborted attempt would join it. Another producer that
takes the id gets another producer id, and what was open is aborted; the former owner gets
PRODUCER_FENCED from then on and is never given an epoch again (I10).

Another producer id, because partitions may know later epochs of the former one than this log: where
all brokers have lost power, it may end before its last decisions. Counting on from there, producers
would be fenced by those partitions, one after the other, until the epochs are passed.
"""

from dataclasses import replace
from typing import Final

from penstock.core.transactions import ending, lost
from penstock.core.transactions.config import check_transactional_id
from penstock.core.transactions.contract import (
    Aborted,
    AbortRequested,
    Ended,
    EndRequested,
    InitRequested,
    Joined,
    JoinRequested,
    ProducerInitialized,
    Reply,
)
from penstock.core.transactions.records import BranchRecord, EndReason, IdRecord, LastEnd
from penstock.core.transactions.refusals import aborted, ended_otherwise, fenced, not_begun, refusal
from penstock.core.transactions.state import Book, Branch, Holder
from penstock.core.types import NO_PRODUCER, ProducerId
from penstock.errors import ClusterError, ErrorCode, PenstockError

TEXT_MAX_CHARS: Final = 249
_PLAIN: Final = 0
"""A plain producer's branch."""
_LOST_MAX: Final = 100_000
"""Transactions of one producer that a power loss can have taken: minutes of them."""


# ---------------------------------------------------------------- init


def init(book: Book, event: InitRequested) -> ProducerInitialized:
    """Raises ClusterError: INVALID_REQUEST, OVERLOADED, PRODUCER_FENCED (it had lost the id)."""
    check_transactional_id(event.transactional_id)
    check_text(instance_id=event.instance_id, client_id=event.client_id)
    timeout_ms = checked_timeout_ms(book, event.timeout_ms)
    holder = book.holders.get(event.transactional_id)
    branch = None if holder is None else holder.branches.get(_PLAIN)
    owner = IdRecord(
        instance_id=event.instance_id,
        client_id=event.client_id,
        client_host=event.client_host,
        timeout_ms=timeout_ms,
        used_ms=book.time_ms,
    )
    if holder is None or branch is None:
        check_room(book, new_id=holder is None)
        holder = holder or Holder(event.transactional_id, owner)
        book.put_holder(holder, replace(owner, superseded=holder.record.superseded))
        record = BranchRecord(producer_id=event.fresh_producer_id, timeout_ms=timeout_ms)
        branch = Branch(event.transactional_id, _PLAIN, record)
        book.put_branch(branch, record)
    elif not event.instance_id or event.instance_id != holder.record.instance_id:
        _take_over(book, holder, branch, owner, event.fresh_producer_id)
    return ProducerInitialized(branch.record.producer_id, branch.record.epoch)


def _take_over(
    book: Book, holder: Holder, branch: Branch, owner: IdRecord, fresh: ProducerId
) -> None:
    """Another producer takes the id, with a fresh producer id; the open transaction is aborted."""
    loser = holder.record
    if owner.instance_id and owner.instance_id in loser.superseded:
        record = branch.record
        raise fenced(holder, branch, record.producer_id, record.epoch)
    check_room(book, new_id=False)
    former = (loser.instance_id,) if loser.instance_id else ()
    superseded = (*loser.superseded, *former)[-book.config.superseded_max :]
    book.put_holder(holder, replace(owner, superseded=superseded))
    ending.decide(book, branch, commit=False, reason=EndReason.FENCED)
    # The epoch counts on: an administrator aborts a transaction by its id and epoch.
    begun = replace(branch.record, producer_id=fresh, timeout_ms=owner.timeout_ms)
    book.put_branch(branch, begun)
    book.decide(
        "transactional id taken over",
        id=holder.transactional_id,
        producer_id=branch.record.producer_id,
        epoch=branch.record.epoch,
        client=owner.client_id,
        host=owner.client_host,
        from_client=loser.client_id,
        from_host=loser.client_host,
    )


# ---------------------------------------------------------------- join


def join(book: Book, event: JoinRequested) -> Joined | None:
    """None: it is parked. Raises ClusterError: that of `refusal`, or a limit."""
    holder = book.holder(event.transactional_id)
    branch = book.branch(event.transactional_id, event.producer_id)
    if branch is None:
        raise fenced(holder, holder.branches.get(_PLAIN), event.producer_id, event.producer_epoch)
    _abort_lost(book, branch, event.producer_id, event.producer_epoch)
    record = branch.record
    if (event.producer_id, event.producer_epoch) != (record.producer_id, record.epoch):
        raise refusal(book, branch, event.producer_id, event.producer_epoch)
    if event.participant in record.joined:
        return Joined()
    if not record.is_open and branch.number != _PLAIN:
        raise not_begun(branch, event.producer_epoch)
    _check_join(book, holder, branch)
    if branch.is_finishing(event.participant):
        ending.park(book, branch, event)
        return None
    joined = record.joined | {event.participant}
    started_ms = record.started_ms if record.is_open else book.time_ms
    book.put_branch(branch, replace(record, is_open=True, started_ms=started_ms, joined=joined))
    return Joined()


def _abort_lost(book: Book, branch: Branch, producer_id: ProducerId, epoch: int) -> None:
    """A later epoch than is known was given out by another coordinator, or its record was lost.

    The first has deposed this one, which cannot commit the abort, and so does not answer. In the
    second case, after a power loss of all brokers, no coordinator knows the producer's epoch: it
    would look for one for ever (I24). An epoch that is too far ahead was made up: whoever may use
    the id could use up its epochs with a few of those.
    """
    record = branch.record
    ahead = epoch - record.epoch
    if producer_id == record.producer_id and 0 < ahead <= _LOST_MAX and not record.is_open:
        lost.abort(book, branch, epoch)


def _check_join(book: Book, holder: Holder, branch: Branch) -> None:
    config = book.config
    if len(branch.record.joined) + len(branch.parked) >= config.participants_max:
        raise ClusterError(
            f"the transaction of {branch} has {config.participants_max} partitions and groups, "
            "which is the limit; commit more often",
            ErrorCode.TRANSACTION_TOO_LARGE,
        )
    if branch.number != _PLAIN and holder.branch_bytes >= config.id_bytes_max:
        raise ClusterError(
            f"the branches of {holder.transactional_id!r} take {holder.branch_bytes} bytes, the "
            f"limit is {config.id_bytes_max}; write with fewer tasks, or to fewer partitions",
            ErrorCode.TRANSACTION_TOO_LARGE,
        )
    check_room(book, new_id=False)
    if not branch.record.is_open:
        check_open(book)


# ---------------------------------------------------------------- end


def end(book: Book, event: EndRequested) -> Ended | None:
    """None: the answer comes once it is visible. Raises ClusterError."""
    holder = book.holder(event.transactional_id)
    branch = book.branch(event.transactional_id, event.producer_id)
    if branch is None:
        raise fenced(holder, holder.branches.get(_PLAIN), event.producer_id, event.producer_epoch)
    asked = (event.producer_id, event.producer_epoch)
    _abort_lost(book, branch, *asked)
    error: PenstockError | None = None
    if asked == (branch.record.producer_id, branch.record.epoch):
        _check_end(branch, event)
        ending.decide(book, branch, commit=event.commit, reason=EndReason.PRODUCER)
    else:
        error = _decided_before(book, branch, event)
    record = branch.record
    answer = Ended(record.producer_id, record.epoch, error=error)
    if branch.number != _PLAIN:  # the attempt that begins it next has that epoch
        answer = Ended(NO_PRODUCER, -1, error=error)
    wait_ms = 0 if error is not None else event.wait_visible_ms
    return ending.answer_when_visible(book, (event.request_id, wait_ms), answer, [(branch, asked)])


def _check_end(branch: Branch, event: EndRequested) -> None:
    if branch.number != _PLAIN and event.commit:
        raise ClusterError(
            f"{branch} belongs to a batch and cannot be committed alone; CommitBatch does it",
            ErrorCode.INVALID_TRANSACTION_STATE,
        )


def _decided_before(book: Book, branch: Branch, event: EndRequested) -> PenstockError | None:
    """None: the outcome is the requested one. TRANSACTION_ABORTED is returned, and the producer
    continues; errors that end the producer, or are its mistake, are raised."""
    last = branch.record.last
    asked = (event.producer_id, event.producer_epoch)
    if last is None or asked != (last.producer_id, last.epoch) or last.reason is EndReason.FENCED:
        raise refusal(book, branch, event.producer_id, event.producer_epoch)
    if last.commit == event.commit:
        return None
    return _other_outcome(branch, last, commit=event.commit)


def _other_outcome(branch: Branch, last: LastEnd, *, commit: bool) -> PenstockError:
    if last.reason is EndReason.PRODUCER:
        raise ended_otherwise(branch, last, commit=commit)
    return aborted(branch, last)


def abort(book: Book, event: AbortRequested) -> Aborted:
    """An operator, or the group of a former member, aborts the open transaction.

    That there is none may be what a deposed coordinator thinks: it is confirmed.
    """
    check_text(comment=event.comment)
    holder = book.holder(event.transactional_id)
    found = [
        branch
        for branch in holder.branches.values()
        if branch.record.is_open and event.producer_epoch in {-1, branch.record.epoch}
    ]
    for branch in found:
        ending.decide(book, branch, commit=False, reason=event.reason)
    if not found:
        book.confirm()
    elif event.comment:
        book.decide("aborted on request", id=holder.transactional_id, comment=event.comment)
    return Aborted(len(found))


def carry_on(book: Book, joins: list[JoinRequested]) -> None:
    """Carries out parked joins, now that their participants have stored the end."""
    for event in joins:
        try:
            answer: Joined | PenstockError | None = join(book, event)
        except PenstockError as error:
            answer = error
        assert answer is not None, f"{event.participant} has heard, and is finishing"
        book.say(Reply(event.request_id, answer))


# ---------------------------------------------------------------- checks


def check_text(**texts: str) -> None:
    """Raises ClusterError(INVALID_REQUEST)."""
    for name, text in texts.items():
        if len(text) > TEXT_MAX_CHARS:
            raise ClusterError(
                f"{name} has {len(text)} characters, the limit is {TEXT_MAX_CHARS}",
                ErrorCode.INVALID_REQUEST,
            )


def checked_timeout_ms(book: Book, timeout_ms: int) -> int:
    """The timeout in force; 0 is the default. Raises ClusterError(INVALID_REQUEST)."""
    limit_ms = book.config.max_timeout_ms
    if not 0 <= timeout_ms <= limit_ms:
        raise ClusterError(
            f"the transaction timeout is {timeout_ms} ms, the limit is {limit_ms} ms "
            "(transaction.max.timeout.ms); request less",
            ErrorCode.INVALID_REQUEST,
        )
    return timeout_ms or min(book.config.default_timeout_ms, limit_ms)


def check_room(book: Book, *, new_id: bool) -> None:
    """Raises ClusterError(OVERLOADED): the state must fit into memory (I23)."""
    config = book.config
    if new_id and len(book.holders) >= config.ids_max:
        raise ClusterError(
            f"this coordinator has {config.ids_max} transactional ids, which is the limit; reuse "
            "ids instead of making new ones",
            ErrorCode.OVERLOADED,
        )
    if book.state_bytes >= config.state_bytes_max:
        raise ClusterError(
            f"this coordinator has {book.state_bytes} bytes of transactions, the limit is "
            f"{config.state_bytes_max}; try again later",
            ErrorCode.OVERLOADED,
        )


def check_open(book: Book) -> None:
    """Raises ClusterError(OVERLOADED)."""
    if len(book.open) >= book.config.open_max:
        raise ClusterError(
            f"{book.config.open_max} transactions are open here, which is the limit; try again "
            "when some have ended",
            ErrorCode.OVERLOADED,
        )
