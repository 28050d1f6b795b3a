"""How large a history's cluster is: brokers, replicas of each partition, the smallest ISR."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

_FACTORS: Final = ((3, 2), (3, 2), (3, 2), (2, 1), (2, 2), (3, 1), (1, 1))
"""Replication factor and min.insync.replicas. Most losses are promised to be survived with two of
three."""
_BROKERS: Final = (3, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class Layout:
    """`factor` of `brokers` have a replica of a partition, so a broker may have none at all."""

    brokers: int
    factor: int
    min_isr: int


def draw_layout(chance: Random, brokers: int | None) -> Layout:
    """Any; `brokers`: so many, with as many replicas as there can be of three."""
    if brokers is not None:
        return Layout(brokers, min(3, brokers), 2)
    factor, min_isr = chance.choice(_FACTORS)
    return Layout(chance.choice(_BROKERS), factor, min_isr)
