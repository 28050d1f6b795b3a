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
