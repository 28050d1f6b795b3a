"""While brokers keep the controller's changes, no move begins or ends: a journal can be lost."""

from typing import Any

import pytest
from support.channels import patient_aio_channel
from support.journaled_controller import Scene
from support.waiting import wait_until_async

from penstock.core.control import contract as c
from penstock.core.control.journal.proposer import JournaledDocuments
from penstock.errors import ErrorCode
from penstock.proto.v1 import admin_pb2
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock.rpc.errors import error_from_wire
from penstock_broker.controller.metadata_store.journaled import JournaledStore


async def create(scene: Scene) -> None:
    new = admin_pb2.NewTopic(topic="t", assignment=[admin_pb2.ReplicaList(broker_ids=[0, 1])])
    async with patient_aio_channel(f"127.0.0.1:{scene.process.server.port}") as channel:
        answer = await AdminServiceStub(channel).CreateTopics(
            admin_pb2.CreateTopicsRequest(topics=[new]), timeout=120
        )
    assert not answer.results[0].HasField("error"), answer


async def move(scene: Scene) -> admin_pb2.AlterReplicasResponse:
    wanted = admin_pb2.ReplicaChange(topic="t", expected=[0, 1], target=[0, 2])
    async with patient_aio_channel(f"127.0.0.1:{scene.process.server.port}") as channel:
        return await AdminServiceStub(channel).AlterReplicas(
            admin_pb2.AlterReplicasRequest(changes=[wanted]), timeout=120
        )


async def test_a_move_waits_until_the_store_is_back(scene: Scene) -> None:
    await create(scene)
    scene.store.away = True
    await scene.create("u")
    assert scene.process.runtime.detached
    answer = await move(scene)
    assert error_from_wire(answer.error).code is ErrorCode.MOVES_PAUSED
    scene.store.away = False
    await scene.all_serve(2)
    answer = await move(scene)
    assert not answer.HasField("error")
    assert answer.results[0].state == admin_pb2.MOVE_STATE_QUEUED
    await wait_until_async(
        lambda: scene.process.runtime.machine.stored.topics["t"].partitions[0].state.adding == (2,),
        what="the copying begins",
    )


async def test_a_move_that_was_decided_when_brokers_stepped_in_does_not_get_into_their_journal(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the decision and its write, a majority agrees to stand in for the store."""
    await create(scene)
    runtime, obey = scene.process.runtime, scene.process.runtime._obey
    decided: list[c.Ready] = []

    def really(store: Any) -> bool:
        documents: JournaledDocuments = store._documents
        return documents.journaling

    def not_yet(store: JournaledStore) -> bool:
        return bool(decided) and really(store)

    def obeying(ready: c.Ready) -> None:
        if ready.stored_only:
            decided.append(ready)
        obey(ready)

    monkeypatch.setattr(JournaledStore, "journaling", property(not_yet))
    monkeypatch.setattr(runtime, "_obey", obeying)
    scene.store.away = True
    await wait_until_async(lambda: really(runtime._store), what="brokers stand in for the store")
    answer = await move(scene)
    assert decided, "the machine did not know"
    assert error_from_wire(answer.error).code is ErrorCode.MOVES_PAUSED
    assert runtime.detached
    assert runtime.machine.stored.topics["t"].partitions[0].target == ()
    for broker in scene.brokers:
        kept = broker.journal._holder.journal.documents.get("topic/t", "")
        assert "target" not in kept
