"""How far the copies are of the partitions that this broker leads, for its heartbeats (ADR 76).

    images ─▶ partitions with `adding` ─ every 2 s ─▶ bytes left, by the index ─▶ Pace ─▶ heartbeat

Only the leader knows: what it has written, and what the other broker has acknowledged. Nothing runs
here, and heartbeats are what they were, while nothing is copied.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from penstock.core.types import BrokerId, Offset, ReplicaKey
from penstock.errors import PenstockError
from penstock.proto.v1 import controller_pb2 as pb
from penstock_broker.metadata.image import ClusterView
from penstock_broker.observability import EventLog
from penstock_broker.replication.feeding import FollowerStream
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.store.interface import LogStore

_EVERY_S: Final = 2.0
_PACE_MS: Final = 10_000
COPIES_MAX: Final = 1_000
"""Heartbeats tell of them in turn; a broker receives 32 copies at a time."""
_events = EventLog("progress")
Copy = tuple[ReplicaKey, BrokerId]
"""A partition that is led here, and who copies it."""


class Pace:
    """Bytes per second that one copy moved over the last 10 s, at most."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def put(self, moved_bytes: int, now_ms: float) -> int:
        """`moved_bytes`: all that was written here so far, less what is left to copy. It falls if
        the copy begins again, which counts as no pace."""
        seen = self._seen
        if seen and moved_bytes < seen[-1][1]:
            seen.clear()
        seen.append((now_ms, moved_bytes))
        while len(seen) > 2 and now_ms - seen[0][0] > _PACE_MS:
            seen.popleft()
        span_ms = now_ms - seen[0][0]
        return int((moved_bytes - seen[0][1]) * 1_000 / span_ms) if span_ms > 0 else 0


class CopyWatch:
    """See the module."""

    def __init__(
        self, replicas: ReplicaSet, view: ClusterView, store: LogStore, measuring: Executor
    ) -> None:
        self._replicas = replicas
        self._view = view
        self._store = store
        self._measuring = measuring
        self._paces: dict[Copy, Pace] = {}
        self.newest: tuple[pb.CopyProgress, ...] = ()
        """What was found last."""

    async def run(self, beat: Callable[[], None]) -> None:
        """Measures until cancelled; `beat` sends a heartbeat now."""
        while True:
            copies = self._running()
            if not copies:
                self._paces.clear()
                self.newest = ()
                await self._view.next_image()
                continue
            await self.measure(copies)
            beat()
            await asyncio.sleep(_EVERY_S)

    def _running(self) -> list[tuple[Replica, BrokerId]]:
        found = []
        for key, replica in self._replicas.by_key.items():
            state = self._view.state(key)
            # It may begin to lead after the image: then no other one would say that it does.
            if state is not None and state.leader == self._replicas.broker_id:
                found += [(replica, broker_id) for broker_id in state.adding]
        return found[:COPIES_MAX]

    async def measure(self, copies: list[tuple[Replica, BrokerId]]) -> None:
        """Once; a log that cannot be measured now is left out."""
        wanted = [(replica, who, replica.machine.written_by(who)) for replica, who in copies]
        loop = asyncio.get_running_loop()
        left = await loop.run_in_executor(self._measuring, self._left, wanted)
        now_ms = loop.time() * 1_000
        found = []
        for (replica, who), bytes_left in zip(copies, left, strict=True):
            if bytes_left is not None and replica.marks.is_leader:
                found.append(self._progress(replica, who, bytes_left, now_ms))
        self.newest = tuple(found)
        running = {(replica.key, who) for replica, who in copies}
        self._paces = {copy: pace for copy, pace in self._paces.items() if copy in running}

    def _left(self, wanted: list[tuple[Replica, BrokerId, Offset]]) -> list[int | None]:
        """In a thread of its own."""
        found: list[int | None] = []
        for replica, _, written in wanted:
            try:
                found.append(self._store.bytes_from(replica.slot, written))
            except PenstockError as error:
                _events.warning(
                    "copy not measured", partition=str(replica), offset=written, reason=str(error)
                )
                found.append(None)
        return found

    def _progress(
        self, replica: Replica, who: BrokerId, bytes_left: int, now_ms: float
    ) -> pb.CopyProgress:
        key = replica.key
        pace = self._paces.setdefault((key, who), Pace())
        stream = self._replicas.followers.get(who)
        waits_for = ""
        if not isinstance(stream, FollowerStream):
            waits_for = f"broker {who}, which is not connected"
        elif bytes_left:
            waits_for = stream.copies_wait_for(key)
        return pb.CopyProgress(
            topic_id=key.topic_id,
            partition=key.partition,
            broker_id=who,
            bytes_left=bytes_left,
            bytes_per_second=pace.put(replica.written_bytes - bytes_left, now_ms),
            limited_by=waits_for,
        )
