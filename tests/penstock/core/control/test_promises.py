"""A broker follows only a newer controller than this one (`core.control.journal`).

Another controller had the lease, asked for promises, and lost the lease before it wrote.
"""

from typing import Any

import pytest
from support.controller_world import World

from penstock.core.control import contract as c
from penstock.core.types import BrokerId
from penstock.errors import ClusterError, ErrorCode

READ_AGAIN = "a broker has seen newer metadata, reading again"


def code(error: Exception) -> ErrorCode:
    assert isinstance(error, ClusterError)
    return error.code


def test_a_promise_of_the_next_epoch_makes_the_controller_give_way(three: World) -> None:
    mine = three.machine.epoch
    stream = three.register(1, run=2, promised_controller_epoch=mine + 1)
    assert three.takes_over_again
    assert not three.deposed
    told = f"promised to follow controller epoch {mine + 1}, this controller is at {mine}"
    assert told in str(three.refusal(stream))
    assert code(three.refusal(stream)) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert three.cluster().brokers[BrokerId(1)].incarnation == "run-1-1"
    assert READ_AGAIN not in three.events(), "it must not wait where the store may be unavailable"
    assert three.alter_isr(0, (0, 2)).error is None, "it decides on"


def test_the_next_take_over_has_the_epoch_that_was_promised(three: World) -> None:
    promised = three.machine.epoch + 1
    three.register(1, promised_controller_epoch=promised)
    successor = World(three.documents).start()
    assert successor.machine.epoch == promised
    stream = successor.register(1, promised_controller_epoch=promised)
    assert any(isinstance(one, c.SessionAccepted) for one in successor.messages[stream])
    assert not successor.takes_over_again


def test_what_is_decided_together_with_the_refusal_is_stored_first(three: World) -> None:
    three.hold_writes = True
    request_id = three.new_id()
    three.step(c.DeleteTopics(request_id, "", (("t", three.topic().topic_id),)))
    three.step(c.StreamClosed(three.streams.pop(2)))
    three.register(1, promised_controller_epoch=three.machine.epoch + 1)
    assert not three.takes_over_again
    three.finish_held(passed=True, answered=True)
    assert isinstance(three.replies[request_id], c.TopicsChanged)
    assert three.takes_over_again


@pytest.mark.parametrize("ahead", [2, 2**62])
def test_a_promise_further_ahead_than_any_take_over_is_not_followed(
    three: World, ahead: int
) -> None:
    stream = three.register(1, promised_controller_epoch=three.machine.epoch + ahead)
    assert not three.takes_over_again
    assert not three.deposed
    assert "never more than one ahead" in str(three.refusal(stream))
    assert three.events().count(READ_AGAIN) == 1
    assert code(three.refusal(stream)) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert three.alter_isr(0, (0, 1)).error is None, "it decides on"


def test_a_promise_to_a_controller_that_took_over_deposes_this_one(three: World) -> None:
    successor = World(three.documents).start()
    three.register(1, promised_controller_epoch=successor.machine.epoch + 1)
    assert three.deposed


@pytest.mark.parametrize("behind", [0, 1])
def test_a_promise_that_is_kept_needs_no_second_look(three: World, behind: int) -> None:
    stream = three.register(1, promised_controller_epoch=three.machine.epoch - behind)
    assert any(isinstance(one, c.SessionAccepted) for one in three.messages[stream])
    assert READ_AGAIN not in three.events()


@pytest.mark.parametrize(
    "changes",
    [
        {"cluster_id": "other"},
        {"directory_id": "a copy"},
        {"seen_metadata_version": 10_000},
    ],
)
def test_a_broker_that_does_not_belong_here_makes_nobody_give_way(
    three: World, changes: dict[str, Any]
) -> None:
    stream = three.register(1, promised_controller_epoch=three.machine.epoch + 1, **changes)
    assert three.refusal(stream)
    assert not three.takes_over_again
