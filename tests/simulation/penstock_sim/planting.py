"""All planted bugs, how many seeds it takes to find each, and one way to look for them.

A bug is planted in the process that plays, seed after seed from 0, until an invariant breaks; the
violation names the invariant. `run.py --planted` prints the table; the tests look for each bug.
They first play the seed that found it when the table was last stored (`planted_seeds.txt`):
otherwise most of their time would go into seeds that do not show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from penstock_sim.planted import PLANTED
from penstock_sim.planted_blackouts import BLACKOUT_BUGS, UNCLEAN_BUGS
from penstock_sim.planted_changes import CHANGE_BUGS
from penstock_sim.planted_compaction import COMPACTION_BUGS, COPY_BUGS
from penstock_sim.planted_consumers import CONSUMER_BUGS, TRANSFORMER_BUGS
from penstock_sim.planted_controllers import (
    CONTROLLER_BUGS,
    FOUR_BROKER_BUGS,
    JOURNAL_SHELL_BUGS,
)
from penstock_sim.planted_damage import DAMAGE_BUGS
from penstock_sim.planted_groups import GROUP_BUGS, LEFT_BUGS, SEEK_BUGS
from penstock_sim.planted_hibernation import HIBERNATION_BUGS
from penstock_sim.planted_hosts import HOST_BUGS, LINK_BUGS
from penstock_sim.planted_journal import JOURNAL_BUGS
from penstock_sim.planted_moving import DRAIN_BUGS, MOVING_BUGS
from penstock_sim.planted_operators import OPERATOR_POD_BUGS
from penstock_sim.planted_pipes import PIPE_BUGS, RING_BUGS
from penstock_sim.planted_shells import BUSY_SHELL_BUGS, SHELL_BUGS
from penstock_sim.planted_spark import DELETION_BUGS, SPARK_BUGS
from penstock_sim.planted_transactions import LATE_BUGS, OPERATOR_BUGS, TRANSACTION_BUGS
from penstock_sim.world import simulate

Plant = Callable[[Any], None]
FILE: Final = Path(__file__).resolve().parent.parent / "planted_seeds.txt"


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """One planted bug. `options`: of `simulate`, for the histories in which it is looked for.

    seeds: it is found within this many. found_by: how the violation may begin; (): in any way.
    only_by: seeds in which other invariants find it first are skipped.
    """

    kind: str
    name: str
    plant: Plant
    seeds: int
    options: Mapping[str, Any] = field(default_factory=dict)
    found_by: tuple[str, ...] = ()
    only_by: bool = False

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}"


@dataclass(frozen=True, slots=True)
class Found:
    """The result of looking for a bug: it showed in the last of `seeds` seeds from 0.

    `violation` None: none of them found it.
    """

    bug: int
    seeds: int
    violation: str | None

    @property
    def as_expected(self) -> bool:
        """It was found, by an invariant that may find it."""
        allowed = ALL_BUGS[self.bug].found_by
        return self.violation is not None and (not allowed or self.violation.startswith(allowed))


class Patch:
    """The part of pytest's `monkeypatch` that plants need."""

    def __init__(self) -> None:
        self._undo: list[tuple[object, str, object]] = []

    def setattr(self, target: object, name: str, value: object) -> None:
        """Sets an attribute until `undo`."""
        here = vars(target).get(name, _NOT_HERE)
        self._undo.append((target, name, here))
        setattr(target, name, value)

    def undo(self) -> None:
        """Restores all attributes, newest first."""
        while self._undo:
            target, name, value = self._undo.pop()
            if value is _NOT_HERE:
                delattr(target, name)
            else:
                setattr(target, name, value)


_NOT_HERE: Final = object()


def find(number: int) -> Found:
    """Plants `ALL_BUGS[number]` and plays from seed 0 on until it shows, or gives up."""
    return _look(number, range(ALL_BUGS[number].seeds))


def find_again(number: int) -> Found:
    """As `find`, but plays the stored seed first: if that still shows the bug, no other."""
    seed = stored_seeds().get(str(ALL_BUGS[number]))
    if seed is not None and seed < ALL_BUGS[number].seeds:
        found = _look(number, range(seed, seed + 1))
        if found.as_expected:
            return found
    return find(number)


def _look(number: int, seeds: range) -> Found:
    bug, patch = ALL_BUGS[number], Patch()
    bug.plant(patch)
    try:
        for seed in seeds:
            violation = simulate(seed, **bug.options).violation
            passed_over = bug.only_by and not (violation or "").startswith(bug.found_by)
            if violation is not None and not passed_over:
                return Found(number, seed + 1, violation)
    finally:
        patch.undo()
    return Found(number, bug.seeds, None)


def stored_seeds() -> dict[str, int]:
    """For each bug, by kind and name, the first seed that found it when the table was stored."""
    lines = FILE.read_text(encoding="utf-8").splitlines() if FILE.exists() else []
    pairs = (line.split(" ", 1) for line in lines)
    return {name: int(seed) for seed, name in pairs}


def store_seeds(table: Iterable[Found]) -> None:
    """Replaces the stored seeds of these bugs; others stay, unless they are no longer planted."""
    stored = stored_seeds()
    stored.update({str(ALL_BUGS[found.bug]): found.seeds - 1 for found in table})
    lines = [f"{stored[str(bug)]} {bug}\n" for bug in ALL_BUGS if str(bug) in stored]
    FILE.write_text("".join(lines), encoding="utf-8")


def row(found: Found) -> str:
    """A line of the table."""
    bug = ALL_BUGS[found.bug]
    if found.violation is None:
        what = f"NOT FOUND in {found.seeds} seeds"
    else:
        what = found.violation.partition("\n")[0]
        what = what if found.as_expected else f"FOUND OTHERWISE: {what}"
    return f"{bug.kind:<12} {bug.name:<52} {found.seeds:>4}  {what[:80]}"


HEADER: Final = f"{'of':<12} {'planted bug':<52} {'seeds':>5} found by"


def _without(**options: Any) -> dict[str, Any]:
    return {"groups": False, "journal": False, "transactions": False, "moves": False, **options}


def _with_faults(
    kind: str, bugs: Mapping[str, tuple[Plant, str]], options: Mapping[str, Any]
) -> list[PlantedBug]:
    return [
        PlantedBug(kind, name, plant, 400, {**options, "faults": frozenset(faults.split())})
        for name, (plant, faults) in bugs.items()
    ]


def _all_faults(
    kind: str,
    bugs: Mapping[str, Plant],
    seeds: int,
    options: Mapping[str, Any],
    found_by: tuple[str, ...] = (),
) -> list[PlantedBug]:
    return [PlantedBug(kind, name, plant, seeds, options, found_by) for name, plant in bugs.items()]


_MOVING: Final = {"groups": False, "transactions": False, "moves": True}
"""With a journal or not, as by the seed."""
_DRAINS: Final = {**_MOVING, "drains": True}
_NONE_SPARE: Final = ("keep_streams_of_a_former_run",)
"""Too rare where brokers without a replica are hit as often as those that have one."""
_DAMAGE: Final = {**_without(), "compaction": False, "damage": True}
_MORE: Final = {
    "a_missing_log_is_forgotten_by_the_next_run": {"faults": frozenset(("kill_broker",))},
}
"""Too rare where brokers are seldom killed twice within a moment."""
_HIBERNATION: Final = {**_without(), "compaction": False, "hibernation": True}
_OPERATOR_PODS: Final = {**_without(), "compaction": False, "operator_pods": True}
_PRODUCERS: Final = {"groups": False, "transactions": True, "operator": False, "moves": False}
"""Histories for bugs of transactions: an operator would end some before they show them."""
_COMPACTING: Final = {**_PRODUCERS, "deletion": False, "compaction": True}
_GROUPS: Final = {"groups": True, "moves": False}
_FOUR: Final = {
    **_without(journal=True, brokers=4),
    "faults": frozenset(("store_away", "second_controller", "slow_network", "cut_broker_off")),
}
_PIPES: Final = {"pipe": True, "operator": False, "moves": False}
_RINGS: Final = {"ring": True, "operator": False, "moves": False}


ALL_BUGS: Final[tuple[PlantedBug, ...]] = (
    *(
        replace(bug, options={**bug.options, "brokers": 3}) if bug.name in _NONE_SPARE else bug
        for bug in _with_faults("replication", PLANTED, _without())
    ),
    *_all_faults("shells", SHELL_BUGS, 500, _without()),
    *_all_faults("shells", BUSY_SHELL_BUGS, 500, _PRODUCERS),
    *_all_faults("shells", HOST_BUGS, 500, _GROUPS),
    *_all_faults("shells", LINK_BUGS, 500, _PRODUCERS),
    *_all_faults("shells", CONTROLLER_BUGS, 500, {**_without(), "journal": None}),
    *_all_faults("shells", JOURNAL_SHELL_BUGS, 500, _without(journal=True, brokers=3)),
    *_all_faults("shells", FOUR_BROKER_BUGS, 500, _FOUR),
    *_with_faults("journal", JOURNAL_BUGS, _without(journal=True)),
    *(
        replace(bug, only_by=True)  # a client's own assertion may come first
        for bug in _all_faults("groups", GROUP_BUGS, 500, _GROUPS, ("I16", "I17", "I18", "I19"))
    ),
    *_all_faults("groups", SEEK_BUGS, 500, {**_GROUPS, "seeks": True}, ("I16", "I18")),
    *_all_faults("groups", LEFT_BUGS, 500, {**_GROUPS, "seeks": True}, ("I17", "I18", "I24")),
    *_all_faults("consumers", CONSUMER_BUGS, 500, _GROUPS),
    *_all_faults("consumers", TRANSFORMER_BUGS, 500, _PIPES),
    *_all_faults("transactions", TRANSACTION_BUGS, 500, _PRODUCERS),
    *(
        replace(bug, only_by=True)  # a wait of the history may end first
        for bug in _all_faults("transactions", LATE_BUGS, 500, _PRODUCERS, ("I14",))
    ),
    *_all_faults("operator", OPERATOR_BUGS, 500, {**_PRODUCERS, "operator": True}, ("I11",)),
    *_all_faults("pipes", PIPE_BUGS, 500, _PIPES, ("I8", "I11", "I14", "I15", "I16", "I18", "I24")),
    *(
        PlantedBug("rings", name, plant, 500, _RINGS, (found_by,), only_by=True)
        for name, (plant, found_by) in RING_BUGS.items()
    ),
    *_all_faults("Spark", SPARK_BUGS, 500, {**_PRODUCERS, "spark": True}, ("I11",)),
    *_all_faults(
        "deletion",
        DELETION_BUGS,
        500,
        {**_PRODUCERS, "deletion": True},
        ("I11", "I14", "I24"),
    ),
    *(
        PlantedBug("moving", name, plant, 500, {**_MOVING, **options}, found_by, only_by=True)
        for name, (plant, options, found_by) in MOVING_BUGS.items()
    ),
    *(
        PlantedBug("drains", name, plant, 500, {**_DRAINS, **options}, found_by, only_by=True)
        for name, (plant, options, found_by) in DRAIN_BUGS.items()
    ),
    *(
        PlantedBug("damage", name, plant, 500, {**_DAMAGE, **_MORE.get(name, {})}, found_by)
        for name, (plant, found_by) in DAMAGE_BUGS.items()
    ),
    *_all_faults("hibernation", HIBERNATION_BUGS, 500, _HIBERNATION, ("I39",)),
    *_all_faults("operator pods", OPERATOR_POD_BUGS, 500, _OPERATOR_PODS, ("I35",)),
    *_all_faults(
        "compaction",
        COMPACTION_BUGS,
        500,
        _COMPACTING,
    ),
    *_all_faults("compaction", COPY_BUGS, 500, {**_COMPACTING, "moves": True}, ("I29",)),
    *(
        PlantedBug("blackouts", name, plant, 500, {"blackouts": True, **options}, found_by)
        for name, (plant, options, found_by) in BLACKOUT_BUGS.items()
    ),
    *(
        PlantedBug("changes", name, plant, 500, {"changes": True, **options}, found_by)
        for name, (plant, options, found_by) in CHANGE_BUGS.items()
    ),
    *_all_faults("unclean", UNCLEAN_BUGS, 500, {"unclean": True}, ("I4", "I24")),
)
