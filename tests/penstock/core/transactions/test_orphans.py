"""Which transactions a leader may end by itself: those that all coordinators call unknown,
and those whose coordinator says how they ended."""

import pytest

from penstock.core.transactions.orphans import Answer, OpenHere, Orphans, endings
from penstock.core.transactions.records import GroupParticipant, PartitionParticipant
from penstock.core.types import ProducerId, TopicId

A, B = (PartitionParticipant(TopicId("t"), partition) for partition in range(2))
GROUP = GroupParticipant("t")
X, Y = ((ProducerId((1 << 62) + number), 3) for number in range(2))
ASKED = [OpenHere(A, X), OpenHere(GROUP, X), OpenHere(B, X), OpenHere(B, Y)]
LEADERS = {0: 1, 1: 2, 2: 1}
NOTHING = frozenset[tuple[ProducerId, int]]()
ANSWERS = {1: Answer(frozenset({0, 2}), NOTHING), 2: Answer(frozenset({1}), NOTHING)}


def test_what_everybody_calls_unknown_is_ended_wherever_it_is_open() -> None:
    assert endings(ASKED, LEADERS, ANSWERS) == dict.fromkeys(ASKED, False)


@pytest.mark.parametrize("broker", [1, 2])
def test_what_one_coordinator_knows_is_left_alone(broker: int) -> None:
    answers = {**ANSWERS, broker: Answer(ANSWERS[broker].partitions, frozenset({X}))}
    assert endings(ASKED, LEADERS, answers) == {OpenHere(B, Y): False}


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("broker", [1, 2])
def test_what_has_ended_elsewhere_ends_here_in_the_same_way(broker: int, commit: bool) -> None:
    partitions = ANSWERS[broker].partitions
    answers = {**ANSWERS, broker: Answer(partitions, frozenset({X, Y}), {X: commit})}
    found = endings(ASKED, LEADERS, answers)
    assert found == dict.fromkeys(ASKED[:3], commit), "Y is open, and will end"


@pytest.mark.parametrize("broker", [1, 2])
def test_never_on_a_partial_answer(broker: int) -> None:
    answers = {one: answer for one, answer in ANSWERS.items() if one != broker}
    assert endings(ASKED, LEADERS, answers) == {}
    assert endings(ASKED, LEADERS, {}) == {}


@pytest.mark.parametrize(("broker", "left"), [(1, {0}), (1, {2}), (1, set()), (2, set())])
def test_never_while_a_coordinator_loads(broker: int, left: set[int]) -> None:
    answers = {**ANSWERS, broker: Answer(frozenset(left), NOTHING)}
    assert endings(ASKED, LEADERS, answers) == {}


def test_never_by_the_word_of_a_broker_that_does_not_lead() -> None:
    """A deposed leader speaks for a partition that another broker leads by now."""
    answers = {1: Answer(frozenset({0, 1, 2}), NOTHING), 2: Answer(frozenset(), NOTHING)}
    assert endings(ASKED, LEADERS, answers) == {}


@pytest.mark.parametrize("partition", LEADERS)
def test_never_while_a_partition_has_no_leader(partition: int) -> None:
    everywhere = {one: Answer(frozenset(LEADERS), NOTHING) for one in (-1, 1, 2)}
    assert endings(ASKED, {**LEADERS, partition: -1}, everywhere) == {}


def test_never_without_the_internal_topic() -> None:
    assert endings(ASKED, {}, {}) == {}
    assert endings(ASKED, {}, ANSWERS) == {}


def test_age_is_what_was_seen_here_without_a_break() -> None:
    orphans = Orphans(100)
    old, young = ASKED[:2]
    assert orphans.due([old], 1_000) == []
    assert orphans.due([old, young], 1_099) == []
    assert orphans.due([old, young], 1_100) == [old]
    assert orphans.due([young], 1_199) == [young]
    assert orphans.due([old, young], 1_200) == [young], "it was not open for a while"
    assert orphans.due([old], 1_299) == []
    assert orphans.due([old], 1_300) == [old]
