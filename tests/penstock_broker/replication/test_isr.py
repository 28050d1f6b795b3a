"""The answer to an ISR change that comes when its controller is not followed any more."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from support.sessions import Broker, running
from support.waiting import wait_until_async

from penstock.core.replication.contract_leader import IsrAnswered, IsrProposal
from penstock.core.types import BrokerId, LeaderEpoch, ReplicaKey, TopicId
from penstock.proto.v1 import broker_pb2
from penstock.proto.v1 import controller_pb2 as pb
from penstock.proto.v1.controller_pb2_grpc import (
    ControllerServiceServicer,
    add_ControllerServiceServicer_to_server,
)
from penstock_broker.metadata.image import ClusterView
from penstock_broker.replication.isr import IsrChanges

KEY = ReplicaKey(TopicId("id-of-t"), 0)
PROPOSAL = IsrProposal(leader_epoch=LeaderEpoch(1), version=3, isr=(BrokerId(0),))
VERSION = 9
STATE = broker_pb2.PartitionInfo(leader=0, leader_epoch=1, replicas=[0, 1], isr=[0], version=4)


class Led:
    """Stands for a replica; only what it hears is looked at."""

    key = KEY


LED: Any = Led()


class Obliging(ControllerServiceServicer):
    """A controller that registers everybody and makes every change, while `answers` is set."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked = 0

    async def Session(  # noqa: N802 - as the service names it
        self, requests: Any, context: Any
    ) -> AsyncIterator[pb.SessionResponse]:
        await anext(requests)
        yield pb.SessionResponse(
            registered=pb.Registered(
                cluster_id="c",
                controller_epoch=1,
                broker_session=1,
                heartbeat_interval_ms=1_000,
                session_timeout_ms=60_000,
            )
        )
        await asyncio.Event().wait()

    async def AlterIsr(  # noqa: N802 - as the service names it
        self, request: pb.AlterIsrRequest, context: Any
    ) -> pb.AlterIsrResponse:
        self.asked += 1
        await self.answers.wait()
        result = pb.IsrChangeResult(topic_id=KEY.topic_id, partition=STATE)
        return pb.AlterIsrResponse(results=[result], metadata_version=VERSION)


@dataclass
class Scene:
    """A broker with a session, whose ISR changes a task sends."""

    controller: Obliging
    broker: Broker
    heard: list[IsrAnswered]
    changes: IsrChanges
    view: ClusterView

    async def answer(self) -> IsrAnswered:
        """What comes of a change."""
        await wait_until_async(lambda: self.heard, what="an answer")
        (answered,) = self.heard
        return answered


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    server = grpc.aio.server()
    controller = Obliging()  # type: ignore[abstract]  # other calls are unimplemented
    add_ControllerServiceServicer_to_server(controller, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    broker = Broker(0, [f"127.0.0.1:{port}"])
    heard: list[IsrAnswered] = []
    replicas: Any = SimpleNamespace(
        broker_id=BrokerId(0), by_key={KEY: LED}, handle=lambda _, event: heard.append(event)
    )
    view = ClusterView(cluster_id="c", metadata_version=VERSION)
    changes = IsrChanges(replicas, broker.session, view)
    try:
        async with running(broker), asyncio.TaskGroup() as tasks:
            await wait_until_async(lambda: broker.session.connected, what="a session")
            sending = tasks.create_task(changes.run())
            yield Scene(controller, broker, heard, changes, view)
            sending.cancel()
    finally:
        await server.stop(None)


@pytest.mark.parametrize("promised", [False, True])
async def test_a_change_that_is_answered_after_another_was_promised_to_be_followed_is_unknown(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, promised: bool
) -> None:
    session = scene.broker.session
    call = session.call

    async def promise_beside(what: str, answer: Awaitable[Any]) -> Any:
        """The answer is here already, and nobody has looked at it."""
        found = await call(what, answer)
        if promised:
            session.leave_older_than(2)
        return found

    monkeypatch.setattr(session, "call", promise_beside)
    scene.changes.propose(LED, PROPOSAL)
    answered = await scene.answer()
    if promised:
        assert answered.state is None
        assert "the outcome is unknown" in str(answered.error)
    else:
        assert answered.state is not None
        assert answered.state.isr == (0,)


async def test_a_change_under_way_as_its_session_ends_is_unknown_and_the_next_is_sent(
    scene: Scene,
) -> None:
    """The session closes its channel, and gRPC ends the call as if its caller were cancelled."""
    scene.controller.answers.clear()
    scene.changes.propose(LED, PROPOSAL)
    await wait_until_async(lambda: scene.controller.asked, what="the change is under way")
    scene.broker.session.leave_older_than(2)
    answered = await scene.answer()
    assert answered.state is None
    assert "whether it was done is unknown" in str(answered.error)
    scene.heard.clear()
    scene.controller.answers.set()
    await wait_until_async(lambda: scene.broker.session.connected, what="the next session")
    scene.changes.propose(LED, PROPOSAL)
    assert (await scene.answer()).state is not None


async def test_an_answer_waits_for_the_image_that_names_the_runs_of_brokers(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that knew the new version, and not that a follower has lost its data since, would
    propose to take it in."""
    scene.view.metadata_version = VERSION - 1
    seen: list[int] = []
    monkeypatch.setattr(scene.broker.session, "saw", seen.append)
    scene.changes.propose(LED, PROPOSAL)
    await wait_until_async(lambda: seen, what="the controller's answer")
    assert scene.heard == []
    scene.view.apply(pb.ClusterImage(controller_epoch=1, metadata_version=VERSION))
    scene.view.announce()
    assert (await scene.answer()).state is not None
