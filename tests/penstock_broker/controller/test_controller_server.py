"""The controller over real gRPC: sessions, fail-over, admin calls, standby, restarts."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from support.channels import patient_aio_channel
from support.waiting import wait_until_async

from penstock.core.control import ControlConfig
from penstock.core.control.documents import FORMATS, ClusterDocument, encode_cluster
from penstock.core.types import ControllerEpoch
from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1 import admin_pb2, controller_pb2
from penstock.rpc.errors import error_from_rpc
from penstock_broker.controller import outbox
from penstock_broker.controller.loading import from_texts
from penstock_broker.controller.metadata_store.interface import (
    MetadataStore,
    StoredText,
    StoreUnavailableError,
)
from penstock_broker.controller.metadata_store.local import LocalMetadataStore
from penstock_broker.controller.metadata_store.memory import (
    Failure,
    MemoryMetadataStore,
    SharedDocuments,
)
from penstock_broker.controller.server import CONTROLLER_SERVICE
from penstock_broker.serving.edge import first_error

if TYPE_CHECKING:
    from .conftest import BrokerClient, Run, Running, Start


async def code_of(call: Any) -> ErrorCode:
    """The error code of a call that fails as a whole."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return error_from_rpc(caught.value).code


async def three(running: "Running") -> list["BrokerClient"]:
    """Three brokers, and topic `t` with one partition led by broker 0."""
    brokers = [await running.broker(broker_id) for broker_id in range(3)]
    await running.create(assignment=[admin_pb2.ReplicaList(broker_ids=[0, 1, 2])], partitions=0)
    for broker in brokers:
        await broker.until(partial(broker.has_leader, 0, 1), "the topic arrives")
    return brokers


# ---------------------------------------------------------------- sessions


async def test_a_broker_registers_and_gets_a_full_image_then_changes(start: "Start") -> None:
    running = await start()
    first = await running.broker(0)
    assert first.registered.controller_epoch == 1
    assert first.registered.cluster_id
    assert first.registered.heartbeat_interval_ms == 50
    assert first.images[0].full
    await running.broker(1)
    await first.until(lambda: len(first.images[-1].brokers) == 2, "broker 1 appears")
    assert not first.images[-1].full
    versions = [image.metadata_version for image in first.images]
    assert versions == sorted(set(versions))
    assert first.images[-1].brokers[1].incarnation == "run-1-1"


async def test_a_broken_session_moves_the_leadership_without_the_session_timeout(
    start: "Start",
) -> None:
    brokers = await three(await start(config=ControlConfig(session_timeout_ms=100_000)))
    brokers[0].break_off()
    await brokers[1].until(lambda: brokers[1].leader() == (1, 2), "broker 1 leads")


async def test_a_silent_broker_is_told_that_its_session_is_over(start: "Start") -> None:
    brokers = await three(await start())
    brokers[0].beating = False
    await brokers[1].until(lambda: brokers[1].leader() == (1, 2), "broker 1 leads")
    await asyncio.wait_for(brokers[0].ended.wait(), 40.0)
    assert brokers[0].refusal.code is ErrorCode.STALE_BROKER_SESSION


async def test_a_stopping_broker_hears_that_it_may_stop(start: "Start") -> None:
    brokers = await three(await start())
    brokers[0].wants_stop = True
    await brokers[0].until(lambda: brokers[0].may_stop, "it may stop")
    await brokers[1].until(lambda: brokers[1].leader() == (1, 2), "broker 1 leads")


async def test_a_refused_registration_says_why_and_ends_the_stream(start: "Start") -> None:
    running = await start()
    await running.broker(0)
    client = running.start_broker(0, run=2, directory_id="copy")
    await asyncio.wait_for(client.ended.wait(), 40.0)
    assert client.refusal.code is ErrorCode.BROKER_ID_IN_USE
    assert client.accepted is None


async def test_a_stream_must_begin_with_register(start: "Start") -> None:
    running = await start()
    beat = controller_pb2.SessionRequest(heartbeat=controller_pb2.Heartbeat())
    call = running.controller.Session(iter([beat]))
    assert await code_of(call.read()) is ErrorCode.INVALID_REQUEST


async def test_garbage_is_an_invalid_request(start: "Start") -> None:
    running = await start()
    async with patient_aio_channel(running.address) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/penstock.proto.v1.ControllerService/AlterIsr"
        )
        assert await code_of(call(b"\xff\xff\xff")) is ErrorCode.INVALID_REQUEST


# ---------------------------------------------------------------- ISR and producer ids


def isr_request(
    broker: "BrokerClient", isr: list[int], **changes: Any
) -> controller_pb2.AlterIsrRequest:
    topic = broker.known("t")
    info = topic.partitions[0]
    fields = {
        "broker_id": broker.broker_id,
        "broker_session": broker.registered.broker_session,
        "controller_epoch": broker.registered.controller_epoch,
        **changes,
    }
    change = controller_pb2.IsrChange(
        topic_id=topic.topic_id,
        partition=0,
        leader_epoch=info.leader_epoch,
        version=info.version,
        isr=isr,
    )
    return controller_pb2.AlterIsrRequest(changes=[change], **fields)


async def test_isr_changes_are_compared_and_swapped(start: "Start") -> None:
    running = await start()
    brokers = await three(running)
    request = isr_request(brokers[0], [0, 1])
    answer = await running.controller.AlterIsr(request)
    assert list(answer.results[0].partition.isr) == [0, 1]
    request.changes[0].isr[:] = [0, 2]
    stale = (await running.controller.AlterIsr(request)).results[0]
    assert ErrorCode(stale.error.code) is ErrorCode.STALE_PARTITION_VERSION
    assert list(stale.partition.isr) == [0, 1]
    await brokers[2].until(
        lambda: list(brokers[2].known("t").partitions[0].isr) == [0, 1], "all hear of it"
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"controller_epoch": 0}, ErrorCode.STALE_CONTROLLER_EPOCH),
        ({"controller_epoch": 2}, ErrorCode.STALE_CONTROLLER_EPOCH),
        ({"broker_session": 1}, ErrorCode.STALE_BROKER_SESSION),
        ({"broker_id": 2}, ErrorCode.STALE_BROKER_SESSION),
    ],
)
async def test_isr_changes_of_the_past_are_refused(
    start: "Start", changes: dict[str, Any], expected: ErrorCode
) -> None:
    running = await start()
    brokers = await three(running)
    answer = await running.controller.AlterIsr(isr_request(brokers[0], [0, 1], **changes))
    assert ErrorCode(answer.error.code) is expected


async def test_producer_ids_are_handed_out_once(start: "Start") -> None:
    running = await start()
    brokers = [await running.broker(0), await running.broker(1)]
    requests = [
        controller_pb2.AllocateProducerIdsRequest(
            broker_id=broker.broker_id, broker_session=broker.registered.broker_session
        )
        for broker in brokers * 5
    ]
    blocks = [await running.controller.AllocateProducerIds(request) for request in requests]
    ids = [id_ for block in blocks for id_ in range(block.first, block.first + block.count)]
    assert len(ids) == len(set(ids)) == 10_000


# ---------------------------------------------------------------- admin


async def test_topics_live_and_die_through_the_admin_calls(start: "Start") -> None:
    running = await start()
    broker = await running.broker(0)
    await running.create(replication_factor=1, configs={"retention.ms": "5"})
    grow = admin_pb2.CreatePartitionsRequest(topic="t", partitions=3)
    assert not (await running.admin.CreatePartitions(grow)).HasField("error")
    alter = admin_pb2.AlterConfigsRequest(topic="t", set={"retention.bytes": "9"})
    assert not (await running.admin.AlterConfigs(alter)).HasField("error")
    described = await running.admin.DescribeConfigs(admin_pb2.DescribeConfigsRequest(topic="t"))
    values = {entry.name: (entry.value, entry.is_default) for entry in described.configs}
    assert values["retention.ms"] == ("5", False)
    assert values["retention.bytes"] == ("9", False)
    assert values["max.message.bytes"] == ("1048576", True)
    assert all(entry.documentation for entry in described.configs)
    cluster = await running.admin.DescribeCluster(admin_pb2.DescribeClusterRequest())
    assert (cluster.topics, cluster.partitions, cluster.offline_partitions) == (1, 3, 0)
    await broker.until(lambda: broker.topic("t"), "the topic arrives")
    topic_id = broker.known("t").topic_id
    delete = admin_pb2.DeleteTopicsRequest(topics=[admin_pb2.TopicName(topic="t")])
    assert (await running.admin.DeleteTopics(delete)).results[0].topic_id == topic_id
    await broker.until(
        lambda: topic_id in broker.images[-1].deleted_topic_ids, "the deletion arrives"
    )


async def test_refusals_name_the_topic_and_the_reason(start: "Start") -> None:
    running = await start()
    await running.broker(0)
    topics = [
        admin_pb2.NewTopic(topic="good", partitions=1, replication_factor=1),
        admin_pb2.NewTopic(topic="b d", partitions=1, replication_factor=1),
        admin_pb2.NewTopic(topic="many", partitions=1, replication_factor=3),
    ]
    answer = await running.admin.CreateTopics(admin_pb2.CreateTopicsRequest(topics=topics))
    good, bad, many = answer.results
    assert good.topic_id
    assert not good.HasField("error")
    assert ErrorCode(bad.error.code) is ErrorCode.INVALID_TOPIC_NAME
    assert not bad.topic_id
    assert ErrorCode(many.error.code) is ErrorCode.INVALID_REPLICATION_FACTOR
    assert "1 of 1 brokers" in many.error.message


async def test_the_wrong_cluster_is_refused_as_a_whole(start: "Start") -> None:
    running = await start()
    request = admin_pb2.CreateTopicsRequest(cluster_id="another")
    assert await code_of(running.admin.CreateTopics(request)) is ErrorCode.CLUSTER_ID_MISMATCH


async def test_what_only_brokers_know_is_asked_of_brokers(start: "Start") -> None:
    running = await start()
    answer = await running.admin.DeleteRecords(admin_pb2.DeleteRecordsRequest())
    assert "ask the partition's leader" in answer.error.message
    call = running.admin.DescribeLogs(admin_pb2.DescribeLogsRequest())
    assert await code_of(call) is ErrorCode.INVALID_REQUEST


async def test_leaders_move_away_from_a_broker_on_request(start: "Start") -> None:
    running = await start()
    brokers = await three(running)
    request = admin_pb2.ElectLeadersRequest(away=True, away_from_broker=0)
    assert (await running.admin.ElectLeaders(request)).moved == 1
    await brokers[2].until(lambda: brokers[2].leader() == (1, 2), "broker 1 leads")


# ---------------------------------------------------------------- restarts and standby


async def test_a_restarted_controller_keeps_everything_and_raises_its_epoch(
    run: "Run", tmp_path: Path
) -> None:
    config = ControlConfig(heartbeat_interval_ms=50, session_timeout_ms=60_000)
    store = LocalMetadataStore(tmp_path)
    async with run(store, config, wait=True) as running:
        brokers = await three(running)
        before = brokers[0].images[-1]
        cluster_id = brokers[0].registered.cluster_id
    store.close()
    store = LocalMetadataStore(tmp_path)
    async with run(store, config, wait=True) as running:
        seen: dict[str, Any] = {
            "cluster_id": cluster_id,
            "controller_epoch": before.controller_epoch,
            "metadata_version": before.metadata_version,
        }
        again = [await running.broker(broker_id, **seen) for broker_id in range(3)]
        assert again[0].registered.controller_epoch == before.controller_epoch + 1
        assert again[0].registered.cluster_id == cluster_id
        assert again[0].images[0].metadata_version > before.metadata_version
        assert again[0].leader() == (0, 1), "nobody lost a leadership by the restart"
    store.close()


async def test_a_broker_that_has_seen_more_refuses_to_be_turned_back(start: "Start") -> None:
    running = await start()
    client = running.start_broker(0, metadata_version=1_000)
    await asyncio.wait_for(client.ended.wait(), 40.0)
    assert client.refusal.code is ErrorCode.STALE_CONTROLLER_EPOCH
    assert "restored" in client.refusal.message


async def test_a_standby_says_so_and_takes_over_when_it_gets_the_lease(
    start: "Start", documents: SharedDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_broker.controller.runtime._LEASE_RENEW_S", 0.05)
    active = await start()
    standby = await start(wait=False)
    request = admin_pb2.CreateTopicsRequest()
    assert await code_of(standby.admin.CreateTopics(request)) is ErrorCode.NOT_CONTROLLER
    refused = standby.start_broker(0)
    await asyncio.wait_for(refused.ended.wait(), 40.0)
    assert refused.accepted is None
    broker = await active.broker(1)
    documents.holder = standby.runtime._holder
    await standby.runtime.wait_active(40.0)
    assert standby.runtime.machine.epoch == 2
    await asyncio.wait_for(broker.ended.wait(), 40.0)
    assert broker.refusal.code is ErrorCode.NOT_CONTROLLER
    assert not active.runtime.active


async def test_a_deposed_controller_ends_its_sessions_at_its_next_write(
    start: "Start", documents: SharedDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LEASE_RENEW", "SUSPEND"):  # else it may take the lease back, or hear who has it
        monkeypatch.setattr(f"penstock_broker.controller.runtime._{name}_S", 600.0)
    first = await start()
    broker = await first.broker(0)
    documents.holder = ""
    second = await start()
    assert second.runtime.machine.epoch == 2
    request = admin_pb2.CreateTopicsRequest(
        topics=[admin_pb2.NewTopic(topic="x", partitions=1, replication_factor=1)]
    )
    allocate = controller_pb2.AllocateProducerIdsRequest(
        broker_id=0, broker_session=broker.registered.broker_session
    )
    answer = await first.controller.AllocateProducerIds(allocate)
    assert ErrorCode(answer.error.code) is ErrorCode.NOT_CONTROLLER
    await asyncio.wait_for(broker.ended.wait(), 40.0)
    assert await code_of(first.admin.CreateTopics(request)) is ErrorCode.NOT_CONTROLLER


@pytest.mark.parametrize("failure", list(Failure))
async def test_an_unanswered_write_is_looked_up_and_answered_once(
    start: "Start", documents: SharedDocuments, failure: Failure
) -> None:
    store = MemoryMetadataStore(documents)
    running = await start(store)
    broker = await running.broker(0)
    store.fail_next = failure
    await running.create(replication_factor=1)
    await broker.until(lambda: broker.topic("t"), "the topic arrives")
    assert running.runtime.counters.write_unknowns == 1
    assert documents.documents["topic/t"].text.count(broker.known("t").topic_id) == 1


# ---------------------------------------------------------------- standard services


async def test_health_tells_active_from_standing_by(start: "Start") -> None:
    running = await start()
    standby = await start(wait=False)
    status = health_pb2.HealthCheckResponse

    async def ask(address: str, service: str) -> int:
        async with patient_aio_channel(address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest(service=service)
            return int((await stub.Check(request)).status)

    async def both() -> bool:
        active = await ask(running.address, CONTROLLER_SERVICE)
        return {active, await ask(standby.address, "")} == {status.SERVING}

    await wait_until_async(both, what="both report")
    assert await ask(standby.address, CONTROLLER_SERVICE) == status.NOT_SERVING


async def test_reflection_lists_the_services(start: "Start") -> None:
    running = await start()
    async with patient_aio_channel(running.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        call = stub.ServerReflectionInfo(iter([request]))
        answer = await call.read()
    names = {service.name for service in answer.list_services_response.service}
    assert {CONTROLLER_SERVICE, "penstock.proto.v1.AdminService"} <= names


# ---------------------------------------------------------------- the metadata store's bad days


def one_topic(topic: str) -> Any:
    return admin_pb2.CreateTopicsRequest(
        topics=[admin_pb2.NewTopic(topic=topic, partitions=1, replication_factor=1)]
    )


class Moody(MemoryMetadataStore):
    """Its lease can be unreachable."""

    away = False

    def acquire_lease(self, holder: str, duration_ms: int) -> bool:
        if self.away:
            raise StoreUnavailableError("planted: away")
        return super().acquire_lease(holder, duration_ms)


async def test_a_controller_that_cannot_renew_ends_sessions_and_comes_back(
    start: "Start", documents: SharedDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("RENEW", 0.05), ("RETRY", 0.05)):
        monkeypatch.setattr(f"penstock_broker.controller.runtime._LEASE_{name}_S", seconds)
    store = Moody(documents)
    running = await start(store)
    broker = await running.broker(0)
    await running.create(replication_factor=1)
    with monkeypatch.context() as soon:
        soon.setattr("penstock_broker.controller.runtime._SUSPEND_S", 0.3)
        store.away = True
        await asyncio.wait_for(broker.ended.wait(), 40.0)
    assert broker.refusal.code is ErrorCode.CONTROLLER_UNAVAILABLE
    assert not running.runtime.active
    assert running.runtime.usable, "a probe must not fail for it"
    summary = await running.admin.DescribeCluster(admin_pb2.DescribeClusterRequest())
    assert summary.topics == 1, "what it knows it still shows"
    request = admin_pb2.CreateTopicsRequest()
    assert await code_of(running.admin.CreateTopics(request)) is ErrorCode.CONTROLLER_UNAVAILABLE
    refused = running.start_broker(0)
    await asyncio.wait_for(refused.ended.wait(), 40.0)
    assert refused.accepted is None
    store.away = False
    await running.runtime.wait_active(40.0)
    again = await running.broker(0)
    assert again.registered.controller_epoch == 2
    assert again.leader() == (0, 1), "nobody was taken for dead"


class StandingIn:
    """A store around another, with brokers that stand in for its lease, as a `JournaledStore`."""

    def __init__(self, says: Callable[[int], bool] = lambda _attempt: True) -> None:
        """`says`: what they answer when they are asked for the nth time."""
        self.asked = 0
        self._says = says
        self._store: Any = None

    def __call__(self, store: MetadataStore) -> Any:
        self._store = store
        return self

    async def hold(self) -> bool:
        self.asked += 1
        return self._says(self.asked)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_brokers_stand_in_for_the_lease_only_once_all_have_come(
    start: "Start", documents: SharedDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a broker that has not come acts on may be stored, and not read yet (ADR 29)."""
    for name, seconds in (("LEASE_RENEW", 0.05), ("LEASE_RETRY", 0.05), ("HOLD_AFTER", 0.1)):
        monkeypatch.setattr(f"penstock_broker.controller.runtime._{name}_S", seconds)
    deposed = Moody(documents)
    first = await start(deposed)
    await first.broker(0)
    await first.broker(1)
    deposed.away = True  # else it may take the lease back before the successor asks for it
    documents.holder = ""
    store, brokers = Moody(documents), StandingIn()
    successor = await start(store, around=brokers)
    await successor.runtime.wait_active(40.0)
    await successor.broker(0)
    with monkeypatch.context() as soon:
        soon.setattr("penstock_broker.controller.runtime._SUSPEND_S", 0.5)
        store.away = True
        await wait_until_async(lambda: not successor.runtime.active, what="it is suspended")
    assert brokers.asked == 0
    store.away = False
    await successor.runtime.wait_active(40.0)
    await successor.broker(0)
    await successor.broker(1)
    # Without them it would be suspended after so long; a shorter one a pause could do too.
    monkeypatch.setattr("penstock_broker.controller.runtime._SUSPEND_S", 2.0)
    store.away = True
    await wait_until_async(lambda: brokers.asked > 30, what="it is held for longer than its lease")
    assert successor.runtime.active


class Hanging(Moody):
    """When it is away, the lease cannot even be asked for: the thread hangs until `answers`."""

    def __init__(self, documents: SharedDocuments) -> None:
        super().__init__(documents)
        self.hangs = False
        self.answers = Event()

    def acquire_lease(self, holder: str, duration_ms: int) -> bool:
        if self.hangs:
            self.answers.wait(40.0)
        return super().acquire_lease(holder, duration_ms)


async def test_brokers_are_asked_again_before_the_api_server_is(
    start: "Start", documents: SharedDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs takes what is left of the time until the controller is suspended."""
    for name, seconds in (("LEASE_RENEW", 0.05), ("LEASE_RETRY", 0.05), ("HOLD_AFTER", 0.1)):
        monkeypatch.setattr(f"penstock_broker.controller.runtime._{name}_S", seconds)
    store = Hanging(documents)

    def says(attempt: int) -> bool:
        store.hangs = True
        return attempt > 1

    brokers = StandingIn(says)
    running = await start(store, around=brokers)
    await running.broker(0)
    store.away = True
    try:
        await wait_until_async(lambda: brokers.asked > 0, what="brokers were asked")
        await wait_until_async(
            lambda: brokers.asked > 1 or not running.runtime.active, what="they were asked again"
        )
        assert running.runtime.active
    finally:
        store.away = False
        store.answers.set()


@pytest.mark.parametrize("key", ["cluster", "topic/t"])
@pytest.mark.parametrize("text", ["{kubectl edit", '{"format":1}', "[]"])
async def test_an_active_controller_puts_unreadable_documents_back(
    start: "Start", documents: SharedDocuments, key: str, text: str
) -> None:
    running = await start()
    broker = await running.broker(0)
    await running.create(replication_factor=1)
    await broker.until(lambda: broker.topic("t"), "the topic arrives")
    good = json.loads(documents.documents[key].text)
    documents.writes += 1
    documents.documents[key] = StoredText(text, str(documents.writes))
    answer = await running.admin.CreateTopics(one_topic("u"))
    assert not answer.results[0].HasField("error"), answer
    configs = admin_pb2.AlterConfigsRequest(topic="t", set={"retention.ms": "1000"})
    assert not (await running.admin.AlterConfigs(configs)).HasField("error")
    await running.broker(1)
    found = json.loads(documents.documents[key].text)
    assert found["metadata_version"] > good["metadata_version"]
    identity = "cluster_id" if key == "cluster" else "topic_id"
    assert found[identity] == good[identity]
    assert broker.leader() == (0, 1)


def test_a_topic_of_a_newer_format_than_the_cluster_is_not_adopted() -> None:
    """Somebody has restored an older document of the cluster."""
    cluster = encode_cluster(
        ClusterDocument(cluster_id="c", controller_epoch=ControllerEpoch(1), metadata_version=1)
    )
    topic = (
        '{"format":2,"name":"t","topic_id":"i","controller_epoch":1,"metadata_version":2,'
        '"configs":{},"partitions":[]}'
    )
    found = {"cluster": StoredText(cluster, "1"), "topic/t": StoredText(topic, "2")}
    with pytest.raises(PenstockError, match="topic/t has format 2, but cluster has 1") as caught:
        from_texts(found, "", None)
    assert caught.value.code is ErrorCode.DATA_CORRUPTED
    older = StoredText(topic.replace('"format":2', '"format":1'), "2")
    assert from_texts({**found, "topic/t": older}, "", None).topics


async def test_a_newer_format_is_not_overwritten(run: "Run", documents: SharedDocuments) -> None:
    newer = StoredText('{"format":3,"name":"t"}', "1000")
    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012 - it ends the context
        async with run(MemoryMetadataStore(documents), ControlConfig(), wait=True) as running:
            await running.broker(0)
            await running.create(replication_factor=1)
            documents.documents["topic/t"] = newer
            configs = admin_pb2.AlterConfigsRequest(topic="t", set={"retention.ms": "1000"})
            with suppress(grpc.aio.AioRpcError):
                await running.admin.AlterConfigs(configs)
    error = first_error(caught.value)
    assert isinstance(error, PenstockError)
    assert error.code is ErrorCode.DATA_CORRUPTED
    assert documents.documents["topic/t"] == newer


async def test_session_streams_have_a_number(
    start: "Start", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "_STREAMS_MAX", 1)
    running = await start()
    first = await running.broker(0)
    register = controller_pb2.SessionRequest(
        register=controller_pb2.Register(
            broker_id=1, incarnation="i", directory_id="d", host="h", port=1, formats=FORMATS
        )
    )
    call: Any = running.controller.Session(iter([register]))
    assert await code_of(call.read()) is ErrorCode.OVERLOADED
    first.break_off()
    await first.ended.wait()

    async def staying() -> AsyncIterator[controller_pb2.SessionRequest]:
        yield register
        await asyncio.Event().wait()

    async def accepted() -> bool:
        second: Any = running.controller.Session(staying())
        with suppress(grpc.aio.AioRpcError):
            answer = await second.read()
            return bool(answer.HasField("registered"))
        return False

    await wait_until_async(accepted, what="there is room again")
