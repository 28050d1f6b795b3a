"""A broker's replicas over a real store: what machines decide about their logs is carried out."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.waiting import wait_until_async
from support.wire import make_batch

from penstock.client.cluster.wire import logs_from_wire
from penstock.client.model import OrphanedLog
from penstock.core.batch import Batch, BatchFlags
from penstock.core.compaction.plan import Cleaned
from penstock.core.replication.contract import (
    Assigned,
    Checkpoint,
    EpochStart,
    ReplicaConfig,
)
from penstock.core.replication.contract_follower import (
    BatchesReceived,
    EpochAnswered,
    SendFollowStart,
)
from penstock.core.replication.follower import BrokenLogError
from penstock.core.replication.producers import ProducerTable
from penstock.core.types import (
    TRANSACTIONAL_PRODUCER_BIT,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionState,
    ReplicaKey,
    TopicId,
)
from penstock.proto.v1 import admin_pb2 as pb
from penstock.proto.v1 import broker_pb2, controller_pb2
from penstock_broker.clock import SystemClock
from penstock_broker.metadata.image import ClusterView
from penstock_broker.replication.assignment import ReplicaAssignment
from penstock_broker.replication.reads import LogReader
from penstock_broker.replication.recent import RecentCache
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.replication.writer import LogWriter
from penstock_broker.services.admin import AdminService, Here
from penstock_broker.services.logs import StoredLogs
from penstock_broker.store.database import Operations
from penstock_broker.store.interface import LogStore, PartitionWrite, Slot
from penstock_broker.store.layout import checkpoint_key
from penstock_broker.store.losses import promise_nothing
from penstock_broker.store.rocks import RocksLogStore

KEY = ReplicaKey(TopicId("id"), 0)
ME, LEADER = BrokerId(0), BrokerId(1)


def batch(base: int, count: int, *, epoch: int = 1, producer: int = -1) -> Batch:
    values = [b"%d" % (base + index) for index in range(count)]
    named = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
    made = make_batch(values, timestamps_ms=5, **(named if producer >= 0 else {}))
    return made.stamped(Offset(base), LeaderEpoch(epoch), 0)


@asynccontextmanager
async def replicas_over(store: LogStore) -> AsyncIterator[ReplicaSet]:
    with ThreadPoolExecutor(1) as executor:
        writer = LogWriter(store, executor, SystemClock(), lambda _: None)
        replicas = ReplicaSet(
            BrokerId(0),
            writer,
            RecentCache(1 << 20),
            SystemClock(),
            snapshot_bytes=1 << 20,
        )
        async with asyncio.timeout(600), asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(writer.run())
            yield replicas
            await writer.drained(10)
            writing.cancel()


async def follow(replicas: ReplicaSet, epoch: int, **configs: str) -> Replica:
    """An image in which broker 1 leads the partition."""
    partition = broker_pb2.PartitionInfo(
        leader=LEADER, leader_epoch=epoch, replicas=[0, 1], isr=[1], version=epoch
    )
    named = {key.replace("_", "."): value for key, value in configs.items()}
    topic = broker_pb2.TopicInfo(topic="t", topic_id="id", partitions=[partition], configs=named)
    view = ClusterView()
    image = controller_pb2.ClusterImage(full=True, metadata_version=epoch, topics=[topic])
    await ReplicaAssignment(replicas, replicas._writer).assign(view.apply(image))
    return replicas.by_key[KEY]


def answered(*, end: int, log_start: int, swept_end: int = 0) -> EpochAnswered:
    return EpochAnswered(
        leader=LEADER,
        leader_epoch=LeaderEpoch(3),
        epoch=LeaderEpoch(1),
        end_offset=Offset(end),
        log_start_offset=Offset(log_start),
        swept_end=Offset(swept_end),
    )


def received(*batches: Batch, high_watermark: int, log_start: int) -> BatchesReceived:
    return BatchesReceived(
        leader=LEADER,
        leader_epoch=LeaderEpoch(3),
        batches=batches,
        high_watermark=Offset(high_watermark),
        log_start_offset=Offset(log_start),
        sync_through=Offset(0),
    )


def stored_offsets(store: LogStore, slot: Slot) -> list[int]:
    return [found.base_offset for found in store.read(slot, Offset(0), 1 << 20, Offset(999))]


async def test_a_log_that_lost_writes_begins_anew_where_a_shorter_leader_does(
    tmp_path: Path,
) -> None:
    """Retention had removed everything before 24; the leader lost that, and all from 15 on."""
    store = RocksLogStore(tmp_path / "log")
    slot = store.open_slot(KEY)
    begun = (EpochStart(LeaderEpoch(1), Offset(0)),)
    known = Checkpoint(LeaderEpoch(1), Offset(24), Offset(24), begun)
    store.write([PartitionWrite(slot, [batch(24, 14, producer=7)], known)], sync=True)
    promise_nothing(store)
    async with replicas_over(store) as replicas:
        replica = await follow(replicas, 3)
        await wait_until_async(
            lambda: store.recover(slot).checkpoint.leader_epoch == 3, what="the epoch is stored"
        )
        replicas.handle(replica, answered(end=15, log_start=4))
        log = replica.machine._log
        await wait_until_async(
            lambda: log.log_end == 4 and log.is_promised and log.is_still,
            what="the log begins anew, and follows",
        )
        recovered = store.recover(slot)
        assert (recovered.log_end_offset, recovered.checkpoint.log_start_offset) == (4, 4)
        assert recovered.producers == ()

        replicas.handle(replica, received(batch(4, 11), high_watermark=15, log_start=4))
        await wait_until_async(
            lambda: replica.marks.high_watermark == 15, what="the leader's records are copied"
        )
        replicas.handle(replica, received(batch(15, 1), high_watermark=16, log_start=15))
        await wait_until_async(
            lambda: stored_offsets(store, slot) == [15],
            what="records before the log start go, also below the old one",
        )
    store.close()


async def test_a_pass_that_begins_while_a_log_is_cut_changes_nothing(tmp_path: Path) -> None:
    """It may have read what is there no more."""
    store = RocksLogStore(tmp_path / "log")
    slot = store.open_slot(KEY)
    begun = (EpochStart(LeaderEpoch(1), Offset(0)),)
    known = Checkpoint(LeaderEpoch(1), Offset(4), Offset(0), begun)
    store.write([PartitionWrite(slot, [batch(0, 4), batch(4, 4)], known)], sync=True)
    async with replicas_over(store) as replicas:
        replica = await follow(replicas, 3)
        await wait_until_async(
            lambda: store.recover(slot).checkpoint.leader_epoch == 3, what="the epoch is stored"
        )
        replicas.handle(replica, answered(end=4, log_start=0))
        truncations = replica.truncations
        assert replica.marks.log_end_offset == 8, "the cut runs"
        await wait_until_async(lambda: replica.marks.log_end_offset == 4, what="it is done")
        assert not await replicas.rewrite(replica, None, Cleaned(), truncations)
    store.close()


async def test_a_log_begins_anew_inside_a_batch_and_forgets_its_producers(
    tmp_path: Path,
) -> None:
    """The leader's records were deleted up to 500, inside a batch; batches are copied whole."""
    store = RocksLogStore(tmp_path / "log")
    slot = store.open_slot(KEY)
    begun = (EpochStart(LeaderEpoch(1), Offset(0)),)
    known = Checkpoint(LeaderEpoch(1), Offset(10), Offset(0), begun)
    store.write([PartitionWrite(slot, [batch(0, 10, producer=7)], known)], sync=True)
    store.write(
        [PartitionWrite(slot, [batch(10, 10)], log_start_offset=Offset(10))],
        sync=True,
    )
    assert store.recover(slot).producers != (), "they outlive their batches"
    async with replicas_over(store) as replicas:
        replica = await follow(replicas, 3)
        await wait_until_async(
            lambda: store.recover(slot).checkpoint.leader_epoch == 3, what="the epoch is stored"
        )
        replicas.handle(replica, answered(end=900, log_start=500))
        await wait_until_async(
            lambda: replica.marks.log_end_offset == 500, what="the log begins anew"
        )
        assert store.recover(slot).producers == ()
        replicas.handle(replica, received(batch(495, 10), high_watermark=505, log_start=500))
        await wait_until_async(
            lambda: replica.marks.high_watermark == 505, what="the leader's records are copied"
        )
        assert stored_offsets(store, slot) == [495]
        assert store.recover(slot).log_end_offset == 505
    store.close()


@pytest.mark.parametrize("allowed", [True, False])
async def test_who_has_committed_records_that_an_unclean_leader_lacks(
    tmp_path: Path, *, allowed: bool
) -> None:
    """Where such elections are allowed it copies that one's log; else a person has to look."""
    store = RocksLogStore(tmp_path / "log")
    slot = store.open_slot(KEY)
    begun = (EpochStart(LeaderEpoch(1), Offset(0)),)
    known = Checkpoint(LeaderEpoch(1), Offset(10), Offset(0), begun)
    store.write([PartitionWrite(slot, [batch(0, 10, producer=7)], known)], sync=True)
    configs = {"unclean_leader_election_enable": "true"} if allowed else {}
    async with replicas_over(store) as replicas:
        replica = await follow(replicas, 3, **configs)
        await wait_until_async(
            lambda: store.recover(slot).checkpoint.leader_epoch == 3, what="the epoch is stored"
        )
        replicas.handle(replica, answered(end=4, log_start=0))
        assert isinstance(replica.machine.error, BrokenLogError) is not allowed
        log = replica.machine._log
        if allowed:
            await wait_until_async(lambda: log.log_end == 0 and log.is_still, what="it is empty")
            replicas.handle(replica, received(batch(0, 4), high_watermark=4, log_start=0))
            await wait_until_async(lambda: replica.marks.high_watermark == 4, what="it has copied")
    assert store.recover(slot).log_end_offset == (4 if allowed else 10)
    store.close()


async def test_a_log_that_copies_from_a_swept_one_keeps_where_markers_may_be_missing(
    tmp_path: Path,
) -> None:
    """Once it leads, it has to tell others, after a restart too."""
    store = RocksLogStore(tmp_path / "log")
    slot = store.open_slot(KEY)
    async with replicas_over(store) as replicas:
        replica = await follow(replicas, 3)
        await wait_until_async(
            lambda: store.recover(slot).checkpoint.leader_epoch == 3, what="the epoch is stored"
        )
        replicas.handle(replica, answered(end=0, log_start=0, swept_end=20))
        await wait_until_async(lambda: store.recover(slot).swept_end == 20, what="it is stored")
        assert replica.machine._log.swept_end == 20
    store.close()


async def test_a_log_keeps_how_far_what_it_copies_was_superseded(tmp_path: Path) -> None:
    store = RocksLogStore(tmp_path / "log")
    slot = store.open_slot(KEY)
    async with replicas_over(store) as replicas:
        replica = await follow(replicas, 3)
        await wait_until_async(
            lambda: store.recover(slot).checkpoint.leader_epoch == 3, what="the epoch is stored"
        )
        replicas.handle(replica, answered(end=0, log_start=0))
        log = replica.machine._log
        await wait_until_async(lambda: log.is_promised and log.is_still, what="it follows")
        whole = batch(0, 2)
        part = replace(whole, header=replace(whole.header, flags=BatchFlags.COMPACTED))
        replicas.handle(replica, received(part, batch(2, 1), high_watermark=30, log_start=0))
        await wait_until_async(lambda: replica.marks.high_watermark == 3, what="it is written")
        assert store.recover(slot).compacted_end == 30
    store.close()


async def test_a_transaction_of_who_leads_before_it_has_copied_what_was_swept_stays_open(
    tmp_path: Path,
) -> None:
    """Elected uncleanly. After a restart it must not take that one's marker for a swept one."""
    store = RocksLogStore(tmp_path / "log")
    slot = store.open_slot(KEY)
    async with replicas_over(store) as replicas:
        replica = await follow(replicas, 3)
        await wait_until_async(
            lambda: store.recover(slot).checkpoint.leader_epoch == 3, what="the epoch is stored"
        )
        replicas.handle(replica, answered(end=0, log_start=0, swept_end=20))
        await wait_until_async(lambda: store.recover(slot).swept_end == 20, what="it is stored")
        elected = PartitionState(
            leader=ME, leader_epoch=LeaderEpoch(4), isr=(ME,), replicas=(ME, LEADER), version=4
        )
        replicas.handle(replica, Assigned(elected, ReplicaConfig(1)))
        await wait_until_async(
            lambda: store.recover(slot).checkpoint.leader_epoch == 4, what="it leads"
        )
    plain = batch(0, 25, producer=TRANSACTIONAL_PRODUCER_BIT + 7)
    sent = replace(plain, header=replace(plain.header, flags=BatchFlags.TRANSACTIONAL))
    known = ProducerTable()
    known.apply(sent.header)
    store.write([PartitionWrite(slot, [sent], producers=known.snapshot())], sync=False)
    (entry,) = store.recover(slot).producers
    assert entry.open_offset == 0
    store.close()


async def test_a_log_that_cannot_be_measured_hides_no_other(tmp_path: Path) -> None:
    """Its checkpoint cannot be read, as after a bit has flipped there."""
    store = RocksLogStore(tmp_path / "log")
    ruined = store.open_slot(ReplicaKey(TopicId("ruined"), 0))
    change = Operations()
    change.put_state(checkpoint_key(ruined), b"no checkpoint")
    store._commit(change, "ruining a log")
    async with replicas_over(store) as replicas:
        await follow(replicas, 3)
        orphans = [OrphanedLog("ruined", 0, 0)]
        assert await described(replicas, store) == ([("t", 0)], orphans)
    store.close()


async def described(
    replicas: ReplicaSet, store: LogStore, *topics: str
) -> tuple[list[tuple[str, int]], list[OrphanedLog]]:
    """What a client is told: logs of replicas, and those that belong to none."""
    with ThreadPoolExecutor(1) as executor:
        damage = SimpleNamespace(lost=lambda _key: None, says=lambda _key: "its log is read")
        logs = StoredLogs(store, executor, lambda: (1, 2, 3), lambda: 4, damage, lambda _: "")
        unused: Any = None
        here = Here(
            logs=logs,
            quiescence=unused,
            scrubbing=unused,
            configs=unused,
            accept_loss=unused,
            drop_orphans=unused,
        )
        service = AdminService(unused, unused, replicas, unused, here)
        answer = await service.DescribeLogs(pb.DescribeLogsRequest(topics=topics), None)
    found = logs_from_wire(answer)
    assert (found.disk_free_bytes, found.disk_total_bytes) == (1, 2)
    assert (found.disk_reserve_bytes, found.copy_rate) == (3, 4)
    assert all(log.mending == "its log is read" for log in found.logs)
    return [(log.topic, log.size_bytes) for log in found.logs], list(found.orphans)


async def test_logs_that_belong_to_no_replica_are_described_with_their_bytes(
    tmp_path: Path,
) -> None:
    """One was stored by a former run and is not known to the cluster, one is retired now."""
    store = RocksLogStore(tmp_path / "log")
    lost = store.open_slot(ReplicaKey(TopicId("lost"), 3))
    store.write([PartitionWrite(lost, [batch(0, 4)])], sync=True)
    size_bytes = store.size_bytes(lost)
    async with replicas_over(store) as replicas:
        await follow(replicas, 3)
        orphans = [OrphanedLog("lost", 3, size_bytes)]
        assert await described(replicas, store) == ([("t", 0)], orphans)
        assert await described(replicas, store, "t") == ([("t", 0)], [])
        ReplicaAssignment(replicas, replicas._writer).retire_unknown([])
        orphans.append(OrphanedLog("id", 0, 0))
        assert await described(replicas, store) == ([], orphans)
    store.close()


async def test_bulk_stays_out_of_memory_and_what_memory_had_before_hides_nothing(
    tmp_path: Path,
) -> None:
    """Sequence: in the ISR, its batches are kept; outside it, they are not, and a read of them
    must ask the store, not take the end of what is in memory for the log's."""
    store = RocksLogStore(tmp_path / "log")
    async with replicas_over(store) as replicas:
        replica = await follow(replicas, 3)

        def learn(isr: tuple[int, ...], version: int) -> None:
            state = PartitionState(
                leader=LEADER,
                leader_epoch=LeaderEpoch(3),
                isr=tuple(map(BrokerId, isr)),
                replicas=(BrokerId(0), LEADER),
                version=version,
            )
            replicas.handle(replica, Assigned(state, ReplicaConfig()))

        async def copy(offset: int, *, live: bool) -> None:
            one = batch(offset, 1)
            replicas.handle(replica, received(one, high_watermark=offset, log_start=0))
            assert replicas._writer._pending[replica.slot].live is live
            await wait_until_async(
                lambda: replica.marks.written_end == offset + 1, what="it is written"
            )

        said: list[object] = []
        outlet: Any = SimpleNamespace(send=lambda _, message: said.append(message))
        replicas.leaders[LEADER] = outlet
        learn((0, 1), 4)
        replicas.handle(replica, answered(end=0, log_start=0))
        await wait_until_async(
            lambda: any(isinstance(one, SendFollowStart) for one in said), what="it follows"
        )
        await copy(0, live=True)
        with ThreadPoolExecutor(1) as executor:
            reader, end = LogReader(store, executor), Offset(9)
            assert reader.read_recent(replica, Offset(0), 1, end)
            learn((1,), 5)
            await copy(1, live=False)
            assert reader.read_recent(replica, Offset(0), 1, end) is None
            assert [one.base_offset for one in await reader.read(replica, Offset(1), 1, end)] == [1]
            learn((0, 1), 6)
            await copy(2, live=True)
            recent = reader.read_recent(replica, Offset(2), 1, end)
            assert [one.base_offset for one in recent or ()] == [2]
