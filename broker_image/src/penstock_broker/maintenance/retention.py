"""Retention: leaders periodically move their log starts; space is reclaimed later.

    every interval ─▶ LogStore.retention_start (thread) ─▶ LogStartMoved ─▶ machine ─▶ tick

Only leaders decide; followers adopt the log start with the next marks. Nothing at or above the last
stable offset is removed: open transactions are not decided yet (I20). While the wall clock is in
doubt, only retention by size goes on (ADR 0111). The work of a round is done in slices, and yields
to the data path in between.
"""

import asyncio
from collections.abc import Iterable
from concurrent.futures import Executor
from typing import Final

from penstock.core.replication.contract_leader import LogStartMoved
from penstock.core.topic import TopicConfig
from penstock.core.types import Offset
from penstock.errors import PenstockError
from penstock_broker.clock import Clock
from penstock_broker.observability import EventLog
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.store.interface import LogStore

_SLICE: Final = 100
_RECLAIM_INTERVAL_S: Final = 60.0
_events = EventLog("retention")


class Retention:
    """Removes records that are older, or more, than topics retain."""

    def __init__(
        self,
        replicas: ReplicaSet,
        store: LogStore,
        executor: Executor,
        clock: Clock,
        *,
        interval_s: float,
    ) -> None:
        self._replicas = replicas
        self._store = store
        self._executor = executor
        self._clock = clock
        self._interval_s = interval_s
        self._removals_reclaimed = 0
        self._reclaim_due_s = 0.0

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self._round()
            except PenstockError as error:
                _events.error("retention failed; trying again later", reason=str(error))

    async def _round(self) -> None:
        led = [
            replica
            for replica in self._replicas.by_key.values()
            if replica.marks.is_leader and replica.config.cleanup_policy.deletes
        ]
        for first in range(0, len(led), _SLICE):
            await self._move(led[first : first + _SLICE])
        self._replicas.remove_again()
        await self._reclaim()

    async def _move(self, replicas: Iterable[Replica]) -> None:
        now = self._clock.wall.look()
        asked = [
            (replica, replica.marks.last_stable_offset, replica.config) for replica in replicas
        ]

        def start_of(
            replica: Replica, end: Offset, config: TopicConfig
        ) -> Offset | PenstockError | None:
            try:
                return self._store.retention_start(
                    replica.slot,
                    older_than_ms=_limit(config.retention_ms, now.ms - config.retention_ms)
                    if now.is_trusted
                    else None,
                    max_bytes=_limit(config.retention_bytes, config.retention_bytes),
                    end=end,
                )
            except PenstockError as error:  # of this log, and no reason to keep the others
                return error

        def blocking() -> list[Offset | PenstockError | None]:
            return [start_of(*one) for one in asked]

        starts = await asyncio.get_running_loop().run_in_executor(self._executor, blocking)
        for (replica, _, config), start in zip(asked, starts, strict=True):
            if isinstance(start, PenstockError):
                _events.error(
                    "retention failed; trying again later",
                    partition=str(replica),
                    reason=str(start),
                )
                self._replicas.unreadable(replica, start)
            # By other settings than those of now, it may be too much: the next round decides.
            elif start is not None and replica.config == config:
                _events.info(
                    "log start moved",
                    partition=str(replica),
                    log_start=start,
                    before=replica.marks.log_start_offset,
                    retention_ms=config.retention_ms,
                    retention_bytes=config.retention_bytes,
                )
                self._replicas.handle(replica, LogStartMoved(start))

    async def _reclaim(self) -> None:
        loop = asyncio.get_running_loop()
        removals = self._replicas.removals
        if removals == self._removals_reclaimed or loop.time() < self._reclaim_due_s:
            return
        self._reclaim_due_s = loop.time() + _RECLAIM_INTERVAL_S
        started = loop.time()
        await loop.run_in_executor(self._executor, self._store.reclaim)
        self._removals_reclaimed = removals
        _events.info("space reclaimed", seconds=round(loop.time() - started, 3))


def _limit(setting: int, value: int) -> int | None:
    return None if setting < 0 else value
