"""Unclean elections, with brokers that lose more than is promised.

Planted bug: `test_simulation`.
"""

from penstock_sim.scheduler import RuleError
from penstock_sim.world import World

SEEDS = 12


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


def test_everything_is_in_histories_with_unclean_elections() -> None:
    worlds = [World(seed, unclean=True) for seed in range(24)]
    assert sum(world.compacts for world in worlds) >= 10
    assert sum(world.mover is not None for world in worlds) == 12
    assert any(world.groups is not None and world.unclean_coordinators for world in worlds)
    assert any(world.transactions is not None and world.unclean_coordinators for world in worlds)
    assert not all(world.unclean_coordinators for world in worlds)
