"""Bugs put into what is done about damaged replicas, by controllers and brokers (I33)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock.core.control import election, generations
from penstock.core.replication import refusals
from penstock.core.replication.followers import Followers
from penstock_broker.replication import assignment, exact
from penstock_broker.replication.damage import Damage
from penstock_broker.replication.mending import Mending
from penstock_broker.store.memory import _Log
from penstock_sim.planted_moving import in_function
from penstock_sim.planted_shells import all_of, in_text


def report_sound_before_it_is_mended(patch: Any) -> None:
    """A broker says that a replica is sound as soon as it has found the damage."""
    note = Damage.note

    def hasty(self: Damage, key: Any) -> None:
        note(self, key)
        self.sound[key] = None

    patch.setattr(Damage, "note", hasty)


HEADER_LOOKS: Final[dict[str, Callable[[Any], None]]] = {
    "give_whatever_is_there": in_function(
        exact.stored_exactly,
        "if not batches or pack_header(batches[0].header) != request.header:",
        "if not batches:",
    ),
    "take_whatever_comes": in_function(
        exact.received, "if stored[:HEADER_BYTES] != pack_header(header):", "if not stored:"
    ),
    "store_whatever_is_written": in_text(
        _Log,
        "_mend",
        "if known.header == batch.header:",
        "if known.base_offset == batch.base_offset:",
    ),
}
"""Who gives a batch, who takes it, and the store compare its header: all have to forget it."""

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
    "sound_before_the_leader_knows_that_the_log_begins_anew": (
        all_of(
            in_text(
                Mending,
                "_rebuild",
                "self._replicas.damage.note_rebuilt(opened.key)",
                "self._replicas.found_sound(opened)",
            ),
            # Or a leader that missed the mark would have it begin again.
            in_text(
                Followers,
                "learn",
                "if self._isr.state.version > former_version + 1:",
                "if False:",
            ),
            # Whoever is asked once more has what is missing, and hardly a log is copied again.
            in_text(
                Mending,
                "_treat",
                "if not could_rebuild and self._may_rebuild(replica):",
                "if False:",
            ),
        ),
        ("I5", "I7", "I33"),
    ),
    "a_new_log_in_an_old_seat_is_taken_for_an_empty_one": (
        in_function(
            assignment._never_stored,
            "return checkpoint.leader_epoch == NO_EPOCH or checkpoint.high_watermark == MISSING",
            "return False",
        ),
        ("I7", "I3", "I5", "I33"),
    ),
    "only_members_of_the_isr_look_for_a_missing_log": (
        in_text(
            assignment.ReplicaAssignment,
            "_is_lost",
            "eligible = state.replicas if self._data_intact else state.isr",
            "eligible = state.isr",
        ),
        ("I7", "I3", "I5", "I33"),
    ),
    "a_missing_log_is_forgotten_by_the_next_run": (
        in_function(
            assignment._never_stored,
            "return checkpoint.leader_epoch == NO_EPOCH or checkpoint.high_watermark == MISSING",
            "return checkpoint.leader_epoch == NO_EPOCH",
        ),
        ("I7", "I3", "I5", "I33"),
    ),
    "a_restored_directory_is_believed": (
        in_function(
            generations.check_generations, "if known.generation not in names:", "if not names:"
        ),
        ("I7", "I3", "I33"),
    ),
    "refuse_clients_of_a_damaged_log_for_good": (
        in_function(
            refusals.stopped_here,
            "if error.code is not ErrorCode.DATA_CORRUPTED or state is None:",
            "if True:",
        ),
        ("I24",),
    ),
    "report_sound_before_it_is_mended": (report_sound_before_it_is_mended, ("I33",)),
    "mend_from_another_header": (all_of(*HEADER_LOOKS.values()), ("I33",)),
}
"""For histories in which bits flip."""
