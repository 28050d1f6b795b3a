"""The cluster's copy rate: stored, in every image, and taken back."""

import pytest
from support.controller_world import World
from support.moving import moving_world, refused

from penstock.core.control import contract as c
from penstock.core.control import move_contract as m
from penstock.core.control.views import image_since
from penstock.core.limits import COPY_RATE_MAX
from penstock.errors import ErrorCode


def in_images(world: World, since: int = 0) -> int | None:
    machine = world.machine
    return image_since(machine.stored, machine.config, since).copy_rate


def test_a_rate_is_stored_and_in_every_image_until_it_is_taken_back() -> None:
    world = moving_world()
    assert in_images(world) is None
    for rate in (1 << 20, 0, None):
        version = world.machine.stored.metadata_version
        assert world.ask(m.AlterThrottle, copy_rate=rate) == c.Done()
        assert world.cluster().copy_rate == rate
        assert in_images(world) == in_images(world, version) == rate
        assert world.machine.stored.metadata_version > version, "so that brokers are told"


def test_a_rate_outlives_the_controller() -> None:
    world = moving_world()
    world.ask(m.AlterThrottle, copy_rate=0)
    assert World(world.documents).start().cluster().copy_rate == 0


def test_what_changes_nothing_is_not_written() -> None:
    world = moving_world()
    world.ask(m.AlterThrottle, copy_rate=5)
    writes = world.writes
    assert world.ask(m.AlterThrottle, copy_rate=5) == c.Done()
    assert world.ask(m.AlterThrottle, copy_rate=6, validate_only=True) == c.Done()
    assert (world.writes, world.cluster().copy_rate) == (writes, 5)


@pytest.mark.parametrize("rate", [-1, COPY_RATE_MAX + 1])
def test_an_impossible_rate_is_refused(rate: int) -> None:
    world = moving_world()
    outcome = world.ask(m.AlterThrottle, copy_rate=rate)
    assert "bytes per second is impossible" in refused(outcome, ErrorCode.INVALID_REQUEST)
    assert world.cluster().copy_rate is None


def test_a_rate_that_a_spec_sets_is_changed_by_the_spec_alone() -> None:
    world = moving_world()
    by = "spec.balance.throttle of Cluster a/b"
    assert world.ask(m.AlterThrottle, copy_rate=5, by=by) == c.Done()
    for rate in (5, 6, None):
        text = refused(world.ask(m.AlterThrottle, copy_rate=rate), ErrorCode.INVALID_REQUEST)
        assert f"the copy rate is set by {by}: change it there" in text
    dry = world.ask(m.AlterThrottle, copy_rate=6, validate_only=True)
    refused(dry, ErrorCode.INVALID_REQUEST)
    again = World(world.documents).start()
    assert (again.cluster().copy_rate, again.cluster().copy_rate_by) == (5, by)
    kept = world.ask(m.Finalize, to=1)
    assert f"a copy rate is set, by {by}" in refused(kept, ErrorCode.INVALID_REQUEST)


def test_a_spec_takes_a_rate_over_and_gives_it_back() -> None:
    world = moving_world()
    world.ask(m.AlterThrottle, copy_rate=5)
    writes = world.writes
    world.ask(m.AlterThrottle, copy_rate=5, by="a spec")
    assert (world.writes, world.cluster().copy_rate_by) == (writes + 1, "a spec")
    world.ask(m.AlterThrottle, copy_rate=5, by="a spec")
    assert world.writes == writes + 1
    world.ask(m.AlterThrottle, by="a spec")
    assert (world.cluster().copy_rate, world.cluster().copy_rate_by) == (None, "")
    assert world.ask(m.AlterThrottle, copy_rate=7) == c.Done()


@pytest.mark.parametrize("by", ["x" * 513, "a\nb"])
def test_what_cannot_be_shown_sets_no_rate(by: str) -> None:
    world = moving_world()
    outcome = world.ask(m.AlterThrottle, copy_rate=1, by=by)
    assert "at most 512, all printable" in refused(outcome, ErrorCode.INVALID_REQUEST)
    assert world.cluster().copy_rate is None


def test_a_rate_needs_format_2_and_keeps_the_cluster_there() -> None:
    world = moving_world()
    world.ask(m.AlterThrottle, copy_rate=5)
    kept = world.ask(m.Finalize, to=1)
    assert "a copy rate is set" in refused(kept, ErrorCode.INVALID_REQUEST)
    world.ask(m.AlterThrottle)
    world.ask(m.Finalize, to=1)
    refused(world.ask(m.AlterThrottle, copy_rate=5), ErrorCode.FORMAT_TOO_OLD)
