"""Offsets inside transactions: joined first, pending until the end, then counted or dropped."""

from dataclasses import replace
from typing import Any

import pytest
from support.group_desk import TIME_MS, Desk

from penstock.core.groups import GroupConfig, pending
from penstock.core.groups import contract as c
from penstock.core.groups.catalog import NamedPartition
from penstock.core.groups.contract_views import DescribeRequested, FetchRequested
from penstock.core.groups.records import EndedKey
from penstock.core.types import ProducerId, TopicId
from penstock.errors import ClusterError, ErrorCode, PenstockError

PID = ProducerId(1 << 62 | 7)
DAY_MS = 86_400_000


def new(partition: int, offset: int, topic: str = "t", metadata: str = "") -> c.NewOffset:
    where = NamedPartition(topic, TopicId(""), partition)
    return c.NewOffset(where=where, offset=offset, metadata=metadata)


def request(
    desk: Desk,
    *offsets: c.NewOffset,
    epoch: int = 0,
    member: tuple[str, int] = ("", -1),
    **more: Any,
) -> c.CommitRequested:
    fields = {"group_id": "g", "producer_id": PID, "transactional_id": "pay", **more}
    return c.CommitRequested(
        request_id=desk.new_id(),
        member_id=member[0],
        member_epoch=member[1],
        instance_id="",
        offsets=offsets,
        producer_epoch=epoch,
        **fields,
    )


def answers(ready: c.Ready) -> list[Any]:
    return [output.answer for output in ready.outputs if isinstance(output, c.Reply)]


def joins(ready: c.Ready) -> list[c.SendJoin]:
    return [output for output in ready.outputs if isinstance(output, c.SendJoin)]


def answer_join(desk: Desk, join: c.SendJoin, error: PenstockError | None = None) -> c.Ready:
    ready: c.Ready = desk.feed(
        c.TransactionJoined(
            group_id=join.group_id,
            transactional_id=join.transactional_id,
            producer_id=join.producer_id,
            number=join.number,
            error=error,
        )
    )
    return ready


def commit(desk: Desk, *offsets: c.NewOffset, **fields: Any) -> list[ErrorCode | None]:
    """A commit with its join, if it asks for one; the codes per partition."""
    ready = desk.feed(request(desk, *offsets, **fields))
    if joins(ready):
        assert not answers(ready), "what waits for a join is not answered"
        assert not ready.records, "nothing is kept before the group has joined"
        ready = answer_join(desk, joins(ready)[0])
    (answer,) = answers(ready)
    if isinstance(answer, PenstockError):
        raise answer
    return [None if error is None else error.code for error in answer.errors]


def end(desk: Desk, *, commit: bool, epoch: int = 0, **more: Any) -> Any:
    fields = {"group_id": "g", "transactional_id": "pay", "producer_id": PID, **more}
    return desk.ask(
        c.TransactionEnded(request_id=desk.new_id(), producer_epoch=epoch, commit=commit, **fields)
    )


def fetch_codes(desk: Desk, *, allow_unstable: bool = False) -> dict[int, ErrorCode | int]:
    found = desk.ask(
        FetchRequested(request_id=desk.new_id(), group_id="g", allow_unstable=allow_unstable)
    )
    return {o.partition: o.offset if o.error is None else o.error.code for o in found.offsets}


def test_offsets_count_once_the_transaction_commits(desk: Desk) -> None:
    desk.commit({("t", 0): 3})
    assert commit(desk, new(0, 5), new(1, 9)) == [None, None]
    assert fetch_codes(desk) == {0: ErrorCode.UNSTABLE_OFFSETS, 1: ErrorCode.UNSTABLE_OFFSETS}
    assert fetch_codes(desk, allow_unstable=True) == {0: 3}
    assert end(desk, commit=True) == c.EndStored()
    assert fetch_codes(desk) == {0: 5, 1: 9}


def test_offsets_of_an_aborted_transaction_never_count(desk: Desk) -> None:
    desk.commit({("t", 0): 3})
    commit(desk, new(0, 5), new(1, 9))
    end(desk, commit=False)
    assert fetch_codes(desk) == {0: 3}


@pytest.mark.parametrize("outcome", [True, False])
def test_the_outcome_and_what_it_does_are_in_one_append(desk: Desk, outcome: bool) -> None:
    commit(desk, new(0, 5))
    end(desk, commit=outcome)
    keys = [key for key, _ in desk.ready.records]
    assert any(b'"pending"' in key for key in keys)
    assert any(b'"ended"' in key for key in keys)
    assert any(b'"offset"' in key for key in keys) == outcome


def test_only_the_first_commit_of_a_transaction_asks_for_a_join(desk: Desk) -> None:
    commit(desk, new(0, 5))
    ready = desk.feed(request(desk, new(1, 2)))
    assert not joins(ready)
    assert answers(ready) == [c.Committed((None,))]
    end(desk, commit=True)
    assert fetch_codes(desk) == {0: 5, 1: 2}


def test_commits_that_come_while_a_join_is_under_way_wait_for_it_in_order(desk: Desk) -> None:
    (join,) = joins(desk.feed(request(desk, new(0, 5))))
    assert not desk.feed(request(desk, new(0, 6))).outputs
    ready = answer_join(desk, join)
    assert answers(ready) == [c.Committed((None,)), c.Committed((None,))]
    end(desk, commit=True)
    assert fetch_codes(desk) == {0: 6}


def test_a_join_that_is_refused_refuses_what_waits(desk: Desk) -> None:
    (join,) = joins(desk.feed(request(desk, new(0, 5))))
    error = ClusterError("taken", ErrorCode.PRODUCER_FENCED)
    ready = answer_join(desk, join, error)
    assert answers(ready) == [error]
    assert not ready.records
    assert joins(desk.feed(request(desk, new(0, 5)))), "the next one asks again"


def test_another_transactional_id_adds_nothing_to_what_is_pending(desk: Desk) -> None:
    assert commit(desk, new(0, 5)) == [None]
    (join,) = joins(desk.feed(request(desk, new(1, 9), transactional_id="thief")))
    assert join.transactional_id == "thief"
    assert commit(desk, new(1, 5)) == [None], "the owner does not notice"
    ready = answer_join(desk, join, ClusterError("not its own", ErrorCode.PRODUCER_FENCED))
    assert not ready.records


def test_another_transactional_id_does_not_stand_in_the_way(desk: Desk) -> None:
    fenced = ClusterError("not its own", ErrorCode.PRODUCER_FENCED)
    (theirs,) = joins(desk.feed(request(desk, new(0, 9), epoch=7, transactional_id="thief")))
    (ours,) = joins(desk.feed(request(desk, new(0, 5))))
    assert answers(answer_join(desk, theirs, fenced)) == [fenced]
    assert answers(answer_join(desk, ours)) == [c.Committed((None,))]


def test_an_end_drops_the_guard_so_that_a_late_join_changes_nothing(desk: Desk) -> None:
    (join,) = joins(desk.feed(request(desk, new(0, 5))))
    ready = desk.feed(
        c.TransactionEnded(
            request_id=99,
            group_id="g",
            transactional_id="pay",
            producer_id=PID,
            producer_epoch=0,
            commit=True,
        )
    )
    fenced, done = answers(ready)
    assert fenced.code is ErrorCode.PRODUCER_FENCED
    assert done == c.EndStored()
    late = answer_join(desk, join)
    assert late == c.NOTHING
    assert fetch_codes(desk) == {}
    with pytest.raises(ClusterError) as caught:
        commit(desk, new(0, 5))
    assert caught.value.code is ErrorCode.PRODUCER_FENCED
    assert "transaction 0" in str(caught.value)


def test_an_end_is_recorded_also_for_a_group_that_nobody_knows(desk: Desk) -> None:
    end(desk, commit=True, group_id="nobody")
    assert desk.ready.records
    desk.restart()
    assert EndedKey("nobody", PID) in desk.machine._book.ended
    end(desk, commit=True, group_id="nobody")
    assert not desk.ready.records, "a repeat writes nothing"


def test_an_end_with_another_outcome_than_before_changes_nothing_and_is_not_sent_again(
    desk: Desk,
) -> None:
    commit(desk, new(0, 5))
    end(desk, commit=True)
    assert end(desk, commit=False) == c.EndStored()
    assert not desk.ready.records
    (decision,) = desk.ready.decisions
    assert decision.fields["kept"] == "committed"
    assert decision.fields["told"] == "aborted"
    assert fetch_codes(desk) == {0: 5}
    assert end(desk, commit=True) == c.EndStored()


def test_the_end_of_a_newer_transaction_covers_older_ones(desk: Desk) -> None:
    end(desk, commit=True, epoch=5)
    assert end(desk, commit=False, epoch=4) == c.EndStored()
    assert not desk.ready.records


def test_an_end_of_another_transaction_leaves_what_is_pending(desk: Desk) -> None:
    commit(desk, new(0, 5), epoch=3)
    end(desk, commit=True, epoch=2)
    end(desk, commit=True, epoch=9, producer_id=ProducerId(8))
    assert fetch_codes(desk) == {0: ErrorCode.UNSTABLE_OFFSETS}
    end(desk, commit=True, epoch=3)
    assert fetch_codes(desk) == {0: 5}


def test_pending_offsets_and_outcomes_survive_a_failover(desk: Desk) -> None:
    commit(desk, new(0, 5, metadata="m"), new(3, 1))
    desk.restart()
    assert fetch_codes(desk) == {0: ErrorCode.UNSTABLE_OFFSETS, 3: ErrorCode.UNSTABLE_OFFSETS}
    assert commit(desk, new(0, 6)) == [None]
    end(desk, commit=True)
    desk.restart()
    assert fetch_codes(desk) == {0: 6, 3: 1}
    with pytest.raises(ClusterError) as caught:
        commit(desk, new(0, 7))
    assert caught.value.code is ErrorCode.PRODUCER_FENCED


def test_nobody_else_changes_a_pending_offset(desk: Desk) -> None:
    commit(desk, new(0, 5))
    (error, fine) = desk.commit({("t", 0): 7, ("t", 1): 1})
    assert error is not None
    assert error.code is ErrorCode.UNSTABLE_OFFSETS
    assert "'pay'" in str(error)
    assert fine is None
    assert commit(desk, new(0, 6), producer_id=ProducerId(PID + 1), transactional_id="b") == [
        ErrorCode.UNSTABLE_OFFSETS
    ]
    (line,) = desk.ask(
        c.ResetRequested(request_id=desk.new_id(), group_id="g", offsets=(new(0, 0),))
    ).lines
    assert line.error.code is ErrorCode.UNSTABLE_OFFSETS
    with pytest.raises(ClusterError) as caught:
        desk.ask(c.DeleteRequested(desk.new_id(), "g"))
    assert caught.value.code is ErrorCode.UNSTABLE_OFFSETS
    end(desk, commit=False)
    desk.ask(c.DeleteRequested(desk.new_id(), "g"))


def test_a_transaction_does_not_take_offsets_back(desk: Desk) -> None:
    desk.commit({("t", 0): 5})
    assert commit(desk, new(0, 4), new(1, 7)) == [ErrorCode.OFFSET_WENT_BACK, None]
    assert commit(desk, new(1, 6)) == [ErrorCode.OFFSET_WENT_BACK]


def test_a_transaction_of_a_reader_that_went_back_takes_the_offset_back(desk: Desk) -> None:
    desk.commit({("t", 0): 20}, rewind_epoch=1)
    assert commit(desk, replace(new(0, 5), rewind_epoch=2)) == [None]
    assert commit(desk, replace(new(0, 25), rewind_epoch=1)) == [ErrorCode.OFFSET_WENT_BACK]
    assert commit(desk, replace(new(0, 4), rewind_epoch=2)) == [ErrorCode.OFFSET_WENT_BACK]
    assert commit(desk, replace(new(0, 2), rewind_epoch=3)) == [None]
    desk.restart()
    assert commit(desk, replace(new(0, 1), rewind_epoch=3)) == [ErrorCode.OFFSET_WENT_BACK]
    end(desk, commit=True)
    assert desk.fetch() == {("t", 0): 2}
    assert desk.commit({("t", 0): 9}, rewind_epoch=2) != [None]


def test_members_commit_in_transactions_by_the_same_rules(desk: Desk) -> None:
    desk.join("one")
    epoch = desk.machine.groups["g"].members["one"].current.epoch
    assert commit(desk, new(0, 5), member=("one", epoch)) == [None]
    assert commit(desk, new(0, 6, topic="u"), member=("one", epoch)) == [
        ErrorCode.STALE_MEMBER_EPOCH
    ]
    for member, code in (
        (("", -1), ErrorCode.GROUP_NOT_EMPTY),
        (("two", 1), ErrorCode.UNKNOWN_MEMBER),
        (("one", epoch + 1), ErrorCode.STALE_MEMBER_EPOCH),
    ):
        with pytest.raises(ClusterError) as caught:
            commit(desk, new(0, 9), member=member)
        assert caught.value.code is code


def test_the_member_is_checked_again_after_the_join(desk: Desk) -> None:
    stream_id = desk.join("one")
    epoch = desk.machine.groups["g"].members["one"].current.epoch
    (join,) = joins(desk.feed(request(desk, new(0, 5), member=("one", epoch))))
    desk.feed(c.MemberLeft(stream_id))
    (error,) = answers(answer_join(desk, join))
    assert error.code is ErrorCode.UNKNOWN_MEMBER
    assert fetch_codes(desk) == {}


def test_a_member_that_goes_has_its_transaction_aborted(desk: Desk) -> None:
    stream_id = desk.join("one", transactional_id="g/one")
    desk.restart()
    aborts = [o for o in desk.pass_time(60_000) if isinstance(o, c.SendAbort)]
    assert [abort.transactional_id for abort in aborts] == ["g/one"], f"of stream {stream_id}"
    assert "member one of group g is gone" in aborts[0].reason


def test_a_seat_that_another_takes_aborts_the_transaction_of_the_former(desk: Desk) -> None:
    stream_id = desk.join("one", instance_id="i", transactional_id="g/one")
    desk.feed(c.StreamBroken(stream_id))
    desk.join("two", instance_id="i", transactional_id="g/two")
    aborts = [o for o in desk.ready.outputs if isinstance(o, c.SendAbort)]
    assert [abort.transactional_id for abort in aborts] == ["g/one"]


def test_a_join_without_an_answer_is_given_up(desk: Desk) -> None:
    desk.feed(request(desk, new(0, 5)))
    outputs = desk.pass_time(pending.GUARD_TIMEOUT_MS)
    (reply,) = [o for o in outputs if isinstance(o, c.Reply)]
    assert isinstance(reply.answer, PenstockError)
    assert reply.answer.code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert not desk.machine._book.guards


def test_a_newer_transaction_takes_the_place_of_a_guard(desk: Desk) -> None:
    (old,) = joins(desk.feed(request(desk, new(0, 5), epoch=1)))
    ready = desk.feed(request(desk, new(0, 6), epoch=2))
    (join,) = joins(ready)
    (fenced,) = answers(ready)
    assert fenced.code is ErrorCode.PRODUCER_FENCED
    with pytest.raises(ClusterError) as caught:
        commit(desk, new(0, 5), epoch=1)
    assert caught.value.code is ErrorCode.PRODUCER_FENCED
    assert answer_join(desk, old) == c.NOTHING
    assert answers(answer_join(desk, join)) == [c.Committed((None,))]


def test_a_transaction_whose_predecessor_is_still_pending_waits(desk: Desk) -> None:
    commit(desk, new(0, 5), epoch=1)
    with pytest.raises(ClusterError) as caught:
        commit(desk, new(0, 6), epoch=2)
    assert caught.value.code is ErrorCode.CONCURRENT_TRANSACTIONS


def test_nothing_expires_while_it_is_pending_and_outcomes_are_forgotten_after_a_day() -> None:
    desk = Desk(GroupConfig(offsets_retention_ms=1_000))
    desk.commit({("t", 0): 3})
    commit(desk, new(0, 5))
    desk.pass_time(10 * DAY_MS)
    assert fetch_codes(desk, allow_unstable=True) == {0: 3}
    end(desk, commit=False)
    desk.pass_time(2 * DAY_MS)
    assert fetch_codes(desk) == {}
    assert not desk.machine._book.ended
    desk.restart()
    assert not desk.machine._book.ended


def test_outcomes_are_not_forgotten_while_the_clock_is_in_doubt(desk: Desk) -> None:
    commit(desk, new(0, 5))
    end(desk, commit=True)
    desk.machine.set_wall(TIME_MS + 2 * DAY_MS, is_trusted=False)
    desk.pass_time(DAY_MS // 2)
    assert desk.machine._book.ended
    desk.machine.set_wall(TIME_MS + 2 * DAY_MS, is_trusted=True)
    desk.pass_time(120_000)
    assert not desk.machine._book.ended


def test_what_is_open_here_is_told_until_it_ends_also_by_the_next_coordinator(desk: Desk) -> None:
    def seen() -> list[tuple[str, int, int]]:
        found = desk.machine.open_transactions
        return [(key.group_id, key.producer_id, one.producer_epoch) for key, one in found]

    other = ProducerId(PID + 1)
    desk.feed(request(desk, new(0, 1), group_id="waits"))
    assert seen() == [], "it has yet to join"
    commit(desk, new(0, 5), epoch=3)
    commit(desk, new(1, 5), group_id="h")
    commit(desk, new(1, 6), producer_id=other)
    expected = [("g", PID, 3), ("h", PID, 0), ("g", other, 0)]
    assert sorted(seen()) == sorted(expected)
    desk.restart()
    assert sorted(seen()) == sorted(expected)
    end(desk, commit=False, epoch=3)
    end(desk, commit=True, producer_id=other)
    assert seen() == [("h", PID, 0)]


def test_describe_tells_whose_offsets_are_pending(desk: Desk) -> None:
    commit(desk, new(0, 5))
    described = desk.ask(DescribeRequested(desk.new_id(), "g", include_offsets=True))
    (found,) = described.pending
    assert (found.transactional_id, found.producer_id, found.producer_epoch) == ("pay", PID, 0)
    assert found.parts == {("id-t", 0)}
    assert found.names == {"id-t": "t"}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transactional_id": "x" * 250}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": "a\nb"}, ErrorCode.INVALID_REQUEST),
        ({"producer_id": ProducerId(-1)}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -1}, ErrorCode.INVALID_REQUEST),
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_bad_commits_are_refused_at_once(
    desk: Desk, fields: dict[str, Any], code: ErrorCode
) -> None:
    (error,) = answers(desk.feed(request(desk, new(0, 5), **fields)))
    assert error.code is code


def test_commits_and_joins_that_wait_have_limits(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(pending.WAITING_MAX):
        assert not answers(desk.feed(request(desk, new(0, 5))))
    (error,) = answers(desk.feed(request(desk, new(0, 5))))
    assert error.code is ErrorCode.OVERLOADED
    monkeypatch.setattr(pending, "GUARDS_MAX", 1)
    (error,) = answers(desk.feed(request(desk, new(0, 5), producer_id=ProducerId(3))))
    assert error.code is ErrorCode.OVERLOADED


def test_what_is_pending_fits_into_a_batch(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(desk, new(0, 5, metadata="m" * 100))
    monkeypatch.setattr("penstock.core.groups.offsets.METADATA_SUM_MAX", 150)
    with pytest.raises(ClusterError) as caught:
        commit(desk, new(1, 5, metadata="m" * 100))
    assert caught.value.code is ErrorCode.TRANSACTION_TOO_LARGE
    assert fetch_codes(desk, allow_unstable=True) == {}


def test_a_commit_without_offsets_needs_no_join(desk: Desk) -> None:
    ready = desk.feed(request(desk))
    assert answers(ready) == [c.Committed(())]
    assert not joins(ready)


def test_a_group_that_a_transaction_would_add_counts_against_the_limit(desk: Desk) -> None:
    """Its join began when there was room."""
    desk.machine._book.config = GroupConfig(groups_max=1)
    (join,) = joins(desk.feed(request(desk, new(0, 5), group_id="h")))
    desk.commit({("t", 0): 1})
    (answer,) = answers(answer_join(desk, join))
    assert isinstance(answer, PenstockError)
    assert answer.code is ErrorCode.OVERLOADED
    assert "h" not in desk.machine.groups
