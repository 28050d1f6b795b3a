"""Users of simulated groups seek back, and what the checks of that tell apart.

Planted bugs: `test_simulation`.
"""

import pytest

from penstock.core.groups.records import OffsetRecord
from penstock.core.types import ReplicaKey
from penstock_sim.rewind_checks import Place, RewindChecks
from penstock_sim.scheduler import RuleError
from penstock_sim.world import TOPIC_ID, World

PLACE: Place = "g0", ReplicaKey(TOPIC_ID, 0)


def test_readers_seek_back_and_commit_there() -> None:
    went_back = 0
    for seed in range(8):
        world = World(seed, groups=True, seeks=True)
        world.run()
        went_back += world.group_checks.rewinds.went_back
    assert went_back > 0


@pytest.fixture
def checks() -> RewindChecks:
    """A reader has committed 9, and sought back to 4."""
    found = RewindChecks()
    found.reached(PLACE, 1, 9)
    found.committed(PLACE, -1, at(9, 1), 0)
    found.sought(PLACE, 2, 4)
    return found


def at(offset: int, rewind_epoch: int) -> OffsetRecord:
    return OffsetRecord(
        topic="t", leader_epoch=-1, offset=offset, metadata="", time_ms=0, rewind_epoch=rewind_epoch
    )


def test_a_commit_may_go_back_with_its_reader(checks: RewindChecks) -> None:
    checks.committed(PLACE, 9, at(4, 2), 0)
    checks.reached(PLACE, 2, 6)
    checks.committed(PLACE, 4, at(6, 2), 0)
    assert checks.went_back == 1


def test_a_commit_may_not_go_back_without_its_reader(checks: RewindChecks) -> None:
    with pytest.raises(RuleError, match="went back from 9"):
        checks.committed(PLACE, 9, at(8, 1), 0)


def test_a_commit_may_not_go_back_further_than_its_reader(checks: RewindChecks) -> None:
    with pytest.raises(RuleError, match="went back from 9"):
        checks.committed(PLACE, 9, at(3, 2), 0)


def test_a_commit_from_before_the_seek_may_not_count(checks: RewindChecks) -> None:
    checks.committed(PLACE, 9, at(4, 2), 0)
    with pytest.raises(RuleError, match="is at 4"):
        checks.committed(PLACE, 4, at(9, 2), 0)
    with pytest.raises(RuleError, match="rewind epoch 2"):
        checks.committed(PLACE, 4, at(9, 1), 0)


def test_after_a_reset_a_group_is_where_it_was_told_to_be(checks: RewindChecks) -> None:
    checks.reset(PLACE, at(7, 2))
    checks.committed(PLACE, 7, at(7, 2), 0)
    checks.reset(PLACE, None)
    checks.committed(PLACE, -1, at(2, 1), 0)
