"""The sweep asks all coordinators, and looks again at what moved while they answered."""

import asyncio
from collections.abc import Iterable, Sequence

import pytest
from support.waiting import wait_until_async

from penstock.core.transactions.contract import End
from penstock.core.transactions.orphans import Answer, OpenHere, Transaction
from penstock.core.transactions.records import (
    GroupParticipant,
    Participant,
    PartitionParticipant,
)
from penstock.core.types import BrokerId, ProducerId, TopicId
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_broker.clock import SystemClock
from penstock_broker.transactions.orphans import OrphanSweep

A = PartitionParticipant(TopicId("t"), 0)
B = GroupParticipant("billing")
X, Y = ((ProducerId((1 << 62) + number), 3) for number in range(2))


class World:
    """Two coordinators, on brokers 1 and 2, that answer behind a gate; ends are noted."""

    def __init__(self) -> None:
        self.open = [OpenHere(A, X), OpenHere(B, Y)]
        self.leaders = {0: 1, 1: 2}
        self.known: set[Transaction] = set()
        self.silent: set[int] = set()
        self.loading: set[int] = set()
        self.asked: list[int] = []
        self.answering = asyncio.Event()
        self.answering.set()
        self.ended: list[End] = []
        self.refused: set[Participant] = set()
        """Those that cannot store an end."""
        self.sweep = OrphanSweep(self, self, SystemClock(), age_ms=0, grace_ms=1_000)

    def open_here(self) -> Iterable[OpenHere]:
        return iter(self.open)

    def coordinator_brokers(self) -> dict[int, int]:
        return dict(self.leaders)

    async def find(self, transactions: frozenset[Transaction], broker_id: BrokerId) -> Answer:
        led = frozenset(one for one, leader in self.leaders.items() if leader == broker_id)
        self.asked.append(broker_id)
        await self.answering.wait()
        if broker_id in self.silent:
            raise ClusterError(f"broker {broker_id} is away", ErrorCode.UNREACHABLE)
        return Answer(led - self.loading, transactions & self.known)

    async def end(self, entries: Sequence[End]) -> list[PenstockError | None]:
        error = ClusterError("not enough replicas", ErrorCode.NOT_ENOUGH_REPLICAS)
        self.ended += [one for one in entries if one.participant not in self.refused]
        return [error if one.participant in self.refused else None for one in entries]

    def told(self) -> list[tuple[Participant, Transaction, bool]]:
        return [
            (one.participant, (one.producer_id, one.producer_epoch), one.commit)
            for one in self.ended
        ]


async def test_what_nobody_knows_is_aborted_and_nothing_else() -> None:
    world = World()
    world.known = {Y}
    await world.sweep.sweep()
    assert world.asked == [1, 2]
    assert world.told() == [(A, X, False)]


async def test_nobody_is_asked_while_nothing_is_old() -> None:
    world = World()
    young = OrphanSweep(world, world, SystemClock(), age_ms=60_000, grace_ms=1_000)
    await young.sweep()
    assert world.asked == []


@pytest.mark.parametrize("broker", [1, 2])
async def test_nothing_is_ended_while_a_coordinator_is_silent(broker: int) -> None:
    world = World()
    world.silent = {broker}
    await world.sweep.sweep()
    assert world.ended == []
    world.silent.clear()
    await world.sweep.sweep()
    assert len(world.ended) == 2


@pytest.mark.parametrize("partition", [0, 1])
async def test_nothing_is_ended_while_a_coordinator_loads(partition: int) -> None:
    world = World()
    world.loading = {partition}
    await world.sweep.sweep()
    assert world.asked == [1, 2]
    assert world.ended == []


async def test_nobody_is_asked_while_a_coordinator_has_no_leader() -> None:
    world = World()
    world.leaders[1] = -1
    await world.sweep.sweep()
    assert (world.asked, world.ended) == ([], [])
    world.leaders.clear()  # the internal topic is gone
    await world.sweep.sweep()
    assert (world.asked, world.ended) == ([], [])


@pytest.mark.parametrize("leader", [3, -1])
async def test_a_coordinator_that_moves_while_it_is_asked_makes_the_answers_void(
    leader: int,
) -> None:
    world = World()
    world.answering.clear()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(world.sweep.sweep())
        await wait_until_async(lambda: world.asked, what="a coordinator is asked")
        world.leaders[1] = leader
        world.answering.set()
    assert world.ended == []


@pytest.mark.parametrize("ended", [0, 1])
async def test_what_has_ended_while_they_answered_is_left_alone(ended: int) -> None:
    world = World()
    world.answering.clear()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(world.sweep.sweep())
        await wait_until_async(lambda: world.asked, what="a coordinator is asked")
        del world.open[ended]
        world.answering.set()
    assert world.told() == [(A, X, False), (B, Y, False)][1 - ended :][:1]


async def test_one_that_cannot_store_its_end_does_not_hold_back_the_others() -> None:
    world = World()
    world.refused = {A}
    await world.sweep.sweep()
    assert world.told() == [(B, Y, False)]
    world.refused.clear()
    await world.sweep.sweep()
    assert world.told()[1:] == [(A, X, False), (B, Y, False)]
