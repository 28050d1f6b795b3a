"""A defect anywhere in a coordinator ends it: nothing of the event leaves but what is owed."""

from typing import Any, get_args

import pytest
from support.defects import PlantedError, every_line
from support.group_desk import Desk

from penstock.core.groups import contract as c
from penstock.core.groups.catalog import Catalog, CatalogTopic, NamedPartition, Subscription
from penstock.core.groups.contract_views import DescribeRequested, FetchRequested, ListRequested
from penstock.core.types import ProducerId, TopicId
from penstock.errors import ErrorCode

STREAM, NEW_STREAM, REQUEST = 1, 77, 99
T = TopicId("id-t")
PART = NamedPartition(topic="t", topic_id=T, partition=0)
OFFSETS = (c.NewOffset(where=PART, offset=7),)
EVENTS: tuple[c.Event, ...] = (
    c.MemberJoined(
        stream_id=NEW_STREAM,
        group_id="g",
        member_id="b",
        subscription=Subscription(topics=("t",)),
    ),
    c.MemberHeard(stream_id=STREAM, subscription=Subscription(topics=("t", "u"))),
    c.MemberLeft(stream_id=STREAM),
    c.StreamBroken(stream_id=STREAM),
    c.CommitRequested(
        request_id=REQUEST,
        group_id="free",
        member_id="",
        member_epoch=-1,
        instance_id="",
        offsets=OFFSETS,
    ),
    FetchRequested(request_id=REQUEST, group_id="free"),
    c.ResetRequested(request_id=REQUEST, group_id="free", offsets=OFFSETS),
    c.DeleteRequested(request_id=REQUEST, group_id="free"),
    ListRequested(request_id=REQUEST),
    DescribeRequested(request_id=REQUEST, group_id="g", include_offsets=True),
    c.TransactionEnded(
        request_id=REQUEST,
        group_id="free",
        transactional_id="pay",
        producer_id=ProducerId(7),
        producer_epoch=0,
        commit=True,
    ),
    c.TransactionJoined(
        group_id="free", transactional_id="pay", producer_id=ProducerId(7), number=1
    ),
    c.TopicsChanged(catalog=Catalog.of(CatalogTopic(name="t", topic_id=T, partitions=9))),
    c.Tick(),
)
KINDS = {kind for one in get_args(c.Event) for kind in (get_args(one) or (one,))}


def test_every_event_is_tried() -> None:
    assert {type(event) for event in EVENTS} == KINDS


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_a_defect_at_any_line_ends_the_coordinator(event: c.Event) -> None:
    for plant in every_line("groups", "handle", "_refusals"):
        desk = Desk()
        desk.join("a", "t")
        desk.commit({("t", 0): 5}, group="free")
        desk.now_ms += 10**9
        with plant:
            ready = desk.machine.handle(event, desk.now_ms)
        if not plant.struck:
            assert desk.machine.error is None
            continue
        error = desk.machine.error
        assert ready.stopped is error
        assert error is not None
        assert error.code is ErrorCode.INTERNAL
        assert isinstance(error.__cause__, PlantedError)
        assert ready == c.Ready(outputs=owed(event, error), stopped=error)
        for later in EVENTS:
            answer = desk.machine.handle(later, desk.now_ms)
            assert answer == c.Ready(outputs=owed(later, error)), "refused, and nothing else"


def owed(event: c.Event, error: Any) -> tuple[c.Output, ...]:
    if isinstance(event, c.MemberJoined):
        return (c.EndStream(stream_id=NEW_STREAM, error=error),)
    if hasattr(event, "request_id"):
        return (c.Reply(request_id=REQUEST, answer=error),)
    return ()
