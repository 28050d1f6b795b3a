"""Committed offsets: taken, refused, reset, expired (I18, I16)."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.group_desk import TIME_MS, Desk

from penstock.core.groups import GroupConfig
from penstock.core.groups import contract as c
from penstock.core.groups.catalog import Catalog, CatalogTopic, NamedPartition
from penstock.core.groups.contract_views import (
    DescribeRequested,
    Fetched,
    FetchRequested,
    GroupState,
    ListRequested,
)
from penstock.core.groups.offsets import without_topics
from penstock.core.types import TopicId
from penstock.errors import ErrorCode, PenstockError

DAY_MS = 86_400_000


def codes(errors: list[PenstockError | None]) -> list[ErrorCode | None]:
    return [None if error is None else error.code for error in errors]


def new(name: str, partition: int, offset: int, topic_id: str = "") -> c.NewOffset:
    return c.NewOffset(where=NamedPartition(name, TopicId(topic_id), partition), offset=offset)


def reset(desk: Desk, *offsets: c.NewOffset, **fields: Any) -> c.ResetDone:
    answer = desk.ask(
        c.ResetRequested(
            request_id=desk.new_id(), group_id=fields.pop("group", "g"), offsets=offsets, **fields
        )
    )
    assert isinstance(answer, c.ResetDone)
    return answer


def refused(desk: Desk, request: c.Request) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        desk.ask(request)
    assert not desk.ready.records
    return caught.value


def test_partitions_of_a_commit_are_taken_or_refused_one_by_one(desk: Desk) -> None:
    assert codes(desk.commit({("t", 0): 5, ("t", 1): 0})) == [None, None]
    errors = desk.commit(
        {("t", 0): 4, ("t", 1): 0, ("t", 4): 1, ("x", 0): 1, ("t", 2): -1, ("t", 3): 2**63}
    )
    assert errors[2] is not None
    assert "'t' has partitions 0 to 3, not 4" in errors[2].message
    assert codes(errors) == [
        ErrorCode.OFFSET_WENT_BACK,
        None,
        ErrorCode.UNKNOWN_PARTITION,
        ErrorCode.UNKNOWN_TOPIC,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert "offset 4 of t/0 is below 5" in str(errors[0])
    assert desk.fetch() == {("t", 0): 5, ("t", 1): 0}


def test_a_reader_that_went_back_commits_less_in_a_new_rewind_epoch(desk: Desk) -> None:
    here = ("t", 0)
    back = [ErrorCode.OFFSET_WENT_BACK]
    assert codes(desk.commit({here: 20}, rewind_epoch=1)) == [None]
    assert codes(desk.commit({here: 5}, rewind_epoch=1)) == back
    assert codes(desk.commit({here: 5}, rewind_epoch=2)) == [None]
    assert codes(desk.commit({here: 5}, rewind_epoch=2)) == [None], "a repetition"
    assert codes(desk.commit({here: 20}, rewind_epoch=1)) == back, "from before it went back"
    assert codes(desk.commit({here: 20}, rewind_epoch=2)) == [None]
    assert codes(desk.commit({here: 5}, rewind_epoch=2)) == back, "a late copy"
    assert codes(desk.commit({here: 19})) == back, "a client that does not know of epochs"
    assert codes(desk.commit({here: 21})) == [None]
    assert codes(desk.commit({here: 3}, rewind_epoch=2)) == back, "the epoch was kept"
    desk.restart()
    assert codes(desk.commit({here: 3}, rewind_epoch=2)) == back, "in the log, too"
    assert codes(desk.commit({here: 3}, rewind_epoch=3)) == [None]
    assert reset(desk, new("t", 0, 1)).applied
    found = desk.ask(FetchRequested(desk.new_id(), "g")).offsets
    assert [(one.offset, one.rewind_epoch) for one in found] == [(1, 4)]


def test_only_the_owner_at_its_epoch_goes_back(desk: Desk) -> None:
    one = desk.join("one")
    here = ("t", 0)
    assert codes(desk.commit({here: 20}, "one", 1)) == [None]
    desk.join("two")
    desk.pass_time(100)
    desk.acknowledge(one)
    owner, other = ("one", "two") if here in desk.owned("one") else ("two", "one")
    assert codes(desk.commit({here: 5}, other, 2, rewind_epoch=2)) == [ErrorCode.STALE_MEMBER_EPOCH]
    for member, epoch in ((owner, 1), ("", -1)):
        with pytest.raises(PenstockError):
            desk.commit({here: 5}, member, epoch, rewind_epoch=2)
    assert desk.fetch() == {here: 20}
    assert codes(desk.commit({here: 5}, owner, 2, rewind_epoch=2)) == [None]
    assert desk.fetch() == {here: 5}


@given(order=st.data())
def test_late_and_repeated_commits_never_undo_a_newer_one(order: st.DataObject) -> None:
    """Of one reader that seeks: any copy of a commit may come again, at any time after it."""
    desk = Desk()
    here, epoch, at = ("t", 0), 1, 0
    sent: list[tuple[int, int]] = []
    for _ in range(12):
        step = order.draw(st.sampled_from(["read", "seek", "late"]))
        if step == "seek":
            epoch, at = epoch + 1, order.draw(st.integers(0, 30))
        if step != "late":
            at += order.draw(st.integers(0, 3))
            sent.append((epoch, at))
            assert codes(desk.commit({here: at}, rewind_epoch=epoch)) == [None]
        elif sent:
            late_epoch, late = order.draw(st.sampled_from(sent))
            desk.commit({here: late}, rewind_epoch=late_epoch)
        assert desk.fetch() == ({here: at} if sent else {})


@pytest.mark.parametrize(
    ("fields", "taken"),
    [
        ({"rewind_epoch": 2**31 - 1}, True),
        ({"rewind_epoch": -1}, False),
        ({"metadata": "m" * 4_096}, True),
        ({"metadata": "m" * 4_097}, False),
        ({"metadata": "ü" * 2_049}, False),
        ({"leader_epoch": -1}, True),
        ({"leader_epoch": -2}, False),
        ({"leader_epoch": 2**31}, False),
    ],
)
def test_metadata_and_leader_epochs_have_limits(
    desk: Desk, fields: dict[str, Any], taken: bool
) -> None:
    (error,) = desk.commit({("t", 0): 1}, **fields)
    assert (error is None) == taken
    assert bool(desk.fetch()) == taken


def test_a_member_commits_what_it_owns_in_its_own_epoch(desk: Desk) -> None:
    one = desk.join("one")
    desk.join("two")
    desk.pass_time(100)
    giving_up = min(desk.machine.groups["g"].members["one"].current.pending)
    part = ("t", giving_up[1])
    assert codes(desk.commit({part: 1}, "one", 1)) == [None], "what it is giving up too"
    assert codes(desk.commit({part: 1}, "two", 2)) == [ErrorCode.STALE_MEMBER_EPOCH]
    desk.acknowledge(one)
    for member, epoch, code in (
        ("one", 1, ErrorCode.STALE_MEMBER_EPOCH),
        ("one", 3, ErrorCode.STALE_MEMBER_EPOCH),
        ("three", 2, ErrorCode.UNKNOWN_MEMBER),
        ("", -1, ErrorCode.GROUP_NOT_EMPTY),
        ("", 0, ErrorCode.INVALID_REQUEST),
    ):
        with pytest.raises(PenstockError) as caught:
            desk.commit({part: 2}, member, epoch)
        assert caught.value.code is code
    assert codes(desk.commit({part: 2}, "one", 2)) == [ErrorCode.STALE_MEMBER_EPOCH]
    assert codes(desk.commit({part: 2}, "two", 2)) == [None]


def test_commits_of_a_seat_that_another_took_are_fenced(desk: Desk) -> None:
    desk.join("m", instance_id="i")
    for member, instance in (("old", "i"), ("m", "j")):
        request = c.CommitRequested(
            request_id=desk.new_id(),
            group_id="g",
            member_id=member,
            member_epoch=1,
            instance_id=instance,
            offsets=(new("t", 0, 1),),
        )
        assert refused(desk, request).code is ErrorCode.FENCED_INSTANCE_ID
    request = c.CommitRequested(
        request_id=desk.new_id(),
        group_id="g",
        member_id="old",
        member_epoch=1,
        instance_id="j",
        offsets=(new("t", 0, 1),),
    )
    assert refused(desk, request).code is ErrorCode.UNKNOWN_MEMBER
    request = c.CommitRequested(
        request_id=desk.new_id(),
        group_id="h",
        member_id="m",
        member_epoch=1,
        instance_id="",
        offsets=(new("t", 0, 1),),
    )
    assert refused(desk, request).code is ErrorCode.UNKNOWN_MEMBER


def test_a_commit_that_takes_nothing_makes_no_group(desk: Desk) -> None:
    assert codes(desk.commit({("x", 0): 1})) == [ErrorCode.UNKNOWN_TOPIC]
    assert not desk.machine.groups


def test_requests_that_would_not_fit_into_a_batch_are_refused(desk: Desk) -> None:
    many = tuple(new("t", 0, 1) for _ in range(10_001))
    request = c.CommitRequested(
        request_id=desk.new_id(),
        group_id="g",
        member_id="",
        member_epoch=-1,
        instance_id="",
        offsets=many,
    )
    assert "10001 partitions" in str(refused(desk, request))
    where = NamedPartition("t", TopicId(""), 0)
    large = tuple(c.NewOffset(where=where, offset=1, metadata="m" * 4_096) for _ in range(600))
    request = c.CommitRequested(
        request_id=desk.new_id(),
        group_id="g",
        member_id="",
        member_epoch=-1,
        instance_id="",
        offsets=large,
    )
    assert "characters of metadata" in str(refused(desk, request))


def test_offsets_belong_to_the_topic_and_not_to_its_name(desk: Desk) -> None:
    desk.commit({("t", 0): 5})
    another = CatalogTopic("t", TopicId("another"), 4)
    desk.feed(c.TopicsChanged(Catalog.of(another, deleted={TopicId("id-t")})))
    assert desk.fetch() == {}
    wanted = tuple(
        NamedPartition("t", TopicId(topic_id), 0) for topic_id in ("", "another", "id-t")
    )
    found = desk.ask(FetchRequested(desk.new_id(), "g", wanted)).offsets
    assert [(o.offset, o.topic_id) for o in found[:2]] == [(-1, "another"), (-1, "another")]
    assert found[2].error is not None
    assert found[2].error.code is ErrorCode.TOPIC_ID_MISMATCH
    assert codes(desk.commit({("t", 0): 1})) == [None], "a new topic begins at 0"


def test_a_topic_that_this_coordinator_has_not_heard_of_is_asked_for_again(desk: Desk) -> None:
    """It was made anew a moment ago, and the former one is what this broker knows."""
    where = NamedPartition("t", TopicId("newer"), 0)
    [error] = desk.ask(
        c.CommitRequested(
            request_id=desk.new_id(),
            group_id="g",
            member_id="",
            member_epoch=-1,
            instance_id="",
            offsets=(c.NewOffset(where=where, offset=5),),
        )
    ).errors
    assert error.code is ErrorCode.UNKNOWN_TOPIC
    assert error.retriable
    assert "newer" in str(error)


def test_a_hidden_topic_is_answered_like_one_that_is_not_there(desk: Desk) -> None:
    def ask(name: str) -> tuple[FetchRequested, Fetched]:
        wanted = (NamedPartition(name, TopicId(""), 0), NamedPartition("u", TopicId(""), 0))
        event = FetchRequested(desk.new_id(), "g", wanted)
        return event, desk.ask(event)

    desk.commit({("t", 0): 5})
    event, answer = ask("t")
    hidden, kept = without_topics(answer, event, {"t"}).offsets
    absent = ask("x")[1].offsets[0]
    assert hidden.error is not None
    assert absent.error is not None
    assert hidden.error.message.replace("'t'", "'x'") == absent.error.message
    assert replace(hidden, error=None, topic="x") == replace(absent, error=None)
    assert kept == answer.offsets[1]


# ---------------------------------------------------------------- reset, delete


def test_a_reset_goes_back_is_audited_and_done_once(desk: Desk) -> None:
    desk.commit({("t", 0): 5, ("t", 1): 7})
    wanted = (new("t", 0, 2), new("t", 1, -1), new("t", 2, 9))
    dry = reset(desk, *wanted, reset_id="r", reason="why", dry_run=True)
    lines = (c.ResetLine(5, 2), c.ResetLine(7, -1), c.ResetLine(-1, 9))
    assert dry == c.ResetDone(lines)
    assert not desk.ready.records
    assert reset(desk, *wanted, reset_id="r", reason="why") == c.ResetDone(lines, applied=True)
    assert desk.fetch() == {("t", 0): 2, ("t", 2): 9}
    assert any(b'"reset_id":"r","reason":"why"' in (value or b"") for _, value in desk.log)
    again = reset(desk, *wanted, reset_id="r")
    assert again.already_applied
    assert not again.applied
    assert not desk.ready.records
    desk.restart()
    assert reset(desk, *wanted, reset_id="r").already_applied
    told = desk.ask(DescribeRequested(desk.new_id(), "g"))
    assert (told.last_reset.reset_id, told.last_reset.reason) == ("r", "why")


def test_a_reset_is_not_undone_by_a_reader_that_does_not_know_it(desk: Desk) -> None:
    """It is no member, as consumers with `assign`: it commits what it had, at its leisure."""
    desk.commit({("t", 0): 5})
    assert reset(desk, new("t", 0, 2)).applied
    again = desk.commit({("t", 0): 5}, rewind_epoch=1)
    assert codes(again) == [ErrorCode.OFFSET_WENT_BACK]
    assert desk.fetch() == {("t", 0): 2}
    assert codes(desk.commit({("t", 0): 5}, rewind_epoch=2)) == [None]


def test_a_reset_is_all_or_nothing(desk: Desk) -> None:
    answer = reset(desk, new("t", 0, 2), new("t", 9, 2), new("t", 1, -2))
    assert codes([line.error for line in answer.lines]) == [
        None,
        ErrorCode.UNKNOWN_PARTITION,
        ErrorCode.INVALID_REQUEST,
    ]
    assert not answer.applied
    assert not desk.machine.groups
    assert reset(desk, new("t", 0, 2)).applied, "a group that is not there is made"
    assert desk.fetch() == {("t", 0): 2}


def test_a_group_with_members_is_neither_reset_nor_deleted(desk: Desk) -> None:
    stream_id = desk.join("m")
    for request in (
        c.ResetRequested(request_id=desk.new_id(), group_id="g", offsets=(new("t", 0, 1),)),
        c.ResetRequested(
            request_id=desk.new_id(), group_id="g", offsets=(new("t", 0, 1),), dry_run=True
        ),
        c.DeleteRequested(desk.new_id(), "g"),
    ):
        error = refused(desk, request)
        assert error.code is ErrorCode.GROUP_NOT_EMPTY
        assert "1 members" in error.message
    desk.feed(c.MemberLeft(stream_id))
    assert reset(desk, new("t", 0, 1)).applied
    desk.ask(c.DeleteRequested(desk.new_id(), "g"))
    desk.restart()
    assert not desk.machine.groups
    error = refused(desk, c.DeleteRequested(desk.new_id(), "g"))
    assert error.code is ErrorCode.UNKNOWN_GROUP


@pytest.mark.parametrize("fields", [{"reset_id": "r" * 250}, {"reason": "ü" * 513}])
def test_what_is_kept_for_audit_has_a_limit(desk: Desk, fields: dict[str, Any]) -> None:
    request = c.ResetRequested(
        request_id=desk.new_id(), group_id="g", offsets=(new("t", 0, 1),), **fields
    )
    assert refused(desk, request).code is ErrorCode.INVALID_REQUEST


# ---------------------------------------------------------------- upkeep


def test_offsets_expire_a_week_after_the_last_member_left(desk: Desk) -> None:
    stream_id = desk.join("m", session_timeout_ms=1_800_000)
    desk.commit({("t", 0): 5}, "m", 1)
    for _ in range(10 * 48):  # a member that lives for ten days
        desk.feed(c.MemberHeard(stream_id))
        desk.pass_time(DAY_MS // 48 - 1)
    assert desk.fetch() == {("t", 0): 5}, "never those of a live group"
    desk.feed(c.MemberLeft(stream_id))
    desk.pass_time(7 * DAY_MS - 120_000)
    assert desk.fetch() == {("t", 0): 5}
    desk.pass_time(240_000)
    assert desk.fetch() == {}
    assert not desk.machine.groups
    desk.restart()
    assert not desk.machine.groups


def test_offsets_without_membership_expire_a_week_after_their_commit(desk: Desk) -> None:
    desk.commit({("t", 0): 5})
    desk.pass_time(6 * DAY_MS)
    desk.commit({("t", 1): 5})
    said: list[c.Decision] = []
    while desk.now_ms < 8 * DAY_MS:
        desk.pass_time(60_000)
        said += desk.ready.decisions
    assert desk.fetch() == {("t", 1): 5}
    assert [(one.event, one.fields) for one in said] == [
        ("offsets expired", {"group": "g", "partitions": 1})
    ]


def test_offsets_follow_a_clock_that_is_set(desk: Desk) -> None:
    """The coordinator's broker started eight days ahead, and was set right while it led."""
    desk.commit({("t", 0): 5})
    desk.restart()
    desk.machine.set_wall(TIME_MS + 8 * DAY_MS, is_trusted=True)
    desk.feed(c.MemberHeard(99))
    desk.machine.set_wall(TIME_MS, is_trusted=True)
    desk.pass_time(6 * DAY_MS)
    assert desk.fetch() == {("t", 0): 5}
    desk.pass_time(2 * DAY_MS)
    assert desk.fetch() == {}


def test_no_offsets_expire_while_the_clock_is_in_doubt(desk: Desk) -> None:
    desk.commit({("t", 0): 5})
    desk.machine.set_wall(TIME_MS + 30 * DAY_MS, is_trusted=False)
    desk.pass_time(DAY_MS)
    assert desk.fetch() == {("t", 0): 5}
    desk.machine.set_wall(TIME_MS + 30 * DAY_MS, is_trusted=True)
    desk.pass_time(120_000)
    assert desk.fetch() == {}
    assert not desk.machine.groups


def test_offsets_of_a_topic_that_is_gone_for_good_are_forgotten(desk: Desk) -> None:
    desk.join("m", "u", session_timeout_ms=1_800_000)
    desk.commit({("t", 0): 5}, group="h")
    desk.commit({("u", 0): 5}, "m", 1)
    whole = desk.catalog
    only_u = Catalog.of(whole.topics[TopicId("id-u")])
    desk.feed(c.TopicsChanged(only_u))
    desk.pass_time(300_000)
    desk.feed(c.TopicsChanged(whole))  # it was missing for a moment only
    desk.pass_time(100_000)
    assert desk.fetch("h") == {("t", 0): 5}
    desk.feed(c.TopicsChanged(only_u))
    desk.pass_time(800_000)
    desk.feed(c.TopicsChanged(whole))
    assert desk.fetch("h") == {}
    assert desk.fetch("g") == {("u", 0): 5}


def test_many_groups_are_looked_at_a_few_at_a_time(desk: Desk) -> None:
    desk.machine._book.config = GroupConfig(offsets_retention_ms=0, deleted_topic_grace_ms=0)
    for index in range(250):
        desk.commit({("t", 0): 1}, group=f"g{index}")
    desk.now_ms = desk.machine.next_wake_ms
    desk.feed(c.Tick())
    assert len(desk.machine.groups) == 150
    desk.pass_time(1_000)
    assert not desk.machine.groups


def test_groups_are_listed_and_counted_by_state(desk: Desk) -> None:
    desk.join("m", group="b")
    desk.commit({("t", 0): 1}, group="a")
    listed = desk.ask(ListRequested(desk.new_id())).groups
    assert [(g.group_id, g.state.value, g.members) for g in listed] == [
        ("a", "Empty", 0),
        ("b", "Stable", 1),
    ]
    only = ListRequested(desk.new_id(), frozenset({GroupState.EMPTY}))
    assert [g.group_id for g in desk.ask(only).groups] == ["a"]
    census = desk.machine.census
    assert census.states == {GroupState.EMPTY: 1, GroupState.STABLE: 1}
    assert census.members == 1
    assert desk.state("nobody") is GroupState.DEAD
