"""Bugs put into what is done about damaged replicas, by controllers and brokers (I33)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock.core.control import election
from penstock_broker.replication.replicas import ReplicaSet
from penstock_sim.planted_moving import in_function


def report_sound_before_it_is_mended(patch: Any) -> None:
    """A broker says that a replica is sound as soon as it has found the damage."""
    note = ReplicaSet._note_damage

    def hasty(self: ReplicaSet, key: Any) -> None:
        note(self, key)
        self.sound[key] = None

    patch.setattr(ReplicaSet, "_note_damage", hasty)


DAMAGE_BUGS: Final[dict[str, tuple[Callable[[Any], None], tuple[str, ...]]]] = {
    "a_damaged_replica_keeps_its_seat": (
        in_function(
            election._unseated,
            "return frozenset(members & damaged) if sound else frozenset()",
            "return frozenset()",
        ),
        ("I33", "I24"),
    ),
    "elect_a_damaged_replica": (
        in_function(
            election._choose_leader, "sound, staying = isr - damaged,", "sound, staying = isr,"
        ),
        (),
    ),
    "report_sound_before_it_is_mended": (report_sound_before_it_is_mended, ("I33",)),
}
"""For histories in which bits flip."""
