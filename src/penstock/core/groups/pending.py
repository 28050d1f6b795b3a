"""Offsets inside transactions: pending until the transaction ends, then committed or dropped.

    commit, first of a transaction ─▶ guard ─ SendJoin ─▶ coordinator of the transactional id
                                        └──────── TransactionJoined ─▶ checked again ─▶ "pending"
    commit, pending already ─────────────────────────────────────────▶ "pending", longer
    end ─▶ guard dropped; pending ─▶ offset records, or nothing; always "ended", in one Ready

The group joins the transaction before it stores any of its offsets, so that no offset is ever
pending whose end would not be reported (KIP-890 for partitions; offsets are checked as in KIP-447).
"ended" is written even for an unknown group: a deposed coordinator cannot get it committed, so none
reports success from an old log. While an offset is pending, only its transaction can change it, and
a fetch of it gets UNSTABLE_OFFSETS. Kept here: I11, I18. The partitions' side: `core.replication`.
"""

from typing import Final

from penstock.core.groups import offsets
from penstock.core.groups.catalog import Part
from penstock.core.groups.config import check_group_id
from penstock.core.groups.contract import (
    CommitRequested,
    Committed,
    EndStored,
    Reply,
    SendJoin,
    TransactionEnded,
    TransactionJoined,
)
from penstock.core.groups.hello import invalid
from penstock.core.groups.membership import check_groups
from penstock.core.groups.records import (
    EndedKey,
    EndedRecord,
    GroupRecord,
    OffsetRecord,
    PendingRecord,
)
from penstock.core.groups.state import Book, Group, Guard, GuardKey, Member
from penstock.errors import ClusterError, ErrorCode, OverloadedError, PenstockError

GUARDS_MAX: Final = 10_000
WAITING_MAX: Final = 16
"""Commits of one producer that wait for one join; a producer sends the next after an answer."""
GUARD_TIMEOUT_MS: Final = 10_000
ENDED_RETENTION_MS: Final = 86_400_000
"""By then every repeat of an end, and every late commit, has arrived."""
_SWEPT_AT_ONCE: Final = 1_000
_FULL_MS: Final = 1_000


def commit(book: Book, event: CommitRequested) -> Committed | None:
    """None: the answer comes later, once the group has joined. Raises PenstockError."""
    check_group_id(event.group_id)
    offsets.check_size(event.offsets)
    _check_identity(book, event)
    key = GuardKey(EndedKey(event.group_id, event.producer_id), event.transactional_id)
    _check_epoch(book, key, event.producer_epoch)
    group = book.groups.get(event.group_id)
    member = offsets.committer(book, group, event)
    if not event.offsets:
        return Committed(())
    if _is_pending(group, event):
        return _store(book, group, member, event)
    guard = book.guards.get(key)
    if guard is None or guard.producer_epoch != event.producer_epoch:
        _guard(book, key, event)
    elif len(guard.waiting) < WAITING_MAX:
        guard.waiting.append(event)
    else:
        raise OverloadedError(
            f"{len(guard.waiting)} commits of transaction {event.transactional_id!r} already "
            f"wait for group {event.group_id!r} to join it, which is the limit: wait for their "
            "answers",
            _FULL_MS,
        )
    return None


def joined(book: Book, event: TransactionJoined) -> None:
    """The coordinator has added the group as a participant, or refused."""
    key = GuardKey(EndedKey(event.group_id, event.producer_id), event.transactional_id)
    guard = book.guards.get(key)
    if guard is None or guard.number != event.number:
        return  # the transaction has ended meanwhile, or the commits gave up
    del book.guards[key]
    for request in guard.waiting:
        try:
            if event.error is not None:
                raise event.error
            answer = _commit_joined(book, key, request)
        except PenstockError as error:
            book.say(Reply(request.request_id, error))
        else:
            book.say(Reply(request.request_id, answer))


def end(book: Book, event: TransactionEnded) -> EndStored:
    """The outcome: applied once, returned as often as it is requested. The first one counts.

    Another one later means that a power loss of all brokers took the coordinator's decision, and
    not what was stored here. It is answered as stored: otherwise it would be sent for ever, and no
    later transaction could join this group.
    """
    key = EndedKey(event.group_id, event.producer_id)
    waits = GuardKey(key, event.transactional_id)
    guard = book.guards.get(waits)
    if guard is not None and guard.producer_epoch <= event.producer_epoch:
        _give_up(book, waits, guard, _fenced(key, guard.producer_epoch, event.producer_epoch))
    group = book.groups.get(event.group_id)
    pending = None if group is None else group.pending.get(event.producer_id)
    if pending is not None and pending.producer_epoch == event.producer_epoch:
        assert group is not None
        _apply(book, group, event, pending)
    known = book.ended.get(key)
    if known is not None and known.producer_epoch >= event.producer_epoch:
        if known.producer_epoch == event.producer_epoch and known.committed != event.commit:
            book.decide(
                "a transaction ended otherwise before: this group keeps the first outcome",
                group=event.group_id,
                producer_id=event.producer_id,
                producer_epoch=event.producer_epoch,
                kept=_outcome(known.committed),
                told=_outcome(event.commit),
            )
        return EndStored()
    book.put_ended(key, EndedRecord(event.producer_epoch, event.commit, book.time_ms))
    return EndStored()


def expire(book: Book) -> None:
    """Drops guards whose join was not answered in time. The oldest come first."""
    for key, guard in list(book.guards.items()):
        if guard.deadline_ms > book.now_ms:
            return
        error = ClusterError(
            f"the coordinator of transaction {key.transactional_id!r} did not confirm within "
            f"{GUARD_TIMEOUT_MS} ms that group {key.transaction.group_id!r} has joined it: "
            "nothing was committed, try again",
            ErrorCode.CONCURRENT_TRANSACTIONS,
        )
        _give_up(book, key, guard, error)


def sweep(book: Book) -> None:
    """Removes outcomes that can no longer be requested, some at a time, oldest first."""
    if not book.is_time_trusted:
        return
    oldest_ms = book.time_ms - ENDED_RETENTION_MS
    for key, record in list(book.ended.items())[:_SWEPT_AT_ONCE]:
        if record.time_ms >= oldest_ms:
            return
        book.put_ended(key, None)


# ---------------------------------------------------------------- one commit


def _check_identity(book: Book, event: CommitRequested) -> None:
    text, limit = event.transactional_id, book.config.text_max_chars
    if len(text) > limit or not text.isprintable():
        raise invalid(
            f"transactional id {text[:40]!r} has {len(text)} characters; it must have at most "
            f"{limit}, all printable"
        )
    if event.producer_id < 0 or event.producer_epoch < 0:
        raise invalid(
            f"a commit in transaction {text!r} has producer id {event.producer_id} and epoch "
            f"{event.producer_epoch}; send both as returned by InitProducer or EndTransaction"
        )


def _check_epoch(book: Book, waits: GuardKey, producer_epoch: int) -> None:
    """Raises ClusterError(PRODUCER_FENCED) for a transaction that has ended. Checked first."""
    key = waits.transaction
    known = book.ended.get(key)
    group = book.groups.get(key.group_id)
    pending = group.pending.get(key.producer_id) if group is not None else None
    guard = book.guards.get(waits)
    newest = max(
        -1 if known is None else known.producer_epoch + 1,
        -1 if pending is None else pending.producer_epoch,
        -1 if guard is None else guard.producer_epoch,
    )
    if producer_epoch < newest:
        raise _fenced(key, producer_epoch, newest - 1)


def _is_pending(group: Group | None, event: CommitRequested) -> bool:
    pending = None if group is None else group.pending.get(event.producer_id)
    # The coordinator has confirmed to whom the pending offsets belong: to their transactional id.
    # Naming its producer id and epoch proves nothing, because everybody can read them.
    return (
        pending is not None
        and pending.producer_epoch == event.producer_epoch
        and pending.transactional_id == event.transactional_id
    )


def _guard(book: Book, key: GuardKey, event: CommitRequested) -> None:
    """Asks the coordinator to join the group; the commit waits for the answer."""
    if len(book.guards) >= GUARDS_MAX:
        raise OverloadedError(
            f"{len(book.guards)} transactions already wait here for groups to join them, which "
            "is the limit: slow down",
            _FULL_MS,
        )
    older = book.guards.pop(key, None)
    if older is not None:
        fenced = _fenced(key.transaction, older.producer_epoch, event.producer_epoch - 1)
        _answer_all(book, older, fenced)
    book.guard_number += 1
    book.guards[key] = Guard(
        book.guard_number,
        event.producer_epoch,
        book.now_ms + GUARD_TIMEOUT_MS,
        [event],
    )
    book.say(
        SendJoin(
            number=book.guard_number,
            group_id=event.group_id,
            transactional_id=event.transactional_id,
            producer_id=event.producer_id,
            producer_epoch=event.producer_epoch,
        )
    )


def _commit_joined(book: Book, key: GuardKey, event: CommitRequested) -> Committed:
    """Everything is checked again: members and offsets may have changed."""
    _check_epoch(book, key, event.producer_epoch)
    group = book.groups.get(event.group_id)
    member = offsets.committer(book, group, event)
    return _store(book, group, member, event)


def _store(
    book: Book, group: Group | None, member: Member | None, event: CommitRequested
) -> Committed:
    """Stores each partition separately; accepted offsets are pending."""
    if group is None:
        check_groups(book)
        group = Group(event.group_id)
    before = group.pending.get(event.producer_id)
    if before is not None and before.producer_epoch != event.producer_epoch:
        raise ClusterError(
            f"group {event.group_id!r} has not learned yet how transaction "
            f"{before.producer_epoch} of producer {event.producer_id} ended; try again",
            ErrorCode.CONCURRENT_TRANSACTIONS,
        )
    taken = dict(before.offsets) if before is not None else {}
    errors: list[PenstockError | None] = []
    for new in event.offsets:
        try:
            part = offsets.check(book, group, member, new, event.producer_id)
            own = taken.get(part)
            if own is not None:
                offsets.check_not_back(new, own, f"pending in {event.transactional_id!r}")
        except PenstockError as error:
            errors.append(error)
            continue
        taken[part] = offsets.record(book, new, own or group.offsets.get(part))
        errors.append(None)
    if any(error is None for error in errors):
        _check_size(event, taken)
        if group.group_id not in book.groups:
            book.put_group(group, GroupRecord(empty_since_ms=book.time_ms))
        record = PendingRecord(event.producer_epoch, event.transactional_id, taken)
        book.put_pending(group, event.producer_id, record)
    return Committed(tuple(errors))


def _check_size(event: CommitRequested, taken: dict[Part, OffsetRecord]) -> None:
    """All pending offsets are one record, and become one batch."""
    size = sum(len(record.metadata) for record in taken.values())
    if len(taken) > offsets.PARTITIONS_MAX or size > offsets.METADATA_SUM_MAX:
        raise ClusterError(
            f"transaction {event.transactional_id!r} would have offsets of {len(taken)} partitions "
            f"with {size} characters of metadata for group {event.group_id!r}; the limits are "
            f"{offsets.PARTITIONS_MAX} and {offsets.METADATA_SUM_MAX}: commit more often",
            ErrorCode.TRANSACTION_TOO_LARGE,
        )


# ---------------------------------------------------------------- the end


def _apply(book: Book, group: Group, event: TransactionEnded, pending: PendingRecord) -> None:
    book.put_pending(group, event.producer_id, None)
    if event.commit:
        for part, record in pending.offsets.items():
            book.put_offset(group, part, record)
        book.commits += len(pending.offsets)


def _give_up(book: Book, key: GuardKey, guard: Guard, error: PenstockError) -> None:
    del book.guards[key]
    _answer_all(book, guard, error)


def _answer_all(book: Book, guard: Guard, error: PenstockError) -> None:
    for request in guard.waiting:
        book.say(Reply(request.request_id, error))


def _fenced(key: EndedKey, producer_epoch: int, ended_epoch: int) -> ClusterError:
    return ClusterError(
        f"transaction {producer_epoch} of producer {key.producer_id} has ended in group "
        f"{key.group_id!r}, where {ended_epoch} is the last one that ended: nothing was committed",
        ErrorCode.PRODUCER_FENCED,
    )


def _outcome(committed: bool) -> str:
    return "committed" if committed else "aborted"
