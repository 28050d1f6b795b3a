"""Views of a coordinator's transactions, as of its newest record."""

from dataclasses import dataclass, replace

from penstock.core.transactions.contract_views import (
    Described,
    DescribeRequested,
    Ledgers,
    Listed,
    ListedTransaction,
    ListRequested,
    TransactionState,
)
from penstock.core.transactions.state import Book, Branch, Holder
from penstock.errors import ClusterError, ErrorCode


def list_transactions(book: Book, event: ListRequested) -> Listed:
    """By transactional id and branch. Raises ClusterError(INVALID_REQUEST)."""
    if event.older_than_ms < 0:
        raise ClusterError(
            f"older_than_ms is {event.older_than_ms}; it must be 0 or more",
            ErrorCode.INVALID_REQUEST,
        )
    if event.older_than_ms > 0:
        busy = {**book.open, **book.unsettled}
    else:
        busy = {
            (h.transactional_id, n): b for h in book.holders.values() for n, b in h.branches.items()
        }
    found = [
        _listed(book, book.holders[branch.transactional_id], branch)
        for _, branch in sorted(busy.items())
        if event.producer_id in {None, branch.record.producer_id}
    ]
    return Listed(tuple(one for one in found if _is_wanted(one, event)))


def _listed(book: Book, holder: Holder, branch: Branch) -> ListedTransaction:
    record = branch.record
    since_ms = branch.finishing_since_ms
    return ListedTransaction(
        transactional_id=holder.transactional_id,
        branch=branch.number,
        state=TransactionState.OPEN if record.is_open else TransactionState.IDLE,
        producer_id=record.producer_id,
        producer_epoch=record.epoch,
        open_ms=open_ms(book, branch),
        finishing=len(branch.finishing),
        finishing_ms=0 if since_ms is None else max(1, book.now_ms - since_ms),
        client_id=holder.record.client_id,
        client_host=holder.record.client_host,
    )


def _is_wanted(one: ListedTransaction, event: ListRequested) -> bool:
    if event.states and one.state not in event.states:
        return False
    return max(one.open_ms, one.finishing_ms) >= event.older_than_ms


def open_ms(book: Book, branch: Branch) -> int:
    """How long it has been open, on the machine's clock as far as known; 0: it is not."""
    if branch.deadline_ms is None:
        return 0
    return max(1, book.now_ms - branch.deadline_ms + branch.record.timeout_ms)


def describe(book: Book, event: DescribeRequested) -> Described:
    """Raises ClusterError(UNKNOWN_TRANSACTIONAL_ID)."""
    holder = book.holder(event.transactional_id)
    branches = {number: branch.record for number, branch in sorted(holder.branches.items())}
    return Described(holder.transactional_id, holder.record, holder.used_ms, branches)


def ledgers(book: Book) -> Ledgers:
    """All of them, by application id."""
    return Ledgers(dict(sorted(book.ledgers.items())))


@dataclass(frozen=True, slots=True)
class LedgerAge:
    """When an application's newest batch was committed, in ms since 1970."""

    application_id: str
    committed_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """For metrics. `finishing`: participants that have not stored an end; times in ms, 0 = none."""

    ids: int
    open: int
    oldest_open_ms: int
    finishing: int
    oldest_finishing_ms: int
    ledgers: int
    ledger_ages: tuple[LedgerAge, ...]

    def later(self, passed_ms: int) -> "Census":
        """The same transactions after so long."""
        return replace(
            self,
            oldest_open_ms=self.oldest_open_ms + passed_ms if self.open else 0,
            oldest_finishing_ms=self.oldest_finishing_ms + passed_ms if self.finishing else 0,
        )


def take_census(book: Book) -> Census:
    """Scans open and unsettled transactions and ledgers, not all ids."""
    unsettled = book.unsettled.values()
    since_ms = [b.finishing_since_ms for b in unsettled if b.finishing_since_ms is not None]
    return Census(
        ids=len(book.holders),
        open=len(book.open),
        oldest_open_ms=max((open_ms(book, branch) for branch in book.open.values()), default=0),
        finishing=sum(len(branch.finishing) for branch in unsettled),
        oldest_finishing_ms=max((book.now_ms - since for since in since_ms), default=0),
        ledgers=len(book.ledgers),
        ledger_ages=tuple(
            LedgerAge(name, one.time_ms) for name, one in book.ledgers.items() if one.batch >= 0
        ),
    )
