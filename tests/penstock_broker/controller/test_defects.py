"""A defect ends a controller: callers are told, the lease is free at once, the process exits."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from support.controller_seams import threaded
from support.waiting import wait_until_async

from penstock.core.control import ControlConfig, ControllerMachine
from penstock.core.control import contract as c
from penstock.errors import ErrorCode
from penstock.proto.v1 import admin_pb2
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock.rpc.channel import open_aio_channel
from penstock.rpc.errors import error_from_rpc
from penstock.rpc.transport import GrpcTransport
from penstock_broker.controller import main
from penstock_broker.controller.metadata_store.memory import MemoryMetadataStore, SharedDocuments
from penstock_broker.local.ports import ReservedPort

TOPIC = admin_pb2.CreateTopicsRequest(topics=[admin_pb2.NewTopic(topic="t", partitions=1)])
Start = Callable[..., Awaitable[Any]]


class Serving:
    """`python -m penstock_broker controller`, less the process."""

    def __init__(self, store: MemoryMetadataStore) -> None:
        self._port = ReservedPort()
        self.address = self._port.address
        self._args = argparse.Namespace(
            listen=self.address,
            secure_listen="",
            metrics_listen=None,
            health_listen="",
            metadata=None,
            cluster_id="",
            admin=[],
            viewer=[],
        )
        self._store = store

    async def run(self) -> int:
        with self._port, threaded(self._store) as store:
            seams = main._seams(store, GrpcTransport())
            return await main._serve(self._args, ControlConfig(), seams, None)

    async def create(self) -> None:
        """Raises what the controller answers, as soon as one answers."""
        async with open_aio_channel(self.address) as channel:
            admin = AdminServiceStub(channel)
            await admin.CreateTopics(TOPIC, timeout=120, wait_for_ready=True)


async def taken_over(documents: SharedDocuments) -> None:
    await wait_until_async(lambda: bool(documents.documents), what="a controller took over")


async def test_a_defect_of_the_machine_ends_the_controller_and_another_takes_over(
    documents: SharedDocuments,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    serving = Serving(MemoryMetadataStore(documents))
    enqueue = ControllerMachine._enqueue

    def strike(self: ControllerMachine, event: c.Request) -> None:
        enqueue(self, event)
        raise KeyError("planted")

    async with asyncio.timeout(600), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(serving.run())
        await taken_over(documents)
        with monkeypatch.context() as patched:
            patched.setattr(ControllerMachine, "_enqueue", strike)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await serving.create()
            assert await running == main.FAILED
    error = error_from_rpc(refused.value)
    assert error.code is ErrorCode.INTERNAL
    assert "outcome of pending requests is unknown" in error.message
    assert documents.holder == "", "it gave up the lease, whose time stands still here"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "penstock controller: this controller stopped because of a defect (KeyError)"
    )
    logged = [one.exc_info for one in caplog.records if one.getMessage() == "controller stopped"]
    (cause,) = [each[1] for each in logged if each]
    assert isinstance(cause, KeyError)
    another = await start()
    assert another.runtime.machine.epoch == 2
    assert another.runtime.machine.topic("t") is None, "what was half-handled is not there"


async def test_a_defect_beside_the_machine_ends_the_controller_too(
    documents: SharedDocuments,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Broken(MemoryMetadataStore):
        def write(self, stages: Any) -> Any:
            raise KeyError("planted")

    async with asyncio.timeout(600):
        assert await Serving(Broken(documents)).run() == main.FAILED
    assert documents.holder == ""
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        line
        == "penstock controller: a defect ended it: KeyError('planted'); its log has the details"
    )
