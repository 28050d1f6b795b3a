"""After the decision: Ends until all have heard, joins that wait, timers, failovers."""

import pytest
from support.transaction_desk import GROUP, P0, P1, TIME_MS, U0, Desk, ends, refused

from penstock.core.transactions import TransactionConfig
from penstock.core.transactions import contract as c
from penstock.core.transactions.records import EndReason, Participant
from penstock.core.types import ProducerId, TopicId
from penstock.errors import ErrorCode, PenstockError

Who = tuple[ProducerId, int]


def decided(desk: Desk, *participants: Participant, commit: bool = True) -> Who:
    """An id whose first transaction has ended with these participants."""
    who = desk.init()
    for participant in participants:
        desk.join(who, participant)
    desk.end(who, commit=commit)
    return who


# ---------------------------------------------------------------- Ends


def test_ends_are_sent_again_with_growing_pauses_until_they_are_heard(desk: Desk) -> None:
    who = decided(desk, P0, GROUP)
    times = []
    for _ in range(40):
        desk.pass_time(100)
        found = [one for one in desk.ready.outputs if isinstance(one, c.SendEnds)]
        if found and desk.ready is not c.NOTHING and len(desk.ends) == 2:
            times.append(desk.now_ms)
        desk.ready = c.NOTHING
    assert times == [100, 200, 400, 800, 1600, 2600, 3600]
    desk.finished(P0, who=who)
    assert ends(desk.pass_time(1_000)) == [(GROUP, 0, True)]
    desk.finished(GROUP, who=who)
    assert ends(desk.pass_time(5_000)) == []
    assert desk.record().finishing == {}


def test_an_end_names_everything_its_receiver_needs(desk: Desk) -> None:
    who = decided(desk, P0, commit=False)
    (sent,) = [output for output in desk.ready.outputs if isinstance(output, c.SendEnds)]
    assert sent.entries == (
        c.End(
            participant=P0,
            producer_id=who[0],
            producer_epoch=0,
            commit=False,
            transactional_id="tx",
        ),
    )


def test_a_new_image_sends_ends_at_once(desk: Desk) -> None:
    decided(desk, P0)
    desk.pass_time(3_000)
    desk.feed(c.ImageChanged(frozenset({TopicId("t")})))
    assert desk.ends == [(P0, 0, True)]
    assert ends(desk.pass_time(100)) == [(P0, 0, True)], "and soon again"


def test_what_was_heard_is_written_a_second_later_or_with_the_next_record(desk: Desk) -> None:
    who = decided(desk, P0, P1)
    assert not desk.finished(P0, who=who).records
    assert desk.record().finishing.keys() == {P0, P1}
    desk.pass_time(1_000)
    assert desk.record().finishing.keys() == {P1}
    desk.finished(P1, who=who)
    desk.join((who[0], 1), U0)
    assert desk.record().finishing == {}


@pytest.mark.parametrize("epoch", [-1, 1])
def test_news_of_another_transaction_change_nothing(desk: Desk, epoch: int) -> None:
    who = decided(desk, P0)
    desk.finished(P0, who=(who[0], epoch))
    desk.finished(P0, who=(ProducerId(3), 0))
    desk.finished(P1, who=who)
    assert (P0, 0, True) in ends(desk.pass_time(2_000))
    desk.finished(P0, who=who)
    desk.finished(P0, who=who)  # and heard twice
    assert ends(desk.pass_time(2_000)) == []


def test_the_next_transaction_runs_while_a_participant_has_yet_to_hear(desk: Desk) -> None:
    who = decided(desk, P0)
    following = (who[0], 1)
    desk.join(following, P1)
    assert desk.end(following, commit=False) == c.Ended(who[0], 2)
    assert desk.record().finishing.keys() == {P0, P1}
    assert set(ends(desk.pass_time(100))) == {(P0, 0, True), (P1, 1, False)}


# ---------------------------------------------------------------- parked joins


def test_a_join_waits_until_its_participant_has_heard(desk: Desk) -> None:
    who = decided(desk, P0, P1)
    following = (who[0], 1)
    parked = desk.join_later(following, P0)
    assert not desk.record().is_open
    desk.finished(P1, who=who)
    assert parked not in desk.replies
    ready = desk.finished(P0, who=who)
    assert desk.replies[parked] == c.Joined()
    assert ready.records, "joined on record before it is told"
    assert desk.record().joined == {P0}
    assert desk.record().finishing == {}


def test_a_join_waits_in_an_open_transaction_too(desk: Desk) -> None:
    who = decided(desk, P0)
    following = (who[0], 1)
    desk.join(following, P1)
    parked = desk.join_later(following, P0)
    desk.finished(P0, who=who)
    assert desk.replies[parked] == c.Joined()
    assert desk.record().joined == {P0, P1}


def test_a_join_that_waits_for_5_seconds_is_refused_for_now(desk: Desk) -> None:
    who = decided(desk, P0)
    parked = desk.join_later((who[0], 1), P0)
    desk.pass_time(4_999)
    assert parked not in desk.replies
    desk.pass_time(1)
    error = desk.replies[parked]
    assert isinstance(error, PenstockError)
    assert error.code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert error.retriable
    assert "partition/t/0 has not stored yet" in error.message
    desk.finished(P0, who=who)
    assert not desk.record().is_open, "nobody waits for it any more"


def test_a_join_again_takes_the_place_of_the_one_that_waits(desk: Desk) -> None:
    who = decided(desk, P0, P1)
    other = desk.join_later((who[0], 1), P1)
    first = desk.join_later((who[0], 1), P0)
    second = desk.join_later((who[0], 1), P0)
    assert desk.replies[first].code is ErrorCode.CONCURRENT_TRANSACTIONS
    desk.finished(P0, P1, who=who)
    assert desk.replies[second] == desk.replies[other] == c.Joined()


def test_joins_that_wait_are_refused_when_their_transaction_ends(desk: Desk) -> None:
    who = decided(desk, P0)
    parked = desk.join_later((who[0], 1), P0)
    desk.end((who[0], 1), commit=False)
    assert desk.replies[parked].code is ErrorCode.PRODUCER_FENCED
    parked = desk.join_later((who[0], 2), P0)
    desk.init(instance="b")
    assert desk.replies[parked].code is ErrorCode.PRODUCER_FENCED
    desk.finished(P0, who=who)
    assert not desk.record().is_open


def test_a_join_that_waited_meets_the_limits_when_its_turn_comes() -> None:
    desk = Desk(TransactionConfig(open_max=1))
    who = decided(desk, P0)
    parked = desk.join_later((who[0], 1), P0)
    other = desk.init("other")
    desk.join(other, P1, "other")
    desk.finished(P0, who=who)
    assert desk.replies[parked].code is ErrorCode.OVERLOADED


# ---------------------------------------------------------------- visible


def test_an_end_may_wait_until_every_participant_has_heard(desk: Desk) -> None:
    who = desk.init()
    desk.join(who, P0)
    desk.join(who, GROUP)
    fields = {
        "transactional_id": "tx",
        "producer_id": who[0],
        "producer_epoch": 0,
        "commit": True,
        "wait_visible_ms": 2_000,
    }
    first = desk.send(c.EndRequested, **fields)
    again = desk.send(c.EndRequested, **fields)
    late = desk.send(c.EndRequested, **{**fields, "wait_visible_ms": 500})
    desk.finished(P0, who=who)
    desk.pass_time(500)
    assert desk.replies[late] == c.Ended(who[0], 1, visible=False)
    assert first not in desk.replies
    desk.finished(GROUP, who=who)
    assert desk.replies[first] == desk.replies[again] == c.Ended(who[0], 1, visible=True)
    desk.pass_time(10_000)
    assert desk.end(who, wait_visible_ms=2_000).visible
    assert desk.machine._book.watching == {}


def test_waiting_to_be_visible_has_a_limit() -> None:
    desk = Desk(TransactionConfig(visible_wait_max_ms=300))
    who = desk.init()
    desk.join(who)
    with pytest.raises(KeyError):
        desk.end(who, wait_visible_ms=10_000)
    desk.pass_time(300)
    assert desk.replies[desk.last_request] == c.Ended(who[0], 1, visible=False)
    assert desk.machine._book.watching == {}


def test_how_long_it_took_to_be_visible_is_told(desk: Desk) -> None:
    who = desk.init()
    desk.join(who)
    desk.join(who, P1)
    desk.now_ms = 70
    desk.end(who)
    (ended,) = desk.ready.ended
    assert ended == c.Outcome(commit=True, reason=EndReason.PRODUCER, open_ms=70)
    desk.now_ms = 75
    assert desk.finished(P0, who=who).visible_ms == ()
    desk.join_later((who[0], 1), P1)
    assert desk.finished(P1, who=who).visible_ms == (5,)


# ---------------------------------------------------------------- failover


def test_a_new_coordinator_sends_every_end_that_may_be_missing(desk: Desk) -> None:
    who = decided(desk, P0, GROUP)
    desk.join((who[0], 1), P1)
    desk.finished(P0, who=who)  # heard, but not on record yet
    assert set(ends(desk.restart().outputs)) == {(P0, 0, True), (GROUP, 0, True)}
    assert len(desk.ends) == 2
    desk.finished(P0, GROUP, who=who)
    desk.pass_time(1_000)
    assert ends(desk.restart().outputs) == []
    assert desk.record().is_open


def test_a_new_coordinator_answers_as_the_old_one_would(desk: Desk) -> None:
    who = decided(desk, P0)
    desk.restart()
    assert desk.init() == (who[0], 1)
    assert desk.end(who) == c.Ended(who[0], 1)
    with refused(ErrorCode.INVALID_TRANSACTION_STATE):
        desk.end(who, commit=False)
    desk.join_later((who[0], 1), P0)


@pytest.mark.parametrize(
    ("wall_ms", "left_ms"),
    [(0, 600), (-1_000, 1_000), (-9_999_999, 1_000), (300, 300), (600, 0), (9_999_999, 0)],
)
def test_a_new_coordinator_counts_the_time_that_has_passed_on_the_wall_clock(
    desk: Desk, wall_ms: int, left_ms: int
) -> None:
    """`wall_ms`: how far its wall clock is ahead. Early, never beyond one more timeout."""
    who = desk.init(timeout_ms=1_000)
    desk.join(who)
    desk.pass_time(400)
    desk.restart(TIME_MS + wall_ms)
    if left_ms:
        desk.pass_time(left_ms - 1)
        assert desk.record().is_open
    desk.pass_time(1)
    assert desk.last() == (0, False, EndReason.TIMEOUT)


def test_the_wall_clock_of_a_running_coordinator_ends_nothing(desk: Desk) -> None:
    who = desk.init(timeout_ms=1_000)
    desk.join(who)
    desk.machine._time_at_zero_ms += 86_400_000
    desk.pass_time(999)
    assert desk.record().is_open


# ---------------------------------------------------------------- topics that are gone


def test_partitions_of_a_deleted_topic_need_not_hear(desk: Desk) -> None:
    who = decided(desk, P0, P1, U0, GROUP)
    parked = desk.join_later((who[0], 1), P0)
    desk.feed(c.TopicsGone(frozenset({TopicId("t"), TopicId("never used")})))
    assert desk.replies[parked] == c.Joined()
    assert any("deleted topics" in decision.event for decision in desk.ready.decisions)
    assert {one[0] for one in ends(desk.pass_time(500))} == {U0, GROUP}


def test_a_topic_deleted_under_an_open_transaction_does_not_hold_up_its_end(desk: Desk) -> None:
    who = desk.init()
    desk.join(who, P0)
    desk.join(who, U0)
    desk.feed(c.TopicsGone(frozenset({TopicId("t")})))
    desk.end(who)
    desk.finished(U0, who=who)
    assert ends(desk.pass_time(2_000)) == []
    assert desk.record().finishing == {}


def test_a_topic_that_is_joined_behind_its_deletion_does_not_hold_up_the_end(desk: Desk) -> None:
    """The image has reached this broker, and not yet the leader of the partition."""
    desk.feed(c.TopicsGone(frozenset({TopicId("t")})))
    desk.pass_time(100_000)  # swept meanwhile
    who = desk.init()
    desk.join(who, P0)
    desk.join(who, U0)
    desk.end(who)
    desk.finished(U0, who=who)
    assert ends(desk.pass_time(2_000)) == []
    assert desk.record().finishing == {}


def test_other_topics_are_waited_for_while_one_is_known_to_be_gone(desk: Desk) -> None:
    held = desk.init("held")
    desk.join(held, P0, "held")
    desk.feed(c.TopicsGone(frozenset({TopicId("t")})))
    decided(desk, U0)
    assert (U0, 0, True) in ends(desk.pass_time(500))


def test_a_topic_that_is_missing_for_a_moment_costs_nothing_and_for_10_minutes_is_gone(
    desk: Desk,
) -> None:
    decided(desk, P0, U0)
    both, one = frozenset({TopicId("t"), TopicId("u")}), frozenset({TopicId("u")})
    desk.pass_time(700_000)  # no image at all proves nothing
    assert {end[0] for end in ends(desk.pass_time(1_000))} == {P0, U0}
    desk.feed(c.ImageChanged(one))
    desk.pass_time(590_000)
    desk.feed(c.ImageChanged(both))
    desk.feed(c.ImageChanged(one))
    desk.pass_time(590_000)
    assert {end[0] for end in ends(desk.pass_time(1_000))} == {P0, U0}
    desk.pass_time(130_000)
    assert {end[0] for end in ends(desk.pass_time(1_000))} == {U0}
    desk.pass_time(120_000)
    assert desk.record().finishing.keys() == {U0}
