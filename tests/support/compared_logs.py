"""Two brokers' parts in one process: a follower's log, and that of the leader which it asks."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from prometheus_client import CollectorRegistry
from support.led_partitions import LedPartitions, running

from penstock.core.batch import Batch, BatchHeader, compute_crc
from penstock.core.replication.contract import Checkpoint, EpochStart
from penstock.core.replication.digests import LogDigest, OffsetRange
from penstock.core.types import BrokerId, LeaderEpoch, Offset, ReplicaKey, TopicId
from penstock.errors import PenstockError
from penstock.proto.v1 import broker_pb2
from penstock.proto.v1 import replication_pb2 as pb
from penstock_broker.clock import SystemClock
from penstock_broker.maintenance.comparing import LogComparison
from penstock_broker.maintenance.scrub_metrics import ScrubMetrics
from penstock_broker.replication.digests import led_digest
from penstock_broker.replication.reads import LogReader
from penstock_broker.replication.replica import Replica
from penstock_broker.store.interface import PartitionWrite, Rewrite

KEY: Final = ReplicaKey(TopicId("id-t"), 0)
LEADER: Final = 1
"""As the follower, broker 0, knows it; among its own parts it is broker 0, too."""
_COUNT: Final = 4096
"""Offsets of a batch: four of them are a range."""


def batch(number: int, text: bytes = b"a record") -> Batch:
    header = BatchHeader(
        record_count=_COUNT,
        first_timestamp_ms=1,
        max_timestamp_ms=1,
        uncompressed_bytes=len(text),
        crc=0,
        base_offset=Offset(_COUNT * number),
        leader_epoch=LeaderEpoch(1),
    )
    return Batch(replace(header, crc=compute_crc(header, text)), text)


BATCHES: Final = [batch(number) for number in range(10)]
"""Two ranges, and half of a third."""
END: Final = BATCHES[-1].next_offset


class AskedLeader:
    """`Leaders`: one, which answers by the code of a leader, or fails."""

    def __init__(self, parts: LedPartitions) -> None:
        self.parts = parts
        self.reader = LogReader(parts.store, parts.executor, parts.replicas.unreadable)
        self.asked: list[OffsetRange] = []
        self.fails: PenstockError | None = None
        self.not_comparable: list[str] = []
        self.closed = False

    async def digest(
        self, leader: BrokerId, epoch: LeaderEpoch, key: ReplicaKey, within: OffsetRange
    ) -> LogDigest | None:
        assert leader == LEADER
        self.asked.append(within)
        if self.fails is not None:
            raise self.fails
        answer = await self.answer(epoch, within, key)
        if answer.HasField("digest"):
            return LogDigest(answer.digest.batches, answer.digest.crc)
        self.not_comparable.append(answer.not_comparable)
        return None

    async def answer(
        self, epoch: int, within: OffsetRange, key: ReplicaKey = KEY
    ) -> pb.ReadDigestResponse:
        request = pb.ReadDigestRequest(
            topic_id=key.topic_id,
            partition=key.partition,
            leader_epoch=epoch,
            start_offset=within.start,
            end_offset=within.end,
        )
        return await led_digest(self.parts.replicas, self.reader, request)

    async def close(self) -> None:
        self.closed = True


class ComparedLogs:
    """`here` follows `there` in epoch 2, with all of `BATCHES` committed on both."""

    def __init__(self, here: LedPartitions, there: LedPartitions) -> None:
        self.here, self.there = here, there
        self.leader = AskedLeader(there)
        self.registry = CollectorRegistry()
        self.comparison = LogComparison(
            here.replicas, here.view, self.leader, ScrubMetrics(self.registry), SystemClock()
        )
        self.reader = LogReader(here.store, here.executor, here.replicas.unreadable)

    @property
    def replica(self) -> Replica:
        return self.here.replicas.by_key[KEY]

    async def compare(self, before: int = 0, after: int = END) -> None:
        """What a scrub does once it has read so much."""
        await self.comparison.compare(self.reader, self.replica, Offset(before), Offset(after), END)

    def store(self, *batches: Batch) -> None:
        """Replaces stored batches of the follower by other sound ones."""
        write = PartitionWrite(self.replica.slot, rewrites=[Rewrite([one]) for one in batches])
        self.here.store.write([write], sync=True)

    def found(self) -> list[str]:
        return [str(one.within) for _, one in self.comparison.here()]

    def counted(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"penstock_{name}")


@asynccontextmanager
async def compared_logs() -> AsyncIterator[ComparedLogs]:
    here, there = (LedPartitions({"t": (KEY.topic_id, 1)}, cache_bytes=1) for _ in range(2))
    checkpoint = Checkpoint(
        LeaderEpoch(1), END, Offset(0), (EpochStart(LeaderEpoch(1), Offset(0)),)
    )
    for parts in (here, there):
        slot = parts.store.open_slot(KEY)
        parts.store.write([PartitionWrite(slot, BATCHES, checkpoint)], sync=True)
        parts.brokers = tuple(broker_pb2.BrokerInfo(broker_id=one, alive=True) for one in (0, 1))
    here.isr = (0, LEADER)
    async with running(there), running(here):
        await there.lead(0, 2)
        await here.lead(LEADER, 2)
        yield ComparedLogs(here, there)
