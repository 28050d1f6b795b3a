"""A controller machine in a world of its own (`support.controller_world`)."""

import pytest
from support.controller_world import Documents, World


@pytest.fixture
def world() -> World:
    """A new cluster with an active controller and no brokers."""
    return World().start()


@pytest.fixture
def three(world: World) -> World:
    """Three brokers and topic `t`: one partition on 0, 1, 2."""
    world.register_all(0, 1, 2)
    assert world.create(partitions=1, replication_factor=3).error is None
    assert world.state() == (0, 1, (0, 1, 2))
    return world


@pytest.fixture
def make_world() -> type[World]:
    """For tests that need several machines on one store, or other settings."""
    return World


@pytest.fixture
def documents() -> Documents:
    return Documents()
