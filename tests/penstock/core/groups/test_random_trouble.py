"""Groups through random joins, leaves, crashes, slow members, failovers, commits (I16, I18).

And the checks themselves: each planted bug must be found.
"""

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.group_world import GroupWorld

from penstock.core.groups import membership, offsets, reconcile
from penstock.core.groups.loading import Loader


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.integers(20, 400))
def test_whatever_happens_partitions_have_one_owner_and_end_up_shared(
    seed: int, steps: int
) -> None:
    world = GroupWorld(random.Random(seed))
    world.run(steps)
    world.settle()


def found(early: bool = False) -> str:
    """The first finding in a few hundred runs; "" if the checks are blind."""
    for seed in range(300):
        world = GroupWorld(random.Random(seed), early=early)
        try:
            world.run(300)
            world.settle()
        except AssertionError as error:
            return str(error)
    return ""


def test_a_commit_of_an_older_epoch_that_is_taken_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def careless(book: Any, group: Any, event: Any) -> Any:
        if group is None or event.member_id not in group.members:
            raise membership.unknown_member(book.groups, event.group_id, event.member_id)
        return group.members[event.member_id]

    monkeypatch.setattr(offsets, "committer", careless)
    assert "was taken (I18)" in found()


def test_a_heartbeat_that_crosses_a_revocation_and_counts_as_its_answer_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = reconcile._reconcile

    def forgetful(book: Any, group: Any, member: Any) -> Any:
        released = right(book, group, member)
        member.revoked_by = 0
        return released

    monkeypatch.setattr(reconcile, "_reconcile", forgetful)
    assert "is owned by" in found()


def test_a_partition_given_away_before_it_was_given_up_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = reconcile._reconcile

    def hasty(book: Any, group: Any, member: Any) -> Any:
        released = right(book, group, member)
        current = member.current
        if current.pending:
            released |= book.put_current(group, member, current, current.parts, frozenset())
        return released

    monkeypatch.setattr(reconcile, "_reconcile", hasty)
    assert "is owned by" in found()


def test_offsets_lost_in_a_failover_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Loader.groups

    def lossy(self: Loader) -> Any:
        groups = right(self)
        for group in groups.values():
            if len(group.offsets) > 2:
                group.offsets.clear()
        return groups

    monkeypatch.setattr(Loader, "groups", lossy)
    assert "I16" in found()


def test_an_answer_before_its_record_is_committed_is_found() -> None:
    assert found(early=True)
