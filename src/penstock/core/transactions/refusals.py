"""Why a call about a transaction is refused: what ended it, which producer has the id.

Fenced is fatal: another producer has the id, and is named. Aborted is not: its timeout, an operator
or a newer batch has ended the transaction, and the same producer continues with the next (KIP-588).
"""

from datetime import UTC, datetime

from penstock.core.transactions.contract import JoinRequested
from penstock.core.transactions.records import EndReason, LastEnd
from penstock.core.transactions.state import Book, Branch, Holder
from penstock.core.types import ProducerId
from penstock.errors import ClusterError, ErrorCode, PenstockError

_BY = {
    EndReason.PRODUCER: "its own producer",
    EndReason.TIMEOUT: "its timeout",
    EndReason.OPERATOR: "an operator",
    EndReason.FENCED: "another producer that took over the id",
    EndReason.SUPERSEDED: "a newer run or batch of the application",
    EndReason.MEMBER_GONE: "its group, which removed the member",
}


def at(time_ms: int) -> str:
    """A time since 1970 for people."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


def refusal(book: Book, branch: Branch, producer_id: ProducerId, epoch: int) -> PenstockError:
    """Why nothing more can be done in this epoch, which is not the branch's current one."""
    if producer_id == branch.record.producer_id and epoch > branch.record.epoch:
        return _behind(branch, epoch)
    last = branch.record.last
    if last is not None and (last.producer_id, last.epoch) == (producer_id, epoch):
        by_others = last.reason not in {EndReason.FENCED, EndReason.PRODUCER}
        return aborted(branch, last) if by_others else _fenced(book, branch, producer_id, epoch)
    return _fenced(book, branch, producer_id, epoch)


def _behind(branch: Branch, epoch: int) -> ClusterError:
    """Epochs come from coordinators: a later one has continued, and this one does not know it yet.

    A deposed coordinator can answer this, as nothing is appended for retriable errors; it must not
    end a healthy producer. If the record of that epoch was lost, what is open here ends first.
    """
    return ClusterError(
        f"this coordinator of {branch} knows epochs up to {branch.record.epoch}, but the request "
        f"names {epoch}: another broker probably coordinates it now, so look up the coordinator "
        "again; if the epoch was made up, use the one from the last answer",
        ErrorCode.NOT_COORDINATOR,
    )


def aborted(branch: Branch, last: LastEnd) -> ClusterError:
    return ClusterError(
        f"transaction {last.epoch} of {branch} (producer id {last.producer_id}) was aborted by "
        f"{_BY[last.reason]} at {at(last.time_ms)}; begin the next one",
        ErrorCode.TRANSACTION_ABORTED,
    )


def _fenced(book: Book, branch: Branch, producer_id: ProducerId, epoch: int) -> ClusterError:
    return fenced(book.holders[branch.transactional_id], branch, producer_id, epoch)


def fenced(
    holder: Holder, branch: Branch | None, producer_id: ProducerId, epoch: int
) -> ClusterError:
    """`branch` None: the id does not have this producer id."""
    record = holder.record
    now = "no such producer id"
    if branch is not None:
        now = f"producer id {branch.record.producer_id}, epoch {branch.record.epoch}"
    return ClusterError(
        f"epoch {epoch} of producer id {producer_id} has ended: transactional id "
        f"{holder.transactional_id!r} now has {now}; it was taken over by client "
        f"{record.client_id!r} at {record.client_host or 'an unknown host'}, {at(record.used_ms)}",
        ErrorCode.PRODUCER_FENCED,
    )


def parked_too_long(branch: Branch, event: JoinRequested) -> ClusterError:
    return ClusterError(
        f"{event.participant} has not stored yet how the transaction of {branch} before epoch "
        f"{event.producer_epoch} ended: it has no leader, or cannot write; try again",
        ErrorCode.CONCURRENT_TRANSACTIONS,
    )


def ended_otherwise(branch: Branch, last: LastEnd, *, commit: bool) -> ClusterError:
    was, asked = ("committed" if kept else "aborted" for kept in (last.commit, commit))
    return ClusterError(
        f"transaction {last.epoch} of {branch} was {was} at {at(last.time_ms)}; it can no longer "
        f"be {asked}",
        ErrorCode.INVALID_TRANSACTION_STATE,
    )


def not_begun(branch: Branch, epoch: int) -> ClusterError:
    return ClusterError(
        f"transaction {epoch} of {branch} was never begun; its epoch is {branch.record.epoch}; "
        "use the producer id and epoch from the last answer",
        ErrorCode.INVALID_TRANSACTION_STATE,
    )
