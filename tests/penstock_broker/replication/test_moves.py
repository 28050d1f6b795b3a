"""Replicas of a partition that moves: what a broker does between one state and the next."""

from support.led_partitions import LedPartitions, running
from support.waiting import wait_until_async

from penstock.core.encode import encode_columns
from penstock.core.records import build_batch
from penstock.core.replication.contract_leader import IsrAnswered, ProduceRequested
from penstock.core.types import (
    Acks,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionState,
    ReplicaKey,
    Sync,
    TopicId,
)
from penstock_broker.replication.replica import Replica

KEY = ReplicaKey(TopicId("id-t"), 0)


class World(LedPartitions):
    """One partition with one replica, here; `min.insync.replicas` is 2."""

    def __init__(self) -> None:
        super().__init__({"t": ("id-t", 1)})
        self.topics_config = {"min.insync.replicas": "2"}
        self.requests = 0

    @property
    def replica(self) -> Replica:
        return self.replicas.by_key[KEY]

    async def append(self) -> None:
        """One more record is written here."""
        self.requests += 1
        replica, end = self.replica, self.replica.marks.log_end_offset + 1
        request = ProduceRequested(
            request_id=self.requests,
            batch=build_batch(encode_columns([b"x"], timestamps_ms=1)),
            acks=Acks.LEADER,
            sync=Sync.OS,
            deadline_ms=1 << 40,
        )
        self.replicas.handle(replica, request)
        await wait_until_async(lambda: replica.marks.written_end == end, what="it is written")

    def told(self, version: int, *, isr: tuple[int, ...], replicas: tuple[int, ...]) -> None:
        """The controller's answer to an ISR change; its image comes later."""
        state = PartitionState(
            leader=BrokerId(0),
            leader_epoch=LeaderEpoch(1),
            isr=tuple(BrokerId(member) for member in isr),
            replicas=tuple(BrokerId(member) for member in replicas),
            version=version,
        )
        self.replicas.handle(self.replica, IsrAnswered(state))


async def test_a_leader_whose_replicas_grew_does_not_commit_alone_before_the_image_comes() -> None:
    """min.insync.replicas is limited by the replicas of the newest state, not of the image."""
    async with running(World()) as world:
        await world.append()
        assert world.replica.marks.high_watermark == 1, "one replica of one is enough"
        world.told(2, isr=(0, 1, 2), replicas=(0, 1, 2))
        world.told(3, isr=(0,), replicas=(0, 1, 2))
        await world.append()
        assert world.replica.marks.high_watermark == Offset(1), "one replica of three is not"
