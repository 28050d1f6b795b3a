"""Offsets at a leader that is damaged, or has just begun to lead."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from support.led_partitions import LedPartitions, running
from support.waiting import wait_until_async

from penstock.core.records import build_batch, encode_columns
from penstock.core.replication.contract_leader import ProduceRequested
from penstock.core.types import Acks, BrokerId, LeaderEpoch, Offset, ReplicaKey, Sync, TopicId
from penstock.errors import TRAITS, ClusterError, ErrorCode
from penstock.proto.v1 import admin_pb2, broker_pb2
from penstock_broker.logged.log import next_request_id
from penstock_broker.services.locate import Locator
from penstock_broker.services.offsets import Offsets

KEY = ReplicaKey(TopicId("id"), 0)
RECORDS = 5


class World(LedPartitions):
    def __init__(self, isr: tuple[int, ...]) -> None:
        super().__init__({"t": ("id", 1)})
        self.isr = isr
        locator = Locator(self.view, self.replicas)
        self.offsets = Offsets(locator, self.replicas, self.store, self.executor)

    async def at_time(self) -> ErrorCode | None:
        part = broker_pb2.ListOffsetsPartition(topic="t", timestamp_ms=5)
        (result,) = (
            await self.offsets.list_offsets(broker_pb2.ListOffsetsRequest(partitions=[part]))
        ).results
        return ErrorCode(result.error.code) if result.HasField("error") else None

    async def delete(self, before: int) -> ErrorCode | None:
        request = admin_pb2.DeleteRecordsRequest(topic="t", before_offset=before)
        answer = await self.offsets.delete_records(request)
        return ErrorCode(answer.error.code) if answer.HasField("error") else None

    async def fill(self) -> None:
        replica = self.replicas.by_key[KEY]
        await wait_until_async(lambda: replica.marks.is_leader, what="it leads")
        self.replicas.handle(
            replica,
            ProduceRequested(
                request_id=next_request_id(),
                batch=build_batch(encode_columns([b"v"] * RECORDS, timestamps_ms=10)),
                acks=Acks.LEADER,
                sync=Sync.OS,
                deadline_ms=self.replicas.now_ms() + 60_000,
                expected_epoch=LeaderEpoch(0),
            ),
        )
        await wait_until_async(
            lambda: replica.marks.written_end == RECORDS, what="the records are written"
        )


@asynccontextmanager
async def offsets_at(*isr: int) -> AsyncIterator[World]:
    async with running(World(isr)) as world:
        await world.fill()
        yield world


@pytest.mark.parametrize("isr", [(0,), (0, 1)], ids=["alone", "with others"])
async def test_the_offset_at_a_time_waits_for_others_if_there_are_any(
    isr: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with offsets_at(*isr) as world:

        def damaged(*_: object) -> None:
            raise ClusterError("the index is damaged", ErrorCode.DATA_CORRUPTED)

        monkeypatch.setattr(world.store, "find_timestamp", damaged)
        code = await world.at_time()
        assert code is not None
        assert TRAITS[code].retriable is (len(isr) > 1)
        assert KEY in world.replicas.damage.found


async def test_nothing_is_deleted_by_a_leader_that_does_not_know_what_is_committed() -> None:
    """An offset that was committed under the leader before may be past its high watermark."""
    async with offsets_at(0, 1) as world:
        await world.lead(1, 2)
        await world.lead(0, 3)
        replica = world.replicas.by_key[KEY]
        await wait_until_async(lambda: replica.marks.is_leader, what="it leads again")
        assert replica.marks.high_watermark < replica.marks.epoch_start_offset == Offset(RECORDS)
        for before in (RECORDS - 1, -1):
            assert await world.delete(before) is ErrorCode.LEADER_NOT_AVAILABLE


async def test_a_log_that_goes_while_it_is_searched_has_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ "No such record" would send a consumer to the end, past all records at the new leader."""
    async with offsets_at(0) as world:
        gate, inside = threading.Event(), threading.Event()
        search = world.store.find_timestamp

        def gated(*wanted: Any) -> Any:
            inside.set()
            assert gate.wait(600)
            return search(*wanted)

        monkeypatch.setattr(world.store, "find_timestamp", gated)
        part = broker_pb2.ListOffsetsPartition(topic="t", timestamp_ms=5)
        request = broker_pb2.ListOffsetsRequest(partitions=[part])
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(world.offsets.list_offsets(request))
            await wait_until_async(inside.is_set, what="the search")
            topic = world.view.topics[TopicId("id")]
            there = BrokerId(1)
            state = replace(
                topic.partitions[0],
                leader=there,
                leader_epoch=LeaderEpoch(2),
                isr=(there,),
                replicas=(there,),
                version=50,
                dropping=(BrokerId(0),),
            )
            moved = replace(topic, partitions=(state,))
            world.view.topics[TopicId("id")] = moved
            await world.assignment.drop_former([moved])
            assert KEY not in world.replicas.by_key
            gate.set()
        (result,) = asked.result().results
        assert result.HasField("error")
