"""What a broker tells the controller of its replicas, and how often, over real connections."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from support.sessions import Broker, running
from support.waiting import wait_until_async

from penstock.core.types import BrokerId, LeaderEpoch, ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import broker_pb2
from penstock.proto.v1 import controller_pb2 as pb
from penstock.proto.v1.controller_pb2_grpc import (
    ControllerServiceServicer,
    add_ControllerServiceServicer_to_server,
)
from penstock.rpc.errors import error_to_wire
from penstock_broker.metadata.image import ClusterView
from penstock_broker.replication import reports
from penstock_broker.replication.damage import Damage
from penstock_broker.replication.reports import ReplicaReports

ZERO, ONE = ReplicaKey(TopicId("id-of-t"), 0), ReplicaKey(TopicId("id-of-t"), 1)
REFUSAL = ClusterError("no such session", ErrorCode.STALE_BROKER_SESSION)


class Listening(ControllerServiceServicer):
    """A controller that registers everybody, and keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[dict[int, int], list[int]]] = []
        self.sound: list[list[int]] = []
        self.missing: list[list[int]] = []
        self.refuses = False
        self.stores = False
        self.seated: list[int] = []

    async def Session(  # noqa: N802 - as the service names it
        self, requests: Any, context: Any
    ) -> AsyncIterator[pb.SessionResponse]:
        await anext(requests)
        yield pb.SessionResponse(
            registered=pb.Registered(
                cluster_id="c",
                controller_epoch=1,
                broker_session=4,
                heartbeat_interval_ms=1_000,
                session_timeout_ms=60_000,
            )
        )
        await asyncio.Event().wait()

    async def ReportReplicas(  # noqa: N802 - as the service names it
        self, request: pb.ReportReplicasRequest, context: Any
    ) -> pb.ReportReplicasResponse:
        assert (request.cluster_id, request.broker_id, request.broker_session) == ("c", 0, 4)
        topics = {one.topic_id for one in request.dropped}
        named = [*request.damaged, *request.sound, *request.missing]
        topics |= {one.topic_id for one in named}
        assert topics == {"id-of-t"}
        dropped = {one.partition: one.version for one in request.dropped}
        self.heard.append((dropped, [one.partition for one in request.damaged]))
        self.sound.append([one.partition for one in request.sound])
        self.missing.append([one.partition for one in request.missing])
        if self.refuses:
            return pb.ReportReplicasResponse(error=error_to_wire(REFUSAL))
        seated = [pb.ReplicaName(topic_id="id-of-t", partition=one) for one in self.seated]
        return pb.ReportReplicasResponse(metadata_version=9, stored=self.stores, seated=seated)


@dataclass
class Scene:
    """Broker 0, its session, and the facts that a task reports."""

    controller: Listening
    broker: Broker
    view: ClusterView = field(default_factory=lambda: ClusterView(cluster_id="c"))
    damage: Damage = field(default_factory=Damage)
    assignment: Any = field(default_factory=lambda: SimpleNamespace(dropped={}))
    last: dict[ReplicaKey, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        replicas: Any = SimpleNamespace(broker_id=BrokerId(0), damage=self.damage)
        self.reports = ReplicaReports(replicas, self.assignment, self.broker.session, self.view)

    def image(self, version: int, *partitions: dict[str, Any]) -> None:
        """What is stored of partitions 0, 1 …, in this version each; broker 0 drops a last one."""
        infos = [
            broker_pb2.PartitionInfo(partition=index, version=version, **one)
            for index, one in enumerate((*partitions, {"dropping": [0]}))
        ]
        self.last = {ReplicaKey(ZERO.topic_id, len(partitions)): version}
        topic = broker_pb2.TopicInfo(topic="t", topic_id=ZERO.topic_id, partitions=infos)
        self.view.apply(pb.ClusterImage(full=True, metadata_version=version, topics=[topic]))
        self.reports.changed()

    async def heard(self, count: int = 1) -> list[tuple[dict[int, int], list[int]]]:
        """The first reports, once there are so many; they are forgotten."""
        found = self.controller.heard
        await wait_until_async(lambda: len(found) >= count, what=f"{count} reports")
        first, self.controller.heard = found[:count], found[count:]
        return first

    async def nothing_more(self) -> None:
        """What has been reported is enough: the next report is about something else alone."""
        await wait_until_async(lambda: not self.reports._due(), what="nothing is due")
        assignment = self.assignment
        before, assignment.dropped = assignment.dropped, assignment.dropped | self.last
        self.reports.changed()
        ((key, version),) = self.last.items()
        await wait_until_async(
            lambda: ({key.partition: version}, []) in self.controller.heard, what="the next report"
        )
        assignment.dropped = before
        self.reports.changed()
        self.controller.heard.clear()


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr(reports, "_RETRY_PAUSE_S", 0.02)
    monkeypatch.setattr(reports, "_PAUSE_MAX_S", 0.04)
    server = grpc.aio.server()
    controller = Listening()  # type: ignore[abstract]  # other calls are unimplemented
    add_ControllerServiceServicer_to_server(controller, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        made = Scene(controller, Broker(0, [f"127.0.0.1:{port}"]))
        async with running(made.broker), asyncio.TaskGroup() as tasks:
            await wait_until_async(lambda: made.broker.session.connected, what="a session")
            sending = tasks.create_task(made.reports.run())
            yield made
            sending.cancel()
    finally:
        await server.stop(None)


async def test_what_was_deleted_is_reported_until_no_image_asks_for_it(scene: Scene) -> None:
    scene.assignment.dropped = {ZERO: 3, ONE: 3}
    scene.image(3, {"dropping": [0]}, {"dropping": [0]})
    assert await scene.heard(2) == [({0: 3, 1: 3}, [])] * 2
    scene.assignment.dropped = {ONE: 4}
    scene.image(4, {}, {"dropping": [0]})
    await wait_until_async(lambda: ({1: 4}, []) in scene.controller.heard, what="the rest")
    scene.assignment.dropped = {}
    scene.image(5, {}, {})
    await scene.nothing_more()


async def test_an_image_that_is_being_applied_is_not_answered_before_it_is(scene: Scene) -> None:
    scene.assignment.dropped = {ZERO: 3}
    scene.image(4, {"dropping": [0]})
    await scene.nothing_more()
    scene.assignment.dropped = {ZERO: 4}
    scene.reports.changed()
    assert await scene.heard() == [({0: 4}, [])]


async def test_damage_is_reported_until_the_replica_has_no_seat_or_is_marked(scene: Scene) -> None:
    scene.damage.found = {ZERO: None, ONE: None}
    scene.image(3, {"replicas": [0, 1], "isr": [0, 1]}, {"replicas": [0, 1], "isr": [0]})
    assert await scene.heard(2) == [({}, [0, 1])] * 2
    scene.image(
        4,
        {"replicas": [0, 1], "isr": [1]},
        {"replicas": [0, 1], "isr": [0], "damaged": [0]},
    )
    await scene.nothing_more()


async def test_damage_of_a_replica_without_a_seat_is_reported_once(scene: Scene) -> None:
    """It may be eligible without being in the ISR, which no image shows."""
    scene.damage.found = {ZERO: None, ONE: None}
    scene.image(3, {"replicas": [0, 1], "isr": [1]}, {"replicas": [1, 2], "isr": [1]})
    assert await scene.heard() == [({}, [0])]
    await scene.nothing_more()
    scene.damage.found = {}
    scene.reports.changed()
    await wait_until_async(lambda: not scene.reports._heard, what="it is mended")
    scene.damage.found = {ZERO: None}
    scene.reports.changed()
    assert await scene.heard() == [({}, [0])]


async def test_a_replica_is_reported_as_sound_until_the_mark_is_gone(scene: Scene) -> None:
    scene.damage.sound = {ZERO: None, ONE: None}
    scene.image(3, {"replicas": [0], "damaged": [0]}, {"replicas": [0, 1], "damaged": [1]})
    await wait_until_async(lambda: scene.controller.sound[:2] == [[0]] * 2, what="two reports")
    scene.image(4, {"replicas": [0]}, {"replicas": [0, 1]})
    await scene.nothing_more()


async def test_a_given_up_log_is_reported_until_its_mark_is_in_the_store_itself(
    scene: Scene,
) -> None:
    scene.damage.mending = None
    scene.damage.found, scene.damage.given_up = {ZERO: None}, {ZERO}
    scene.image(3, {"replicas": [0, 1], "isr": [1], "damaged": [0]})
    assert await scene.heard(2) == [({}, [0])] * 2, "the mark in the image may be an old one"
    assert scene.damage.confirmed == {}, "so far it is in a journal"
    scene.controller.stores = True
    await wait_until_async(lambda: scene.damage.confirmed, what="it is stored")
    assert scene.damage.confirmed == {ZERO: 9}


async def test_a_given_up_log_is_kept_while_the_replica_has_a_seat_that_no_image_shows(
    scene: Scene,
) -> None:
    scene.damage.mending, scene.controller.stores, scene.controller.seated = None, True, [0]
    scene.damage.found = {ZERO: None, ONE: None}
    scene.damage.given_up = {ZERO, ONE}
    outside = {"replicas": [0, 1], "isr": [1], "damaged": [0]}
    scene.image(3, outside, outside)
    assert await scene.heard(3) == [({}, [0, 1]), ({}, [0]), ({}, [0])]
    assert scene.damage.confirmed == {ONE: 9}
    scene.controller.seated = []
    await wait_until_async(lambda: ZERO in scene.damage.confirmed, what="the seat is gone")


async def test_a_missing_log_does_not_begin_anew_while_the_replica_has_a_seat_that_no_image_shows(
    scene: Scene,
) -> None:
    scene.damage.found = {ZERO: None}
    scene.damage.missing = {ZERO: LeaderEpoch(4)}
    scene.controller.seated = [0]
    scene.image(3, {"replicas": [0, 1], "isr": [1], "damaged": [0], "leader_epoch": 5})
    await scene.heard(3)
    assert scene.damage.missing == {ZERO: 4}
    scene.controller.seated = []
    await wait_until_async(lambda: not scene.damage.missing, what="it begins anew")


async def test_a_damaged_copy_is_reported_until_it_is_none_any_more(scene: Scene) -> None:
    """A controller of an older release hears it, and does nothing."""
    scene.damage.mending, scene.controller.stores = None, True
    scene.damage.found, scene.damage.given_up = {ZERO: None}, {ZERO}
    scene.image(3, {"replicas": [1], "isr": [1], "adding": [0]})
    assert await scene.heard(2) == [({}, [0])] * 2
    scene.image(4, {"replicas": [1], "isr": [1]})
    await scene.nothing_more()


async def test_a_refusal_and_a_lost_session_are_survived(scene: Scene) -> None:
    scene.controller.refuses = True
    scene.damage.found = {ZERO: None}
    scene.image(3, {"replicas": [0, 1], "isr": [1]})
    assert await scene.heard(2) == [({}, [0])] * 2
    scene.broker.session.leave_older_than(2)
    await wait_until_async(lambda: not scene.broker.session.connected, what="the session ends")
    scene.controller.refuses = False
    await wait_until_async(lambda: scene.broker.session.connected, what="the next session")
    await scene.heard()
    await scene.nothing_more()


async def test_one_call_names_a_bounded_number_of_replicas(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "_NAMES_PER_CALL", 1)
    scene.damage.found = {ZERO: None, ONE: None}
    scene.image(3, {"replicas": [0], "isr": []}, {"replicas": [0], "isr": []})
    assert await scene.heard(2) == [({}, [0]), ({}, [1])]
    await scene.nothing_more()


async def test_what_no_image_agrees_with_is_said_less_and_less_often(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged replica without any other: the controller has nobody to put in its place."""
    monkeypatch.setattr(reports, "_PAUSE_MAX_S", 0.07)
    pauses: list[float] = []

    async def until_other_than(_said: reports.Report, pause_s: float) -> None:
        pauses.append(pause_s)

    monkeypatch.setattr(scene.reports, "_until_other_than", until_other_than)
    scene.damage.found = {ZERO: None}
    scene.image(3, {"replicas": [0], "isr": [0]})
    await wait_until_async(lambda: len(pauses) >= 4, what="four reports")
    assert pauses[:4] == [0.02, 0.04, 0.07, 0.07]
    pauses.clear()
    scene.damage.found = {ZERO: None, ONE: None}
    scene.image(4, {"replicas": [0], "isr": [0]}, {"replicas": [0], "isr": [0]})
    await wait_until_async(lambda: 0.02 in pauses, what="news is said at once")


async def test_a_missing_log_is_reported_until_the_replica_has_no_seat_and_once_more(
    scene: Scene,
) -> None:
    """Outside the ISR it may still be eligible, which no image shows; then it begins anew."""
    scene.damage.found = {ZERO: None}
    scene.damage.missing = {ZERO: LeaderEpoch(4)}
    scene.image(3, {"replicas": [0, 1], "isr": [0, 1], "leader_epoch": 4})
    assert await scene.heard(2) == [({}, [])] * 2
    assert scene.controller.missing[:2] == [[0]] * 2
    assert scene.damage.missing == {ZERO: 4}
    scene.image(4, {"replicas": [0, 1], "isr": [1], "leader_epoch": 4})
    await wait_until_async(lambda: not scene.damage.missing, what="it begins anew")
    assert scene.damage.found == {}
    await scene.nothing_more()


async def test_a_missing_log_that_nobody_else_has_is_reported_until_it_leads_the_next_epoch(
    scene: Scene,
) -> None:
    scene.damage.found = {ZERO: None}
    scene.damage.missing = {ZERO: LeaderEpoch(4)}
    scene.image(3, {"replicas": [0, 1], "isr": [0], "leader_epoch": 4})
    await scene.heard(2)
    assert scene.damage.missing == {ZERO: 4}
    scene.image(4, {"replicas": [0, 1], "isr": [0], "leader_epoch": 5})
    await wait_until_async(lambda: not scene.damage.missing, what="it begins anew")
    assert scene.damage.found == {}
    await scene.nothing_more()


async def test_a_missing_log_begins_anew_once_a_controller_has_stored_that_its_seat_is_gone(
    scene: Scene,
) -> None:
    """Before an image shows it: the replica may be in sync again by the next report."""
    scene.damage.found = {ZERO: None, ONE: None}
    scene.damage.missing = {ZERO: LeaderEpoch(4), ONE: LeaderEpoch(4)}
    scene.controller.seated = [1]
    seats = {"replicas": [0, 1], "isr": [0, 1], "leader_epoch": 4}
    scene.image(3, seats, seats)
    await scene.heard(2)
    assert scene.damage.missing == {ZERO: 4, ONE: 4}, "a journal may be lost"
    scene.controller.stores = True
    await wait_until_async(lambda: ZERO not in scene.damage.missing, what="it begins anew")
    assert scene.damage.missing == {ONE: 4}


async def test_a_missing_log_that_leads_the_next_epoch_begins_before_others_join_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reported beside them, it would lose its seat to them."""
    monkeypatch.setattr(reports, "_RETRY_PAUSE_S", 600)
    monkeypatch.setattr(reports, "_PAUSE_MAX_S", 600)
    scene.damage.found = {ZERO: None}
    scene.damage.missing = {ZERO: LeaderEpoch(4)}
    scene.controller.seated = [0]
    scene.image(3, {"replicas": [0, 1], "isr": [0], "leader_epoch": 4})
    await scene.heard()
    scene.image(4, {"replicas": [0, 1], "isr": [0], "leader_epoch": 5})
    await wait_until_async(lambda: not scene.damage.missing, what="it begins anew")


async def test_a_missing_log_marked_as_damaged_waits_for_who_is_in_sync_and_may_be_sound(
    scene: Scene,
) -> None:
    scene.damage.found = {ZERO: None}
    scene.damage.missing = {ZERO: LeaderEpoch(4)}
    scene.image(3, {"replicas": [0, 1], "isr": [0, 1], "damaged": [0], "leader_epoch": 5})
    await scene.nothing_more()
    assert scene.damage.missing == {ZERO: 4}


async def test_a_missing_log_is_reported_again_if_all_that_are_in_sync_are_marked_as_damaged(
    scene: Scene,
) -> None:
    """Theirs may be missing as well: then one of them leads anew, and no mark is left."""
    scene.damage.found = {ZERO: None}
    scene.damage.missing = {ZERO: LeaderEpoch(4)}
    scene.image(3, {"replicas": [0, 1], "isr": [0, 1], "damaged": [0, 1], "leader_epoch": 5})
    await scene.heard(2)
    assert scene.controller.missing[:2] == [[0]] * 2
    assert scene.damage.missing == {ZERO: 4}, "no image shows yet that its seat is gone"
    scene.image(4, {"replicas": [0, 1], "isr": [0], "leader_epoch": 6})
    await wait_until_async(lambda: not scene.damage.missing, what="it begins anew")
    await scene.nothing_more()


async def test_a_missing_log_is_reported_again_once_somebody_sound_has_its_seat(
    scene: Scene,
) -> None:
    """Marked while nobody sound was there: the mark goes, and it may catch up."""
    scene.damage.found = {ZERO: None}
    scene.damage.missing = {ZERO: LeaderEpoch(4)}
    scene.image(3, {"replicas": [0, 1], "isr": [1], "damaged": [0], "leader_epoch": 5})
    await scene.heard()
    assert scene.controller.missing[0] == [0]
    await wait_until_async(lambda: not scene.damage.missing, what="it begins anew")


async def test_logs_are_opened_once_an_image_is_applied_and_all_damage_is_heard_of(
    scene: Scene,
) -> None:
    session = scene.broker.session
    scene.controller.refuses = True
    scene.damage.found = {ZERO: None, ONE: None}
    scene.damage.missing = {ONE: LeaderEpoch(4)}
    scene.image(3, {"replicas": [0, 1], "isr": [0, 1]}, {"replicas": [0, 1], "isr": [0, 1]})
    await scene.heard()
    assert session.opening, "damage is found while logs are still being opened"
    scene.reports.applied()
    await scene.heard()
    assert session.opening, "nobody is known to have heard of it"
    scene.controller.refuses = False
    await wait_until_async(lambda: not session.opening, what="all is reported")
    scene.damage.found[ReplicaKey(ZERO.topic_id, 2)] = None
    scene.reports.applied()
    assert not session.opening, "what is found later was not found when they were opened"


async def test_logs_without_damage_are_opened_with_the_image(scene: Scene) -> None:
    scene.image(3, {"replicas": [0, 1], "isr": [0, 1], "damaged": [0]})
    scene.damage.found = {ZERO: None}
    assert scene.broker.session.opening
    scene.reports.applied()
    assert not scene.broker.session.opening, "the mark is stored"
