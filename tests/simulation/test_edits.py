"""Metadata that somebody edits by hand, simulated: controllers undo it before others believe it."""

import pytest

from penstock_broker.controller.store_look import StoreLook
from penstock_sim.world import simulate


def test_edits_are_undone_and_nobody_believes_them() -> None:
    histories = [simulate(seed, edits=True) for seed in range(30)]
    for history in histories:
        assert history.violation is None, (history.seed, history.violation)
    assert sum(history.edits for history in histories) > 80
    assert sum(history.handed_over for history in histories) > 30


def test_a_controller_that_hands_over_without_a_look_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(_self: StoreLook) -> None:
        """No look."""

    monkeypatch.setattr(StoreLook, "settle", nothing)
    violations = (simulate(seed, edits=True).violation for seed in range(60))
    found = next(filter(None, violations), "")
    assert found.startswith("I"), found
