"""Transactions: what is open, the oldest first, who owns it, whom it blocks. Pure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.views import cells
from penstock.views.cells import Cell, Column, Table, Tone
from penstock.views.topics import topic_href

if TYPE_CHECKING:
    from penstock.client import BlockingTransaction, TransactionListing

LONG_MS: Final = 60_000
"""A producer's default timeout: what is open for longer deserves a look."""
OPEN: Final = (
    Column("id", "Transactional id"),
    Column("open_s", "Open for", numeric=True),
    Column("finishing", "Still finishing", numeric=True),
    Column("client", "Client"),
    Column("host", "Host"),
    Column("producer", "Producer", numeric=True),
    Column("epoch", "Epoch", numeric=True),
)
BLOCKING: Final = (
    Column("partition", "Partition"),
    Column("id", "Transactional id"),
    Column("age_s", "For", numeric=True),
    Column("behind", "Records hidden", numeric=True),
    Column("last_stable_offset", "Readers wait at", numeric=True),
    Column("state", "State"),
)


def open_table(listed: "Sequence[TransactionListing]", limit: int) -> Table:
    """Open or not stored everywhere yet, the oldest first."""
    busy = [one for one in listed if one.open_ms is not None or one.finishing]
    busy.sort(key=lambda one: -max(one.open_ms or 0, one.finishing_ms or 0))
    rows = []
    for one in busy[:limit]:
        tone: Tone = "odd" if (one.open_ms or 0) > LONG_MS else ""
        name = f"{one.transactional_id} (branch {one.branch})" if one.branch else None
        rows.append(
            (
                cells.text(name or one.transactional_id),
                cells.age(one.open_ms, tone),
                cells.number(one.finishing),
                cells.text(one.client_id),
                cells.text(one.client_host),
                cells.identifier(one.producer_id),
                cells.identifier(one.producer_epoch),
            )
        )
    idle = len(listed) - len(busy)
    notes = []
    if len(busy) > limit:
        notes.append(f"the oldest {limit:,} of {len(busy):,}")
    if idle:
        notes.append(f"{cells.plural(idle, 'transactional id')} without an open transaction")
    return Table(
        "Open transactions", OPEN, tuple(rows), "No transaction is open.", "; ".join(notes)
    )


def blocking_table(blocking: "Sequence[BlockingTransaction]", limit: int) -> Table:
    """Who keeps readers of committed records waiting."""
    rows = []
    for one in sorted(blocking, key=lambda each: -(each.age_ms or 0))[:limit]:
        if one.owner is None:
            state = Cell("unknown", "no coordinator knows it", "bad")
        elif one.is_decided:
            state = Cell("decided", "decided, not stored yet", "odd")
        else:
            state = Cell("open", "open")
        rows.append(
            (
                cells.text(str(one.where), topic_href(one.where.topic)),
                cells.text(one.owner.transactional_id if one.owner else None),
                cells.age(one.age_ms),
                cells.number(one.high_watermark - one.last_stable_offset),
                cells.identifier(one.last_stable_offset),
                state,
            )
        )
    note = f"the first {limit:,} of {len(blocking):,}" if len(blocking) > limit else ""
    return Table(
        "Blocking readers", BLOCKING, tuple(rows), "No reader waits for a transaction.", note
    )
