"""A machine on a log, on real replicas: what is told, and what ends it while it waits.

The machine keeps sums. Every await of the host is held at a gate here while the world changes:
the leader goes, the topic is deleted, the append or the read fails.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

import pytest
from support import led_partitions
from support.jumping_clock import DAY_MS, JumpingClock
from support.led_partitions import LedPartitions
from support.waiting import wait_until_async

from penstock.core.types import ReplicaKey, TopicId
from penstock.core.wall_clock import HOLD_MS
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_broker.clock import SystemClock
from penstock_broker.logged import hosts as hosts_module
from penstock_broker.logged.finding import Finder
from penstock_broker.logged.host import MachineHost
from penstock_broker.logged.hosts import Hosts, Surroundings
from penstock_broker.logged.log import PartitionLog
from penstock_broker.logged.machine import Records
from penstock_broker.logged.topic import InternalTopic
from penstock_broker.observability import EventLog

TOPIC = "__sums"
PARTITION = ReplicaKey(TopicId("id-s"), 0)


@dataclass(frozen=True, slots=True)
class Add:
    number: int
    amount: int


@dataclass(frozen=True, slots=True)
class Look:
    number: int


@dataclass(frozen=True, slots=True)
class Tick:
    pass


@dataclass(frozen=True, slots=True)
class Said:
    number: int
    total: int


@dataclass(frozen=True, slots=True)
class Step:
    records: Records = ()
    outputs: tuple[Said, ...] = ()
    decisions: tuple[()] = ()
    stopped: PenstockError | None = None


Event: TypeAlias = Add | Look | Tick


class Sum:
    """The smallest machine with a state: a total."""

    def __init__(self) -> None:
        self.total = 0
        self.ticks = 0
        self.next_wake_ms = 0
        self.broken = ""
        self.wall = (0, False)

    def load(self, key: bytes | None, value: bytes | None) -> None:
        self._break("load")
        self.total = json.loads(value or b"0")

    def set_wall(self, time_at_zero_ms: int, *, is_trusted: bool) -> None:
        self.wall = (time_at_zero_ms, is_trusted)

    def handle(self, event: Event, now_ms: int) -> Step:
        self._break("handle")
        match event:
            case Add(number, amount):
                self.total += amount
                value = json.dumps(self.total).encode()
                key = b"total" if self.broken != "records" else "no bytes"
                return Step(((key, value),), (Said(number, self.total),))  # type: ignore[arg-type]
            case Look(number):
                return Step(outputs=(Said(number, self.total),))
            case Tick():
                self.ticks += 1
                self.next_wake_ms = now_ms + 1_000
                return Step()

    def _break(self, where: str) -> None:
        if self.broken == where:
            raise KeyError(f"planted in {where}")


class SumHost(MachineHost[Event, Step, int]):
    """Tells totals."""

    def __init__(self, log: PartitionLog, clock: SystemClock, world: "World") -> None:
        self.machine = Sum()
        self.machine.broken = world.broken
        super().__init__(log, clock, self.machine, Tick(), EventLog("sums"))
        self.told: list[int] = []
        self.end: PenstockError | None = None

    def begin(self, now_ms: int) -> Step:
        self.machine._break("start")
        return Step()

    def decided(self, ready: Step) -> None:
        pass

    def tell(self, ready: Step) -> None:
        self.machine._break("tell")
        for said in ready.outputs:
            self.told.append(said.total)
            self.answer(said.number, said.total)

    def ended(self, error: PenstockError) -> None:
        self.end = error


class PausingClock(JumpingClock):
    """Turns that the host gives to others wait for `going`."""

    def __init__(self) -> None:
        super().__init__()
        self.going = asyncio.Event()
        self.going.set()
        self.pausing = 0

    async def sleep(self, seconds: float) -> None:
        if seconds == 0:
            self.pausing += 1
            await self.going.wait()
            self.pausing -= 1
        await super().sleep(seconds)


class World(LedPartitions, Hosts[SumHost]):
    """One partition of sums."""

    def __init__(self) -> None:
        LedPartitions.__init__(self, {TOPIC: ("id-s", 1)}, cache_bytes=1)
        self.clock = PausingClock()
        self.broken = ""
        self.made: list[SumHost] = []
        self.loads = 0
        view = self.view
        around = Surroundings(view, self.replicas, self.around.reader, self.clock)
        topic = InternalTopic(
            name=TOPIC,
            partitions=1,
            replication=1,
            keeps="sum",
            find_call="FindSum",
            what_waits="sums",
            check_key=lambda _: None,
            place=lambda _, __: 0,
        )
        Hosts.__init__(self, around, Finder(topic, view, NoSession(), self.clock), EventLog("sums"))

    def make(self, log: PartitionLog) -> SumHost:
        self.made.append(SumHost(log, self.clock, self))
        return self.made[-1]

    def image_applied(self) -> None:
        pass

    def count(self) -> None:
        pass

    def load_took(self, seconds: float) -> None:
        self.loads += 1

    async def serving(self) -> SumHost:
        def found() -> SumHost | None:
            try:
                return self.find("any")
            except PenstockError:
                return None

        host = await wait_until_async(found, what="a host serves")
        assert host is not None
        return host

    async def add(self, amount: int) -> int:
        return await (await self.serving()).ask(lambda number: Add(number, amount))

    async def total(self) -> int:
        return await (await self.serving()).ask(Look)


class NoSession:
    """The topic is there from the start: nobody calls the controller."""

    def connection(self) -> object:
        raise AssertionError("no controller is asked")

    async def call(self, what: str, answer: object) -> object:
        raise AssertionError(f"no controller is asked: {what}")


@asynccontextmanager
async def running() -> AsyncIterator[World]:
    async with led_partitions.running(World(), lambda world: world) as world:
        try:
            yield world
        finally:
            world.clock.going.set()


async def error_of(host: SumHost) -> PenstockError:
    return await wait_until_async(lambda: host.end, what="the host has ended")


# ---------------------------------------------------------------- what is told, and when


async def test_what_is_told_was_committed_before() -> None:
    async with running() as world, asyncio.TaskGroup() as tasks:
        assert await world.add(5) == 5
        host = await world.serving()
        world.store.flowing.clear()
        adding = tasks.create_task(world.add(2))
        await wait_until_async(lambda: host.machine.total == 7, what="the machine has decided")
        looking = tasks.create_task(world.total())
        await wait_until_async(lambda: len(host._requests) == 2, what="both wait")
        assert host.told == [5], "neither the sum nor a look at it leaves before it is stored"
        world.store.flowing.set()
        assert (await adding, await looking) == (7, 7)


async def test_steps_that_would_append_the_same_again_share_a_record() -> None:
    """Else a queue of questions that need a confirmation each outgrows the appends (seed 36530)."""
    async with running() as world, asyncio.TaskGroup() as tasks:
        await world.add(5)
        host = await world.serving()
        world.store.flowing.clear()
        under_way = tasks.create_task(world.add(2))
        await wait_until_async(lambda: host._sent == 2, what="an append is under way")
        again = [tasks.create_task(world.add(0)) for _ in range(20)]
        await wait_until_async(lambda: len(host._requests) == 21, what="all wait")
        assert host.told == [5], "what was appended before they asked tells them nothing"
        world.store.flowing.set()
        assert await under_way == 7
        assert [await one for one in again] == [7] * 20
        assert host.log.marks.log_end_offset == 3


async def test_a_machine_learns_the_wall_clocks_time_with_every_event() -> None:
    async with running() as world:
        host = await world.serving()
        zero_ms, _ = host.machine.wall

        async def learned() -> tuple[bool, bool]:
            """Whether its time is still the first one, and whether it is to be trusted."""
            await world.total()
            now_zero_ms, is_trusted = host.machine.wall
            return abs(now_zero_ms - zero_ms) < DAY_MS // 2, is_trusted

        assert await learned() == (True, True)
        world.clock.ahead_ms = 8 * DAY_MS
        assert await learned() == (True, False)
        world.clock.passed_ms = HOLD_MS
        assert await learned() == (False, True)


async def test_another_leadership_reads_the_same_state_from_the_log() -> None:
    async with running() as world:
        for amount in range(20):
            await world.add(amount)
        former = await world.serving()
        await world.lead(0, 2)
        assert (await error_of(former)).code is ErrorCode.NOT_COORDINATOR
        assert await world.total() == sum(range(20))
        assert await world.serving() is not former


async def test_time_comes_to_a_machine_when_it_wants_it() -> None:
    async with running() as world:
        host = await world.serving()
        await wait_until_async(lambda: host.machine.ticks, what="a tick came")
        assert host.machine.next_wake_ms > 0
        host.tick(host.machine.next_wake_ms - 1)
        assert host.machine.ticks == 1, "not before it is due"


# ---------------------------------------------------------------- while the log's end is waited for


async def hold_below_the_end(world: World) -> SumHost:
    """A host that waits for the high watermark: the follower of its last record is away."""
    await world.add(5)
    world.isr = (0, 1)
    await world.lead(0, 2)
    host = await world.serving()
    host.handle(Add(99, 7))
    log = world.replicas.by_key[PARTITION]
    await wait_until_async(lambda: log.marks.log_end_offset == 2, what="it is in the log")
    await world.lead(0, 3)
    await wait_until_async(lambda: world.made[-1] is not host, what="epoch 3 has its host")
    waiting = world.made[-1]
    assert world.loads == 2
    with pytest.raises(ClusterError) as caught:
        world.find("any")
    assert caught.value.code is ErrorCode.COORDINATOR_LOADING
    return waiting


async def test_a_host_serves_once_the_high_watermark_has_reached_its_log_end() -> None:
    async with running() as world:
        waiting = await hold_below_the_end(world)
        world.isr = (0,)
        await world.lead(0, 4)
        assert await world.total() == 12, "what the former one appended counts: it may be known"
        assert not waiting.loaded, "epoch 4 has a host of its own"


@pytest.mark.parametrize("change", ["leader", "deleted"])
async def test_a_host_that_waits_for_the_log_end_is_ended(change: str) -> None:
    async with running() as world:
        waiting = await hold_below_the_end(world)
        await wait_until_async(lambda: waiting._moved._waiters, what="it waits")
        await change_the_world(world, change)
        assert (await error_of(waiting)).code is ErrorCode.NOT_COORDINATOR
        await wait_until_async(lambda: world.loads == 3, what="its load has returned")
        assert not waiting.loaded


async def test_a_host_that_is_ended_before_it_begins_to_load_does_not_wait_for_ever() -> None:
    async with running() as world:
        waiting = await hold_below_the_end(world)
        waiting.close(ClusterError("planted", ErrorCode.NOT_COORDINATOR))
        async with asyncio.timeout(600):
            await waiting.load()
        assert not waiting.loaded


async def change_the_world(world: World, change: str) -> None:
    match change:
        case "leader":
            await world.lead(1, 9)
        case "epoch":
            await world.lead(0, 9)
        case "deleted":
            await world.lead(0, 9, without=frozenset({TOPIC}))


# ---------------------------------------------------------------- while the log is read


async def hold_while_reading(world: World) -> SumHost:
    await world.add(5)
    await world.add(6)
    world.store.readable.clear()
    await world.lead(0, 2)
    await wait_until_async(lambda: world.store.reads_waiting, what="the log is being read")
    return world.made[-1]


async def hold_between_batches(world: World) -> SumHost:
    await world.add(5)
    await world.add(6)
    world.clock.going.clear()
    await world.lead(0, 2)
    await wait_until_async(lambda: world.clock.pausing, what="a batch was read")
    return world.made[-1]


@pytest.mark.parametrize("change", ["leader", "epoch", "deleted"])
@pytest.mark.parametrize("hold", [hold_while_reading, hold_between_batches])
async def test_a_host_whose_world_changes_while_it_reads_never_serves(
    hold: Callable[[World], "asyncio.Future[SumHost]"], change: str
) -> None:
    async with running() as world:
        reading = await hold(world)
        await change_the_world(world, change)
        assert (await error_of(reading)).code is ErrorCode.NOT_COORDINATOR
        world.store.readable.set()
        world.clock.going.set()
        loads = 3 if change == "epoch" else 2
        await wait_until_async(lambda: world.loads == loads, what="all loads have returned")
        assert not reading.loaded
        if change == "epoch":
            assert await world.total() == 11
            assert await world.serving() is not reading


async def test_a_read_that_fails_is_tried_again_and_retriable_for_callers() -> None:
    async with running() as world:
        reading = await hold_while_reading(world)
        world.store.broken_reads = True
        world.store.readable.set()
        error = await error_of(reading)
        assert (error.code, error.retriable) == (ErrorCode.COORDINATOR_LOADING, True)
        with pytest.raises(ClusterError, match="the disk is gone"):
            world.find("any")
        world.store.broken_reads = False
        assert await world.total() == 11


# ---------------------------------------------------------------- while an answer is waited for


async def hold_an_answer(world: World, tasks: asyncio.TaskGroup) -> "asyncio.Task[PenstockError]":
    await world.add(5)
    host = await world.serving()
    world.store.flowing.clear()

    async def refused() -> PenstockError:
        with pytest.raises(PenstockError) as caught:
            await host.ask(lambda number: Add(number, 6))
        return caught.value

    asking = tasks.create_task(refused())
    await wait_until_async(lambda: host._requests, what="it waits")
    return asking


async def test_whoever_waits_hears_that_the_leader_is_another() -> None:
    async with running() as world, asyncio.TaskGroup() as tasks:
        asking = await hold_an_answer(world, tasks)
        await world.lead(1, 2)
        assert (await asking).retriable, "its append failed with the leadership"
        with pytest.raises(ClusterError, match="broker 1 does"):
            world.find("any")
        assert not world.made[0]._requests


async def test_whoever_waits_for_an_append_that_fails_hears_to_come_again() -> None:
    async with running() as world, asyncio.TaskGroup() as tasks:
        asking = await hold_an_answer(world, tasks)
        world.store.full = True
        world.store.flowing.set()
        error = await asking
        assert (error.code, error.retriable) == (ErrorCode.COORDINATOR_LOADING, True)
        world.store.full = False
        assert await world.total() == 5, "what was not stored is not there"


async def test_whoever_waits_too_long_hears_that_the_outcome_is_unknown() -> None:
    async with running() as world, asyncio.TaskGroup() as tasks:
        asking = await hold_an_answer(world, tasks)
        world.made[0].tick(world.clock.now_ms() + 31_000)
        assert (await asking).code is ErrorCode.REQUEST_TIMED_OUT


async def test_whoever_asks_for_patience_is_given_it_and_nobody_behind_waits_for_that() -> None:
    async with running() as world, asyncio.TaskGroup() as tasks:
        await world.add(5)
        host = await world.serving()
        world.store.flowing.clear()

        async def refused(patience_ms: int) -> PenstockError:
            with pytest.raises(PenstockError) as caught:
                await host.ask(lambda number: Add(number, 6), patience_ms=patience_ms)
            return caught.value

        patient = tasks.create_task(refused(60_000))
        await wait_until_async(lambda: len(host._requests) == 1, what="it waits")
        other = tasks.create_task(refused(0))
        await wait_until_async(lambda: len(host._requests) == 2, what="both wait")
        host.tick(world.clock.now_ms() + 31_000)
        assert (await other).code is ErrorCode.REQUEST_TIMED_OUT
        assert not patient.done()
        host.tick(world.clock.now_ms() + 91_000)
        assert (await patient).code is ErrorCode.REQUEST_TIMED_OUT


async def test_an_answer_to_somebody_who_has_gone_is_dropped() -> None:
    async with running() as world, asyncio.TaskGroup() as tasks:
        asking = await hold_an_answer(world, tasks)
        asking.cancel()
        await wait_until_async(lambda: not world.made[0]._requests, what="it has gone")
        world.store.flowing.set()
        assert await world.total() == 11
        assert world.made[0].told == [5, 11, 11]


# ---------------------------------------------------------------- machines that break


@pytest.mark.parametrize("where", ["handle", "records", "tell"])
async def test_a_machine_that_raises_is_stopped_and_built_anew(where: str) -> None:
    async with running() as world:
        await world.add(5)
        host = await world.serving()
        host.machine.broken = where
        with pytest.raises(PenstockError) as caught:
            await host.ask(lambda number: Add(number, 1))
        assert (caught.value.code, caught.value.retriable) == (ErrorCode.COORDINATOR_LOADING, True)
        assert host.end is caught.value
        known = 6 if where == "tell" else 5
        assert await world.total() == known, "what its log says"
        assert await world.serving() is not host


async def test_a_machine_that_does_not_know_when_it_wakes_is_stopped() -> None:
    async with running() as world:
        await world.add(5)
        host = await world.serving()
        host.machine.next_wake_ms = "soon"  # type: ignore[assignment]
        assert (await error_of(host)).retriable
        assert await world.total() == 5


@pytest.mark.parametrize("where", ["load", "start"])
async def test_a_machine_that_cannot_be_loaded_is_not_guessed_at(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts_module, "_CORRUPT_RETRY_S", 0.2)
    async with running() as world:
        await world.add(5)
        world.broken = where
        await world.lead(0, 2)
        assert (await error_of(world.made[1])).code is ErrorCode.DATA_CORRUPTED
        with pytest.raises(ClusterError, match="planted") as caught:
            world.find("any")
        assert caught.value.code is ErrorCode.DATA_CORRUPTED
        world.broken = ""
        assert await world.total() == 5, "tried again, in a while"


@pytest.mark.parametrize(
    ("isr", "code"),
    [((0,), ErrorCode.DATA_CORRUPTED), ((0, 1), ErrorCode.COORDINATOR_LOADING)],
    ids=["alone", "with others"],
)
async def test_a_damaged_log_is_waited_for_while_others_have_it(
    isr: tuple[int, ...], code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them leads soon, or gives it the batch: clients ask again."""
    monkeypatch.setattr(hosts_module, "_CORRUPT_RETRY_S", 0.2)
    async with running() as world:
        await world.add(2)
        await world.add(3)
        world.isr, world.store.damaged_reads = isr, True
        await world.lead(0, 2)
        assert (await error_of(world.made[1])).code is code
        with pytest.raises(ClusterError, match="wrong CRC") as caught:
            world.find("any")
        assert caught.value.code is code
        world.store.damaged_reads = False
        assert await world.total() == 5, "tried again, in a while"


async def test_appends_that_could_not_succeed_are_refused_before_the_machine_decides() -> None:
    async with running() as world:
        host = await world.serving()
        world.writable(host, None)
        stopping = ClusterError("stopping", ErrorCode.SHUTTING_DOWN)
        with pytest.raises(ClusterError, match="stopping"):
            world.writable(host, stopping)
        world.topics_config = {"min.insync.replicas": "2"}
        world.isr = (0, 1)
        await world.lead(0, 2)
        host = await world.serving()
        world.writable(host, None)
        world.isr, world.replica_list = (0,), (0, 1)
        await world.lead(0, 3)
        host = await world.serving()
        with pytest.raises(ClusterError, match="1 in-sync replicas, 2 are needed: sums wait"):
            world.writable(host, None)
