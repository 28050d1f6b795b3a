"""A group member gives up before others take over, keeps what does not move, and knows when it
has lost (I18)."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.group.contract import (
    NONE,
    Assigned,
    Event,
    Fenced,
    GroupPartition,
    Heard,
    Heartbeat,
    Hello,
    HelloSaid,
    Joined,
    Leave,
    Partitions,
    PollBegan,
    PollEnded,
    Ready,
    Released,
    StreamEnded,
    Subscribed,
    Tick,
    Timing,
    Wish,
)
from penstock.client.group.membership import Membership, Phase
from penstock.errors import ClusterError, ErrorCode, OverloadedError

TIMING = Timing(
    session_timeout_ms=45_000, max_poll_interval_ms=300_000, retry_first_ms=50, retry_max_ms=1_000
)
WISH = Wish(("t",))


def parts(*numbers: int) -> Partitions:
    return frozenset(GroupPartition("id", "t", number) for number in numbers)


def refused(code: ErrorCode) -> StreamEnded:
    return StreamEnded(ClusterError(code.name, code))


class Member:
    """A machine and the time."""

    def __init__(self, *, is_static: bool = False, polls_repeat: bool = False) -> None:
        self.machine = Membership(TIMING, is_static=is_static, polls_repeat=polls_repeat)
        self.now_ms = 1_000

    def does(self, event: Event, after_ms: int = 0) -> Ready:
        self.now_ms += after_ms
        return self.machine.handle(event, self.now_ms)

    def joined(self, *numbers: int) -> "Member":
        """In the group, polling, with these partitions."""
        self.does(Subscribed(WISH))
        assert self.does(PollBegan()).open == Hello(0, NONE, WISH, new_member_id=True)
        self.does(Joined(1, 3_000, 45_000))
        assert self.does(Assigned(1, parts(*numbers), 1)).take == parts(*numbers)
        return self


def test_the_first_poll_joins_and_not_the_subscription() -> None:
    member = Member()
    assert member.does(Subscribed(WISH)).open is None
    assert member.does(PollBegan()).open is not None
    assert member.machine.phase is Phase.JOINING


def test_what_stays_is_never_touched_and_what_goes_is_read_until_released() -> None:
    member = Member().joined(0, 1, 2)
    ready = member.does(Assigned(2, parts(1, 2, 7), 2))
    assert (ready.revoke, ready.take) == (parts(0), parts(7))
    assert ready.send == [Heartbeat(parts(0, 1, 2, 7), 2)], "still owned, until it is released"
    assert member.machine.readable == parts(1, 2, 7)
    ready = member.does(Released(parts(0)))
    assert ready.send == [Heartbeat(parts(1, 2, 7), 2)]
    assert (ready.revoke, ready.take) == (NONE, NONE)


def test_an_assignment_that_changes_its_mind_is_taken_after_the_release() -> None:
    member = Member().joined(0, 1)
    member.does(Assigned(2, parts(1), 2))
    ready = member.does(Assigned(3, parts(0, 1), 3))
    assert (ready.revoke, ready.take) == (NONE, NONE), "0 is being given up and cannot be both"
    ready = member.does(Released(parts(0)))
    assert ready.take == parts(0)
    assert ready.send == [], "the coordinator has heard that 0 is owned, with assignment 3"
    assert member.machine.readable == parts(0, 1)


def test_heartbeats_go_out_while_the_user_is_slow() -> None:
    member = Member().joined(0)
    member.does(PollEnded())
    ready = member.does(Tick(), 2_999)
    assert ready.send == []
    assert ready.wake_at_ms == member.now_ms + 1
    assert member.does(Tick(), 1).send == [Heartbeat()]


def test_a_broken_stream_changes_nothing_and_is_opened_again() -> None:
    member = Member().joined(0, 1)
    ready = member.does(refused(ErrorCode.UNREACHABLE))
    assert (ready.lost, ready.open) == (NONE, None)
    ready = member.does(Tick(), 50)
    assert ready.open == Hello(1, parts(0, 1), WISH, new_member_id=False)
    member.does(Joined(1, 3_000, 45_000))
    ready = member.does(Assigned(1, parts(0, 1), 1))
    assert (ready.take, ready.revoke) == (NONE, NONE)


def test_pauses_between_attempts_grow_to_a_second() -> None:
    member = Member().joined(0)
    pauses = []
    for _ in range(7):
        ready = member.does(refused(ErrorCode.COORDINATOR_LOADING))
        assert ready.wake_at_ms is not None
        pauses.append(ready.wake_at_ms - member.now_ms)
        assert member.does(Tick(), pauses[-1]).open is not None
    assert pauses == [50, 100, 200, 400, 800, 1_000, 1_000]


def test_an_overloaded_coordinator_says_when_to_come_back() -> None:
    member = Member().joined(0)
    ready = member.does(StreamEnded(OverloadedError("full", 700), 700))
    assert ready.wake_at_ms == member.now_ms + 700


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER, ErrorCode.STALE_MEMBER_EPOCH])
def test_a_fenced_member_has_lost_everything_and_joins_as_new(code: ErrorCode) -> None:
    member = Member().joined(0, 1)
    ready = member.does(refused(code))
    assert ready.lost == parts(0, 1)
    assert code.name in ready.notice
    ready = member.does(Tick(), 50)
    assert ready.open == Hello(0, NONE, WISH, new_member_id=False)


def test_another_process_on_the_seat_makes_a_new_member_id() -> None:
    member = Member(is_static=True).joined(0)
    assert member.does(refused(ErrorCode.FENCED_INSTANCE_ID)).lost == parts(0)
    ready = member.does(Tick(), 50)
    assert ready.open is not None
    assert ready.open.new_member_id


def test_a_seat_that_stays_taken_for_a_session_timeout_is_an_error() -> None:
    member = Member(is_static=True)
    member.does(Subscribed(WISH))
    assert member.does(PollBegan()).open is not None
    for _ in range(47):
        ready = member.does(refused(ErrorCode.UNRELEASED_INSTANCE_ID))
        if ready.failed is not None:
            break
        assert member.does(Tick(), 1_000).open is not None
    assert ready.failed is not None
    assert ready.failed.code is ErrorCode.UNRELEASED_INSTANCE_ID


def test_a_refused_commit_fences_too() -> None:
    member = Member().joined(0)
    ready = member.does(Fenced(ErrorCode.UNKNOWN_MEMBER))
    assert (ready.close, ready.lost) == (True, parts(0))


def test_a_final_refusal_stays_until_the_user_subscribes_again() -> None:
    member = Member().joined(0)
    ready = member.does(refused(ErrorCode.UNSUPPORTED_ASSIGNOR))
    assert ready.failed is not None
    assert ready.failed.code is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert ready.lost == parts(0)
    assert member.does(Tick(), 400_000).open is None
    assert member.does(Subscribed(WISH)).open is not None


def test_silence_for_a_session_timeout_means_lost_and_hearing_prevents_it() -> None:
    member = Member().joined(0)
    member.does(Heard(), 44_000)
    assert member.does(Tick(), 44_999).lost == NONE
    ready = member.does(Tick(), 1)
    assert ready.lost == parts(0)
    assert ready.close
    assert ready.open == Hello(0, NONE, WISH, new_member_id=False)


def test_a_consumer_that_is_not_polled_leaves_and_the_next_poll_joins() -> None:
    member = Member().joined(0)
    member.does(PollEnded())
    for _ in range(9):
        member.does(Heard(), 30_000)
        assert member.does(Tick()).lost == NONE
    ready = member.does(Tick(), 30_000)
    assert ready.send == [Leave(keep_seat=False)]
    assert ready.lost == parts(0)
    assert "max_poll_interval_ms" in ready.notice
    assert "\n" not in ready.notice
    member.does(StreamEnded(None))
    assert member.does(Tick(), 10_000).open is None
    assert member.does(PollBegan()).open == Hello(0, NONE, WISH, new_member_id=False)


def test_records_taken_one_by_one_are_a_sign_of_life() -> None:
    member = Member().joined(0)
    member.does(PollEnded())
    for taken in range(40):
        member.does(Heard(), 30_000)
        assert member.does(Tick(yielded=taken + 1)).lost == NONE


def test_a_poll_that_waits_is_not_late() -> None:
    member = Member().joined(0)
    for _ in range(20):
        member.does(Heard(), 30_000)
        assert member.does(Tick()).lost == NONE


@pytest.mark.parametrize("is_static", [False, True])
def test_the_end_of_a_subscription_leaves_and_only_static_members_keep_their_seat(
    is_static: bool,
) -> None:
    member = Member(is_static=is_static).joined(0)
    ready = member.does(Subscribed(None))
    assert ready.send == [Leave(keep_seat=is_static)]
    assert member.machine.owned == NONE


def leaving_while_the_coordinator_is_away() -> Member:
    """Has a seat, lost its stream, then its user closed it."""
    member = Member().joined(0, 1)
    assert member.does(refused(ErrorCode.NOT_COORDINATOR)).wake_at_ms is not None
    ready = member.does(Subscribed(None))
    assert ready.lost == parts(0, 1)
    assert ready.open == Hello(1, NONE, WISH, new_member_id=False)
    assert member.machine.phase is Phase.LEAVING
    return member


def test_a_leave_that_no_coordinator_has_heard_is_said_to_the_next_one() -> None:
    member = leaving_while_the_coordinator_is_away()
    ready = member.does(refused(ErrorCode.COORDINATOR_LOADING))
    assert ready.open is None
    assert ready.wake_at_ms is not None
    member.now_ms = ready.wake_at_ms
    assert member.does(Tick()).open == Hello(1, NONE, WISH, new_member_id=False)
    assert member.does(Joined(1, 3_000, 45_000)).send == [Leave(keep_seat=False)]
    assert member.does(Assigned(1, parts(0, 1), 1)).take == NONE
    ready = member.does(StreamEnded(None))
    assert (ready.open, ready.wake_at_ms) == (None, None)
    assert member.machine.phase is Phase.OUT


def test_a_leave_whose_stream_broke_before_the_answer_is_said_again() -> None:
    member = Member().joined(0)
    assert member.does(Subscribed(None)).send == [Leave(keep_seat=False)]
    ready = member.does(refused(ErrorCode.UNREACHABLE))
    assert ready.wake_at_ms is not None
    member.now_ms = ready.wake_at_ms
    assert member.does(Tick()).open == Hello(1, NONE, WISH, new_member_id=False)
    assert member.does(refused(ErrorCode.UNKNOWN_MEMBER)).wake_at_ms is None, "it was heard"
    assert member.machine.phase is Phase.OUT


def test_a_stream_that_ends_before_the_leave_was_said_is_no_answer_to_it() -> None:
    member = leaving_while_the_coordinator_is_away()
    assert member.does(StreamEnded(None)).wake_at_ms is not None
    assert member.machine.phase is Phase.LEAVING


def test_a_leave_is_given_up_when_the_session_is_over_anyway() -> None:
    member = leaving_while_the_coordinator_is_away()
    ready = member.does(Tick(), TIMING.session_timeout_ms)
    assert ready.close
    assert ready.wake_at_ms is None
    assert member.machine.phase is Phase.OUT


def test_who_comes_back_before_its_leave_was_heard_joins_anew() -> None:
    member = leaving_while_the_coordinator_is_away()
    member.does(refused(ErrorCode.NOT_COORDINATOR))
    member.does(Subscribed(WISH))
    assert member.does(PollBegan()).open == Hello(0, NONE, WISH, new_member_id=False)
    assert Leave(keep_seat=False) not in member.does(Joined(2, 3_000, 45_000)).send
    assert member.machine.phase is Phase.MEMBER


def joining(*, said: bool = True, is_static: bool = False) -> Member:
    """Has asked for a stream; the coordinator has not answered yet."""
    member = Member(is_static=is_static)
    member.does(Subscribed(WISH))
    assert member.does(PollBegan()).open is not None
    if said:
        member.does(HelloSaid())
    return member


def test_who_leaves_before_the_answer_to_its_hello_gives_its_seat_back() -> None:
    member = joining()
    ready = member.does(Subscribed(None))
    assert (ready.close, ready.send, member.machine.phase) == (False, [], Phase.LEAVING)
    assert member.does(Joined(1, 3_000, 45_000)).send == [Leave(keep_seat=False)]
    assert member.does(Assigned(1, parts(0), 1)).take == NONE
    member.does(StreamEnded(None))
    assert member.machine.phase is Phase.OUT


def test_a_seat_that_a_lost_coordinator_may_have_given_is_given_back_to_the_next_one() -> None:
    member = joining()
    member.does(Subscribed(None))
    ready = member.does(refused(ErrorCode.UNREACHABLE))
    assert ready.wake_at_ms is not None
    member.now_ms = ready.wake_at_ms
    assert member.does(Tick()).open == Hello(0, NONE, WISH, new_member_id=False)
    assert member.does(Joined(1, 3_000, 45_000)).send == [Leave(keep_seat=False)]


def test_who_leaves_before_its_hello_was_said_has_no_seat() -> None:
    member = joining(said=False)
    assert member.does(Subscribed(None)).close
    assert member.machine.phase is Phase.OUT
    again = joining()
    assert again.does(refused(ErrorCode.NOT_COORDINATOR), 60_000).wake_at_ms is not None
    assert again.does(Tick(), 1_000).open is not None
    assert again.does(Subscribed(None)).close
    assert again.machine.phase is Phase.OUT


def test_a_static_member_that_leaves_before_the_answer_keeps_its_seat() -> None:
    member = joining(is_static=True)
    assert member.does(Subscribed(None)).close
    assert member.machine.phase is Phase.OUT


def test_another_subscription_is_told_with_a_heartbeat() -> None:
    member = Member().joined(0)
    wish = Wish(("u",))
    assert member.does(Subscribed(wish)).send == [Heartbeat(wish=wish)]
    assert member.does(Subscribed(wish)).send == []


# ------------------------------------------------------------------ many members


@dataclass
class Seat:
    """What a coordinator knows of a member: KIP-848's rules in a few lines."""

    member: Member
    assigned: set[int] = field(default_factory=set)
    pending: set[int] = field(default_factory=set)
    number: int = 0
    reading: Partitions = NONE
    """What the member's user reads: from `take` until it releases."""
    asked_back: Partitions = NONE


class Coordinator:
    """Gives a partition to somebody else only once its owner has said that it is free."""

    def __init__(self, members: list[Member]) -> None:
        self.seats = [Seat(member) for member in members]
        self.target: dict[int, int] = {}

    def owner_of(self, partition: int) -> Seat | None:
        return next((s for s in self.seats if partition in s.assigned | s.pending), None)

    def push(self, index: int) -> None:
        """Tells one member what it may own now."""
        seat = self.seats[index]
        wanted = {p for p, owner in self.target.items() if owner == index}
        seat.pending |= seat.assigned - wanted
        free = {p for p in wanted if self.owner_of(p) in (None, seat)} - seat.pending
        seat.assigned = (seat.assigned & wanted) | free
        seat.number += 1
        self.take(index, seat.member.does(Assigned(1, parts(*seat.assigned), seat.number)))

    def take(self, index: int, ready: Ready) -> None:
        """What a member says; `owned` counts only if it is about the newest assignment."""
        seat = self.seats[index]
        seat.reading |= ready.take
        seat.asked_back |= ready.revoke
        for said in ready.send:
            if (
                isinstance(said, Heartbeat)
                and said.owned is not None
                and said.number == seat.number
            ):
                seat.pending &= {p.partition for p in said.owned}

    def release(self, index: int) -> None:
        """The member's user lets go of what it was asked for."""
        seat = self.seats[index]
        done, seat.asked_back = seat.asked_back, NONE
        seat.reading -= done
        self.take(index, seat.member.does(Released(done)))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.booleans()), max_size=60))
def test_no_two_members_read_a_partition_whatever_the_order(
    steps: list[tuple[int, int, bool]],
) -> None:
    members = [Member() for _ in range(3)]
    for member in members:
        member.does(Subscribed(WISH))
        member.does(PollBegan())
        member.does(Joined(1, 3_000, 45_000))
    coordinator = Coordinator(members)

    def check() -> None:
        seen = [p for seat in coordinator.seats for p in seat.reading]
        assert len(seen) == len(set(seen)), "two owners"

    for index, partition, release in steps:
        if release:
            coordinator.release(index)
        else:
            coordinator.target[partition] = index
            kept = {p.partition for p in members[index].machine.readable}
            coordinator.push(index)
            still = {p for p in kept if coordinator.target.get(p) == index}
            assert still <= {p.partition for p in members[index].machine.readable}
        check()
    for _ in range(4):
        for index in range(3):
            coordinator.push(index)
            coordinator.release(index)
            check()
    for partition, owner in coordinator.target.items():
        assert parts(partition) <= members[owner].machine.readable, "it settles as wished"


def passes(member: Member, ms: int) -> None:
    """The coordinator is heard meanwhile."""
    for _ in range(ms // 10_000):
        member.does(Heard(), 10_000)


def test_a_poll_that_does_not_say_again_that_it_waits_is_stuck() -> None:
    member = Member(polls_repeat=True).joined(0)
    for _ in range(5):
        passes(member, 200_000)
        assert member.does(PollBegan()).lost == NONE
    passes(member, 290_000)
    ready = member.does(Tick(), 9_999)
    assert ready.lost == NONE
    assert ready.wake_at_ms == member.now_ms + 1
    ready = member.does(Tick(), 1)
    assert (ready.lost, ready.send) == (parts(0), [Leave(keep_seat=False)])
    assert member.does(StreamEnded(None)).open is None
    assert member.does(PollBegan()).open is not None, "it waits after all"


def test_a_poll_that_has_begun_is_alive_if_polls_do_not_repeat_it() -> None:
    member = Member().joined(0)
    passes(member, 900_000)
    assert member.machine.phase is Phase.MEMBER
