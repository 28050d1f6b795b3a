"""`penstock_transactions_ended_total` counts each decision by its outcome and who made it.

The machine that decides, and the metrics of a broker behind it.
"""

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from support.transaction_desk import GROUP, TIME_MS, Desk

from penstock.core.transactions import contract as c
from penstock.core.transactions.records import EndReason
from penstock_broker.transactions.metrics import TransactionMetrics


class Metered(Desk):
    """A desk whose decisions are counted as a broker's host counts them."""

    def __post_init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = TransactionMetrics(self.registry, lambda: TIME_MS)
        super().__post_init__()

    def take(self, ready: c.Ready) -> c.Ready:
        self.metrics.decided(ready)
        return super().take(ready)

    @property
    def ended(self) -> dict[tuple[str, str], float]:
        """(outcome, reason) to how many."""
        return {
            (sample.labels["outcome"], sample.labels["reason"]): sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == "penstock_transactions_ended_total"
        }


def opened(desk: Metered, **fields: Any) -> Any:
    who = desk.init(**fields)
    desk.join(who)
    return who


def commit(desk: Metered) -> None:
    desk.end(opened(desk))


def abort(desk: Metered) -> None:
    desk.end(opened(desk), commit=False)


def pass_its_timeout(desk: Metered) -> None:
    opened(desk, timeout_ms=1_000)
    desk.pass_time(2_000)


def abort_by_hand(desk: Metered) -> None:
    opened(desk)
    desk.abort()


def take_its_id(desk: Metered) -> None:
    opened(desk)
    desk.init(instance="another")


def begin_a_newer_run(desk: Metered) -> None:
    branch = desk.begin(run="r1")
    desk.join((branch.producer_id, branch.producer_epoch), name="app")
    desk.begin(run="r2")


def lose_its_member(desk: Metered) -> None:
    desk.join(opened(desk), GROUP)
    desk.abort(reason=EndReason.MEMBER_GONE)


HOW = {
    ("commit", "producer"): commit,
    ("abort", "producer"): abort,
    ("abort", "timeout"): pass_its_timeout,
    ("abort", "operator"): abort_by_hand,
    ("abort", "fenced"): take_its_id,
    ("abort", "superseded"): begin_a_newer_run,
    ("abort", "member_gone"): lose_its_member,
}


@pytest.mark.parametrize(("labels", "act"), HOW.items(), ids=["-".join(each) for each in HOW])
def test_a_decision_is_counted_once_by_outcome_and_reason(
    labels: tuple[str, str], act: Callable[[Metered], None]
) -> None:
    desk = Metered()
    act(desk)
    assert desk.ended == {labels: 1}


def test_every_reason_is_caused_here() -> None:
    assert {reason for _, reason in HOW} == {each.value.replace(" ", "_") for each in EndReason}
