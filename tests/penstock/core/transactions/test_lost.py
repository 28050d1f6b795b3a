"""What a power loss of all brokers took from some of them only ends for all who wait for it."""

import pytest
from support.transaction_desk import CONFIRMATION, P0, P1, Desk, refused

from penstock.core.transactions.contract import EndRequested
from penstock.core.transactions.contract_views import FindRequested, Found
from penstock.core.types import ProducerId
from penstock.errors import ErrorCode


def find(desk: Desk, *transactions: tuple[ProducerId, int]) -> Found:
    found = desk.ask(FindRequested, transactions=frozenset(transactions))
    assert isinstance(found, Found)
    assert found.ended.keys() <= found.known, "a broker of a former release must not abort it"
    return found


@pytest.mark.parametrize("commit", [True, False])
def test_who_has_lost_the_marker_is_told_the_outcome(desk: Desk, commit: bool) -> None:
    who = desk.init()
    desk.join(who, P0)
    desk.end(who, commit=commit)
    assert find(desk, who).ended == {who: commit}, "also while it is finishing"
    desk.finished(P0, who=who)
    desk.pass_time(desk.config.finished_flush_ms)
    desk.restart()
    assert find(desk, who).ended == {who: commit}


def test_what_is_open_is_left_to_its_timeout(desk: Desk) -> None:
    who = desk.init()
    desk.join(who, P0)
    found = find(desk, who, (who[0], who[1] + 1))
    assert found.known == {who, (who[0], who[1] + 1)}
    assert found.ended == {}
    assert desk.ready.records == (CONFIRMATION,)
    desk.join(who, P1)


@pytest.mark.parametrize("lost", [1, 4])
def test_a_transaction_whose_record_was_lost_aborts(desk: Desk, lost: int) -> None:
    """Its records here end before it: by one transaction, or by several."""
    producer_id, _ = desk.init()
    desk.join((producer_id, 0), P0)
    desk.end((producer_id, 0))
    desk.finished(P0, who=(producer_id, 0))
    found = find(desk, (producer_id, lost))
    assert found.ended == {(producer_id, lost): False}
    assert desk.record().epoch == lost + 1
    before = desk.record()
    desk.restart()
    assert desk.record() == before, "it is decided, and stored"
    with refused(ErrorCode.TRANSACTION_ABORTED):
        desk.join((producer_id, lost), P1)


def test_of_several_that_were_lost_only_the_newest_is_told(desk: Desk) -> None:
    producer_id, _ = desk.init()
    first, second = (producer_id, 0), (producer_id, 1)
    assert find(desk, first, second).ended == {first: False, second: False}
    desk.restart()
    found = find(desk, first, second)
    assert found.known == {second}, "nobody knows the first one: its partition's leader aborts it"
    assert found.ended == {second: False}


@pytest.mark.parametrize("lost", [1, 4])
@pytest.mark.parametrize("commit", [True, False])
def test_a_producer_whose_epoch_was_lost_goes_on_with_the_next(
    desk: Desk, lost: int, commit: bool
) -> None:
    """Seed 138 with `--blackouts`: it was sent to another coordinator, and there was none."""
    producer_id, _ = desk.init()
    ended = desk.ask(
        EndRequested,
        transactional_id="tx",
        producer_id=producer_id,
        producer_epoch=lost,
        commit=commit,
    )
    assert (ended.producer_id, ended.producer_epoch) == (producer_id, lost + 1)
    code = None if ended.error is None else ended.error.code
    assert code is (ErrorCode.TRANSACTION_ABORTED if commit else None)
    assert desk.ready.records, "a deposed coordinator cannot commit that, and so does not answer"
    desk.restart()
    desk.join((producer_id, lost + 1), P0)


def test_what_would_join_a_transaction_that_was_lost_is_told_that_it_is_aborted(desk: Desk) -> None:
    producer_id, _ = desk.init()
    with refused(ErrorCode.TRANSACTION_ABORTED):
        desk.join((producer_id, 3), P0)
    assert desk.ready.records
    desk.join((producer_id, 4), P0)


@pytest.mark.parametrize("epoch", [100_001, 2**31 - 1])
def test_an_epoch_that_is_too_far_ahead_uses_up_none(desk: Desk, epoch: int) -> None:
    """A few thousand of those would leave the coordinator without a producer id to go on with."""
    producer_id, _ = desk.init()
    with refused(ErrorCode.NOT_COORDINATOR):
        desk.join((producer_id, epoch), P0)
    with refused(ErrorCode.NOT_COORDINATOR):
        desk.end((producer_id, epoch), commit=False)
    assert desk.record().epoch == 0
    desk.join((producer_id, 0), P0)
