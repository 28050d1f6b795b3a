"""How large a history's cluster is: brokers, replicas of each partition, the smallest ISR."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

_FACTORS: Final = ((3, 2), (3, 2), (3, 2), (2, 1), (2, 2), (3, 1), (1, 2))
"""Replication factor and min.insync.replicas. Most losses are promised to be survived with two of
three."""
_BROKERS: Final = (3, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class Layout:
    """`factor` of `brokers` have a replica of a partition, so a broker may have none at all.

    `min_isr` above `factor`: topics have the default, which is limited to the replicas, however
    many there are.
    """

    brokers: int
    factor: int
    min_isr: int

    @property
    def configs(self) -> dict[str, str]:
        """Of topics."""
        own = self.min_isr <= self.factor
        return {"min.insync.replicas": str(self.min_isr)} if own else {}

    @property
    def fewest(self) -> int:
        """A partition may have so few replicas: no fewer than topics set."""
        return min(self.min_isr, self.factor)

    @property
    def losses(self) -> int:
        """So many members may lose data at one time, and nothing acknowledged is lost (I7)."""
        return self.fewest - 1


def draw_layout(chance: Random, brokers: int | None = None, factor: int | None = None) -> Layout:
    """Any; `brokers`: so many, with as many replicas as there can be of three. `factor`: so many
    replicas."""
    if brokers is not None:
        return Layout(brokers, min(3, brokers), 2)
    found = [one for one in _FACTORS if factor in (None, one[0])]
    factor, min_isr = chance.choice(found)
    return Layout(chance.choice(_BROKERS), factor, min_isr)
