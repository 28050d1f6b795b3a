"""Operator epochs: after a successor's first act a former operator changes nothing (I35)."""

import json
from dataclasses import replace
from typing import Any

import pytest
from support.controller_world import World
from support.moving import moving_world, refused

from penstock.core.control import contract as c
from penstock.core.control import move_contract as m
from penstock.core.control import operator_contract as o
from penstock.core.control.documents import CLUSTER_KEY, OperatorLease, decode_cluster
from penstock.core.types import BrokerId
from penstock.errors import ClusterError, ErrorCode

FIRST = OperatorLease(uid="lease-1", created_s=1_000, transitions=3, holder="pod-a")
SECOND = replace(FIRST, transitions=4, holder="pod-b")


def acquire(world: World, lease: OperatorLease = FIRST) -> int:
    given = world.ask(o.AcquireOperatorEpoch, lease=lease)
    assert isinstance(given, o.OperatorEpochGiven), given
    return given.epoch


def cordoning(world: World, epoch: int, broker_id: int = 3) -> tuple[int, c.OperatorRequest]:
    change = m.BrokerChange(broker_id=BrokerId(broker_id), placement=True)
    request_id = world.new_id()
    request = m.AlterBrokers(request_id=request_id, cluster_id="", changes=(change,))
    return request_id, c.OperatorRequest(epoch, request)


def cordon(world: World, epoch: int, broker_id: int = 3) -> object:
    request_id, event = cordoning(world, epoch, broker_id)
    world.step(event)
    return world.replies[request_id]


def cordoned(world: World) -> list[int]:
    return sorted(world.cluster().cordons)


def stale(outcome: object, mention: str) -> None:
    assert isinstance(outcome, ClusterError), outcome
    assert outcome.code is ErrorCode.STALE_OPERATOR_EPOCH
    assert mention in outcome.message


def test_a_successor_fences_the_former_operator() -> None:
    world = moving_world()
    first = acquire(world)
    assert cordon(world, first) == c.Done()
    second = acquire(world, SECOND)
    assert (first, second) == (1, 2)
    stale(cordon(world, first, 4), "epoch 1, but 2 of operator 'pod-b'")
    assert cordoned(world) == [3]
    assert cordon(world, second, 4) == c.Done()


def test_a_request_that_waits_for_a_write_is_fenced_by_a_successor_before_it() -> None:
    world = moving_world()
    first = acquire(world)
    world.hold_writes = True
    cordon_of_a_person = world.new_id()
    change = m.BrokerChange(broker_id=BrokerId(1), placement=True)
    world.step(m.AlterBrokers(request_id=cordon_of_a_person, cluster_id="", changes=(change,)))
    world.step(o.AcquireOperatorEpoch(request_id=world.new_id(), cluster_id="", lease=SECOND))
    waiting, event = cordoning(world, first)
    world.step(event)
    assert waiting not in world.replies
    held, world.held, world.hold_writes = world.held, None, False
    assert held is not None
    world.finish(held)
    stale(world.replies[waiting], "epoch 1, but 2")
    assert cordoned(world) == [1]


def test_the_next_controller_knows_the_epoch() -> None:
    world = moving_world()
    first, second = acquire(world), acquire(world, SECOND)
    world = World(world.documents).start()
    stale(cordon(world, first), "another operator has taken over")
    assert cordon(world, second) == c.Done()
    stale(world.ask(o.AcquireOperatorEpoch, lease=FIRST), "3 transitions, and 4 were seen")


def test_people_are_never_fenced() -> None:
    world = moving_world()
    acquire(world)
    assert cordon(world, 0) == c.Done()


def test_an_epoch_of_a_newer_store_does_not_count() -> None:
    world = moving_world()
    stale(cordon(world, 7), "epoch 7, but 0 of no operator")
    acquire(world)
    stale(cordon(world, 7), "epoch 7, but 1")


def test_the_same_holder_gets_another_epoch() -> None:
    world = moving_world()
    assert [acquire(world), acquire(world)] == [1, 2]


@pytest.mark.parametrize(
    ("lease", "mention"),
    [
        (replace(FIRST, transitions=2), "2 transitions, and 3 were seen"),
        (replace(FIRST, holder="pod-b"), "3 transitions, and 3 were seen"),
        (replace(FIRST, uid="other", transitions=9), "is as new or newer"),
        (replace(FIRST, uid="other", created_s=999, transitions=9), "is as new or newer"),
    ],
)
def test_a_lease_that_is_not_newer_gets_no_epoch(lease: OperatorLease, mention: str) -> None:
    world = moving_world()
    first = acquire(world)
    writes = world.writes
    stale(world.ask(o.AcquireOperatorEpoch, lease=lease), mention)
    assert world.writes == writes
    assert cordon(world, first) == c.Done()


def test_a_lease_that_was_made_again_counts_from_the_start() -> None:
    world = moving_world()
    acquire(world)
    assert acquire(world, replace(FIRST, uid="lease-2", created_s=1_001, transitions=0)) == 2


@pytest.mark.parametrize(
    "changed", [{"uid": ""}, {"holder": ""}, {"holder": "a\n"}, {"uid": "x" * 513}]
)
def test_a_lease_without_proper_names_is_refused(changed: dict[str, Any]) -> None:
    world = moving_world()
    outcome = world.ask(o.AcquireOperatorEpoch, lease=replace(FIRST, **changed))
    assert "the operator's Lease has" in refused(outcome, ErrorCode.INVALID_REQUEST)


def test_format_1_has_no_epochs_and_fences_nobody() -> None:
    world = moving_world()
    for broker_id in (3, 4):
        change = m.BrokerChange(broker_id=BrokerId(broker_id), spread=True)
        world.ask(m.AlterBrokers, changes=(change,))
    first = acquire(world)
    assert isinstance(world.ask(m.Finalize, to=1), m.FormatChosen)
    assert "operator_epoch" not in json.loads(world.documents.texts[CLUSTER_KEY][0])
    assert acquire(world) == 0
    request_id = world.new_id()
    elect = c.ElectLeaders(request_id=request_id, cluster_id="", partitions=())
    world.step(c.OperatorRequest(first, elect))
    assert world.replies[request_id] == c.LeadersMoved(0)


def test_the_epoch_is_stored_with_its_lease() -> None:
    world = moving_world()
    acquire(world)
    text = world.documents.texts[CLUSTER_KEY][0]
    assert json.loads(text)["operator_epoch"] == {
        "epoch": 1, "lease": "lease-1", "created_s": 1_000, "transitions": 3, "holder": "pod-a"
    }  # fmt: skip
    assert decode_cluster(text, "here") == world.cluster()
