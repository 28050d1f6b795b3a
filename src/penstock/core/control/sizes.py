"""Whether a topic's document fits into an object of the metadata store, whatever becomes of it.

Elections, ISR changes and moves are never refused for their size: they cannot wait. So room for
them is counted where people decide how many partitions and replicas there are.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.core.control.partition import PartitionDocument
from penstock.core.limits import DOCUMENT_BYTES_MAX
from penstock.core.types import BrokerId
from penstock.errors import ClusterError, ErrorCode

_REST_BYTES: Final = 64 * 1024
"""Of a topic: its rules (32 KiB), settings and names, marks of damage."""
_MOVES_BYTES: Final = 64 * 1024
"""For moves, at least."""
_PARTITION_BYTES: Final = 80
"""Of a partition, without lists: names of fields, and numbers that have grown."""
_MOVE_BYTES: Final = 60
"""More of one that moves."""
MOVING_BYTES_MAX: Final = DOCUMENT_BYTES_MAX - _REST_BYTES
SETTLED_BYTES_MAX: Final = MOVING_BYTES_MAX - _MOVES_BYTES


class PartitionSizes:
    """What the partitions of a topic may take, in bytes, while a request changes them."""

    def __init__(self, topic: str, partitions: Sequence[PartitionDocument]) -> None:
        self._topic = topic
        self._count = len(partitions)
        self._settled = sum(map(_settled_bytes, partitions))
        self._moves = sum(map(_move_bytes, partitions))

    def check(self) -> None:
        """Raises ClusterError(INVALID_REQUEST) for a new topic, or one with new partitions."""
        self._check(self._settled, SETTLED_BYTES_MAX, ErrorCode.INVALID_REQUEST, _FEWER)

    def change(self, before: PartitionDocument, after: PartitionDocument) -> None:
        """Counts one. What makes the topic no larger is always fine.

        Raises ClusterError: INVALID_REQUEST for too many replicas, QUEUE_FULL for a move that has
        to wait for others.
        """
        settled = self._settled + _settled_bytes(after) - _settled_bytes(before)
        moves = self._moves + _move_bytes(after) - _move_bytes(before)
        if settled > self._settled:
            self._check(settled, SETTLED_BYTES_MAX, ErrorCode.INVALID_REQUEST, _FEWER)
        if settled + moves > self._settled + self._moves:
            self._check(settled + moves, MOVING_BYTES_MAX, ErrorCode.QUEUE_FULL, _LATER)
        self._settled, self._moves = settled, moves

    def _check(self, size: int, limit: int, code: ErrorCode, advice: str) -> None:
        if size > limit:
            raise ClusterError(
                f"topic {self._topic!r} with its {self._count} partitions, their replicas and "
                f"moves may take {size} bytes of metadata, the limit is {limit}; {advice}",
                code,
            )


_FEWER: Final = "use fewer partitions or fewer replicas"
_LATER: Final = "submit this move when some have ended"


def _settled_bytes(partition: PartitionDocument) -> int:
    """All replicas are in ISR, ELR or lossy; a move has ended."""
    replicas, target = _list_bytes(partition.state.replicas), _list_bytes(partition.target)
    return _PARTITION_BYTES + 2 * max(replicas, target)


def _move_bytes(partition: PartitionDocument) -> int:
    """A target, all of it being added, all replicas being dropped."""
    if not partition.target:
        return 0
    target = _list_bytes(partition.target)
    return _MOVE_BYTES + 2 * target + _list_bytes(partition.state.replicas)


def _list_bytes(brokers: Iterable[BrokerId]) -> int:
    return sum(len(str(broker)) + 1 for broker in brokers)
