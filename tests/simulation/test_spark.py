"""Spark batches, and deleted topics, in the simulator. Planted bugs: `test_simulation`."""

from penstock_sim.world import World, simulate


def test_batches_are_in_once_whatever_dies() -> None:
    histories = [simulate(seed, groups=False, transactions=True, spark=True) for seed in range(30)]
    for history in histories:
        assert history.violation is None, (history.seed, history.violation)
    assert sum(history.spark_batches for history in histories) > 30


def test_a_topic_is_deleted_under_transactions() -> None:
    # Without journals: of a topic whose deletion only a journal knows, the checks do not hear.
    worlds = [
        World(seed, groups=False, journal=False, transactions=True, deletion=True)
        for seed in range(1, 17)
    ]
    for world in worlds:
        world.run()
    assert sum(world.deletion is not None and world.deletion.is_done for world in worlds) > 5
