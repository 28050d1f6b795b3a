"""What a broker remembers of producers that no longer write is bounded (I23)."""

import asyncio

import pytest
from support.led_partitions import LedPartitions, running
from support.produce_scene import MovedClock
from support.waiting import wait_until_async
from support.wire import make_batch

from penstock.core.replication.contract_leader import ProduceRequested
from penstock.core.replication.producers import KEPT_MS
from penstock.core.types import Acks, ReplicaKey, Sync, TopicId
from penstock_broker.maintenance import producer_expiry
from penstock_broker.maintenance.producer_expiry import ProducerExpiry
from penstock_broker.replication.replica import Replica

DAY_MS = 24 * 3600 * 1000


class Scene(LedPartitions):
    """Two partitions whose machines go by a clock that the test moves."""

    def __init__(self) -> None:
        super().__init__({"t": ("id-t", 2)})
        self.clock = MovedClock()
        self.replicas._clock = self.clock

    def replica(self, partition: int) -> Replica:
        return self.replicas.by_key[ReplicaKey(TopicId("id-t"), partition)]

    def write(self, partition: int, *producers: int) -> None:
        for producer in producers:
            self.replicas.handle(
                self.replica(partition),
                ProduceRequested(
                    request_id=producer,
                    batch=make_batch(
                        [b"a"], producer_id=producer, producer_epoch=0, base_sequence=0
                    ),
                    acks=Acks.LEADER,
                    sync=Sync.OS,
                    deadline_ms=self.replicas.now_ms() + DAY_MS,
                ),
            )

    def known(self, partition: int) -> list[int]:
        return [one.producer_id for one in self.replica(partition).machine.producers]


async def test_whoever_is_idle_for_a_day_is_forgotten() -> None:
    async with running(Scene()) as scene:
        await scene.lead(0, 1)
        expiry = ProducerExpiry(scene.replicas, DAY_MS)
        scene.write(0, 1)
        scene.clock.move(1)
        scene.write(1, 2)
        scene.clock.move(DAY_MS)
        await expiry.expire()
        assert (scene.known(0), scene.known(1)) == ([], [2])


async def test_the_partition_with_the_most_producers_gives_way() -> None:
    async with running(Scene()) as scene:
        await scene.lead(0, 1)
        expiry = ProducerExpiry(scene.replicas, DAY_MS, total=5)
        scene.write(0, 1, 2, 3, 4, 5, 6)
        scene.write(1, 7, 8)
        scene.clock.move(KEPT_MS)
        await expiry.expire()
        assert len(scene.known(0)) == 6, "they may still repeat their first batches"
        scene.clock.move(1)
        await expiry.expire()
        assert (scene.known(0), scene.known(1)) == ([4, 5, 6], [7, 8])


async def test_it_looks_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_expiry, "_INTERVAL_S", 0.001)
    async with running(Scene()) as scene, asyncio.TaskGroup() as tasks:
        await scene.lead(0, 1)
        expiring = tasks.create_task(ProducerExpiry(scene.replicas, DAY_MS).run())
        for producer in (1, 2):
            scene.write(0, producer)
            scene.clock.move(DAY_MS + 1)
            await wait_until_async(lambda: not scene.known(0), what="it is forgotten")
        expiring.cancel()
