"""When copies end: not before the broker with most left for its rate has received all. Pure.

    moves ─▶ by who receives: bytes left, bytes per second ─▶ the longest time of these

A broker receives at a rate of its own, and one that has all does not help the others: all bytes at
the rate of all copies would be over earlier.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.client.admin.move_model import MoveDescription
from penstock.core.types import TopicPartition


@dataclass(slots=True)
class Receiving:
    """What a broker has still to receive, in bytes, and at how many of them per second."""

    left: int = 0
    rate: int = 0


def receiving(
    moves: Iterable[MoveDescription], sizes: Mapping[TopicPartition, int | None]
) -> dict[int, Receiving]:
    """By broker. `sizes`: of partitions of which no leader says how far they are; those that are
    not in it, or None, count as empty."""
    found: dict[int, Receiving] = defaultdict(Receiving)
    for move in moves:
        copies = {copy.broker_id: copy for copy in move.copies}
        for broker_id in {*move.target}.difference(move.replicas) | copies.keys():
            copy = copies.get(broker_id)
            one = found[broker_id]
            one.left += (sizes.get(move.where) or 0) if copy is None else copy.bytes_left
            one.rate += 0 if copy is None else copy.bytes_per_second
    return dict(found)


def seconds_left(brokers: Iterable[Receiving], unplanned: int = 0) -> int | None:
    """Until all of these have received all, rounded up; None: nothing is left, or nothing is copied
    now.

    `unplanned`: bytes of which it is not known yet who receives them.
    """
    known = tuple(brokers)
    left, rate = unplanned + sum(one.left for one in known), sum(one.rate for one in known)
    if not left or not rate:
        return None
    # Where nothing arrives yet it will, at about the rate of the others.
    return max(-(-left // rate), *(-(-one.left // one.rate) for one in known if one.rate))
