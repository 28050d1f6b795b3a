"""Bounds on what is named in a request, and on what is in flight (I23).

Beyond the latter, a request is refused as retriable, never queued.

Only streams wait: they have a window of their own, and no answer to refuse with.
"""

import asyncio
from typing import Final

from penstock.errors import ClusterError, ErrorCode, OverloadedError

PARTITIONS_MAX: Final = 20_000
"""Per request, and per Subscribe stream: as many as a cluster has by default."""
NAMES_MAX: Final = 1_000
"""Groups or transactional ids to describe in one request: each description can be long."""


def check_count(what: str, seen: int, limit: int) -> None:
    """Raises ClusterError(INVALID_REQUEST) for a request that names more than `limit`."""
    if seen > limit:
        raise ClusterError(
            f"the request names {seen} {what}, the limit is {limit}; split it into several",
            ErrorCode.INVALID_REQUEST,
        )


class ByteBudget:
    """Bytes that may be in flight at one time; callers take and give them."""

    def __init__(self, limit_bytes: int, what: str) -> None:
        self._limit_bytes = limit_bytes
        self._what = what
        self.taken_bytes = 0
        self._given = asyncio.Event()

    @property
    def free_bytes(self) -> int:
        return max(self._limit_bytes - self.taken_bytes, 0)

    def take(self, size_bytes: int, *, always: bool = False) -> None:
        """Takes bytes; raises OverloadedError, and takes none, if fewer are free.

        A single request larger than the whole budget is accepted when nothing else is in flight.
        `always`: the caller has checked `free_bytes`, and may exceed the limit by what it found
        then.
        """
        if not always and self.taken_bytes and size_bytes > self.free_bytes:
            raise OverloadedError(
                f"{self._what}: {self.taken_bytes} bytes are in flight, and {size_bytes} more "
                f"would exceed the limit of {self._limit_bytes}; try again later, or send less "
                "at a time"
            )
        self.taken_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """Gives back what was taken."""
        self.taken_bytes -= size_bytes
        self._given.set()
        assert self.taken_bytes >= 0, self._what

    async def room(self, size_bytes: int) -> None:
        """Waits until `size_bytes` are free, or nothing is taken; takes nothing."""
        while self.taken_bytes and self.free_bytes < size_bytes:
            self._given.clear()
            await self._given.wait()
