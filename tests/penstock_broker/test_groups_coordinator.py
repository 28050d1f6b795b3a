"""The coordinator's shell over a real replica in memory: failures end it, the log has it back."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import pytest
from support import led_partitions
from support.led_partitions import LedPartitions
from support.waiting import wait_until_async

from penstock.core.encode import encode_columns
from penstock.core.groups import GroupConfig, GroupCoordinator
from penstock.core.groups import contract as c
from penstock.core.groups.catalog import NO_PARTS, NamedPartition, Subscription
from penstock.core.groups.config import OFFSETS_TOPIC
from penstock.core.groups.contract_views import DescribeRequested, Fetched, FetchRequested
from penstock.core.records import build_batch
from penstock.core.replication.contract_leader import ProduceRequested
from penstock.core.types import Acks, ProducerId, ReplicaKey, Sync, TopicId
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_broker.groups.coordinator import Coordinator
from penstock_broker.groups.coordinators import Coordinators
from penstock_broker.groups.streams import MemberStream, StreamEndedError
from penstock_broker.groups.transactions import Joined
from penstock_broker.metrics import Metrics

T = TopicId("id-t")
OFFSETS = ReplicaKey(TopicId("id-o"), 0)
ALL = frozenset((T, partition) for partition in range(3))


class Link:
    """Coordinators of transactions, as groups know them: says yes when it is told to."""

    def __init__(self) -> None:
        self.joins: list[tuple[c.SendJoin, Joined]] = []
        self.aborts: list[c.SendAbort] = []

    def join(self, join: c.SendJoin, joined: Joined) -> None:
        self.joins.append((join, joined))

    def abort(self, abort: c.SendAbort) -> None:
        self.aborts.append(abort)


class Broker(LedPartitions):
    """The parts of a broker that coordinators stand on, with one offsets partition."""

    def __init__(self) -> None:
        super().__init__({OFFSETS_TOPIC: ("id-o", 1), "t": (T, 3)})
        self.link = Link()
        self.coordinators = Coordinators(
            self.around, cast("Any", None), Metrics(), GroupConfig(), self.link
        )

    async def coordinator(self) -> Coordinator:
        """The loaded one."""

        def found() -> Coordinator | None:
            try:
                return self.coordinators.find("g")
            except PenstockError:
                return None

        coordinator = await wait_until_async(found, what="a coordinator is loaded")
        assert coordinator is not None
        return coordinator

    async def commit(self, offset: int) -> c.Committed:
        where = NamedPartition("t", T, 0)
        coordinator = await self.coordinator()
        answer = await coordinator.ask(
            lambda number: c.CommitRequested(
                request_id=number,
                group_id="g",
                member_id="",
                member_epoch=-1,
                instance_id="",
                offsets=(c.NewOffset(where=where, offset=offset),),
            )
        )
        assert isinstance(answer, c.Committed)
        return answer

    async def refusal_of(self, offset: int) -> PenstockError:
        """What a commit is refused with."""
        with pytest.raises(PenstockError) as caught:
            await self.commit(offset)
        return caught.value

    async def committed(self) -> list[int]:
        coordinator = await self.coordinator()
        answer = await coordinator.ask(lambda number: FetchRequested(number, "g"))
        assert isinstance(answer, Fetched)
        return [found.offset for found in answer.offsets]

    async def join(self, member_id: str = "m") -> MemberStream:
        coordinator = await self.coordinator()
        stream = MemberStream(abs(hash(member_id)))
        coordinator.add_stream(stream)
        subscription = Subscription(("t",))
        coordinator.handle(
            c.MemberJoined(
                stream_id=stream.stream_id,
                group_id="g",
                member_id=member_id,
                subscription=subscription,
            )
        )
        assert isinstance(await stream.next(), c.SendJoined)
        assert isinstance(await stream.next(), c.SendAssignment)
        return stream


def running() -> AbstractAsyncContextManager[Broker]:
    return led_partitions.running(Broker(), lambda broker: broker.coordinators)


async def error_of(stream: MemberStream) -> PenstockError:
    while True:
        try:
            await stream.next()
        except PenstockError as error:
            return error


async def test_commits_that_come_together_are_one_batch() -> None:
    async with running() as broker:
        first = await broker.coordinator()
        await asyncio.gather(*(broker.commit(offset) for offset in range(5, 55)))  # noqa: TID251 - plain here
        end = first.log.marks.log_end_offset
        slot = broker.replicas.by_key[OFFSETS].slot
        assert await broker.committed() == [54]
        batches = broker.store.read(slot, first.log.marks.log_start_offset, 1 << 20, end)
        assert end > 50, "every commit is a record"
        assert len(batches) < 10, "and few are batches of their own"


async def test_a_request_that_nobody_stores_is_given_up_with_an_unknown_outcome() -> None:
    async with running() as broker, asyncio.TaskGroup() as tasks:
        await broker.commit(5)
        coordinator = await broker.coordinator()
        broker.store.flowing.clear()
        try:
            late = tasks.create_task(broker.refusal_of(6))
            await wait_until_async(lambda: coordinator._requests, what="it waits")
            now_ms = broker.replicas.now_ms()
            coordinator.tick(now_ms + 29_000)
            assert not late.done()
            coordinator.tick(now_ms + 31_000)
            assert (await late).code is ErrorCode.REQUEST_TIMED_OUT
            assert not coordinator._requests
        finally:
            broker.store.flowing.set()
        await broker.commit(7)
        assert await broker.committed() == [7]


async def test_a_failed_append_ends_the_coordinator_and_nothing_of_it_is_told() -> None:
    async with running() as broker:
        await broker.commit(5)
        former = await broker.coordinator()
        former.handle(c.DeleteRequested(99, "nobody"))
        broker.store.full = True
        with pytest.raises(PenstockError) as caught:
            await broker.commit(6)
        assert caught.value.code is ErrorCode.COORDINATOR_LOADING
        assert caught.value.retriable
        with pytest.raises(PenstockError) as caught:
            former.handle(c.Tick())
        assert caught.value.code is ErrorCode.COORDINATOR_LOADING
        broker.store.full = False
        assert await broker.committed() == [5], "what was not stored is not there"
        assert await broker.coordinator() is not former
        await broker.commit(6)
        assert await broker.committed() == [6]


async def test_members_of_a_coordinator_that_ends_are_told_to_come_back() -> None:
    async with running() as broker:
        stream = await broker.join()
        broker.store.full = True
        coordinator = await broker.coordinator()
        new = (c.NewOffset(where=NamedPartition("t", T, 0), offset=1),)
        with pytest.raises(PenstockError):
            await coordinator.ask(
                lambda number: c.CommitRequested(
                    request_id=number,
                    group_id="g",
                    member_id="m",
                    member_epoch=1,
                    instance_id="",
                    offsets=new,
                )
            )
        assert (await error_of(stream)).retriable
        broker.store.full = False
        again = MemberStream(7)
        coordinator = await broker.coordinator()
        coordinator.add_stream(again)
        subscription = Subscription(("t",))
        coordinator.handle(
            c.MemberJoined(
                stream_id=7,
                group_id="g",
                member_id="m",
                subscription=subscription,
                member_epoch=1,
                owned=ALL,
            )
        )
        assert isinstance(await again.next(), c.SendJoined)
        assignment = await again.next()
        assert isinstance(assignment, c.SendAssignment)
        assert (assignment.member_epoch, assignment.parts) == (1, ALL)


@pytest.mark.parametrize("epoch_only", [True, False])
async def test_a_leadership_that_ends_ends_the_coordinator(*, epoch_only: bool) -> None:
    async with running() as broker:
        await broker.commit(5)
        stream = await broker.join()
        former = await broker.coordinator()
        await broker.lead(0 if epoch_only else 1, 2)
        error = await error_of(stream)
        assert error.code is ErrorCode.NOT_COORDINATOR
        with pytest.raises(PenstockError):
            former.handle(c.Tick())
        if epoch_only:
            assert await broker.committed() == [5]
            assert (await broker.coordinator()).leader_epoch == 2
        else:
            with pytest.raises(ClusterError, match="broker 1 does") as caught:
                broker.coordinators.find("g")
            assert caught.value.code is ErrorCode.NOT_COORDINATOR


async def test_a_log_that_cannot_be_understood_is_not_served_and_not_guessed_at() -> None:
    async with running() as broker:
        coordinator = await broker.coordinator()
        assert coordinator.loaded
        replica = broker.replicas.by_key[OFFSETS]
        done = asyncio.Event()
        replica.pending[-1_000] = lambda _: done.set()
        columns = encode_columns([b"nonsense"], [b'[1,"group","g"]'], timestamps_ms=1)
        request = ProduceRequested(
            request_id=-1_000,
            batch=build_batch(columns),
            acks=Acks.ALL,
            sync=Sync.OS,
            deadline_ms=2**40,
        )
        broker.replicas.handle(replica, request)
        await done.wait()
        await broker.lead(0, 2)

        def refused() -> bool:
            try:
                broker.coordinators.find("g")
            except PenstockError as error:
                return error.code is ErrorCode.DATA_CORRUPTED
            return False

        await wait_until_async(refused, what="the partition is not served")


async def test_a_defect_of_the_machine_costs_its_members_a_reconnect_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as broker:
        await broker.commit(5)
        stream = await broker.join()
        former = await broker.coordinator()

        def broken(self: GroupCoordinator, event: c.Event) -> None:
            raise KeyError("planted")

        with monkeypatch.context() as patched:
            patched.setattr(GroupCoordinator, "_answer", broken)
            with pytest.raises(ClusterError, match="KeyError") as refused:
                await former.ask(lambda request_id: DescribeRequested(request_id, "g"))
            assert refused.value.code is ErrorCode.INTERNAL
            assert (await error_of(stream)).retriable, "everyone else may come again"
            broker.coordinators.count()
            assert broker.coordinators.totals.loading == 1, "it does not serve"
        assert await broker.committed() == [5]
        assert await broker.coordinator() is not former


async def test_a_member_that_does_not_read_loses_its_stream() -> None:
    async with running() as broker:
        stream = await broker.join()
        last = c.SendAssignment(
            stream_id=stream.stream_id, member_epoch=1, number=1, parts=NO_PARTS, names={}
        )
        while stream.put(last):
            pass
        coordinator = await broker.coordinator()
        coordinator.handle(c.MemberHeard(stream.stream_id, subscription=Subscription(("t", "u"))))
        await wait_until_async(lambda: stream.ended, what="the stream is ended")
        error = await error_of(stream)
        assert error.code is ErrorCode.OVERLOADED
        coordinator.drop_stream(stream)
        (member,) = coordinator.machine.groups["g"].members.values()
        assert member.stream_id is None


async def test_a_stream_ends_in_good_order_after_what_was_said() -> None:
    stream = MemberStream(1)
    stream.put(
        c.SendJoined(
            stream_id=1,
            member_epoch=1,
            heartbeat_interval_ms=1,
            session_timeout_ms=1,
            rebalance_timeout_ms=1,
        )
    )
    stream.put(c.EndStream(1, None))
    assert isinstance(await stream.next(), c.SendJoined)
    with pytest.raises(StreamEndedError):
        await stream.next()


def in_transaction(offset: int) -> Callable[[int], c.Request]:
    where = NamedPartition("t", T, 0)
    return lambda number: c.CommitRequested(
        request_id=number,
        group_id="g",
        member_id="",
        member_epoch=-1,
        instance_id="",
        offsets=(c.NewOffset(where=where, offset=offset),),
        transactional_id="pay",
        producer_id=ProducerId(7),
        producer_epoch=0,
    )


async def test_a_commit_in_a_transaction_waits_for_its_coordinator() -> None:
    async with running() as broker:
        coordinator = await broker.coordinator()
        link = broker.link
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(coordinator.ask(in_transaction(5)))
            await wait_until_async(lambda: link.joins, what="the group asks to join")
            assert not asked.done()
            assert await broker.committed() == []
            link.joins[0][1](None)
        assert asked.result() == c.Committed((None,))
        ended = await coordinator.ask(
            lambda number: c.TransactionEnded(
                request_id=number,
                group_id="g",
                transactional_id="pay",
                producer_id=ProducerId(7),
                producer_epoch=0,
                commit=True,
            )
        )
        assert ended == c.EndStored()
        assert await broker.committed() == [5]


async def test_a_join_that_is_answered_after_the_coordinator_ended_changes_nothing() -> None:
    async with running() as broker:
        coordinator = await broker.coordinator()
        link = broker.link
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(refused(coordinator.ask(in_transaction(5))))
            await wait_until_async(lambda: link.joins, what="the group asks to join")
            coordinator.close(ClusterError("moved", ErrorCode.NOT_COORDINATOR))
        assert asked.result().code is ErrorCode.NOT_COORDINATOR
        link.joins[0][1](None)


async def test_the_transaction_of_a_member_that_leaves_is_aborted() -> None:
    async with running() as broker:
        coordinator = await broker.coordinator()
        link = broker.link
        coordinator.handle(
            c.MemberJoined(
                stream_id=1,
                group_id="g",
                member_id="m",
                subscription=Subscription(("t",)),
                transactional_id="g/m",
            )
        )
        coordinator.handle(c.MemberLeft(1))
        await wait_until_async(lambda: link.aborts, what="the transaction is aborted")
        assert link.aborts[0].transactional_id == "g/m"


async def refused(asked: Awaitable[object]) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        await asked
    return caught.value
