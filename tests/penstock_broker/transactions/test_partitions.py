"""Partitions led here: a batch waits for its join, an End for its marker, while the world changes.

Real replicas and a real coordinator; the join, the store or the producer ids are held at a gate.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from support import led_partitions
from support.clocks import HeldBounds
from support.jumping_clock import DAY_MS, JumpingClock
from support.led_partitions import LedPartitions
from support.transaction_wire import transactional_batch
from support.waiting import wait_until_async

from penstock.core.groups import GroupConfig
from penstock.core.groups.config import OFFSETS_TOPIC
from penstock.core.replication.contract_leader import ProduceReply, ProduceRequested
from penstock.core.transactions import TransactionConfig
from penstock.core.transactions.config import TRANSACTIONS_TOPIC
from penstock.core.transactions.contract import End
from penstock.core.transactions.records import PartitionParticipant
from penstock.core.types import (
    TRANSACTIONAL_PRODUCER_BIT,
    Acks,
    BrokerId,
    Offset,
    ProducerId,
    ReplicaKey,
    Sync,
    TopicId,
)
from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1 import broker_pb2
from penstock.rpc.transport import GrpcTransport
from penstock_broker.groups.coordinators import Coordinators as GroupCoordinators
from penstock_broker.metrics import Metrics
from penstock_broker.services.transactions import Transactions
from penstock_broker.transactions.coordinators import Coordinators
from penstock_broker.transactions.here import Here
from penstock_broker.transactions.links import GroupLink, TransactionLinks
from penstock_broker.transactions.metrics import TransactionMetrics
from penstock_broker.transactions.partitions import END_TIMEOUT_MS, Markers, PartitionJoins
from penstock_broker.transactions.transport import RemotePeers

T = TopicId("id-t")
KEY = ReplicaKey(T, 0)
PID = ProducerId(TRANSACTIONAL_PRODUCER_BIT | 1)
NO_SESSION = cast("Any", None)


class World(LedPartitions):
    """One broker that leads everything. Joins wait for `joining`, producer ids for `taking`."""

    def __init__(self) -> None:
        topics = {TRANSACTIONS_TOPIC: ("id-x", 1), OFFSETS_TOPIC: ("id-o", 1), "t": (T, 1)}
        super().__init__(topics)
        clock = self.around.clock
        self.brokers = (broker_pb2.BrokerInfo(broker_id=0, host="unused", port=1, alive=True),)
        me = BrokerId(0)
        peers = RemotePeers(me, self.view, GrpcTransport())
        self.links = TransactionLinks(me, self.view, peers, clock)
        self.coordinators = Coordinators(
            self.around,
            NO_SESSION,
            TransactionConfig(),
            self.links,
            TransactionMetrics(CollectorRegistry(), self.around.clock.wall_ms),
        )
        self.groups = GroupCoordinators(
            self.around, NO_SESSION, Metrics(), GroupConfig(), GroupLink(self.links)
        )
        self.markers = Markers(self.replicas, clock)
        here = Here(self.coordinators, self.groups, self.markers, lambda: None)
        self.links.serve(here, self.coordinators.finder, self.groups.finder)
        self.replicas.joins = PartitionJoins(self.links, self.replicas)
        self.taking = asyncio.Event()
        self.taking.set()
        self.taken = 0
        self.calls = Transactions(self.coordinators, self._take, lambda: None)

    async def _take(self) -> int:
        self.taken += 1
        await self.taking.wait()
        return self.taken

    async def init(self, instance: str = "one") -> broker_pb2.InitProducerResponse:
        await self.serving()
        request = broker_pb2.InitProducerRequest(
            transactional_id="app", instance_id=instance, producer_id=-1
        )
        return await self.calls.init(request, "127.0.0.1")

    async def serving(self) -> Any:
        def found() -> Any:
            try:
                return self.coordinators.find("app")
            except PenstockError:
                return None

        return await wait_until_async(found, what="the coordinator serves")

    def produce(self, epoch: int = 0, sequence: int = 0) -> "asyncio.Future[ProduceReply]":
        """Hands one batch to the leader; its answer."""
        replica = self.replicas.by_key[KEY]
        answered: asyncio.Future[ProduceReply] = asyncio.get_running_loop().create_future()
        request_id = 1_000 + sequence + 100 * epoch
        replica.pending[request_id] = answered.set_result
        self.replicas.handle(
            replica,
            ProduceRequested(
                request_id=request_id,
                batch=transactional_batch([b"x"], PID, epoch, sequence),
                acks=Acks.ALL,
                sync=Sync.OS,
                deadline_ms=self.replicas.now_ms() + 600_000,
                transactional_id="app",
            ),
        )
        return answered

    def open_here(self) -> int:
        return len(self.replicas.by_key[KEY].machine.open_transactions)

    def end(self, epoch: int = 0) -> End:
        return End(
            participant=PartitionParticipant(T, 0),
            producer_id=PID,
            producer_epoch=epoch,
            commit=True,
            transactional_id="app",
        )

    async def refused_end(self) -> PenstockError:
        with pytest.raises(PenstockError) as caught:
            await self.markers.end(PartitionParticipant(T, 0), self.end())
        return caught.value


@asynccontextmanager
async def running() -> AsyncIterator[World]:
    async with led_partitions.running(
        World(), lambda w: w.links, lambda w: w.coordinators, lambda w: w.groups
    ) as world:
        yield world


async def test_a_batch_is_stored_once_its_join_is() -> None:
    async with running() as world:
        answer = await world.init()
        assert (answer.producer_id, answer.producer_epoch) == (PID, 0)
        replies = [world.produce(sequence=0), world.produce(sequence=1)]
        assert not world.open_here(), "nothing is appended before the coordinator knows"
        assert [(await reply).error for reply in replies] == [None, None]
        assert world.open_here() == 1
        await world.markers.end(PartitionParticipant(T, 0), world.end())
        assert world.open_here() == 0
        await world.markers.end(PartitionParticipant(T, 0), world.end())


async def test_a_join_that_is_refused_refuses_the_batch() -> None:
    async with running() as world:
        await world.init()
        await world.init("another")
        reply = await world.produce()
        assert reply.error is not None
        assert reply.error.code is ErrorCode.PRODUCER_FENCED
        assert not world.open_here()


@pytest.mark.parametrize("change", ["leader", "deleted"])
async def test_a_batch_whose_partition_goes_while_its_join_is_under_way_is_refused(
    change: str,
) -> None:
    async with running() as world:
        await world.init()
        world.store.flowing.clear()
        answered = world.produce()
        coordinator = await world.serving()
        await wait_until_async(lambda: coordinator._requests, what="the join is at its coordinator")
        if change == "leader":
            await world.lead(9, 2)
        else:
            gone = asyncio.ensure_future(world.lead(0, 2, without=frozenset({"t"})))  # noqa: TID251
            await wait_until_async(lambda: KEY not in world.replicas.by_key, what="it is gone")
            world.store.flowing.set()
            await gone
        world.store.flowing.set()
        reply = await answered
        assert reply.error is not None, "and a late answer of the join finds nobody"


async def test_an_end_whose_leader_changes_is_refused_and_retriable() -> None:
    async with running() as world, asyncio.TaskGroup() as tasks:
        await world.init()
        assert (await world.produce()).error is None
        world.store.flowing.clear()
        ending = tasks.create_task(world.refused_end())
        replica = world.replicas.by_key[KEY]
        await wait_until_async(lambda: replica.pending, what="the marker is on its way")
        await world.lead(9, 2)
        world.store.flowing.set()
        assert (await ending).retriable
        assert not replica.pending


async def test_an_end_for_a_partition_that_is_not_here_says_so() -> None:
    async with running() as world:
        with pytest.raises(PenstockError) as caught:
            await world.markers.end(PartitionParticipant(TopicId("no"), 0), world.end())
        assert (caught.value.code, caught.value.retriable) == (ErrorCode.NOT_LEADER, True)
        await world.lead(9, 2)
        assert (await world.refused_end()).code is ErrorCode.NOT_LEADER


async def test_an_end_that_nobody_answers_is_given_up_and_the_marker_may_be_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = HeldBounds()
    async with running() as world, asyncio.TaskGroup() as tasks:
        world.markers = Markers(world.replicas, clock)
        await world.init()
        assert (await world.produce()).error is None
        replica = world.replicas.by_key[KEY]
        monkeypatch.setattr(world.replicas, "handle", lambda *_: None)
        ending = tasks.create_task(world.refused_end())
        await clock.pass_bounds()
        error = await ending
        assert error.code is ErrorCode.REQUEST_TIMED_OUT
        assert [asked_s * 1000 > END_TIMEOUT_MS for asked_s in clock.asked_s] == [True]
        assert not replica.pending


async def test_a_marker_has_the_right_time_while_the_clock_is_in_doubt() -> None:
    """One from next year would keep everything after it until then (I20)."""
    async with running() as world:
        await world.init()
        assert (await world.produce()).error is None
        clock = JumpingClock()
        clock.wall.look()
        clock.ahead_ms = 365 * DAY_MS
        await Markers(world.replicas, clock).end(PartitionParticipant(T, 0), world.end())
        marker = world.replicas.by_key[KEY].recent.newest
        assert marker is not None
        assert abs(marker.effective_max_timestamp_ms - clock.right_ms()) < DAY_MS


async def test_whoever_asked_for_an_end_may_go_before_its_marker_is_stored() -> None:
    async with running() as world, asyncio.TaskGroup() as tasks:
        await world.init()
        assert (await world.produce()).error is None
        world.store.flowing.clear()
        ending = tasks.create_task(world.refused_end())
        replica = world.replicas.by_key[KEY]
        await wait_until_async(lambda: replica.pending, what="the marker is on its way")
        ending.cancel()
        (request_id,) = replica.pending
        replica.answer(ProduceReply(request_id=request_id, base_offset=Offset(1)))
        world.store.flowing.set()
        await wait_until_async(lambda: not world.open_here(), what="the marker is stored")


async def test_a_coordinator_that_goes_while_a_producer_id_is_fetched_is_not_asked() -> None:
    async with running() as world, asyncio.TaskGroup() as tasks:
        await world.serving()
        world.taking.clear()

        async def refused() -> PenstockError:
            with pytest.raises(PenstockError) as caught:
                await world.init()
            return caught.value

        initializing = tasks.create_task(refused())
        await wait_until_async(lambda: world.taken, what="an id is being fetched")
        await world.lead(9, 2)
        world.taking.set()
        error = await initializing
        assert (error.code, error.retriable) == (ErrorCode.NOT_COORDINATOR, True)
        await world.lead(0, 3)
        assert (await world.init()).producer_epoch == 0, "the first try left nothing behind"


async def test_the_next_coordinator_is_asked_once_a_producer_id_is_there() -> None:
    async with running() as world, asyncio.TaskGroup() as tasks:
        former = await world.serving()
        world.taking.clear()
        initializing = tasks.create_task(world.init())
        await wait_until_async(lambda: world.taken, what="an id is being fetched")
        await world.lead(0, 2)
        await wait_until_async(lambda: former.closed, what="the leadership is another")
        await world.serving()
        world.taking.set()
        assert (await initializing).producer_epoch == 0


async def test_no_producer_id_is_fetched_for_an_id_that_is_coordinated_elsewhere() -> None:
    async with running() as world:
        await world.serving()
        await world.lead(9, 2)
        with pytest.raises(PenstockError):
            await world.calls.init(
                broker_pb2.InitProducerRequest(transactional_id="app", producer_id=-1), "host"
            )
        assert world.taken == 0
