"""Orphans that a person has dropped: which logs go, and which stay whatever is asked for (I22)."""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.led_partitions import LedPartitions, running
from support.waiting import wait_until_async

from penstock.core.types import BrokerId, ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import admin_pb2 as pb
from penstock.proto.v1 import controller_pb2
from penstock.rpc.errors import error_from_wire
from penstock_broker.clock import SystemClock
from penstock_broker.metadata.image import ClusterView
from penstock_broker.replication.assignment import ReplicaAssignment
from penstock_broker.replication.recent import RecentCache
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.replication.writer import LogWriter
from penstock_broker.services.orphans import Orphans
from penstock_broker.serving.callers import NOBODY, Caller, Role, entered
from penstock_broker.store.interface import Slot
from penstock_broker.store.rocks import RocksLogStore

KEPT = ReplicaKey(TopicId("id-kept"), 0)
GONE = [ReplicaKey(TopicId("id-gone"), partition) for partition in range(2)]


class Session:
    """Of a broker that has heard from a controller; `asked`: how often somebody wanted to know."""

    def __init__(self) -> None:
        self.informed = True
        self.asked = 0

    @property
    def is_informed(self) -> bool:
        self.asked += 1
        return self.informed


class World(LedPartitions):
    """A replica of one topic, and two orphans of another."""

    def __init__(self) -> None:
        super().__init__({"kept": (KEPT.topic_id, 1), "gone": (GONE[0].topic_id, 2)})
        self.session = Session()
        self.orphans = Orphans(BrokerId(0), self.view, self.session, self.assignment)

    def forget(self) -> None:
        """The cluster does not know the second topic any more, nor that it was deleted."""
        kept = self.view.topics[KEPT.topic_id].wire
        self.view.apply(controller_pb2.ClusterImage(full=True, metadata_version=2, topics=[kept]))
        self.assignment.retire_unknown(self.view.topics)

    @property
    def stored(self) -> set[ReplicaKey]:
        return set(self.store.slots())

    async def drop(self, *keys: ReplicaKey, dry_run: bool = False) -> list[PenstockError | None]:
        """What it says to each of them."""
        request = asked_for(*keys)
        request.validate_only = dry_run
        answer = await self.orphans.drop(request)
        assert not answer.HasField("error")
        assert [(one.topic_id, one.partition) for one in answer.results] == list(keys)
        return [
            error_from_wire(one.error) if one.HasField("error") else None for one in answer.results
        ]


def asked_for(*keys: ReplicaKey) -> pb.DropOrphansRequest:
    names = [pb.OrphanName(topic_id=key.topic_id, partition=key.partition) for key in keys]
    return pb.DropOrphansRequest(logs=names)


@asynccontextmanager
async def with_orphans() -> AsyncIterator[World]:
    async with running(World()) as world:
        world.forget()
        assert set(world.replicas.orphans) == set(GONE)
        yield world


async def test_the_orphans_that_are_named_go_and_no_others() -> None:
    async with with_orphans() as world:
        removals = world.replicas.removals
        assert await world.drop(GONE[1]) == [None]
        assert world.stored == {KEPT, GONE[0]}
        assert set(world.replicas.orphans) == {GONE[0]}
        assert world.replicas.removals == removals + 1, "so that its space is reclaimed"


async def test_a_dry_run_says_the_same_and_drops_nothing() -> None:
    async with with_orphans() as world:
        said = await world.drop(*GONE, KEPT, dry_run=True)
        assert [one is None for one in said] == [True, True, False]
        assert world.stored == {KEPT, *GONE}


async def test_a_log_of_a_replica_is_refused_and_orphans_beside_it_go() -> None:
    async with with_orphans() as world:
        refused, done = await world.drop(KEPT, GONE[0])
        assert done is None
        assert refused is not None
        assert refused.code is ErrorCode.INVALID_REQUEST
        assert "topic 'kept' has id-kept/0" in str(refused)
        assert world.stored == {KEPT, GONE[1]}


async def test_an_orphan_whose_topic_the_image_has_is_refused() -> None:
    """The partition moved away, and the image that has this one deleted comes later."""
    async with with_orphans() as world:
        world.assignment.retire_unknown([])
        assert KEPT in world.replicas.orphans
        [refused] = await world.drop(KEPT)
        assert "topic 'kept' has id-kept/0" in str(refused)
        assert KEPT in world.stored


async def test_what_is_not_there_is_no_orphan() -> None:
    async with with_orphans() as world:
        first, again = await world.drop(GONE[0], GONE[0])
        assert first is None
        assert again is not None
        assert again.code is ErrorCode.INVALID_REQUEST
        assert "id-gone/0 is not an orphan on broker 0" in str(again)


async def test_a_broker_that_has_not_heard_from_a_controller_drops_nothing() -> None:
    async with with_orphans() as world:
        world.session.informed = False
        answer = await world.orphans.drop(asked_for(*GONE))
        error = error_from_wire(answer.error)
        assert error.code is ErrorCode.CONTROLLER_UNAVAILABLE
        assert error.retriable
        assert not answer.results
        assert world.stored == {KEPT, *GONE}


async def test_a_broker_without_an_image_drops_nothing() -> None:
    async with with_orphans() as world:
        world.view.complete = False
        answer = await world.orphans.drop(asked_for(*GONE))
        assert error_from_wire(answer.error).code is ErrorCode.CONTROLLER_UNAVAILABLE
        assert world.stored == {KEPT, *GONE}


@pytest.mark.parametrize("change", ["image", "session"])
async def test_what_has_changed_before_its_turn_keeps_a_log(change: str) -> None:
    """Sequence: it is asked for while an image is applied, which brings the topic back; or the
    session ends meanwhile."""
    async with with_orphans() as world, asyncio.TaskGroup() as tasks:
        before = world.session.asked
        async with world.assignment.changing:
            asking = tasks.create_task(world.drop(GONE[0]))
            await wait_until_async(
                lambda: world.session.asked > before, what="it waits for the image"
            )
            if change == "image":
                await world.lead(1, 3)
            else:
                world.session.informed = False
        [refused] = await asking
        assert refused is not None
        session_over = refused.code is ErrorCode.CONTROLLER_UNAVAILABLE
        assert session_over is (change == "session")
        assert world.stored == {KEPT, *GONE}


async def test_an_orphan_stays_one_if_the_store_cannot_delete_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with with_orphans() as world:
        slot, really = world.replicas.orphans[GONE[0]], world.store.drop

        def full(wanted: Slot) -> None:
            if wanted == slot:
                raise ClusterError("no space left", ErrorCode.DISK_FULL)
            really(wanted)

        with monkeypatch.context() as patch:
            patch.setattr(world.store, "drop", full)
            refused, done = await world.drop(*GONE)
        assert refused is not None
        assert refused.code is ErrorCode.DISK_FULL
        assert done is None
        assert set(world.replicas.orphans) == world.stored - {KEPT} == {GONE[0]}
        assert await world.drop(GONE[0]) == [None]


async def test_who_leaves_while_a_log_is_deleted_can_ask_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with with_orphans() as world:
        begun, go_on, really = threading.Event(), threading.Event(), world.store.drop

        def slow(wanted: Slot) -> None:
            begun.set()
            assert go_on.wait(600)
            really(wanted)

        monkeypatch.setattr(world.store, "drop", slow)
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(world.drop(*GONE))
            await wait_until_async(begun.is_set, what="the first is deleted")
            asking.cancel()
        go_on.set()
        await wait_until_async(lambda: GONE[0] not in world.stored, what="it is gone")
        assert set(world.replicas.orphans) == set(GONE)
        assert await world.drop(*GONE) == [None, None]
        assert world.stored == {KEPT}
        assert world.replicas.orphans == {}


async def test_it_is_logged_who_had_what_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async with with_orphans() as world:
        entered(Caller(Role.USER, "serviceaccount:etl/ada"))
        try:
            await world.drop(GONE[0], KEPT)
            await world.drop(GONE[1], dry_run=True)
        finally:
            entered(NOBODY)
    [record] = [one for one in caplog.records if one.getMessage() == "orphans dropped"]
    assert record.__dict__["fields"] == {
        "by": "serviceaccount:etl/ada",
        "count": 1,
        "topics": ["id-gone"],
    }


async def test_a_restart_does_not_bring_it_back(tmp_path: Path) -> None:
    path = tmp_path / "log"
    store = RocksLogStore(path)
    for key in GONE:
        store.open_slot(key)
    with ThreadPoolExecutor(1) as executor:
        writer = LogWriter(store, executor, SystemClock(), lambda _: None)
        replicas = ReplicaSet(
            BrokerId(0), writer, RecentCache(1 << 20), SystemClock(), snapshot_bytes=1 << 20
        )
        view = ClusterView()
        view.apply(controller_pb2.ClusterImage(full=True, metadata_version=1))
        assignment = ReplicaAssignment(replicas, writer)
        orphans = Orphans(BrokerId(0), view, Session(), assignment)
        answer = await orphans.drop(asked_for(GONE[0]))
        assert not answer.results[0].HasField("error")
    store.close()
    again = RocksLogStore(path)
    assert set(again.slots()) == {GONE[1]}
    again.close()
