"""All brokers lose power at once, with compaction, groups and transactions. Planted bugs:
`test_simulation`."""

import pytest

from penstock.core.types import ReplicaKey
from penstock_sim.disk_checks import DiskChecks
from penstock_sim.scheduler import RuleError
from penstock_sim.world import TOPIC_ID, World, simulate

KEY = ReplicaKey(TOPIC_ID, 0)
MENDED = {
    32: "a partition lost a marker that its coordinator knew to be stored: it stayed open",
    106: "the same, of a bank",
    138: "a coordinator had lost a producer's epoch, and sent it to look for another one for ever",
}
"""Histories that failed once, with what they found."""


@pytest.mark.parametrize("seed", MENDED)
def test_histories_that_failed_once_hold(seed: int) -> None:
    history = simulate(seed, blackouts=True)
    assert history.violation is None


def test_everything_is_in_histories_with_blackouts() -> None:
    worlds = [World(seed, blackouts=True) for seed in range(24)]
    assert all(world.blackout for world in worlds)
    assert sum(world.compacts and world.transactions is None for world in worlds) == 8
    assert sum(world.compacts and world.transactions is not None for world in worlds) >= 2
    assert sum(world.groups is not None for world in worlds) >= 6
    assert sum(world.transactions is not None for world in worlds) >= 8


def test_blackouts_come_again_and_some_spare_a_broker() -> None:
    worlds = [World(seed, blackouts=True, groups=False, transactions=False) for seed in range(10)]
    for world in worlds:
        world.run()
    found = [world.blackouts for world in worlds if world.blackouts is not None]
    assert len(found) == len(worlds)
    assert any(one.count > 1 for one in found)
    assert any(one.spared for one in found)


def test_the_newest_value_of_a_key_may_be_missing_nowhere() -> None:
    world = World(1, blackouts=True, compaction=True, groups=False, transactions=False, factor=3)
    world.run()
    brokers = world.members(KEY)
    world.checks.disk.check_same(KEY, brokers)
    log = brokers[0].disk.batches(brokers[0].replicas[KEY].slot)
    del log[:]
    with pytest.raises(RuleError, match="I3: the newest record of"):
        world.checks.disk.check_same(KEY, brokers)


def test_a_record_on_disk_that_nothing_supersedes_may_not_go() -> None:
    world = World(1, blackouts=True, compaction=True, groups=False, transactions=False)
    world.run()
    broker = world.members(KEY)[0]
    log = broker.disk.batches(broker.replicas[KEY].slot)
    checks = DiskChecks(world)
    for batch in log:
        checks.acknowledged(KEY, batch)
    checks.check(KEY, log, 0, "b1")
    with pytest.raises(RuleError, match="I7: b1 lacks"):
        checks.check(KEY, log[:-1], 0, "b1")
