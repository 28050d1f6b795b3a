"""Coordinators, groups and the calls between them, on real replicas: with and without gRPC.

A group takes part in transactions, its coordinator and that of the id on one broker or, as the
links see it, on another one. What waits is held while the world changes.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import grpc
import pytest
from prometheus_client import CollectorRegistry
from support import led_partitions
from support.led_partitions import LedPartitions
from support.waiting import wait_until_async

from penstock.core.groups import GroupConfig
from penstock.core.groups import contract as g
from penstock.core.groups.catalog import NamedPartition
from penstock.core.groups.config import OFFSETS_TOPIC
from penstock.core.groups.contract_views import FetchRequested
from penstock.core.transactions import TransactionConfig
from penstock.core.transactions import contract as c
from penstock.core.transactions.config import TRANSACTIONS_TOPIC
from penstock.core.transactions.contract_views import DescribeRequested
from penstock.core.transactions.orphans import OpenHere
from penstock.core.transactions.records import (
    GroupParticipant,
    Participant,
    PartitionParticipant,
)
from penstock.core.types import TRANSACTIONAL_PRODUCER_BIT, BrokerId, ProducerId, TopicId
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import broker_pb2, transaction_peer_pb2
from penstock.proto.v1.transaction_peer_pb2_grpc import (
    TransactionPeerServiceStub,
    add_TransactionPeerServiceServicer_to_server,
)
from penstock.rpc.errors import error_from_rpc
from penstock.rpc.transport import GrpcTransport
from penstock_broker.clock import SystemClock
from penstock_broker.groups.coordinators import Coordinators as GroupCoordinators
from penstock_broker.logged.hosts import Hosts
from penstock_broker.metrics import Metrics
from penstock_broker.services.transaction_peer import TransactionPeerService
from penstock_broker.serving.edge import Edge
from penstock_broker.transactions.coordinators import Coordinators
from penstock_broker.transactions.here import Here
from penstock_broker.transactions.links import GroupLink, TransactionLinks
from penstock_broker.transactions.metrics import TransactionMetrics
from penstock_broker.transactions.orphans import OrphanSweep
from penstock_broker.transactions.transport import RemotePeers

T = TopicId("id-t")
WHERE = NamedPartition("t", T, 0)
PID = ProducerId(TRANSACTIONAL_PRODUCER_BIT | 7)
ANOTHER = ProducerId(TRANSACTIONAL_PRODUCER_BIT | 8)
A = TypeVar("A")
NO_SESSION = cast("Any", None)


class NoPartitions:
    """No partition here takes part."""

    def open_here(self) -> Iterable[OpenHere]:
        return ()

    async def end(self, participant: PartitionParticipant, end: c.End) -> None:
        raise ClusterError(f"{participant} is not led here", ErrorCode.NOT_LEADER)


class World(LedPartitions):
    """One broker with all leaderships. `remote`: the links take themselves for another broker."""

    def __init__(self, *, remote: bool, config: TransactionConfig) -> None:
        topics = {
            TRANSACTIONS_TOPIC: ("id-x", 1),
            OFFSETS_TOPIC: ("id-o", 1),
            "t": (T, 1),
        }
        super().__init__(topics)
        me = BrokerId(5 if remote else 0)
        self.transport = RemotePeers(me, self.view, GrpcTransport())
        self.links = TransactionLinks(me, self.view, self.transport, self.around.clock)
        self.coordinators = Coordinators(
            self.around,
            NO_SESSION,
            config,
            self.links,
            TransactionMetrics(CollectorRegistry(), self.around.clock.wall_ms),
        )
        self.groups = GroupCoordinators(
            self.around, NO_SESSION, Metrics(), GroupConfig(), GroupLink(self.links)
        )
        self.refused: PenstockError | None = None
        self.refusals = 0
        self.here = Here(self.coordinators, self.groups, NoPartitions(), self._refusal)
        self.links.serve(self.here, self.coordinators.finder, self.groups.finder)
        self.server = grpc.aio.server(interceptors=[Edge(lambda: "", lambda _method, _s: None)])
        add_TransactionPeerServiceServicer_to_server(TransactionPeerService(self.here), self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.brokers = (
            broker_pb2.BrokerInfo(broker_id=0, host="127.0.0.1", port=self.port, alive=True),
        )

    def _refusal(self) -> PenstockError | None:
        self.refusals += self.refused is not None
        return self.refused

    async def refuses(self) -> None:
        """Waits until somebody was refused twice."""
        before = self.refusals
        await wait_until_async(lambda: self.refusals >= before + 2, what="refused, and again")

    async def _host(self, hosts: Hosts[Any], key: str) -> Any:
        def found() -> Any:
            try:
                return hosts.find(key)
            except PenstockError:
                return None

        return await wait_until_async(found, what=f"the coordinator of {key} serves")

    async def ask(self, make: Any) -> Any:
        return await (await self._host(self.coordinators, "app")).ask(make)

    async def init(self, instance: str = "one") -> tuple[ProducerId, int]:
        answer = await self.ask(
            lambda number: c.InitRequested(
                request_id=number,
                transactional_id="app",
                instance_id=instance,
                fresh_producer_id=PID if instance == "one" else ANOTHER,
            )
        )
        return answer.producer_id, answer.producer_epoch

    async def commit_offset(self, offset: int, epoch: int) -> PenstockError | None:
        """Inside the transaction; None: it is pending."""
        coordinator = await self._host(self.groups, "g")
        try:
            answer = await coordinator.ask(
                lambda number: g.CommitRequested(
                    request_id=number,
                    group_id="g",
                    member_id="",
                    member_epoch=-1,
                    instance_id="",
                    offsets=(g.NewOffset(where=WHERE, offset=offset),),
                    transactional_id="app",
                    producer_id=PID,
                    producer_epoch=epoch,
                )
            )
        except PenstockError as error:
            return error
        refused: PenstockError | None = answer.errors[0]
        return refused

    async def end(self, epoch: int, *, commit: bool, wait_ms: int = 0) -> c.Ended:
        ended: c.Ended = await self.ask(
            lambda number: c.EndRequested(
                request_id=number,
                transactional_id="app",
                producer_id=PID,
                producer_epoch=epoch,
                commit=commit,
                wait_visible_ms=wait_ms,
            )
        )
        return ended

    async def committed(self) -> int:
        coordinator = await self._host(self.groups, "g")
        answer = await coordinator.ask(lambda number: FetchRequested(number, "g", (WHERE,)))
        (found,) = answer.offsets
        if found.error is not None:
            raise found.error
        offset: int = found.offset
        return offset

    async def stable(self) -> bool:
        """No offset is pending."""
        try:
            await self.committed()
        except PenstockError:
            return False
        return True

    async def finishing(self) -> int:
        answer = await self.ask(lambda number: DescribeRequested(number, "app"))
        return len(answer.branches[0].finishing)


@asynccontextmanager
async def running(*, remote: bool, config: TransactionConfig | None = None) -> AsyncIterator[World]:
    world = World(remote=remote, config=config or TransactionConfig())
    await world.server.start()
    try:
        async with led_partitions.running(
            world, lambda w: w.links, lambda w: w.coordinators, lambda w: w.groups
        ):
            yield world
    finally:
        await world.transport.close()
        await world.server.stop(None)


near_and_far = pytest.mark.parametrize("remote", [False, True], ids=["here", "over gRPC"])


@near_and_far
@pytest.mark.parametrize("commit", [True, False])
async def test_offsets_of_a_transaction_count_once_it_commits(
    *, remote: bool, commit: bool
) -> None:
    async with running(remote=remote) as world:
        assert await world.init() == (PID, 0)
        assert await world.commit_offset(7, 0) is None
        with pytest.raises(ClusterError) as caught:
            await world.committed()
        assert caught.value.code is ErrorCode.UNSTABLE_OFFSETS
        ended = await world.end(0, commit=commit, wait_ms=20_000)
        assert (ended.producer_epoch, ended.visible) == (1, True)
        assert await world.committed() == (7 if commit else -1)

        async def recorded() -> bool:
            return await world.finishing() == 0

        await wait_until_async(recorded, what="the coordinator has noted that the group heard")


@near_and_far
async def test_a_producer_that_lost_its_id_takes_no_part(*, remote: bool) -> None:
    async with running(remote=remote) as world:
        await world.init()
        assert await world.commit_offset(7, 0) is None
        assert await world.init("another") == (ANOTHER, 1)
        await wait_until_async(world.stable, what="the loser's are aborted")
        late = await world.commit_offset(8, 0)
        assert late is not None
        assert late.code is ErrorCode.PRODUCER_FENCED
        assert await world.committed() == -1


@near_and_far
async def test_a_member_that_is_gone_takes_its_transaction_along(*, remote: bool) -> None:
    async with running(remote=remote) as world:
        await world.init()
        assert await world.commit_offset(7, 0) is None
        world.links.abort(g.SendAbort("app", "member m was put out"))
        if not remote:  # over gRPC it is a call of another service, see the services' tests
            await wait_until_async(world.stable, what="nothing is pending")
            assert await world.committed() == -1


@near_and_far
async def test_what_no_coordinator_knows_any_more_is_ended_in_groups_too(*, remote: bool) -> None:
    async with running(remote=remote) as world:
        sweep = OrphanSweep(world.here, world.links, SystemClock(), age_ms=0, grace_ms=1_000)
        await world.init()
        assert await world.commit_offset(7, 0) is None
        await sweep.sweep()
        assert not await world.stable(), "its coordinator knows it, so that it will end it"
        await world.lead(0, 2, without=frozenset({TRANSACTIONS_TOPIC}))
        await world._host(world.groups, "g")
        await sweep.sweep()
        assert not await world.stable(), "nobody can say that nobody knows it"
        world.topics[TRANSACTIONS_TOPIC] = ("id-new", 1)
        await world.lead(0, 3, new=frozenset({TRANSACTIONS_TOPIC}))
        await world._host(world.coordinators, "app")
        await sweep.sweep()
        assert await world.committed() == -1
        late = await world.commit_offset(8, 0)
        assert late is not None
        assert late.code is ErrorCode.PRODUCER_FENCED, "it is over"


@near_and_far
async def test_a_refusal_that_ends_a_client_is_told_by_nobody_who_may_be_deposed(
    *, remote: bool
) -> None:
    """The coordinator's replicas do not answer: another broker may lead, and know the id."""
    async with running(remote=remote) as world, asyncio.TaskGroup() as tasks:
        coordinator = await world._host(world.coordinators, "app")
        world.store.flowing.clear()
        joining = tasks.create_task(world.commit_offset(7, 0))
        await wait_until_async(lambda: coordinator._requests, what="the coordinator is asked")
        await wait_until_async(lambda: coordinator._sent == 1, what="it shows that it leads")
        assert not joining.done()
        await world.lead(9, 2)
        world.store.flowing.set()
        error = await joining
        assert error is not None
        assert error.retriable, error


@near_and_far
async def test_an_id_that_nobody_has_is_refused_by_a_coordinator_that_leads(
    *, remote: bool
) -> None:
    async with running(remote=remote) as world:
        error = await world.commit_offset(7, 0)
        assert error is not None
        assert error.code is ErrorCode.UNKNOWN_TRANSACTIONAL_ID


@near_and_far
async def test_a_join_whose_coordinator_loses_its_partition_is_refused_and_retriable(
    *, remote: bool
) -> None:
    async with running(remote=remote) as world, asyncio.TaskGroup() as tasks:
        await world.init()
        coordinator = await world._host(world.coordinators, "app")
        world.store.flowing.clear()
        joining = tasks.create_task(world.commit_offset(7, 0))
        await wait_until_async(
            lambda: coordinator._requests, what="the join waits for the coordinator's replicas"
        )
        await world.lead(9, 2)
        world.store.flowing.set()
        error = await joining
        assert error is not None
        assert error.retriable
        await world.lead(0, 3)
        again = await world.commit_offset(7, 0)
        assert again is None, "nothing of the first try is in the way"


async def test_a_join_on_its_way_to_a_broker_that_stops_is_refused_and_retriable(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(remote=True) as world, asyncio.TaskGroup() as tasks:
        await world.init()
        coordinator = await world._host(world.coordinators, "app")
        world.store.flowing.clear()
        joining = tasks.create_task(world.commit_offset(7, 0))
        await wait_until_async(lambda: coordinator._requests, what="the join has arrived")
        await world.server.stop(None)
        error = await joining
        assert error is not None
        assert (error.code, error.retriable) == (ErrorCode.COORDINATOR_LOADING, True)
        assert "nothing was written" in error.message
        assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_without_the_topic_or_a_leader_a_join_is_refused_at_once() -> None:
    async with running(remote=False) as world:
        await world.init()
        await world._host(world.groups, "g")
        world.brokers = ()
        await world.lead(0, 2)
        error = await world.commit_offset(7, 0)
        assert error is not None
        assert error.code is ErrorCode.COORDINATOR_LOADING
        await world.lead(0, 3, without=frozenset({TRANSACTIONS_TOPIC}))
        error = await world.commit_offset(7, 0)
        assert error is not None
        assert (error.code, error.retriable) == (ErrorCode.COORDINATOR_LOADING, True)


@near_and_far
async def test_an_end_that_no_leader_takes_is_sent_again_until_one_does(*, remote: bool) -> None:
    async with running(remote=remote) as world:
        await world.init()
        assert await world.commit_offset(7, 0) is None
        world.refused = ClusterError("the disk is full", ErrorCode.DISK_FULL)
        await world.end(0, commit=True)
        await world.refuses()
        assert not await world.stable()
        assert await world.finishing() == 1
        world.refused = None

        async def done() -> bool:
            return await world.finishing() == 0

        await wait_until_async(done, what="the group has heard")
        assert await world.committed() == 7


@near_and_far
async def test_the_next_coordinator_tells_what_its_predecessor_decided(*, remote: bool) -> None:
    async with running(remote=remote) as world:
        await world.init()
        assert await world.commit_offset(7, 0) is None
        world.refused = ClusterError("not now", ErrorCode.DISK_FULL)
        await world.end(0, commit=True)
        former = await world._host(world.coordinators, "app")
        await world.lead(0, 2)
        assert former.closed is not None
        world.refused = None

        async def done() -> bool:
            return await world.finishing() == 0

        await wait_until_async(done, what="the group has heard")
        assert await world.committed() == 7
        assert (await world.init()) == (PID, 1)


async def test_an_image_sends_ends_again_at_once() -> None:
    config = TransactionConfig(retry_min_ms=600_000, retry_max_ms=600_000)
    async with running(remote=False, config=config) as world:
        await world.init()
        assert await world.commit_offset(7, 0) is None
        here, world.brokers = world.brokers, ()
        world.view.brokers = {}
        await world.end(0, commit=True)
        assert not await world.stable(), "nobody to tell it to"
        world.brokers = here
        await world.lead(0, 1)
        await wait_until_async(world.stable, what="the group has heard")


async def test_partitions_of_topics_deleted_meanwhile_are_not_waited_for() -> None:
    async with running(remote=False) as world:
        await world.init()
        participant = PartitionParticipant(T, 0)
        (refusal,) = await world.here.join([join(participant, 0)])
        assert refusal is None
        await world.end(0, commit=True)
        await world.lead(9, 2)
        await world.lead(9, 3, without=frozenset({"t"}))
        del world.topics["t"]
        await world.lead(0, 4)

        async def done() -> bool:
            return await world.finishing() == 0

        await wait_until_async(done, what="the next coordinator knows that it is gone")


async def test_a_coordinator_that_has_ended_hears_nothing_of_its_ends() -> None:
    async with running(remote=False) as world:
        await world.init()
        assert await world.commit_offset(7, 0) is None
        coordinator = await world._host(world.coordinators, "app")
        end = c.End(
            participant=GroupParticipant("g"),
            producer_id=PID,
            producer_epoch=0,
            commit=True,
            transactional_id="app",
        )
        stored = coordinator._stored(end)
        await world.lead(9, 2)
        stored()
        assert coordinator.closed is not None


async def test_entries_that_cannot_be_read_are_refused_one_by_one() -> None:
    async with running(remote=True) as world:
        await world.init()
        await world._host(world.groups, "g")
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{world.port}")
        stub: Any = TransactionPeerServiceStub(channel)
        good = transaction_peer_pb2.JoinEntry(
            transactional_id="app", producer_id=PID, producer_epoch=0
        )
        good.participant.group_id = "g"
        nobody = transaction_peer_pb2.JoinEntry(transactional_id="app", producer_id=PID)
        nameless = transaction_peer_pb2.JoinEntry(producer_id=PID)
        nameless.participant.group_id = "g"
        stranger = transaction_peer_pb2.JoinEntry(transactional_id="app", producer_id=3)
        stranger.participant.group_id = "g"
        answer = await stub.JoinTransactions(
            transaction_peer_pb2.JoinTransactionsRequest(joins=[nobody, good, nameless, stranger])
        )
        assert [ErrorCode(result.code) for result in answer.results] == [
            ErrorCode.INVALID_REQUEST,
            ErrorCode(0),
            ErrorCode.INVALID_REQUEST,
            ErrorCode.PRODUCER_FENCED,
        ]
        end = transaction_peer_pb2.EndEntry(transactional_id="app", producer_id=PID, commit=True)
        end.participant.group_id = "g"
        elsewhere = transaction_peer_pb2.EndEntry(transactional_id="app", producer_id=PID)
        elsewhere.participant.partition.topic_id = "id-unknown"
        empty = transaction_peer_pb2.EndEntry(transactional_id="app", producer_id=PID)
        answer = await stub.EndAtParticipants(
            transaction_peer_pb2.EndAtParticipantsRequest(ends=[elsewhere, end, empty, end])
        )
        assert [ErrorCode(result.code) for result in answer.results] == [
            ErrorCode.NOT_LEADER,
            ErrorCode(0),
            ErrorCode.INVALID_REQUEST,
            ErrorCode(0),
        ]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.JoinTransactions(
                transaction_peer_pb2.JoinTransactionsRequest(joins=[good] * 10_001)
            )
        assert error_from_rpc(caught.value).code is ErrorCode.INVALID_REQUEST
        await channel.close()


def join(participant: Participant, epoch: int) -> c.JoinRequested:
    return c.JoinRequested(
        request_id=0,
        transactional_id="app",
        producer_id=PID,
        producer_epoch=epoch,
        participant=participant,
    )


def refused(results: Sequence[PenstockError | None]) -> list[ErrorCode | None]:
    return [None if error is None else error.code for error in results]


async def test_an_entry_that_waits_does_not_hold_back_the_others() -> None:
    async with running(remote=False) as world:
        await world.init()
        assert await world.commit_offset(7, 0) is None
        world.refused = ClusterError("not now", ErrorCode.DISK_FULL)
        await world.end(0, commit=True)  # nobody hears of it for now
        world.refused = None

        heard: dict[str, PenstockError | None] = {}
        world.links.join(join(GroupParticipant("g"), 1), lambda error: heard.update(g=error))
        world.links.join(
            join(GroupParticipant("other"), 1), lambda error: heard.update(other=error)
        )
        await wait_until_async(lambda: len(heard) == 2, what="both are answered")
        assert refused(list(heard.values())) == [None, None], "parked until it has heard"


async def test_nothing_is_sent_while_the_broker_stops_and_nobody_is_startled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(remote=False) as world:
        await world.init()
    heard: list[PenstockError | None] = []
    world.links.join(join(GroupParticipant("g"), 0), heard.append)
    world.links.abort(g.SendAbort("app", "gone"))
    lane = world.links._joins[BrokerId(0)]
    await wait_until_async(lambda: not lane._looking, what="the lane has looked")
    assert not heard
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
