"""Batches that many tasks write, each attempt with a branch of its own, all decided at once.

    begin (task 0, attempt 0) ─▶ branch 1, OPEN ─┐
    begin (task 1, attempt 0) ─▶ branch 2, OPEN ─┼─▶ commit_batch names 1 and 3: they commit,
    begin (task 1, attempt 1) ─▶ branch 3, OPEN ─┘   2 aborts, the ledger records batch 7:
                                                     one append (I11)

A branch is open from its begin on, so that the end of a batch also ends attempts that have not
written yet. A run is one execution of a batch by a driver. The first begin of another run means
that the older one is dead or superseded: its branches are aborted and the run is refused from then
on. The ledger is checked first: a committed batch is neither written again nor aborted. Later
batches reuse branches; their number is that of the tasks that run at once.
"""

from dataclasses import replace
from typing import Final

from penstock.core.run_name import RunName
from penstock.core.transactions import ending
from penstock.core.transactions.config import check_transactional_id
from penstock.core.transactions.contract import (
    AbortBatchRequested,
    BatchAborted,
    BatchCommitted,
    BeginBranchRequested,
    BranchBegun,
    CommitBatchRequested,
    ForgetLedgerRequested,
    LedgerForgotten,
)
from penstock.core.transactions.producers import (
    check_open,
    check_room,
    check_text,
    checked_timeout_ms,
)
from penstock.core.transactions.records import (
    BranchRecord,
    EndReason,
    IdRecord,
    LedgerRecord,
)
from penstock.core.transactions.refusals import at, refusal
from penstock.core.transactions.replays import committed_before
from penstock.core.transactions.state import Book, Branch, Holder
from penstock.errors import ClusterError, ErrorCode, PenstockError

_INT64_MAX: Final = 2**63 - 1


# ---------------------------------------------------------------- begin


def begin(book: Book, event: BeginBranchRequested) -> BranchBegun:
    """Raises ClusterError: LEDGER_MISMATCH, PRODUCER_FENCED (an older run), TRANSACTION_ABORTED
    (this attempt has ended), TRANSACTION_TOO_LARGE, OVERLOADED, INVALID_REQUEST."""
    attempt = event.attempt
    _check(event.application_id, event.checkpoint, attempt.run, attempt.batch)
    check_text(client_id=event.client_id)
    timeout_ms = checked_timeout_ms(book, event.timeout_ms)
    application_id = event.application_id
    ledger = _ledger(book, application_id, event.checkpoint)
    if attempt.batch <= ledger.batch:
        return BranchBegun(already_committed=True)
    _check_run(application_id, ledger, attempt.run)
    check_room(book, new_id=application_id not in book.holders)
    if attempt.run != ledger.run:
        _new_run(book, event, ledger)
    holder = book.holders[application_id]
    known = _begun(book, holder, event)
    if known is not None:
        return _begun_answer(known)
    check_open(book)
    branch = _idle_branch(book, holder, event)
    record = replace(
        branch.record,
        is_open=True,
        timeout_ms=timeout_ms,
        started_ms=book.time_ms,
        attempt=attempt,
    )
    book.put_branch(branch, record)
    return _begun_answer(branch)


def _begun_answer(branch: Branch) -> BranchBegun:
    record = branch.record
    return BranchBegun(
        already_committed=False,
        branch=branch.number,
        producer_id=record.producer_id,
        producer_epoch=record.epoch,
    )


def _new_run(book: Book, event: BeginBranchRequested, ledger: LedgerRecord) -> None:
    """The older run is refused from now on, and its open branches are aborted at once."""
    application_id, run = event.application_id, event.attempt.run
    holder = book.holders.get(application_id)
    owner = IdRecord() if holder is None else holder.record
    owner = replace(
        owner,
        client_id=event.client_id,
        client_host=event.client_host,
        used_ms=book.time_ms,
    )
    holder = holder or Holder(application_id, owner)
    book.put_holder(holder, owner)
    aborted = _abort(book, _open_branches(holder))
    book.put_ledger(
        application_id,
        replace(
            ledger,
            checkpoint=event.checkpoint,
            run=run,
            used_ms=book.time_ms,
            superseded=_superseded(book, ledger, ledger.run),
        ),
    )
    if aborted:
        book.decide("run superseded", id=application_id, run=run, older=ledger.run, aborted=aborted)


def _superseded(book: Book, ledger: LedgerRecord, run: str) -> tuple[str, ...]:
    lost = (run,) if run and run not in ledger.superseded else ()
    return (*ledger.superseded, *lost)[-book.config.superseded_max :]


def _begun(book: Book, holder: Holder, event: BeginBranchRequested) -> Branch | None:
    """The branch that this attempt has already begun; raises if it has ended."""
    branch = holder.attempts.get(event.attempt)
    if branch is None or branch.record.is_open:
        return branch
    last = branch.record.last
    assert last is not None, f"{branch} was begun and is idle, but has never ended"
    raise refusal(book, branch, last.producer_id, last.epoch)


def _idle_branch(book: Book, holder: Holder, event: BeginBranchRequested) -> Branch:
    """A branch to reuse, preferably one whose participants have all stored its last end."""
    idle = holder.idle.values()
    found = next((b for b in idle if b.is_settled and not _is_of(b, event)), None)
    if idle:
        return found or min(idle, key=lambda branch: not branch.is_settled)
    if len(holder.branches) - (0 in holder.branches) >= book.config.branches_max:
        raise ClusterError(
            f"application {holder.transactional_id!r} has {book.config.branches_max} branches "
            "open, which is the limit; run fewer tasks per batch",
            ErrorCode.TRANSACTION_TOO_LARGE,
        )
    if holder.branch_bytes >= book.config.id_bytes_max:
        raise ClusterError(
            f"the branches of {holder.transactional_id!r} take {holder.branch_bytes} bytes, the "
            f"limit is {book.config.id_bytes_max}; write with fewer tasks, or to fewer partitions",
            ErrorCode.TRANSACTION_TOO_LARGE,
        )
    number = max(holder.branches, default=0) + 1
    record = BranchRecord(producer_id=event.fresh_producer_id)
    return Branch(holder.transactional_id, number, record)


def _is_of(branch: Branch, event: BeginBranchRequested) -> bool:
    """Its attempt, of the same run, is remembered: a late copy of its begin is refused."""
    attempt = branch.record.attempt
    return attempt is not None and attempt.run == event.attempt.run


# ---------------------------------------------------------------- the batch's end


def commit_batch(book: Book, event: CommitBatchRequested) -> BatchCommitted | None:
    """None: the answer comes once it is visible. Raises ClusterError: LEDGER_MISMATCH,
    PRODUCER_FENCED, TRANSACTION_ABORTED (a branch has ended; nothing was committed), …"""
    _check(event.application_id, event.checkpoint, event.run, event.batch)
    _check_named(book, event)
    ledger = _ledger(book, event.application_id, event.checkpoint)
    if event.batch <= ledger.batch:
        return committed_before(book, event, ledger)
    _check_run(event.application_id, ledger, event.run)
    holder = book.holders.get(event.application_id)
    if not event.branches:
        if holder is not None:
            _abort(book, _of_run(holder, event.run))
        return BatchCommitted(already_committed=False)
    named = _named(book, book.holder(event.application_id), event)
    holder = book.holders[event.application_id]
    others = [branch for branch in _open_branches(holder) if branch.number not in named]
    decided = [
        (branch, (b.producer_id, b.epoch)) for branch in named.values() if (b := branch.record)
    ]
    for branch in named.values():
        ending.decide(book, branch, commit=True, reason=EndReason.PRODUCER)
    aborted = _abort(book, others)
    _advance(book, event, ledger)
    book.decide(
        "batch committed",
        id=event.application_id,
        batch=event.batch,
        rows=event.rows,
        branches=len(named),
        aborted=aborted,
    )
    answer = BatchCommitted(already_committed=False)
    return ending.answer_when_visible(
        book, (event.request_id, event.wait_visible_ms), answer, decided
    )


def _advance(book: Book, event: CommitBatchRequested, ledger: LedgerRecord) -> None:
    rows = (*ledger.rows, (event.batch, event.rows))[-book.config.rows_kept :]
    digests = (*ledger.digests, (event.batch, event.digest))
    kept = dict(rows)
    book.put_ledger(
        event.application_id,
        replace(
            ledger,
            checkpoint=event.checkpoint,
            used_ms=book.time_ms,
            batch=event.batch,
            batch_run=event.run,
            replay="",
            time_ms=book.time_ms,
            rows=rows,
            digests=tuple((batch, digest) for batch, digest in digests if digest and batch in kept),
        ),
    )


def _named(book: Book, holder: Holder, event: CommitBatchRequested) -> dict[int, Branch]:
    """The branches that commit, all of them open. Raises ClusterError."""
    named = {}
    for number, epoch in event.branches:
        branch = holder.branches.get(number)
        attempt = None if branch is None else branch.record.attempt
        if branch is None or attempt is None:
            raise ClusterError(
                f"application {event.application_id!r} has no branch {number}",
                ErrorCode.INVALID_REQUEST,
            )
        record = branch.record
        if not record.is_open or record.epoch != epoch:
            raise _not_open(book, branch, epoch)
        if (attempt.run, attempt.batch) != (event.run, event.batch):
            raise ClusterError(
                f"{branch} belongs to batch {attempt.batch} of run {attempt.run!r}, not to batch "
                f"{event.batch} of run {event.run!r}",
                ErrorCode.INVALID_REQUEST,
            )
        named[number] = branch
    return named


def _not_open(book: Book, branch: Branch, epoch: int) -> PenstockError:
    last = branch.record.last
    if last is not None and last.epoch == epoch and last.reason is not EndReason.PRODUCER:
        return refusal(book, branch, last.producer_id, epoch)
    return ClusterError(
        f"transaction {epoch} of {branch} has ended, so the batch cannot be committed with it; "
        "nothing was committed: write the batch again",
        ErrorCode.TRANSACTION_ABORTED,
    )


def abort_batch(book: Book, event: AbortBatchRequested) -> BatchAborted:
    """Aborts the run's open branches; nothing more of the run is accepted. Raises ClusterError.

    Its execution is enough to name the run: a driver whose tasks cannot tell knows no more.
    """
    _check(event.application_id, event.checkpoint, event.run, event.batch)
    ledger = book.ledgers.get(event.application_id) or LedgerRecord()
    is_running = RunName.parse(event.run).execution == RunName.parse(ledger.run).execution
    if not is_running:
        _ledger(book, event.application_id, event.checkpoint)
    if event.batch <= ledger.batch:
        return BatchAborted(already_committed=True)
    holder = book.holders.get(event.application_id)
    if holder is not None and is_running:
        aborted = _abort(book, _open_branches(holder))
        superseded = _superseded(book, ledger, ledger.run)
        book.put_ledger(
            event.application_id,
            replace(ledger, run="", used_ms=book.time_ms, superseded=superseded),
        )
        book.decide("batch aborted", id=event.application_id, batch=event.batch, branches=aborted)
    else:
        book.confirm()  # a newer leader may know this run
    return BatchAborted(already_committed=False)


def forget_ledger(book: Book, event: ForgetLedgerRequested) -> LedgerForgotten:
    """The next batch is accepted as the first; open branches of the application are aborted."""
    check_transactional_id(event.application_id)
    if event.application_id not in book.ledgers:
        book.confirm()
        return LedgerForgotten(forgotten=False)
    holder = book.holders.get(event.application_id)
    aborted = 0
    for branch in [] if holder is None else _open_branches(holder):
        ending.decide(book, branch, commit=False, reason=EndReason.OPERATOR)
        aborted += 1
    book.put_ledger(event.application_id, None)
    book.decide("ledger forgotten", id=event.application_id, aborted=aborted)
    return LedgerForgotten(forgotten=True)


# ---------------------------------------------------------------- parts


def _open_branches(holder: Holder) -> list[Branch]:
    """The open branches, without that of a plain producer."""
    return [branch for n, branch in holder.branches.items() if n > 0 and branch.record.is_open]


def _of_run(holder: Holder, run: str) -> list[Branch]:
    return [
        branch
        for branch in _open_branches(holder)
        if branch.record.attempt is not None and branch.record.attempt.run == run
    ]


def _abort(book: Book, branches: list[Branch]) -> int:
    for branch in branches:
        ending.decide(book, branch, commit=False, reason=EndReason.SUPERSEDED)
    return len(branches)


def _ledger(book: Book, application_id: str, checkpoint: str) -> LedgerRecord:
    """Raises ClusterError(LEDGER_MISMATCH)."""
    ledger = book.ledgers.get(application_id) or LedgerRecord()
    if ledger.batch >= 0 and checkpoint != ledger.checkpoint:
        raise ClusterError(
            f"application {application_id!r} has committed batches up to {ledger.batch} for "
            f"checkpoint {ledger.checkpoint!r}, last at {at(ledger.time_ms)}; this is checkpoint "
            f"{checkpoint!r}: use another application id, or delete the ledger with: penstock "
            f"txn forget-ledger {application_id}",
            ErrorCode.LEDGER_MISMATCH,
        )
    return ledger


def _check_run(application_id: str, ledger: LedgerRecord, run: str) -> None:
    if run in ledger.superseded:
        raise ClusterError(
            f"run {run!r} of application {application_id!r} has ended: "
            + (f"run {ledger.run!r} has replaced it" if ledger.run else "it was aborted"),
            ErrorCode.PRODUCER_FENCED,
        )


def _check(application_id: str, checkpoint: str, run: str, batch: int) -> None:
    check_transactional_id(application_id)
    check_text(checkpoint=checkpoint, run=run)
    if not run or not 0 <= batch <= _INT64_MAX:
        raise ClusterError(
            f"run is {run!r} and batch is {batch}; the run must not be empty, the batch must "
            f"be 0 to {_INT64_MAX}",
            ErrorCode.INVALID_REQUEST,
        )


def _check_named(book: Book, event: CommitBatchRequested) -> None:
    limit = book.config.branches_max
    if len(event.branches) > limit:
        raise ClusterError(
            f"batch {event.batch} names {len(event.branches)} branches, the limit is {limit}; run "
            "fewer tasks per batch",
            ErrorCode.TRANSACTION_TOO_LARGE,
        )
    # One branch in two epochs is legal: an attempt expired, and another reused it.
    names = set(event.branches)
    if len(names) < len(event.branches) or not 0 <= event.rows <= _INT64_MAX:
        raise ClusterError(
            f"batch {event.batch} names {len(event.branches)} branches, {len(names)} of them "
            f"distinct, and {event.rows} rows; name each branch once, and 0 or more rows",
            ErrorCode.INVALID_REQUEST,
        )
