"""Space of what was removed: asked for until it is given back."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from support.led_partitions import LedPartitions, running
from support.transactions import Transactor
from support.waiting import wait_until_async

from penstock.core.replication.contract_leader import LogStartMoved
from penstock.core.types import Offset, ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.clock import SystemClock
from penstock_broker.maintenance import retention
from penstock_broker.maintenance.retention import Retention
from penstock_broker.replication.replica import Replica
from penstock_broker.store.interface import PartitionWrite


class Replicas:
    """Something was removed."""

    by_key: dict[Any, Any] = {}  # noqa: RUF012 - never changed
    removals = 1

    def remove_again(self) -> None:
        """Nothing was refused."""


class Store:
    """Has no space for it the first time."""

    def __init__(self) -> None:
        self.calls = 0

    def reclaim(self) -> None:
        self.calls += 1
        if self.calls == 1:
            raise ClusterError("full", ErrorCode.DISK_FULL)


async def test_a_reclaim_that_failed_is_tried_again_and_one_that_did_not_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention, "_RECLAIM_INTERVAL_S", 0.0)
    store = Store()
    with ThreadPoolExecutor(1) as executor:
        made = Retention(
            cast("Any", Replicas()), cast("Any", store), executor, SystemClock(), interval_s=0.001
        )
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(made.run())
            await wait_until_async(lambda: made._removals_reclaimed == 1, what="it is done")
            running.cancel()
        assert store.calls == 2
    await made._reclaim()
    assert store.calls == 2


class FullDisk(LedPartitions):
    """Has no space to remove anything while `full`."""

    def __init__(self) -> None:
        super().__init__({"t": ("id-t", 1)})
        self.full = True
        write = self.store.write

        def refusing(writes: Sequence[PartitionWrite], *, sync: bool) -> None:
            if self.full and any(one.log_start_offset for one in writes):
                raise ClusterError("full", ErrorCode.DISK_FULL)
            write(writes, sync=sync)

        self.store.write = refusing  # type: ignore[method-assign]
        self.store.try_write = lambda writes: False  # type: ignore[method-assign]

    @property
    def replica(self) -> Replica:
        return self.replicas.by_key[ReplicaKey(TopicId("id-t"), 0)]

    @property
    def stored_bytes(self) -> int:
        return self.store.size_bytes(self.replica.slot)


async def test_what_a_full_disk_could_not_remove_is_removed_once_it_has_space() -> None:
    async with running(FullDisk()) as world:
        await world.lead(0, 1)
        await Transactor(world.replicas, world.replica).send(None, 10)
        await wait_until_async(lambda: world.replica.marks.high_watermark == 10, what="they are in")
        with ThreadPoolExecutor(1) as executor:
            retention = Retention(
                world.replicas, world.store, executor, SystemClock(), interval_s=1
            )
            world.replicas.handle(world.replica, LogStartMoved(Offset(10)))
            for _ in range(2):
                await wait_until_async(
                    lambda: bool(world.replicas._refused_removals), what="a refusal"
                )
                await retention._round()
            world.full = False
            assert await world.writer.drained(60)
            await retention._round()
            await wait_until_async(lambda: world.stored_bytes == 0, what="they are removed")
