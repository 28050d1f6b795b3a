"""Members one by one: who is refused and why, who keeps what, who is put out and when (I18)."""

from dataclasses import replace
from typing import Any

import pytest
from support.group_desk import Desk

from penstock.core.groups import GroupConfig
from penstock.core.groups import contract as c
from penstock.core.groups.catalog import NO_PARTS, Catalog, CatalogTopic, Subscription
from penstock.core.groups.contract_views import DescribeRequested, GroupState
from penstock.core.types import TopicId
from penstock.errors import ErrorCode, MisuseError

ALL = {("t", 0), ("t", 1), ("t", 2), ("t", 3)}


def test_the_first_member_is_told_its_epoch_and_then_what_it_owns(desk: Desk) -> None:
    stream_id = desk.join("m")
    joined, assignment = desk.ready.outputs
    assert joined == c.SendJoined(
        stream_id=stream_id,
        member_epoch=1,
        heartbeat_interval_ms=15_000,
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
    )
    assert isinstance(assignment, c.SendAssignment)
    assert (assignment.member_epoch, assignment.number) == (1, 1)
    assert assignment.names == {"id-t": "t"}
    assert desk.owned("m") == ALL
    assert desk.state() is GroupState.STABLE


def test_a_second_member_gets_its_share_when_the_first_has_given_it_up(desk: Desk) -> None:
    one = desk.join("one")
    desk.join("two")
    assert desk.owned("two") == set(), "two join within 100 ms: one computation later"
    assert desk.state() is GroupState.ASSIGNING
    desk.pass_time(100)
    assert desk.state() is GroupState.RECONCILING
    kept = desk.owned("one")
    assert len(kept) == 2
    assert desk.owned("two") == set()
    ready = desk.acknowledge(one)
    assert len(desk.owned("two")) == 2
    assert desk.owned("one") == kept
    assert desk.state() is GroupState.STABLE
    assert [type(output) for output in ready.outputs] == [c.SendAssignment, c.SendAssignment]


def test_an_answer_that_was_said_before_the_revocation_was_heard_counts_for_nothing(
    desk: Desk,
) -> None:
    one = desk.join("one")
    desk.join("two")
    desk.pass_time(100)
    desk.feed(c.MemberHeard(one, c.Owned(NO_PARTS, 1)))
    assert desk.owned("two") == set()
    desk.feed(c.MemberHeard(one, c.Owned(NO_PARTS, 2)))
    assert len(desk.owned("two")) == 2


def test_one_record_per_members_assignment_and_not_per_partition(desk: Desk) -> None:
    desk.catalog = Catalog.of(CatalogTopic("t", TopicId("id-t"), 900))
    desk.feed(c.TopicsChanged(desk.catalog))
    for index in range(30):
        desk.join(f"m{index:02}")
        desk.pass_time(100)
        for stream_id in list(desk.machine._book.streams):
            desk.acknowledge(stream_id)
    before = len(desk.log)
    desk.join("new")
    desk.pass_time(100)
    for stream_id in list(desk.machine._book.streams):
        desk.acknowledge(stream_id)
    assert len(desk.owned("new")) == 29
    assert desk.state() is GroupState.STABLE
    assert len(desk.log) - before < 200


@pytest.mark.parametrize(
    ("fields", "code", "what"),
    [
        ({"group": ""}, ErrorCode.INVALID_REQUEST, "group id '' has 0 characters"),
        ({"group": "g" * 250}, ErrorCode.INVALID_REQUEST, "250 characters"),
        ({"group": "a\nb"}, ErrorCode.INVALID_REQUEST, "printable"),
        ({"instance_id": "i" * 250}, ErrorCode.INVALID_REQUEST, "instance_id"),
        ({"member_epoch": -1}, ErrorCode.INVALID_REQUEST, "member epoch is -1"),
        ({"session_timeout_ms": 999}, ErrorCode.INVALID_REQUEST, "1000 to 1800000"),
        ({"rebalance_timeout_ms": 86_400_001}, ErrorCode.INVALID_REQUEST, "1000 to 86400000"),
        ({"assignor": "best"}, ErrorCode.UNSUPPORTED_ASSIGNOR, "uniform, range"),
        ({"subscription": Subscription()}, ErrorCode.INVALID_REQUEST, "to nothing"),
        ({"subscription": Subscription(("a/b",))}, ErrorCode.INVALID_TOPIC_NAME, "'/'"),
        ({"subscription": Subscription(("__x",))}, ErrorCode.INVALID_TOPIC_NAME, "internal"),
        ({"subscription": Subscription((), "(")}, ErrorCode.INVALID_REQUEST, "not closed"),
        (
            {"subscription": Subscription(tuple(f"t{i}" for i in range(1_001)))},
            ErrorCode.INVALID_REQUEST,
            "1001 topics",
        ),
        ({"member_epoch": 3}, ErrorCode.UNKNOWN_MEMBER, "no member 'm'"),
    ],
)
def test_a_hello_that_cannot_be_is_refused_and_changes_nothing(
    desk: Desk, fields: dict[str, Any], code: ErrorCode, what: str
) -> None:
    error = desk.refused("m", **fields)
    assert error.code is code
    assert what in error.message
    assert not desk.machine.groups


def test_a_hello_without_a_member_id_is_refused(desk: Desk) -> None:
    assert "member id is empty" in desk.refused("").message


def test_groups_and_members_are_bounded(desk: Desk) -> None:
    desk.machine._book.config = GroupConfig(members_max=1, groups_max=1)
    desk.join("one")
    assert desk.refused("two").code is ErrorCode.OVERLOADED
    assert desk.refused("two", group="h").code is ErrorCode.OVERLOADED
    with pytest.raises(Exception, match="has 1 groups"):
        desk.commit({("t", 0): 1}, group="h")


def test_a_dynamic_member_whose_stream_broke_has_a_moment_to_come_back(desk: Desk) -> None:
    stream_id = desk.join("m")
    desk.feed(c.StreamBroken(stream_id))
    desk.pass_time(1_400)
    desk.join("m", member_epoch=1, owned=desk.machine.groups["g"].members["m"].current.parts)
    assert desk.owned("m") == ALL
    assert not desk.ready.records, "nothing changed"
    desk.feed(c.StreamBroken(desk.ids))
    desk.pass_time(1_500)
    assert not desk.machine.groups["g"].members
    assert desk.state() is GroupState.EMPTY


def test_silence_ends_a_session_and_heartbeats_keep_it(desk: Desk) -> None:
    stream_id = desk.join("m", session_timeout_ms=10_000)
    for _ in range(5):
        assert desk.pass_time(9_000) == []
        assert desk.feed(c.MemberHeard(stream_id)) is c.NOTHING
    (output,) = desk.pass_time(10_000)
    assert isinstance(output, c.EndStream)
    assert output.error is not None
    assert output.error.code is ErrorCode.UNKNOWN_MEMBER
    assert "10000 ms" in output.error.message
    assert desk.feed(c.MemberHeard(stream_id)) is c.NOTHING
    assert desk.feed(c.MemberLeft(stream_id)) is c.NOTHING
    assert desk.feed(c.StreamBroken(stream_id)) is c.NOTHING


def test_who_does_not_give_up_in_time_is_fenced(desk: Desk) -> None:
    one = desk.join("one", rebalance_timeout_ms=2_000)
    desk.join("two")
    outputs = desk.pass_time(100 + 1_999)
    assert not [o for o in outputs if isinstance(o, c.EndStream)]
    outputs = desk.pass_time(1)
    ended = [o for o in outputs if isinstance(o, c.EndStream)]
    assert [e.stream_id for e in ended] == [one]
    assert "2000 ms" in str(ended[0].error)
    desk.pass_time(100)
    assert desk.owned("two") == ALL


def test_a_member_that_claims_what_it_was_not_given_is_put_out(desk: Desk) -> None:
    stream_id = desk.join("m")
    foreign = frozenset({(TopicId("id-u"), 0)})
    (output,) = desk.feed(c.MemberHeard(stream_id, c.Owned(foreign, 1))).outputs
    assert isinstance(output, c.EndStream)
    assert output.error is not None
    assert output.error.code is ErrorCode.STALE_MEMBER_EPOCH
    assert not desk.machine.groups["g"].members


def test_a_subscription_that_is_not_valid_ends_the_member_with_the_reason(desk: Desk) -> None:
    stream_id = desk.join("m")
    wrong = Subscription(("..",))
    (output,) = desk.feed(c.MemberHeard(stream_id, subscription=wrong)).outputs
    assert isinstance(output, c.EndStream)
    assert isinstance(output.error, MisuseError)


def test_a_member_comes_back_only_as_itself(desk: Desk) -> None:
    desk.join("m")
    parts = desk.machine.groups["g"].members["m"].current.parts
    assert desk.refused("m", member_epoch=2).code is ErrorCode.STALE_MEMBER_EPOCH
    foreign = frozenset({(TopicId("id-u"), 0)})
    assert (
        desk.refused("m", member_epoch=1, owned=parts | foreign).code
        is ErrorCode.STALE_MEMBER_EPOCH
    )
    assert desk.refused("m", instance_id="i").code is ErrorCode.INVALID_REQUEST


def test_another_stream_of_the_same_member_takes_the_place_of_the_first(desk: Desk) -> None:
    first = desk.join("m")
    parts = desk.machine.groups["g"].members["m"].current.parts
    desk.join("m", member_epoch=1, owned=parts)
    ended = desk.ready.outputs[0]
    assert isinstance(ended, c.EndStream)
    assert ended.error is not None
    assert (ended.stream_id, ended.error.code) == (first, ErrorCode.STALE_MEMBER_EPOCH)
    assert desk.owned("m") == ALL


def test_a_member_that_starts_over_owns_nothing_for_a_moment(desk: Desk) -> None:
    desk.join("m")
    desk.join("m")
    assert desk.owned("m") == ALL
    assert isinstance(desk.ready.outputs[-1], c.SendAssignment)
    assert desk.machine.groups["g"].record.epoch == 1, "nobody else is concerned"


# ---------------------------------------------------------------- static members


def static_pair(desk: Desk, seat: str = "i") -> tuple[int, int]:
    """`one` on a seat, `two` without, two partitions each."""
    one = desk.join("one", instance_id=seat)
    two = desk.join("two")
    desk.pass_time(100)
    desk.acknowledge(one)
    assert len(desk.owned("one")) == len(desk.owned("two")) == 2
    return one, two


@pytest.mark.parametrize("how", ["left", "broken"])
def test_a_seat_is_taken_over_with_its_partitions_and_nobody_else_moves(
    desk: Desk, how: str
) -> None:
    one, two = static_pair(desk)
    before, other = desk.owned("one"), desk.owned("two")
    epoch = desk.machine.groups["g"].record.epoch
    desk.feed(c.MemberLeft(one, keep_seat=True) if how == "left" else c.StreamBroken(one))
    desk.pass_time(44_000 - desk.now_ms)
    desk.feed(c.MemberHeard(two))
    desk.join("new", instance_id="i")
    assert desk.owned("new") == before
    assert desk.owned("two") == other
    assert desk.machine.groups["g"].record.epoch == epoch
    assert desk.refused("one", instance_id="i", member_epoch=1).code is (
        ErrorCode.FENCED_INSTANCE_ID
    )


@pytest.mark.parametrize("how", ["left", "broken"])
def test_a_seat_that_nobody_takes_is_given_up_after_the_session_timeout(
    desk: Desk, how: str
) -> None:
    one, two = static_pair(desk)
    desk.feed(c.MemberLeft(one, keep_seat=True) if how == "left" else c.StreamBroken(one))
    for _ in range(5):
        desk.pass_time(9_001)
        desk.feed(c.MemberHeard(two))
    desk.pass_time(100)
    assert desk.owned("two") == ALL


def test_a_live_seat_is_not_given_away_not_even_after_a_failover(desk: Desk) -> None:
    static_pair(desk)
    assert desk.refused("new", instance_id="i").code is ErrorCode.UNRELEASED_INSTANCE_ID
    desk.restart()
    assert desk.refused("new", instance_id="i").code is ErrorCode.UNRELEASED_INSTANCE_ID


def test_a_seat_that_was_left_is_free_after_a_failover_too(desk: Desk) -> None:
    one, _ = static_pair(desk)
    before = desk.owned("one")
    desk.feed(c.MemberLeft(one, keep_seat=True))
    desk.restart()
    desk.join("new", instance_id="i")
    assert desk.owned("new") == before


def test_partitions_of_an_empty_seat_move_without_waiting_for_anyone(desk: Desk) -> None:
    one, _ = static_pair(desk, "z")  # the last in order has least when it does not divide
    desk.feed(c.MemberLeft(one, keep_seat=True))
    desk.now_ms += 1_000
    desk.join("three")
    assert [len(desk.owned(member)) for member in ("one", "two", "three")] == [1, 2, 1]
    assert desk.state() is GroupState.STABLE


def test_a_member_that_left_its_seat_may_come_back_itself(desk: Desk) -> None:
    one, _ = static_pair(desk)
    before = desk.owned("one")
    desk.feed(c.MemberLeft(one, keep_seat=True))
    member = desk.machine.groups["g"].members["one"]
    desk.join("one", instance_id="i", member_epoch=member.current.epoch, owned=member.current.parts)
    assert desk.owned("one") == before
    assert not member.current.left


def test_a_leave_with_keep_seat_of_a_member_without_one_is_a_leave(desk: Desk) -> None:
    stream_id = desk.join("m")
    assert desk.feed(c.MemberLeft(stream_id, keep_seat=True)).outputs == (
        c.EndStream(stream_id, None),
    )
    assert not desk.machine.groups["g"].members


# ---------------------------------------------------------------- topics and failover


def test_topics_that_grow_come_and_go_are_seen(desk: Desk) -> None:
    stream_id = desk.join("m", subscription=Subscription(("t",), "[u-v]"))
    desk.now_ms += 1_000
    known = desk.catalog.topics
    t, u = known[TopicId("id-t")], known[TopicId("id-u")]
    desk.feed(c.TopicsChanged(Catalog.of(replace(t, partitions=5), u)))
    assert ("t", 4) in desk.owned("m")
    desk.now_ms += 1_000
    v = CatalogTopic("v", TopicId("id-v"), 1)
    desk.feed(c.TopicsChanged(Catalog.of(t, v)))
    assert desk.owned("m") == ALL, "what is gone is to be given up first"
    desk.acknowledge(stream_id)
    assert desk.owned("m") == ALL | {("v", 0)}
    epoch = desk.machine.groups["g"].record.epoch
    desk.feed(c.TopicsChanged(Catalog.of(t, v, CatalogTopic("w", TopicId("id-w"), 9))))
    assert desk.machine.groups["g"].record.epoch == epoch, "nobody reads it"


def test_what_changed_while_nobody_led_is_seen_at_the_start(desk: Desk) -> None:
    desk.join("m")
    more = CatalogTopic("t", TopicId("id-t"), 6)
    ready = desk.restart(Catalog.of(more))
    assert ready.rebalances == 1
    assert len(desk.owned("m")) == 6


def test_after_a_failover_members_have_a_whole_session_timeout(desk: Desk) -> None:
    desk.join("m", session_timeout_ms=10_000)
    desk.pass_time(9_999)
    desk.restart()
    desk.pass_time(9_999)
    assert desk.machine.groups["g"].members
    desk.pass_time(1)
    assert not desk.machine.groups["g"].members


def test_a_target_that_was_due_when_the_coordinator_died_is_computed(desk: Desk) -> None:
    desk.join("one")
    desk.join("two")
    assert desk.state() is GroupState.ASSIGNING
    desk.restart()
    assert desk.state() is GroupState.RECONCILING
    desk.join("one", member_epoch=1, owned=NO_PARTS)
    assert len(desk.owned("two")) == 2


def test_the_assignor_that_most_ask_for_is_used(desk: Desk) -> None:
    for member in ("a", "b"):
        desk.join(member, "t", "u", assignor="range")
    desk.join("c", "t", "u")
    desk.pass_time(100)
    told = desk.ask(DescribeRequested(desk.new_id(), "g"))
    assert told.assignor == "range"
    assert [m.assignor for m in told.members] == ["range", "range", "uniform"]


def test_states_are_called_what_metrics_and_status_show() -> None:
    called = ["Empty", "Assigning", "Reconciling", "Stable", "Dead"]
    assert [state.value for state in GroupState] == called


def test_where_nothing_happens_nothing_is_said(desk: Desk) -> None:
    ready = desk.feed(c.Tick())
    assert (ready.records, ready.outputs, ready.decisions) == ((), (), ())
    assert ready == c.NOTHING


def test_describe_tells_what_a_member_subscribed_to(desk: Desk) -> None:
    desk.join("m", subscription=Subscription(("t",), "u.*"))
    (member,) = desk.ask(DescribeRequested(desk.new_id(), "g")).members
    assert member.subscription == Subscription(("t",), "u.*")
