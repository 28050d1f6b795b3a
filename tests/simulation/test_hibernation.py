"""A cluster that is put to sleep and woken, simulated, and what its checks tell apart.

Planted bugs: `test_simulation`.
"""

from dataclasses import replace

import pytest

from penstock.core.control.documents import ClusterDocument
from penstock.core.control.partition import PartitionDocument
from penstock.core.types import (
    NO_LEADER,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    PartitionState,
    ReplicaKey,
)
from penstock_sim.hibernation_checks import HibernationChecks
from penstock_sim.scheduler import RuleError
from penstock_sim.world import TOPIC_ID, World, simulate

KEY = ReplicaKey(TOPIC_ID, 0)
ONE, TWO = BrokerId(1), BrokerId(2)
AWAKE = PartitionDocument(
    PartitionState(
        leader=ONE, leader_epoch=LeaderEpoch(1), replicas=(ONE, TWO), isr=(ONE, TWO), version=5
    )
)
BEGAN = 7
"""The metadata version that begins hibernation."""


def test_clusters_sleep_and_wake_or_are_taken_back_under_load() -> None:
    histories = [simulate(seed, hibernation=True) for seed in range(16)]
    for history in histories:
        assert history.violation is None, (history.seed, history.violation)
    assert sum(history.sleeps for history in histories) > 5
    assert sum(history.wakes for history in histories) > 5
    assert sum(history.taken_back for history in histories) > 5


@pytest.fixture
def checks() -> HibernationChecks:
    """Of a cluster that is going to sleep."""
    world = World(0, hibernation=True, moves=False)
    assert world.hibernation is not None
    world.checks.stored = dict.fromkeys(world.all_keys, AWAKE)
    found = world.hibernation.checks
    found.asked(hibernating=True)
    stored(found, hibernating=True)
    return found


def stored(checks: HibernationChecks, *, hibernating: bool) -> None:
    cluster = ClusterDocument(
        cluster_id="id",
        controller_epoch=ControllerEpoch(1),
        metadata_version=BEGAN,
        hibernating=hibernating,
    )
    checks.stored(cluster)


def changed(checks: HibernationChecks, version: int = BEGAN + 1, **state: object) -> None:
    after = replace(AWAKE.state, version=6, **state)  # type: ignore[arg-type]  # any of its fields
    checks.changed(KEY, AWAKE, replace(AWAKE, state=after), version)


def test_nobody_is_elected_in_its_sleep_but_leaderships_end(checks: HibernationChecks) -> None:
    changed(checks, leader=NO_LEADER)
    changed(checks, BEGAN, leader=TWO)  # decided before, it landed late
    with pytest.raises(RuleError, match=r"I39: .* gets a leader"):
        changed(checks, leader=TWO)
    checks.asked(hibernating=False)
    changed(checks, leader=TWO)


def test_a_seat_is_lost_only_with_the_data_behind_it(checks: HibernationChecks) -> None:
    with pytest.raises(RuleError, match=r"I39: .* loses a seat"):
        changed(checks, isr=(ONE,))
    checks.world.checks.lost.add((2, KEY))
    changed(checks, isr=(ONE,))


def test_all_that_is_committed_is_on_every_disk_before_brokers_stop(
    checks: HibernationChecks,
) -> None:
    for broker in checks.world.brokers.values():
        broker.directory.set_intact(True)
    checks.asking()
    checks.at_rest()
    checks.world.checks.canon(KEY).end = 3
    checks.asking()
    with pytest.raises(RuleError, match=r"I39: all is at rest, but b1 has fsynced .* up to 0"):
        checks.at_rest()


def test_nothing_is_acknowledged_from_then_on_until_it_wakes(checks: HibernationChecks) -> None:
    checks.acknowledged(KEY, "b1")
    checks.at_rest()
    with pytest.raises(RuleError, match=r"I39: b1 acknowledges"):
        checks.acknowledged(KEY, "b1")
    checks.asked(hibernating=False)
    checks.acknowledged(KEY, "b1")


def test_brokers_do_not_stop_while_a_controller_is_still_to_wake_them(
    checks: HibernationChecks,
) -> None:
    """It would store that while they sleep; unless it has answered, or that run of it has ended."""
    controller = next(iter(checks.world.controllers.values()))
    controller.start()
    answered = checks.waking(controller)
    with pytest.raises(RuleError, match=rf"I39: the cluster stops, and {controller.name} is still"):
        checks.at_rest()
    answered(None)
    checks.at_rest()
    checks.waking(controller)
    controller.kill()
    checks.at_rest()
    for run in checks.world.graveyard:
        run.loop.bury()


def test_seats_are_whole_at_the_wake_unless_somebody_lost_data(checks: HibernationChecks) -> None:
    for broker in checks.world.brokers.values():
        broker.directory.set_intact(True)
    checks.asking()
    checks.at_rest()
    lonely = replace(AWAKE, state=replace(AWAKE.state, isr=(ONE,)))
    checks.world.checks.stored = dict.fromkeys(checks.world.all_keys, lonely)
    with pytest.raises(RuleError, match=r"I39: the cluster wakes, and \{2\} have no seat"):
        checks.asked(hibernating=False)
    checks.world.brokers[2].directory.set_intact(False)
    checks.down(checks.world.brokers[2])
    checks.asked(hibernating=False)


def test_a_seat_that_ended_unknown_to_all_brokers_is_no_reason_to_stay_awake(
    checks: HibernationChecks,
) -> None:
    """A deposed controller stored it late, and nobody has read it since."""
    for broker in checks.world.brokers.values():
        broker.directory.set_intact(True)
    everything = checks.world.checks
    for key in checks.world.all_keys:
        everything.told(key, AWAKE.state)
    lonely = replace(AWAKE, state=replace(AWAKE.state, isr=(ONE,), version=6))
    everything.stored = dict.fromkeys(checks.world.all_keys, lonely)
    checks.asking()
    checks.at_rest()
    checks.asked(hibernating=False)
    for key in checks.world.all_keys:
        everything.told(key, lonely.state)
    checks.asking()
    with pytest.raises(RuleError, match=r"I39: the cluster stops, and \{2\} have no seat"):
        checks.at_rest()
