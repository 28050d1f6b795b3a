"""A committed batch that comes again: the answer to its commit.

A restarted driver computes the newest batch again, perhaps with other rows, and these do not count.
Everything else whose rows differ would lose them: the sink compares the digest that is answered.
Such are batches older than the newest, and the newest one if
- a later batch has begun: the driver had recorded this one, so the checkpoint is an older copy;
- the same start of the query has committed it, or had it answered before: it is another output, or
  the query has come here from an older batch;
- it comes from a checkpoint at another place, which is a copy.
"""

from dataclasses import replace

from penstock.core.run_name import COLUMN, RunName
from penstock.core.transactions.contract import BatchCommitted, CommitBatchRequested
from penstock.core.transactions.records import LedgerRecord
from penstock.core.transactions.state import Book
from penstock.errors import ClusterError, ErrorCode


def committed_before(
    book: Book, event: CommitBatchRequested, ledger: LedgerRecord
) -> BatchCommitted:
    """Raises ClusterError(LEDGER_MISMATCH): the newest batch comes for another topic."""
    rows_then = _rows_then(book, ledger, event.batch)
    digest_then = dict(ledger.digests).get(event.batch, 0)
    is_replay = event.batch == ledger.batch and _may_be_replay(ledger, event.run)
    if is_replay:
        digest_then = 0
    if event.batch == ledger.batch:
        _check_target(event, ledger)
    others = 0 != event.digest != digest_then != 0
    if others or rows_then not in {-1, event.rows}:
        book.decide(
            "a committed batch was written again with different rows",
            id=event.application_id,
            batch=event.batch,
            rows_then=rows_then,
            rows=event.rows,
            others=others,
        )
    if is_replay or event.batch < ledger.batch:
        _note(book, event, ledger)
    return BatchCommitted(already_committed=True, rows_then=rows_then, digest_then=digest_then)


def _may_be_replay(ledger: LedgerRecord, run: str) -> bool:
    """Whether it may be the newest batch, computed again by a restarted driver."""
    if run in {ledger.batch_run, ledger.replay}:
        return True  # the answer was lost
    if ledger.run != ledger.batch_run:
        return False
    now, then, before = map(RunName.parse, (run, ledger.batch_run, ledger.replay))
    is_same_start = now.query_run in {then.query_run, before.query_run} - {""}
    return not is_same_start and not _differ(now.place, then.place)


def _note(book: Book, event: CommitBatchRequested, ledger: LedgerRecord) -> None:
    """Each start of a query replays at most one batch of its own: the first is remembered."""
    query_run = RunName.parse(event.run).query_run
    if query_run and query_run != RunName.parse(ledger.replay).query_run:
        book.put_ledger(event.application_id, replace(ledger, replay=event.run))


def _check_target(event: CommitBatchRequested, ledger: LedgerRecord) -> None:
    now, then = RunName.parse(event.run).target, RunName.parse(ledger.batch_run).target
    if _differ(now, then):
        raise ClusterError(
            f"batch {event.batch} of application {event.application_id!r} was written to "
            f"{_named(then)}, and now comes for {_named(now)}: nothing was written; give each "
            "output of a batch a txnAppId of its own; if the query has another topic now, run it "
            "once with the old one",
            ErrorCode.LEDGER_MISMATCH,
        )


def _named(target: str) -> str:
    return "topics of a column" if target == COLUMN else f"topic {target!r}"


def _differ(one: str, other: str) -> bool:
    """What is unknown proves nothing."""
    return "" != one != other != ""


def _rows_then(book: Book, ledger: LedgerRecord, batch: int) -> int:
    """-1: no longer stored. A batch that was empty has no entry: it did not change the ledger."""
    rows = dict(ledger.rows)
    if batch in rows or not rows:
        return rows.get(batch, -1)
    complete = len(ledger.rows) < book.config.rows_kept or batch > ledger.rows[0][0]
    return 0 if complete else -1
