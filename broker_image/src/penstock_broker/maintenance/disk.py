"""Disk space: writes are refused while some space is still left; reads continue.

The reserve is for truncation, checkpoints, retention and RocksDB's own flushes, which continue when
appends have stopped. Space is measured once per interval, not per request; the store itself refuses
writes that exceed it in between.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from penstock.core.throttle import room_for_copies
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.observability import EventLog

_RESERVE_BYTES_MIN: Final = 64 * 1024 * 1024
_events = EventLog("disk")


class DiskGuard:
    """Knows whether the data volume has space for writes."""

    def __init__(
        self,
        measure: Callable[[], tuple[int, int]],
        *,
        reserve_bytes: int,
        interval_s: float,
        executor: Executor,
        on_change: Callable[[], None],
    ) -> None:
        """`measure` returns (free, total) bytes; `reserve_bytes` 0: max(64 MiB, 1 % of total)."""
        self._measure = measure
        self._reserve_bytes = reserve_bytes
        self._interval_s = interval_s
        self._executor = executor
        self._on_change = on_change
        self.free_bytes, self.total_bytes = measure()

    @property
    def reserve_bytes(self) -> int:
        return self._reserve_bytes or max(_RESERVE_BYTES_MIN, self.total_bytes // 100)

    @property
    def is_full(self) -> bool:
        return self.free_bytes < self.reserve_bytes

    @property
    def has_space_for_copies(self) -> bool:
        return self.free_bytes >= room_for_copies(self.reserve_bytes, self.total_bytes)

    def refusal(self) -> ClusterError | None:
        """Why writes are refused now; None while there is space."""
        if not self.is_full:
            return None
        return ClusterError(
            f"disk full: {self.free_bytes} bytes free, writes stop below {self.reserve_bytes} "
            "(disk.reserve.bytes); nothing was appended, reads continue. Grow the volume, "
            "shorten retention or delete topics: writes then resume by themselves",
            ErrorCode.DISK_FULL,
        )

    async def run(self) -> None:
        """Measures until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            was_full = self.is_full
            self.free_bytes, self.total_bytes = await loop.run_in_executor(
                self._executor, self._measure
            )
            if self.is_full != was_full:
                _events.warning(
                    "disk full: writes refused" if self.is_full else "disk has free space again",
                    free_bytes=self.free_bytes,
                    reserve_bytes=self.reserve_bytes,
                )
                self._on_change()
            await asyncio.sleep(self._interval_s)
