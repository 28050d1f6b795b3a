"""A ring: two pipes; the second writes to where the first reads.

    keys ─ "there" ─▶ sinks ─ "back" ─▶ keys …      a record ends when `hops_max` have taken it

Committed transactions of each pipe read what those of the other wrote, so that edges of "read what
it wrote" go both ways: only here could they form a cycle (I13). A value keeps the words that each
pipe put before it, and so shows its origin. Everything else, including faults, is as in `pipe`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.types import ReplicaKey
from penstock_sim.pipe import PipeGroups

if TYPE_CHECKING:
    from penstock_sim.world import World

THERE: Final = "there"
BACK: Final = "back"


class Ring(PipeGroups):
    """The groups of both pipes; `topic` is where the bank writes, `opposite` the other one."""

    def __init__(self, world: World, topic: str, opposite: str) -> None:
        self._opposite = opposite
        self.hops_max = world.scheduler.random.choice((2, 3, 4))
        self._commit_chance = world.scheduler.random.choice((0.5, 0.3))
        super().__init__(world, topic)

    def _new_ids(self) -> list[str]:
        return [THERE, BACK]

    def _plan_group(self, group_id: str, topic: str) -> None:
        super()._plan_group(group_id, topic if group_id == THERE else self._opposite)

    def ends_here(self) -> bool:
        """Even when faults are healed: otherwise a transaction ends before its results come
        back."""
        return self.world.scheduler.chance(self._commit_chance)

    def sources(self, group_id: str) -> list[ReplicaKey]:
        """The partitions that a group reads."""
        return self.world.keys if group_id == THERE else self.world.sinks

    def sinks(self, group_id: str) -> list[ReplicaKey]:
        """The partitions that a group writes to."""
        return self.world.sinks if group_id == THERE else self.world.keys
