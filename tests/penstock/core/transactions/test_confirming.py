"""What only the present coordinator may say leaves behind a record; a deposed one stays silent.

Another broker coordinates meanwhile, and the one that is asked has not heard of it: whatever it
appends is never committed, so that what waits behind a record is never told.
"""

from collections.abc import Callable

import pytest
from support.transaction_desk import FRESH, P0, P1, Desk, refused

from penstock.core.transactions import contract as c
from penstock.core.transactions.contract_views import DescribeRequested, FindRequested, Found
from penstock.core.types import ProducerId
from penstock.errors import ErrorCode

STRANGER = ProducerId(FRESH + 99)


@pytest.mark.parametrize(
    ("code", "call"),
    [
        (ErrorCode.UNKNOWN_TRANSACTIONAL_ID, lambda desk: desk.join((STRANGER, 0), name="new")),
        (ErrorCode.UNKNOWN_TRANSACTIONAL_ID, lambda desk: desk.end((STRANGER, 0), name="new")),
        (ErrorCode.UNKNOWN_TRANSACTIONAL_ID, lambda desk: desk.abort("new")),
        (ErrorCode.PRODUCER_FENCED, lambda desk: desk.join((STRANGER, 0))),
        (ErrorCode.PRODUCER_FENCED, lambda desk: desk.end((STRANGER, 0))),
    ],
)
def test_a_refusal_that_ends_a_client_leaves_behind_a_record(
    code: ErrorCode, call: Callable[[Desk], object]
) -> None:
    desk = Desk()
    desk.init()
    with refused(code):
        call(desk)
    assert desk.confirmed
    assert not desk.changes


def test_a_branch_or_ledger_that_an_old_state_lacks_is_refused_behind_a_record() -> None:
    desk = Desk()
    begun = desk.begin()
    desk.end((begun.producer_id, begun.producer_epoch), commit=False, name="app")
    with refused(ErrorCode.INVALID_TRANSACTION_STATE):
        desk.join((begun.producer_id, begun.producer_epoch + 1), name="app")
    assert desk.confirmed
    with refused(ErrorCode.INVALID_REQUEST):
        desk.commit_batch(c.BranchBegun(already_committed=False, branch=9, producer_epoch=0))
    assert desk.confirmed


def test_that_there_is_nothing_to_abort_is_told_behind_a_record() -> None:
    """Seed 31395: it began at the next coordinator, and an operator was told that none was open."""
    desk = Desk()
    desk.init()
    assert desk.abort() == 0
    assert desk.confirmed
    desk.begin()
    assert desk.abort("app", producer_epoch=7) == 0
    assert desk.confirmed
    assert not desk.abort_batch(run="r2"), "not committed, and not of the run that is known"
    assert desk.confirmed
    forgotten = desk.ask(c.ForgetLedgerRequested, application_id="another")
    assert not forgotten.forgotten
    assert desk.confirmed
    assert not desk.changes


def test_what_is_retriable_or_only_looked_at_costs_no_record() -> None:
    desk = Desk()
    producer_id, epoch = desk.init()
    desk.join((producer_id, epoch))
    with refused(ErrorCode.NOT_COORDINATOR):
        desk.join((producer_id, epoch + 1))
    assert not desk.confirmed
    with refused(ErrorCode.UNKNOWN_TRANSACTIONAL_ID):
        desk.ask(DescribeRequested, transactional_id="new")
    assert not desk.confirmed
    with refused(ErrorCode.INVALID_REQUEST):
        desk.init("bad", timeout_ms=-1)
    assert not desk.confirmed


def test_the_record_changes_nothing_for_whoever_loads_the_log() -> None:
    desk = Desk()
    who = desk.init()
    desk.join(who)
    before = desk.record()
    with refused(ErrorCode.PRODUCER_FENCED):
        desk.join((STRANGER, 0))
    desk.restart()
    assert desk.record() == before
    assert set(desk.machine.holders) == {"tx"}


# ---------------------------------------------------------------- which transactions are known


def find(desk: Desk, *transactions: tuple[ProducerId, int]) -> set[tuple[ProducerId, int]]:
    found = desk.ask(FindRequested, transactions=frozenset(transactions))
    assert isinstance(found, Found)
    assert desk.confirmed, "from an old state it could call unknown what is not"
    return set(found.known)


def test_known_is_what_may_still_end_by_this_coordinator() -> None:
    desk = Desk()
    producer_id, _ = desk.init()
    assert find(desk, (STRANGER, 0)) == set()
    desk.join((producer_id, 0), P0)
    assert find(desk, (producer_id, 0)) == {(producer_id, 0)}, "it is open"
    desk.end((producer_id, 0))
    assert find(desk, (producer_id, 0)) == {(producer_id, 0)}, "P0 has not stored yet"
    desk.join((producer_id, 1), P1)
    desk.end((producer_id, 1))
    desk.finished(P1, who=(producer_id, 1))
    desk.join((producer_id, 2), P1)
    asked = [(producer_id, epoch) for epoch in range(-1, 5)]
    known = {(producer_id, epoch) for epoch in (0, 1, 2, 3, 4)}
    assert find(desk, *asked) == known, "finishing, the last one, the present one, and later ones"
    desk.finished(P0, who=(producer_id, 0))
    desk.pass_time(desk.config.finished_flush_ms)
    assert find(desk, *asked) == known - {(producer_id, 0)}
    desk.restart()
    assert find(desk, *asked) == known - {(producer_id, 0)}
