"""What is known here of transactions that a participant has had open for longer than any may be.

    open in a partition or group ─▶ its leader asks all coordinators (`orphans`) ─▶ find

    unknown               ─▶ the leader aborts it there
    open, or to be opened ─▶ known: it will be ended, at its timeout at the latest
    ended                 ─▶ known, and how it ended: the leader ends it there so

Only a loss beyond what is promised makes a participant ask about one that has ended, or that was
never opened here: all replicas of the marker, or of the coordinator's record, lost power before it
was on a disk. Data of an epoch is written only once the coordinator's record of it is on all
in-sync replicas, so an idle branch that is asked about its epoch, or a later one, has lost that
record: it decides to abort. Nothing else would end it, and its readers would wait for ever (I24).
So it does where a producer names a later epoch than an idle branch has (`producers`).
"""

from dataclasses import replace

from penstock.core.transactions import ending
from penstock.core.transactions.contract_views import FindRequested, Found
from penstock.core.transactions.records import BranchRecord, EndReason
from penstock.core.transactions.state import Book, Branch
from penstock.core.types import ProducerId

_Transaction = tuple[ProducerId, int]


def find(book: Book, event: FindRequested) -> Found:
    """What is known of them; decides those whose record was lost, oldest epoch first."""
    known: set[_Transaction] = set()
    ended: dict[_Transaction, bool] = {}
    for producer_id, epoch in sorted(event.transactions):
        branch = book.producers.get(producer_id)
        if branch is None:
            continue
        record = branch.record
        if producer_id == record.producer_id and epoch >= record.epoch and not record.is_open:
            abort(book, branch, epoch)
        outcomes = _outcomes(branch.record)
        if (producer_id, epoch) in outcomes:
            ended[producer_id, epoch] = outcomes[producer_id, epoch]
        elif producer_id != record.producer_id or epoch < record.epoch:
            continue
        known.add((producer_id, epoch))
    return Found(frozenset(known), ended)


def abort(book: Book, branch: Branch, epoch: int) -> None:
    """Of an idle branch: this epoch, and all before it."""
    record = branch.record
    book.decide(
        "aborted a transaction whose record was lost",
        id=branch.transactional_id,
        branch=branch.number,
        producer_id=record.producer_id,
        epoch=epoch,
        expected_epoch=record.epoch,
    )
    if epoch > record.epoch:
        book.put_branch(branch, replace(record, epoch=epoch))
    ending.decide(book, branch, commit=False, reason=EndReason.TIMEOUT)


def _outcomes(record: BranchRecord) -> dict[_Transaction, bool]:
    """Those that are remembered: of what is finishing, and of the last one."""
    found = {(one.producer_id, one.epoch): one.commit for one in record.finishing.values()}
    if record.last is not None:
        found[record.last.producer_id, record.last.epoch] = record.last.commit
    return found
