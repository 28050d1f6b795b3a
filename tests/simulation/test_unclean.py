"""Unclean elections, with brokers that lose more than is promised.

Planted bug: `test_simulation`.
"""

import pytest

from penstock_sim.scheduler import RuleError
from penstock_sim.world import World, simulate

SEEDS = 12
MENDED = {
    26: "who was elected was not told yet, and began to copy the log of the leader before",
    158: "who led after an unclean leader knew of more that was committed in their log",
}
"""Histories in which a check was wrong once, with what it did not know."""


def test_everybody_follows_who_was_elected_uncleanly() -> None:
    elections = 0
    for seed in range(SEEDS):
        world = World(seed, unclean=True)
        try:
            world.run()
        except RuleError as error:
            raise AssertionError(f"seed {seed}: {error}") from None
        elections += world.checks.unclean.count
    assert elections > 0


@pytest.mark.parametrize("seed", MENDED)
def test_histories_that_failed_once_hold(seed: int) -> None:
    assert simulate(seed, unclean=True).violation is None


def test_everything_is_in_histories_with_unclean_elections() -> None:
    worlds = [World(seed, unclean=True) for seed in range(24)]
    assert sum(world.compacts for world in worlds) >= 10
    assert sum(world.mover is not None for world in worlds) == 12
    assert any(world.groups is not None and world.unclean_coordinators for world in worlds)
    assert any(world.transactions is not None and world.unclean_coordinators for world in worlds)
    assert not all(world.unclean_coordinators for world in worlds)
