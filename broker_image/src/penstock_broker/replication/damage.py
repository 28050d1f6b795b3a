"""What this run of the broker knows of damage to its replicas, and who is told.

    ReplicaSet: a batch that cannot be read, a defect ──▶ note ─────────▶ found ─▶ reports, mending
    ReplicaAssignment: nothing is left of a log ────────▶ note_missing ─▶ found, missing ─▶ both
    LogVerification, Mending: all of it was read ───────▶ note_sound ───▶ sound ─▶ reports
    Mending: it was dropped, to be copied again ────────▶ note_rebuilt ─▶ rebuilt ─▶ sound, once
                                                                          its leader has answered

A register and nothing else: machines are stopped by `ReplicaSet`, logs are mended by `mending`,
what the controller has to be told of it is chosen by `reports`. What an image says (`marked`) is
kept apart from what this run found (`found`): the mark outlives both the run and the damage.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.types import LeaderEpoch, ReplicaKey
from penstock_broker.replication.replica import Replica, ReportOutlet


class Damage:
    """See the module. Only replicas that are here are in it."""

    def __init__(self) -> None:
        self.reports: ReportOutlet | None = None
        self.mending: ReportOutlet | None = None
        self.found: dict[ReplicaKey, None] = {}
        """Replicas that cannot serve all that they once acknowledged, or have stopped."""
        self.missing: dict[ReplicaKey, LeaderEpoch] = {}
        """Those of them that had a seat in this epoch, and nothing of the log: lost, or never
        stored, if the former run of the broker ended before that."""
        self.sound: dict[ReplicaKey, None] = {}
        """Replicas marked as damaged whose whole log this run has read (`verifying`)."""
        self.rebuilt: set[ReplicaKey] = set()
        """Those whose logs were dropped, to be copied again: not sound while their leader may count
        what they acknowledged with the former log, since it could give them a seat for that."""
        self.marked: dict[ReplicaKey, Replica] = {}
        """Replicas that the newest image has as damaged."""
        self.given_up: set[ReplicaKey] = set()
        """Damaged replicas whose logs cannot be mended."""
        self.confirmed: dict[ReplicaKey, int] = {}
        """The metadata version in which a controller has stored that they are damaged and have no
        seat, since they were given up: an older mark may be one that has been taken away since."""

    def note(self, key: ReplicaKey) -> None:
        """The replica was found damaged, or has stopped."""
        self.sound.pop(key, None)
        self.missing.pop(key, None)
        self.rebuilt.discard(key)
        self.found[key] = None
        if self.reports is not None:
            self.reports.changed()
        if self.mending is not None:
            self.mending.changed()

    def note_missing(self, key: ReplicaKey, epoch: LeaderEpoch) -> None:
        """The replica has a seat in this epoch, and nothing of its log is here."""
        self.note(key)
        self.missing[key] = epoch

    def note_sound(self, key: ReplicaKey) -> None:
        """All of its log can be read; ignored if anything else is wrong with it."""
        self.rebuilt.discard(key)
        if key not in self.found:
            self.sound[key] = None
            if self.reports is not None:
                self.reports.changed()

    def note_rebuilt(self, key: ReplicaKey) -> None:
        """Its log is empty, and it follows again."""
        if key not in self.found:
            self.rebuilt.add(key)

    def begins_anew(self, key: ReplicaKey) -> None:
        """Nobody relies on the missing log of this replica any more."""
        if self.missing.pop(key, None) is not None:
            del self.found[key]

    def give_up(self, key: ReplicaKey) -> None:
        """Nobody can mend its log: once a controller has confirmed the mark, it is copied again."""
        if key not in self.given_up:
            self.given_up.add(key)
            self.confirmed.pop(key, None)
            if self.reports is not None:
                self.reports.changed()

    def confirm(self, keys: Iterable[ReplicaKey], metadata_version: int) -> None:
        """A controller has stored in this version that these replicas are damaged, and nobody needs
        what they have: somebody sound has their seat."""
        given_up = self.given_up.intersection(keys)
        self.confirmed.update(dict.fromkeys(given_up, metadata_version))
        if given_up and self.mending is not None:
            self.mending.changed()

    def mended(self, key: ReplicaKey) -> None:
        """All of its log can be read again."""
        self.found.pop(key, None)
        self.given_up.discard(key)

    def forget(self, key: ReplicaKey) -> None:
        """The replica is removed."""
        self.found.pop(key, None)
        self.given_up.discard(key)
        self.confirmed.pop(key, None)
        self.missing.pop(key, None)
        self.sound.pop(key, None)
        self.rebuilt.discard(key)
        self.marked.pop(key, None)
