"""Topics that change: their settings, their number of partitions, and the topic behind a name.

Planted bugs: `test_simulation`.
"""

import pytest

from penstock.core.topic import CleanupPolicy, TopicConfig
from penstock.core.types import Offset
from penstock_sim.change_checks import Removal
from penstock_sim.changes import Settings
from penstock_sim.scheduler import RuleError
from penstock_sim.world import World, simulate

SEEDS = 12
FAILED_ONCE = {
    150: "retention removed all that a follower lacked, and nobody told it: it stayed behind",
    44: "a compaction pass went on to remove null values, which were to be kept longer since",
    447: "the check: a topic that only a lost journal had was created again with other replicas",
    3: "a retry of what was appended was refused, because max.message.bytes was lowered since",
}
"""Seeds of histories with changes that broke something once, with the cause."""


def test_topics_change_and_brokers_go_by_that() -> None:
    histories = [simulate(seed, changes=True) for seed in range(SEEDS)]
    for history in histories:
        assert history.violation is None, (history.seed, history.violation)
    assert sum(history.changes for history in histories) > 80
    assert sum(history.retained for history in histories) > 500
    assert sum(history.compacted for history in histories) > 50
    assert sum(history.lives for history in histories) > 20
    assert sum(history.grown for history in histories) > 5


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_histories_that_failed_once_hold(seed: int) -> None:
    assert simulate(seed, changes=True).violation is None


def test_batches_are_larger_than_the_limit_of_then_or_of_now() -> None:
    limits = []
    for seed in (0, 3, 5, 20):
        world = World(seed, changes=True)
        world.run()
        assert world.changes is not None
        limits.append(world.changes.limits)
    assert sum(one.larger for one in limits) > 100
    assert sum(one.refused for one in limits) > 30
    assert sum(one.split for one in limits) > 10


def test_keys_are_deleted_and_readers_look_at_all_of_a_log() -> None:
    tombstones = []
    for seed in (2, 4, 5):
        world = World(seed, changes=True)
        world.run()
        assert world.changes is not None
        tombstones.append(world.changes.tombstones)
    assert sum(one.scans for one in tombstones) > 50
    assert sum(one.checked for one in tombstones) > 100


def test_everything_is_in_histories_with_changes() -> None:
    worlds = [World(seed, changes=True) for seed in range(24)]
    assert sum(world.rebirth is not None for world in worlds) == 12
    assert sum(world.compacts for world in worlds) == 16
    assert sum(world.groups is not None and world.rebirth is not None for world in worlds) >= 4
    assert sum(world.compacts and world.transactions is not None for world in worlds) >= 6
    assert not any(world.blackout for world in worlds)


def test_a_setting_is_what_was_answered_last() -> None:
    settings = Settings({"retention.ms": "1"})
    settings.asked({"retention.ms": "2"})
    settings.check({"retention.ms": "1"}, "t")
    settings.check({"retention.ms": "2"}, "t")
    settings.accepted({"retention.ms": "2"})
    with pytest.raises(RuleError, match=r"I21: retention\.ms of t is 1"):
        settings.check({"retention.ms": "1"}, "t")
    before = settings.values
    settings.asked({"cleanup.policy": "compact"})
    settings.refused(before)
    with pytest.raises(RuleError, match=r"I21: cleanup\.policy of t is compact"):
        settings.check({"retention.ms": "2", "cleanup.policy": "compact"}, "t")


def test_retention_may_remove_what_is_old_or_too_much() -> None:
    removal = Removal(Offset(5), newest_ms=100, left_bytes=400)
    keeps = TopicConfig(cleanup_policy=CleanupPolicy.DELETE, retention_ms=50, retention_bytes=500)
    assert not removal.is_due(keeps, 150)
    assert removal.is_due(keeps, 151)
    assert removal.is_due(TopicConfig(retention_ms=-1, retention_bytes=400), 100)
    assert not removal.is_due(TopicConfig(retention_ms=-1), 10**9)
