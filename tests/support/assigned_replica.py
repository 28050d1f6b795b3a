"""A broker with one replica of one partition, whose metadata a test writes."""

from typing import Any

from support.led_partitions import LedPartitions
from support.waiting import wait_until_async

from penstock.core.encode import encode_columns
from penstock.core.records import build_batch
from penstock.core.replication.contract_leader import IsrAnswered, ProduceRequested
from penstock.core.types import (
    Acks,
    BrokerId,
    LeaderEpoch,
    PartitionState,
    ReplicaKey,
    Sync,
    TopicId,
)
from penstock.proto.v1 import broker_pb2, controller_pb2
from penstock_broker.replication.replica import Replica

KEY = ReplicaKey(TopicId("id-t"), 0)


class Outlet:
    """Counts how often there was news for the controller."""

    news = 0

    def changed(self) -> None:
        self.news += 1


class World(LedPartitions):
    """One partition with one replica, here; `min.insync.replicas` is 2."""

    def __init__(self) -> None:
        super().__init__({"t": ("id-t", 1)})
        self.topics_config = {"min.insync.replicas": "2"}
        self.requests = 0
        self.outlet = Outlet()
        self.replicas.damage.reports = self.outlet

    async def image(self, version: int, **partition: Any) -> None:
        """The whole metadata; brokers 1 and 2 have the partition, unless `partition` says else."""
        known: dict[str, Any] = {"leader": 1, "leader_epoch": 1, "replicas": [1, 2], "isr": [1, 2]}
        info = broker_pb2.TopicInfo(
            topic="t",
            topic_id=KEY.topic_id,
            configs=self.topics_config,
            partitions=[broker_pb2.PartitionInfo(version=version, **(known | partition))],
        )
        changed = self.view.apply(
            controller_pb2.ClusterImage(full=True, metadata_version=version, topics=[info])
        )
        await self.assignment.assign(changed)
        await self.assignment.drop_former(changed)

    @property
    def slots(self) -> list[ReplicaKey]:
        return list(self.store.slots())

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
