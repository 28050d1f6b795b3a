"""An operator's aborts: what they may end, and their answers. Planted: `test_simulation`."""

import pytest

from penstock.core.transactions.contract_views import ListedTransaction, TransactionState
from penstock.core.transactions.records import BranchKey, BranchRecord, EndReason, LastEnd
from penstock.core.types import ProducerId
from penstock.errors import ClusterError, ErrorCode
from penstock_sim.aborting import AbortChecks, Order
from penstock_sim.scheduler import BASE_TIME_MS, RATE, RuleError
from penstock_sim.world import World, simulate

WHO = (ProducerId(7), 3)


def test_an_operator_ends_what_it_saw_and_nothing_that_came_after() -> None:
    histories = [
        simulate(seed, groups=False, transactions=True, operator=True) for seed in range(9)
    ]
    histories += [simulate(seed, pipe=True, operator=True) for seed in range(3)]
    for history in histories:
        assert history.violation is None, (history.seed, history.violation)
    assert sum(history.aborts_hit for history in histories) > 20
    assert sum(history.aborts_asked for history in histories) > 100


def seen(*, is_open: bool = True) -> ListedTransaction:
    return ListedTransaction(
        transactional_id="tx",
        branch=0,
        state=TransactionState.OPEN if is_open else TransactionState.IDLE,
        producer_id=WHO[0],
        producer_epoch=WHO[1],
        open_ms=1,
        finishing=0,
        finishing_ms=0,
        client_id="",
        client_host="",
    )


def ended(*, epoch: int = WHO[1], at_ms: int = 20) -> BranchRecord:
    end = LastEnd(
        producer_id=WHO[0],
        epoch=epoch,
        commit=False,
        reason=EndReason.OPERATOR,
        time_ms=BASE_TIME_MS + at_ms * RATE,
    )
    return BranchRecord(producer_id=WHO[0], epoch=epoch + 1, last=end)


class Log:
    """The committed log, as the checks get it, and one order of the operator."""

    def __init__(self, order: Order) -> None:
        self.world = World(1, groups=False, transactions=True)
        self.checks = AbortChecks(self.world)
        self.checks.orders.append(order)
        self.order = order

    def append(self, record: BranchRecord, name: str = "tx") -> None:
        assert record.last is not None
        self.world.transaction_checks.outcomes[WHO[0], record.last.epoch] = False
        self.checks.branch_changed(BranchKey(name, 0), record)


@pytest.mark.parametrize("epoch", [WHO[1], -1])
def test_one_that_names_the_epoch_or_none_ends_it(epoch: int) -> None:
    log = Log(Order("tx", epoch, seen(), sent_ms=10))
    log.append(ended())
    log.order.until_ms = 700
    log.checks.told(log.order, 1)
    log.checks.check_end()


@pytest.mark.parametrize(
    ("order", "name"),
    [
        (Order("tx", WHO[1] - 1, seen(), sent_ms=10), "tx"),
        (Order("tx", WHO[1] + 1, seen(), sent_ms=10), "tx"),
        (Order("tx", -1, seen(), sent_ms=10), "another"),
        (Order("tx", -1, seen(), sent_ms=21), "tx"),
        (Order("tx", -1, seen(), sent_ms=10, until_ms=19), "tx"),
    ],
    ids=["stale", "later", "another id", "not asked yet", "its last copy has come"],
)
def test_no_other_ends_it(order: Order, name: str) -> None:
    with pytest.raises(RuleError, match=r"^I11: .* who asked for no such thing at that time"):
        Log(order).append(ended(), name)


def test_an_operator_is_told_of_as_many_as_there_were() -> None:
    log = Log(Order("tx", WHO[1], seen(), sent_ms=10))
    with pytest.raises(RuleError, match=r"^I11: .* told to have aborted 1, by the log it is \[\]"):
        log.checks.told(log.order, 1)


def test_what_was_seen_open_has_ended_when_the_operator_is_answered() -> None:
    log = Log(Order("tx", WHO[1], seen(), sent_ms=10))
    with pytest.raises(RuleError, match=r"^I11: .* is answered, and \(7, 3\) is open still"):
        log.checks.told(log.order, 0)
    log.world.transaction_checks.outcomes[WHO] = True
    log.checks.told(log.order, 0)


def test_what_was_not_seen_open_may_be_open_now() -> None:
    log = Log(Order("tx", WHO[1], seen(is_open=False), sent_ms=10))
    log.checks.told(log.order, 0)


def test_only_an_id_that_is_made_up_is_unknown() -> None:
    unknown = ClusterError("never heard of it", ErrorCode.UNKNOWN_TRANSACTIONAL_ID)
    log = Log(Order("none", -1, None, sent_ms=10))
    log.checks.refused(log.order, unknown)
    log.order.seen = seen()
    with pytest.raises(RuleError, match=r"^I11: .* hears UNKNOWN_TRANSACTIONAL_ID"):
        log.checks.refused(log.order, unknown)


def test_everybody_is_answered_in_the_end_and_nothing_is_committed_after_all() -> None:
    log = Log(Order("tx", WHO[1], seen(), sent_ms=10))
    log.append(ended())
    with pytest.raises(RuleError, match=r"^I24: .* never answered"):
        log.checks.check_end()
    log.world.transaction_checks.outcomes[WHO] = True
    with pytest.raises(RuleError, match=r"^I11: \(7, 3\) of 'tx' was aborted by an operator"):
        log.checks.check_end()
