"""The aborted transactions that a replica remembers: those of its log, whatever became of it.

Real replicas; the test plays the controller, the other broker and the disk. An entry too many
hides what was committed, one too few shows what never was (I11).
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from support.led_partitions import LedPartitions
from support.transactions import Transactor
from support.waiting import wait_until_async

from penstock.core import aborted
from penstock.core.aborted import AbortedTransaction
from penstock.core.batch import Batch, BatchFlags, build_marker
from penstock.core.isolation import Isolation, covering, visible
from penstock.core.records import build_batch, decode_batch, encode_columns
from penstock.core.replication.contract_follower import (
    BatchesReceived,
    EpochAnswered,
    SendAck,
    SendEpochQuery,
    SendFollowStart,
    SendFollowStop,
)
from penstock.core.replication.contract_leader import EndRequested, ProduceReply
from penstock.core.types import (
    TRANSACTIONAL_PRODUCER_BIT,
    BrokerId,
    LeaderEpoch,
    Offset,
    ProducerId,
    ReplicaKey,
    TopicId,
)
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.replication.reads import LogReader
from penstock_broker.replication.replica import Replica
from penstock_broker.store.interface import PartitionWrite, Rewrite, Slot

KEY = ReplicaKey(TopicId("id-t"), 0)
A = ProducerId(TRANSACTIONAL_PRODUCER_BIT | 1)
OTHER = BrokerId(1)


class ToLeader:
    """The stream to the other broker (replica.LeaderOutlet): what the follower said last."""

    said: SendEpochQuery | SendFollowStart | SendFollowStop | SendAck | None = None

    def send(
        self,
        key: ReplicaKey,
        message: SendEpochQuery | SendFollowStart | SendFollowStop | SendAck,
    ) -> None:
        assert key == KEY
        self.said = message

    def has_said(self, kind: type, epoch: int) -> bool:
        return isinstance(self.said, kind) and getattr(self.said, "leader_epoch", 0) == epoch


class World(LedPartitions):
    """One partition; its newest batches are in memory, so that memory alone judges them."""

    def __init__(self, cache_bytes: int = 1 << 20) -> None:
        super().__init__({"t": ("id-t", 1)}, cache_bytes=cache_bytes)
        self.outlet = ToLeader()
        self.replicas.leaders[OTHER] = self.outlet

    @property
    def replica(self) -> Replica:
        return self.replicas.by_key[KEY]

    async def written(self, end: int) -> None:
        marks = self.replica.machine
        await wait_until_async(lambda: marks.marks.written_end == end, what=f"{end} are written")

    async def read(self) -> list[bytes]:
        """What a reader of committed records sees; asks memory only."""
        end = self.replica.marks.last_stable_offset
        assert self.replica.aborted.between(Offset(0), end) is not None, "memory knows it all"
        reader = LogReader(self.store, self.executor)
        batches, aborted = await reader.read_for(
            self.replica, Offset(0), 1 << 20, end, Isolation.COMMITTED
        )
        shown = batches if aborted is None else visible(batches, aborted)
        return [value or b"" for batch in shown for value in decode_batch(batch).values()]

    # ------------------------------------------------------------ the other broker, as leader

    async def follow(self, epoch: int, *, shared_epoch: int, shared_end: int) -> None:
        """It leads; this log agrees with its own up to `shared_end`, and is cut there."""
        await self.agree(epoch, shared_epoch, shared_end)
        outlet = self.outlet
        await wait_until_async(lambda: outlet.has_said(SendAck, epoch), what="it follows")
        await self.written(shared_end)

    async def agree(self, epoch: int, shared_epoch: int, shared_end: int) -> None:
        """It leads, and says where its log parts from this one."""
        await self.lead(OTHER, epoch)
        outlet = self.outlet
        await wait_until_async(
            lambda: outlet.has_said(SendEpochQuery, epoch), what="it asks where the logs part"
        )
        self.replicas.handle(
            self.replica,
            EpochAnswered(
                leader=OTHER,
                leader_epoch=LeaderEpoch(epoch),
                epoch=LeaderEpoch(shared_epoch),
                end_offset=Offset(shared_end),
                log_start_offset=Offset(0),
            ),
        )

    async def receive(self, epoch: int, *batches: Batch) -> None:
        start = self.replica.marks.log_end_offset
        stamped = []
        for batch in batches:
            stamped.append(batch.stamped(start, LeaderEpoch(epoch), 0))
            start = stamped[-1].next_offset
        self.replicas.handle(
            self.replica,
            BatchesReceived(
                leader=OTHER,
                leader_epoch=LeaderEpoch(epoch),
                batches=tuple(stamped),
                high_watermark=Offset(0),
                log_start_offset=Offset(0),
                sync_through=Offset(0),
            ),
        )
        await self.written(start)


def data(value: bytes) -> Batch:
    return build_batch(
        encode_columns([value], timestamps_ms=1),
        producer_id=A,
        producer_epoch=0,
        base_sequence=0,
        flags=BatchFlags.TRANSACTIONAL,
    )


def marker(*, commit: bool) -> Batch:
    return build_marker(A, 0, commit=commit, timestamp_ms=1)


@asynccontextmanager
async def running(cache_bytes: int = 1 << 20) -> AsyncIterator[World]:
    world = World(cache_bytes)
    world.replica_list = (0, 1)
    async with asyncio.timeout(600), asyncio.TaskGroup() as tasks:
        parts = [
            tasks.create_task(part) for part in (world.writer.run(), world.replicas.run_ticks())
        ]
        try:
            yield world
        finally:
            world.store.open_gates()
            for part in parts:
                part.cancel()
    world.executor.shutdown()


@pytest.mark.parametrize("commits", [True, False])
async def test_a_follower_remembers_what_it_copied_and_judges_by_it_once_it_leads(
    commits: bool,
) -> None:
    async with running() as world:
        await world.follow(1, shared_epoch=-1, shared_end=0)
        await world.receive(1, data(b"x"), marker(commit=commits))
        await world.lead(0, 2)
        await wait_until_async(
            lambda: world.replica.marks.last_stable_offset == 2, what="all is committed"
        )
        assert await world.read() == ([b"x"] if commits else [])


async def test_a_marker_that_was_cut_is_forgotten_when_another_outcome_takes_its_place() -> None:
    async with running() as world:
        await world.follow(1, shared_epoch=-1, shared_end=0)
        await world.receive(1, data(b"x"), marker(commit=False))
        assert len(world.replica.aborted) == 1
        await world.follow(2, shared_epoch=1, shared_end=1)
        assert len(world.replica.aborted) == 0
        await world.receive(2, marker(commit=True))
        await world.lead(0, 3)
        await wait_until_async(
            lambda: world.replica.marks.last_stable_offset == 2, what="all is committed"
        )
        assert await world.read() == [b"x"]


async def test_a_marker_is_remembered_if_the_log_could_not_be_cut() -> None:
    async with running() as world:
        await world.follow(1, shared_epoch=-1, shared_end=0)
        await world.receive(1, data(b"x"), marker(commit=False))
        write, refused = world.store.write, 0

        def full(writes: Sequence[PartitionWrite], *, sync: bool) -> None:
            nonlocal refused
            if any(one.truncate_to is not None for one in writes):
                refused += 1
                raise ClusterError("the disk is full", ErrorCode.DISK_FULL)
            write(writes, sync=sync)

        world.store.write = full  # type: ignore[method-assign]
        await world.agree(2, shared_epoch=1, shared_end=1)
        await wait_until_async(lambda: bool(refused), what="the cut is refused")
        await world.lead(0, 3)
        await wait_until_async(
            lambda: world.replica.marks.last_stable_offset == 2, what="all is committed"
        )
        assert len(world.replica.aborted) == 1
        assert await world.read() == []


async def test_a_marker_that_could_not_be_written_is_forgotten() -> None:
    async with running() as world:
        await world.lead(0, 1)
        log = Transactor(world.replicas, world.replica)
        await log.send(1)
        world.store.full = True
        replies: list[ProduceReply] = []
        world.replica.pending[7] = replies.append
        world.replicas.handle(
            world.replica,
            EndRequested(
                request_id=7,
                producer_id=A,
                producer_epoch=0,
                commit=False,
                timestamp_ms=1,
                deadline_ms=world.replicas.now_ms() + 60_000,
            ),
        )
        await wait_until_async(lambda: bool(replies), what="the coordinator hears of it")
        assert replies[0].error is not None
        assert replies[0].error.code is ErrorCode.DISK_FULL
        assert len(world.replica.aborted) == 0
        world.store.full = False
        await log.end(1, commit=True)
        assert await world.read() == [b"0"]


async def test_what_fits_into_an_answer_only_after_compaction_is_judged_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the look at the stored index and the read that it judges, a pass may end."""
    monkeypatch.setattr(aborted, "NEWEST_MAX", 1)
    async with running(cache_bytes=1) as world:
        await world.lead(0, 1)
        log, replica, look = Transactor(world.replicas, world.replica), world.replica, 0
        await log.send(1, size=1_000)
        await log.end(1, commit=False)
        for producer in (2, 3):
            await log.send(producer)
            await log.end(producer, commit=False)
        await log.send(None)
        stored = world.store.aborted

        def compacting(slot: Slot, start: Offset, end: Offset) -> tuple[AbortedTransaction, ...]:
            nonlocal look
            look += 1
            found = stored(slot, start, end)
            if look == 1:
                small = covering(Offset(0), Offset(1), LeaderEpoch(1))
                world.store.write([PartitionWrite(slot, rewrites=[Rewrite((small,))])], sync=False)
            return found

        world.store.aborted = compacting  # type: ignore[method-assign]
        end = replica.marks.last_stable_offset
        reader = LogReader(world.store, world.executor)
        batches, names = await reader.read_for(replica, Offset(0), 1_000, end, Isolation.COMMITTED)
        assert names is not None
        shown = [batch.base_offset for batch in visible(batches, names)]
        assert (shown, look) == ([0, 6], 2)
