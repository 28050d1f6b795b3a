"""Classes of traffic from a leader to a follower, by what waits for it.

    LIVE      the follower is in the ISR, or proposed for it: the high watermark waits for it
    CATCH_UP  a replica outside the ISR: nothing waits, but redundancy is missing
    COPY      a broker that a partition moves to: nothing waits, and nothing is missing

Live traffic goes before the other two, which are *bulk*; copies are throttled as well (I32). Both
ends decide by what they know, so for a moment they can differ: that costs order, never data.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto

from penstock.core.types import BrokerId, PartitionState


class Traffic(Enum):
    """See the module."""

    LIVE = auto()
    CATCH_UP = auto()
    COPY = auto()


def traffic_to(
    broker: BrokerId, state: PartitionState | None, awaited: Collection[BrokerId]
) -> Traffic:
    """The class of a partition's bytes for the replica on `broker`.

    `awaited`: the brokers that the high watermark waits for. A `state` of None, not known yet, is
    CATCH_UP, as is a broker that `state` does not name: it is not throttled, and delays nobody.
    """
    if broker in awaited:
        return Traffic.LIVE
    if state is not None and broker in state.adding:
        return Traffic.COPY
    return Traffic.CATCH_UP
