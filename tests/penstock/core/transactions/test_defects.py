"""A defect anywhere in a coordinator ends it: nothing of the event leaves but what is owed."""

from typing import Any, get_args

import pytest
from support.defects import PlantedError, every_line
from support.transaction_desk import FRESH, P0, P1

from penstock.core.transactions import contract as c
from penstock.core.transactions.contract_views import (
    DescribeRequested,
    FindRequested,
    LedgersRequested,
    ListRequested,
)
from penstock.core.transactions.records import Attempt
from penstock.core.types import ProducerId, TopicId
from penstock.errors import ErrorCode

REQUEST = 99
NEW = ProducerId(FRESH + 50)
PLAIN = ProducerId(FRESH)
EVENTS: tuple[c.Event, ...] = (
    c.InitRequested(
        request_id=REQUEST, transactional_id="tx", instance_id="b", fresh_producer_id=NEW
    ),
    c.JoinRequested(
        request_id=REQUEST,
        transactional_id="tx",
        producer_id=PLAIN,
        producer_epoch=1,
        participant=P0,
    ),
    c.EndRequested(
        request_id=REQUEST,
        transactional_id="tx",
        producer_id=PLAIN,
        producer_epoch=1,
        commit=True,
        wait_visible_ms=100,
    ),
    c.BeginBranchRequested(
        request_id=REQUEST,
        application_id="app",
        checkpoint="cp",
        attempt=Attempt("r2", 0, 0, 0),
        fresh_producer_id=NEW,
    ),
    c.CommitBatchRequested(
        request_id=REQUEST,
        application_id="app",
        checkpoint="cp",
        run="r1",
        batch=0,
        rows=1,
        branches=((1, 0),),
        wait_visible_ms=100,
    ),
    c.AbortBatchRequested(
        request_id=REQUEST, application_id="app", checkpoint="cp", run="r1", batch=0
    ),
    ListRequested(request_id=REQUEST),
    DescribeRequested(request_id=REQUEST, transactional_id="tx"),
    c.AbortRequested(request_id=REQUEST, transactional_id="tx", comment="why"),
    FindRequested(REQUEST, frozenset({(PLAIN, 1), (NEW, 0)})),
    LedgersRequested(request_id=REQUEST),
    c.ForgetLedgerRequested(request_id=REQUEST, application_id="app"),
    c.FinishedHeard(P0, PLAIN, 0),
    c.ImageChanged(frozenset()),
    c.TopicsGone(frozenset({TopicId("t")})),
    c.Tick(),
)
KINDS = {kind for one in get_args(c.Event) for kind in (get_args(one) or (one,))}


def test_every_event_is_tried() -> None:
    assert {type(event) for event in EVENTS} == KINDS


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_a_defect_at_any_line_ends_the_coordinator(desk: Any, event: c.Event) -> None:
    for plant in every_line("transactions", "handle", "_refusals"):
        desk.__init__()
        who = desk.init()
        desk.join(who, P0)
        desk.end(who)
        desk.join((who[0], 1), P1)
        begun = desk.begin()
        desk.join((begun.producer_id, 0), P0, "app")
        if isinstance(event, c.Tick):
            desk.now_ms += 10**9
        with plant:
            ready = desk.machine.handle(event, desk.now_ms)
        if not plant.struck:
            assert desk.machine.error is None
            continue
        error = desk.machine.error
        assert ready.stopped is error
        assert error.code is ErrorCode.INTERNAL
        assert isinstance(error.__cause__, PlantedError)
        assert ready == c.Ready(outputs=owed(event, error), stopped=error)
        for later in EVENTS:
            answer = desk.machine.handle(later, desk.now_ms)
            assert answer == c.Ready(outputs=owed(later, error)), "refused, and nothing else"


def owed(event: c.Event, error: Any) -> tuple[c.Output, ...]:
    return (c.Reply(REQUEST, error),) if hasattr(event, "request_id") else ()
