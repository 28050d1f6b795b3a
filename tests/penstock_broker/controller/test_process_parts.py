"""A controller as it is put together, on a store in memory: journals, and how it ends."""

import asyncio

import pytest
from support.channels import patient_aio_channel
from support.controller_seams import Leaving, seams_on
from support.sessions import Broker, running
from support.waiting import wait_until_async

from penstock.core.control import ControlConfig
from penstock.proto.v1 import admin_pb2
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock_broker.controller.metadata_store.memory import MemoryMetadataStore, SharedDocuments
from penstock_broker.controller.process import ControllerProcess

CONFIG = ControlConfig(heartbeat_interval_ms=50, session_timeout_ms=60_000)


async def test_brokers_keep_what_is_decided_while_the_store_is_away(
    documents: SharedDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("LEASE_RENEW", 0.05), ("LEASE_RETRY", 0.05), ("HOLD_AFTER", 0.1)):
        monkeypatch.setattr(f"penstock_broker.controller.runtime._{name}_S", seconds)
    store = Leaving(documents)
    async with asyncio.TaskGroup() as tasks:
        with seams_on(store) as seams:
            process = ControllerProcess(CONFIG, seams, "127.0.0.1:0", journaled=True)
            serving = tasks.create_task(process.run())
            await process.listening.wait()
            address = f"127.0.0.1:{process.server.port}"
            brokers = [Broker(number, [address]) for number in range(3)]
            async with running(*brokers):
                await wait_until_async(
                    lambda: all(broker.serves(1) for broker in brokers), what="sessions"
                )
                store.away = True
                async with patient_aio_channel(address) as channel:
                    new = admin_pb2.NewTopic(topic="t", partitions=1, replication_factor=3)
                    answer = await AdminServiceStub(channel).CreateTopics(
                        admin_pb2.CreateTopicsRequest(topics=[new]), timeout=120
                    )
                assert not answer.results[0].HasField("error"), answer
                assert process.runtime.detached
                assert "topic/t" not in documents.documents
                store.away = False
                await wait_until_async(
                    lambda: all(broker.serves(2) for broker in brokers), what="it took over anew"
                )
                assert "topic/t" in documents.documents
            process.stop_requested.set()
            await serving
    assert documents.holder == ""


async def test_a_controller_that_is_cancelled_gives_up_its_lease(
    documents: SharedDocuments,
) -> None:
    with seams_on(MemoryMetadataStore(documents)) as seams:
        process = ControllerProcess(CONFIG, seams, "127.0.0.1:0")
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(process.run())
            await process.listening.wait()
            await process.runtime.wait_active(40.0)
            assert documents.holder == seams.holder
            serving.cancel()
    assert serving.cancelled()
    assert documents.holder == ""
