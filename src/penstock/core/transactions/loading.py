"""Computes a coordinator's state from the records of its log.

    load, load, … ─▶ the newest value per key ─▶ ids and ledgers, then their branches

Records that contradict each other are corruption: a branch without its id, or two with the same
producer id. Then the ids of this log are not served, rather than wrongly (I16).
"""

from collections.abc import Mapping

from penstock.core.transactions.records import (
    BranchKey,
    BranchRecord,
    IdKey,
    IdRecord,
    Key,
    LedgerKey,
    LedgerRecord,
    Value,
    decode_key,
    decode_value,
)
from penstock.core.transactions.state import Book, Branch, Holder, producer_ids
from penstock.core.types import ProducerId
from penstock.errors import ClusterError, ErrorCode


class Loader:
    """Reads a log's records, oldest first."""

    def __init__(self) -> None:
        self._found: dict[Key, tuple[Value, int]] = {}

    def add(self, key: bytes | None, value: bytes | None) -> None:
        """The next record. Raises ClusterError(DATA_CORRUPTED)."""
        known = decode_key(key)
        if known is None:
            return
        if value is None or key is None:
            self._found.pop(known, None)
        else:
            self._found[known] = decode_value(known, value), len(key) + len(value)

    def fill(self, book: Book) -> None:
        """The state as of the last record. Raises ClusterError(DATA_CORRUPTED)."""
        book.is_loading = True
        for key, (value, size) in self._found.items():
            book.state_bytes += size
            if isinstance(key, IdKey) and isinstance(value, IdRecord):
                holder = Holder(key.transactional_id, value, size_bytes=size)
                book.put_holder(holder, value)
            elif isinstance(key, LedgerKey) and isinstance(value, LedgerRecord):
                book.put_ledger(key.transactional_id, value)
                book.ledger_bytes[key.transactional_id] = size
        for key, (value, size) in self._found.items():
            if isinstance(key, BranchKey) and isinstance(value, BranchRecord):
                _check_branch(book.holders, book.producers, key, value)
                branch = Branch(key.transactional_id, key.branch, value, size_bytes=size)
                book.put_branch(branch, value)
                book.holders[key.transactional_id].branch_bytes += size
        book.is_loading = False


def _check_branch(
    holders: Mapping[str, Holder],
    producers: Mapping[ProducerId, Branch],
    key: BranchKey,
    value: BranchRecord,
) -> None:
    problem = ""
    if key.transactional_id not in holders:
        problem = "belongs to an id that was never stored"
    for producer_id in producer_ids(value):
        if producer_id in producers:
            problem = f"has producer id {producer_id}, as {producers[producer_id]} has"
    if problem:
        raise ClusterError(
            f"the transactions topic is inconsistent: {key} {problem}; the ids of its partition "
            "are unavailable",
            ErrorCode.DATA_CORRUPTED,
        )
