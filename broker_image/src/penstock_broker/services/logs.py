"""The call about the logs that this broker stores: their offsets, bytes on disk and damage.

Also those that belong to no replica. Sizes are read in a thread, because the store looks at its
files for them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Protocol

from penstock.core.batch import BatchHeader
from penstock.core.types import BrokerId, ReplicaKey
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import admin_pb2 as pb
from penstock_broker.replication.replica import Replica
from penstock_broker.store.interface import LogStore, Slot


class KnownDamage(Protocol):
    """What is known of the damage of a log (`replication.mending`)."""

    def lost(self, key: ReplicaKey) -> Sequence[BatchHeader] | None:
        """Damaged batches that nobody has given."""
        ...

    def says(self, key: ReplicaKey) -> str:
        """What is done about it, for people; empty: none is known."""
        ...


class StoredLogs:
    """Answers for this broker alone: clients ask each one."""

    def __init__(
        self,
        store: LogStore,
        executor: Executor,
        disk_bytes: Callable[[], tuple[int, int, int]],
        copy_rate: Callable[[], int | None],
        damage: KnownDamage,
        differs: Callable[[ReplicaKey], str],
    ) -> None:
        """`disk_bytes` returns (free, total, reserve) of the data volume. `copy_rate`: bytes per
        second, None: no limit. `differs`: how a log is not as its leader's, for people."""
        self._damage = damage
        self._differs = differs
        self._store = store
        self._executor = executor
        self._disk_bytes = disk_bytes
        self._copy_rate = copy_rate

    async def describe(
        self, broker_id: BrokerId, replicas: list[Replica], orphans: Mapping[ReplicaKey, Slot]
    ) -> pb.DescribeLogsResponse:
        """One entry per replica, and one per log without. What cannot be measured is damaged, and
        counts 0 bytes: nobody needs it more than who looks for damage."""
        orphaned = list(orphans)
        slots = [*(replica.slot for replica in replicas), *orphans.values()]

        def blocking() -> list[int]:
            return [self._size_bytes(slot) for slot in slots]

        sizes = await asyncio.get_running_loop().run_in_executor(self._executor, blocking)
        free, total, reserve = self._disk_bytes()
        return pb.DescribeLogsResponse(
            broker_id=broker_id,
            logs=[
                _log_info(replica, size, self._damage, self._differs(replica.key))
                for replica, size in zip(replicas, sizes, strict=False)
            ],
            orphans=[
                pb.OrphanedLog(topic_id=key.topic_id, partition=key.partition, bytes=size)
                for key, size in zip(orphaned, sizes[len(replicas) :], strict=True)
            ],
            disk_free_bytes=free,
            disk_total_bytes=total,
            disk_reserve_bytes=reserve,
            copy_rate=self._copy_rate() or 0,
        )

    def _size_bytes(self, slot: Slot) -> int:
        try:
            return self._store.size_bytes(slot)
        except ClusterError as error:
            if error.code is not ErrorCode.DATA_CORRUPTED:
                raise
            return 0


def _log_info(replica: Replica, size_bytes: int, damage: KnownDamage, differs: str) -> pb.LogInfo:
    marks, lost = replica.marks, damage.lost(replica.key) or ()
    return pb.LogInfo(
        topic=replica.topic,
        topic_id=replica.key.topic_id,
        partition=replica.key.partition,
        is_leader=marks.is_leader,
        leader_epoch=marks.leader_epoch,
        log_start_offset=marks.log_start_offset,
        high_watermark=marks.high_watermark,
        log_end_offset=marks.log_end_offset,
        bytes=size_bytes,
        lost=[pb.OffsetSpan(first=one.base_offset, last=one.next_offset - 1) for one in lost],
        mending=damage.says(replica.key),
        differs=differs,
    )
