"""Bounds on what is named in a request, and on what is in flight (I23).

Beyond the latter, a request is refused as retriable, never queued.

Only streams wait: they have a window of their own, and no answer to refuse with.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol, TypeVar

from google.protobuf.message import Message

from penstock.errors import ClusterError, ErrorCode, OverloadedError, PenstockError
from penstock.rpc.channel import MAX_MESSAGE_BYTES
from penstock_broker.serving.callers import Caller, Role

PARTITIONS_MAX: Final = 20_000
"""Per request, and per Subscribe stream: as many as a cluster has by default."""
NAMES_MAX: Final = 1_000
"""Groups or transactional ids to describe in one request: each description can be long."""
SLICE: Final = 100
"""Parts of a request that are worked off in one go: about 2 ms of the event loop, if all of them
are refused."""
ANSWER_BYTES_MAX: Final = MAX_MESSAGE_BYTES * 7 // 8
"""Of descriptions in one answer; the rest of a message is for errors."""
_M = TypeVar("_M", bound=Message)


def check_count(what: str, seen: int, limit: int) -> None:
    """Raises ClusterError(INVALID_REQUEST) for a request that names more than `limit`."""
    if seen > limit:
        raise ClusterError(
            f"the request names {seen} {what}, the limit is {limit}; split it into several",
            ErrorCode.INVALID_REQUEST,
        )


def begins_slice(index: int) -> bool:
    """Whether others must have a turn before the part with this index, since the work on the parts
    before it may never have waited."""
    return index > 0 and index % SLICE == 0


async def described(
    names: Iterable[str],
    describe: Callable[[str], Awaitable[_M]],
    refused: Callable[[str, PenstockError], _M],
) -> list[_M]:
    """One description per name, in their order, as many as one answer can have.

    A name takes a few bytes of a request, a description up to megabytes: `refused` makes those that
    there is no room for, with an INVALID_REQUEST.
    """
    found: list[_M] = []
    room_bytes = ANSWER_BYTES_MAX
    for name in names:
        if room_bytes > 0:
            one = await describe(name)
            room_bytes -= one.ByteSize()
        if room_bytes <= 0:
            error = ClusterError(
                f"there is no room for it in the answer, which has at most {ANSWER_BYTES_MAX} "
                "bytes; ask for fewer at a time, or without offsets",
                ErrorCode.INVALID_REQUEST,
            )
            one = refused(name, error)
        found.append(one)
    return found


class Bytes(Protocol):
    """Bytes that may be in flight at one time: all of them, or one user's share."""

    @property
    def free_bytes(self) -> int:
        """As many can be taken now."""

    def take(self, size_bytes: int, *, always: bool = False) -> None:
        """Raises OverloadedError; see `ByteBudget.take`."""

    def give(self, size_bytes: int) -> None:
        """Gives back what was taken."""

    async def room(self, size_bytes: int) -> None:
        """Waits until as many can be taken; takes nothing."""


class ByteBudget:
    """Bytes that may be in flight at one time; callers take and give them.

    A user takes no more than half, so that nobody can keep all others out (`of`).
    """

    def __init__(self, limit_bytes: int, what: str) -> None:
        """`what`: of what the bytes are, as errors name it."""
        self._limit_bytes = limit_bytes
        self.share_bytes = limit_bytes // 2
        """What one user may take."""
        self.what = what
        self.taken_bytes = 0
        self.taken_by: dict[str, int] = {}
        """By principal, of those who have bytes in flight."""
        self._given = asyncio.Event()

    def of(self, who: Caller) -> Bytes:
        """What this caller takes from: a user has a share, everybody else the whole budget."""
        return Share(self, who.principal) if who.role is Role.USER else self

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
                f"{self.what}: {self.taken_bytes} bytes are in flight, and {size_bytes} more "
                f"would exceed the limit of {self._limit_bytes}; try again later, or send less "
                "at a time"
            )
        self.taken_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """Gives back what was taken."""
        self.taken_bytes -= size_bytes
        self._given.set()
        assert self.taken_bytes >= 0, self.what

    async def room(self, size_bytes: int) -> None:
        """Waits until `size_bytes` are free, or nothing is taken; takes nothing."""
        while self.taken_bytes and self.free_bytes < size_bytes:
            await self.changed()

    async def changed(self) -> None:
        """Waits until somebody gives something back."""
        self._given.clear()
        await self._given.wait()


class Share:
    """One user's half of a budget; as the budget, it lets a single larger request through."""

    __slots__ = ("_budget", "_principal")

    def __init__(self, budget: ByteBudget, principal: str) -> None:
        self._budget, self._principal = budget, principal

    @property
    def _own_bytes(self) -> int:
        return self._budget.taken_by.get(self._principal, 0)

    @property
    def free_bytes(self) -> int:
        return min(self._budget.free_bytes, max(self._budget.share_bytes - self._own_bytes, 0))

    def take(self, size_bytes: int, *, always: bool = False) -> None:
        own = self._own_bytes
        if not always and own and own + size_bytes > self._budget.share_bytes:
            raise OverloadedError(
                f"{self._budget.what}: {own} bytes of {self._principal} are in flight, and "
                f"{size_bytes} more would exceed a user's share of {self._budget.share_bytes}; "
                "try again later, or send less at a time"
            )
        self._budget.take(size_bytes, always=always)
        if size_bytes:
            self._budget.taken_by[self._principal] = own + size_bytes

    def give(self, size_bytes: int) -> None:
        left = self._own_bytes - size_bytes
        assert left >= 0, f"{self._budget.what} of {self._principal}"
        if left:
            self._budget.taken_by[self._principal] = left
        else:
            self._budget.taken_by.pop(self._principal, None)
        self._budget.give(size_bytes)

    async def room(self, size_bytes: int) -> None:
        await self._budget.room(size_bytes)
        while self._own_bytes and self.free_bytes < size_bytes:
            await self._budget.changed()
