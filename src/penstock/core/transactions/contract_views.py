"""Requests about transactions that change nothing, and their answers.

    list, describe ─▶ for people      find ─▶ for partitions with open transactions
    ledgers ─▶ what Spark queries have committed

Like all outputs of `contract`, an answer is sent once the high watermark has passed everything
appended before: it reports nothing that a failover could undo (I16).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from penstock.core.transactions.records import BranchRecord, IdRecord, LedgerRecord
from penstock.core.types import ProducerId

# ---------------------------------------------------------------- asked


@dataclass(frozen=True, slots=True)
class ListRequested:
    """No states: all. `older_than_ms`: open, or finishing, for at least this long."""

    request_id: int
    states: frozenset[TransactionState] = frozenset()
    older_than_ms: int = 0
    producer_id: ProducerId | None = None


@dataclass(frozen=True, slots=True)
class DescribeRequested:
    request_id: int
    transactional_id: str


@dataclass(frozen=True, slots=True)
class FindRequested:
    """Which of these (producer id, epoch) this coordinator knows, and will therefore end.

    All have been open in a participant for longer than any may be.
    """

    request_id: int
    transactions: frozenset[tuple[ProducerId, int]]


@dataclass(frozen=True, slots=True)
class LedgersRequested:
    request_id: int


# ---------------------------------------------------------------- answered


class TransactionState(Enum):
    """A branch's two states; `records.BranchRecord`."""

    IDLE = "Idle"
    OPEN = "Open"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTransaction:
    """One branch. `open_ms`: for how long it has been open, 0 = it is not; likewise `finishing_ms`
    of participants that have not stored an end yet."""

    transactional_id: str
    branch: int
    state: TransactionState
    producer_id: ProducerId
    producer_epoch: int
    open_ms: int
    finishing: int
    finishing_ms: int
    client_id: str
    client_host: str


@dataclass(frozen=True, slots=True)
class Listed:
    transactions: tuple[ListedTransaction, ...]


@dataclass(frozen=True, slots=True)
class Described:
    """As recorded. `used_ms` (since 1970): the last init, opening or decision."""

    transactional_id: str
    record: IdRecord
    used_ms: int
    branches: Mapping[int, BranchRecord]


@dataclass(frozen=True, slots=True)
class Found:
    """The known transactions, and of these the outcome of each that has ended: True = committed."""

    known: frozenset[tuple[ProducerId, int]]
    ended: Mapping[tuple[ProducerId, int], bool]


@dataclass(frozen=True, slots=True)
class Ledgers:
    """Ledgers by application id."""

    ledgers: Mapping[str, LedgerRecord]
