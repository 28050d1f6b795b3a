"""Processes that are paused, simulated: everything holds, and nobody else pays for the time."""

import pytest

from penstock.core.control.sessions import Sessions
from penstock_sim import pauses
from penstock_sim.world import World, simulate

HARMLESS = frozenset({"slow_disk"})


def test_processes_are_paused_while_everything_breaks() -> None:
    histories = [simulate(seed, pauses=True) for seed in range(30)]
    for history in histories:
        assert history.violation is None, (history.seed, history.violation)
    assert sum(history.pauses for history in histories) > 300
    assert sum(history.elections for history in histories) > 100


def silent_brokers(seed: int) -> list[str]:
    """Brokers that a controller gave up because it heard nothing of them, as the trace says it.

    Nothing but controllers is ever paused, and nothing else breaks but members of groups: of them
    their coordinators say that there was no heartbeat.
    """
    world = World(
        seed, traced=True, faults=HARMLESS, pauses=True, journal=False, moves=False, operator=False
    )
    world.blackout = False
    world.run()
    assert world.pauses is not None
    assert world.pauses.count
    dead = [line for line in world.scheduler.trace if "broker dead" in line]
    return [line for line in dead if "no heartbeat for" in line]


@pytest.mark.parametrize("seed", [0, 3, 7])
def test_brokers_outlive_the_pauses_of_their_controller(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(pauses, "_CONTROLLER", 1.0)
    assert silent_brokers(seed) == []


def test_a_controller_that_forgets_its_own_pauses_gives_up_live_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pauses, "_CONTROLLER", 1.0)
    monkeypatch.setattr(Sessions, "ticked", lambda _self, _now_ms: None)
    assert any(silent_brokers(seed) for seed in (0, 3, 7))
