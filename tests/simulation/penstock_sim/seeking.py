"""Users who seek back: what was handed out is to be read again, and commits follow.

`group_checks` is told where the reader continues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.types import TopicPartition

if TYPE_CHECKING:
    from penstock_sim.consumer import SimConsumer
    from penstock_sim.members import SimMember

_CHANCE: Final = 0.05
"""Of a seek between two polls."""
_BACK_MAX: Final = 12
"""Offsets."""


class Seeks:
    """The seeks of one process. They draw from a generator of their own: histories without them
    are what they always were."""

    def __init__(self, member: SimMember, consumer: SimConsumer) -> None:
        self._world = member.world
        self._consumer = consumer
        self._random = member.world.scheduler.generator(f"seeks of {member.name}.{member.life}")

    async def maybe(self) -> tuple[TopicPartition, int] | None:
        """Seeks back in one partition; where to, if it did."""
        if not (self._world.contents.seeks and self._world.chaotic):
            return None
        if self._random.random() >= _CHANCE or not self._consumer.states:
            return None
        where = self._random.choice(sorted(self._consumer.states))
        position = self._consumer.reached(where)
        if not position:
            return None
        offset = max(0, position - self._random.randrange(1, _BACK_MAX))
        await self._consumer.seek(where, offset)
        return where, offset
