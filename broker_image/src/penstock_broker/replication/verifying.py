"""Replicas that a former run reported as damaged: this one reads their logs from start to end.

    image: damaged ─▶ read, 1 MiB at a time, resting as long ─▶ all readable ─▶ Damage.sound
                                     ├─ a batch cannot be read ─▶ Damage.found
                                     └─ the disk does not answer ─▶ again, in a while

The mark outlives the run of the broker that found the damage, and what it found. A machine that
stopped because of a defect leaves a sound log behind; whatever is wrong shows when it is read, or
when the follower compares it with its leader's (`BrokenLogError`), before it may join the ISR.
"""

import asyncio
from contextlib import suppress
from typing import Final

from penstock.core.types import Offset, ReplicaKey
from penstock.errors import ErrorCode, PenstockError
from penstock_broker.observability import EventLog
from penstock_broker.replication.reads import LogReader
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet

_CHUNK_BYTES: Final = 1 << 20
_RETRY_S: Final = 5.0
_events = EventLog("verifying")


class LogVerification:
    """Verifies marked replicas, one after the other."""

    def __init__(self, replicas: ReplicaSet, reader: LogReader) -> None:
        self._replicas = replicas
        self._reader = reader
        self._tried: dict[ReplicaKey, Replica] = {}
        """Marked replicas that were read since they were marked, or opened again."""
        self._put_off = False
        """One could not be read now, and is tried again after a while."""
        self._wake = asyncio.Event()

    def changed(self) -> None:
        """An image was applied."""
        self._wake.set()

    async def run(self) -> None:
        """Verifies until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_S if self._put_off else None):
                    await self._wake.wait()
            self._wake.clear()
            self._put_off = False
            damage = self._replicas.damage
            self._tried = {k: r for k, r in self._tried.items() if k in damage.marked}
            for replica in list(damage.marked.values()):
                key = replica.key
                known = key in damage.found or key in damage.sound or key in damage.rebuilt
                if not known and self._tried.get(key) is not replica:
                    self._tried[key] = replica
                    await self._verify(replica)

    async def _verify(self, replica: Replica) -> None:
        """Notes that it is sound, if it is; what cannot be read, the reader notes."""
        offset, end = replica.marks.log_start_offset, replica.marks.written_end
        if offset == end and replica.marks.leader == self._replicas.broker_id:
            # It may have lost all of it, and lead because nobody else is there (I33).
            _events.warning("replica has an empty log, which proves nothing", replica=replica)
            return
        _events.info("verifying a replica marked as damaged", replica=replica, up_to=end)
        try:
            while offset < end:
                offset = await read_resting(self._reader, replica, offset, end)
        except PenstockError as error:
            _events.error("replica not sound", replica=replica, offset=offset, reason=str(error))
            if error.code is not ErrorCode.DATA_CORRUPTED:
                del self._tried[replica.key]
                self._put_off = True
            return
        _events.info("replica is sound", replica=replica, up_to=end)
        self._replicas.found_sound(replica)


async def read_resting(reader: LogReader, replica: Replica, offset: Offset, end: Offset) -> Offset:
    """Reads a chunk of a log from disk and rests for as long as that took.

    Returns where the next one begins, or `end` if the log has no more. Raises ClusterError, with
    DATA_CORRUPTED if the batch at `offset` cannot be read.
    """
    loop = asyncio.get_running_loop()  # the clock of `sleep`, in the simulator, too
    started_s = loop.time()
    batches = await reader.read_stored(replica, offset, _CHUNK_BYTES, end)
    await asyncio.sleep(loop.time() - started_s)
    return batches[-1].next_offset if batches else end
