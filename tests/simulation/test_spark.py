"""Spark batches, and deleted topics, under simulation: the bugs they must not have are found."""

import pytest

from penstock_sim.planted_spark import DELETION_BUGS, SPARK_BUGS
from penstock_sim.world import World, simulate

SEEDS_TO_FIND_A_BUG = 500


@pytest.mark.parametrize("name", SPARK_BUGS)
def test_a_planted_bug_of_batches_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    SPARK_BUGS[name](monkeypatch)
    for seed in range(SEEDS_TO_FIND_A_BUG):
        violation = simulate(seed, groups=False, transactions=True, spark=True).violation
        if violation is not None:
            print(f"{name}: seed {seed}: {violation}")
            assert violation.startswith("I11"), violation
            return
    pytest.fail(f"{SEEDS_TO_FIND_A_BUG} seeds did not find {name}")


def test_batches_are_in_once_whatever_dies() -> None:
    histories = [simulate(seed, groups=False, transactions=True, spark=True) for seed in range(30)]
    for history in histories:
        assert history.violation is None, (history.seed, history.violation)
    assert sum(history.spark_batches for history in histories) > 30


@pytest.mark.parametrize("name", DELETION_BUGS)
def test_a_planted_bug_of_deleted_topics_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    DELETION_BUGS[name](monkeypatch)
    for seed in range(SEEDS_TO_FIND_A_BUG):
        violation = simulate(seed, groups=False, transactions=True, deletion=True).violation
        if violation is not None:
            print(f"{name}: seed {seed}: {violation}")
            assert violation.startswith(("I11", "I14", "I24")), violation
            return
    pytest.fail(f"{SEEDS_TO_FIND_A_BUG} seeds did not find {name}")


def test_a_topic_is_deleted_under_transactions() -> None:
    worlds = [World(seed, groups=False, transactions=True, deletion=True) for seed in range(1, 12)]
    for world in worlds:
        world.run()
    assert sum(world.deletion is not None and world.deletion.is_done for world in worlds) > 5
