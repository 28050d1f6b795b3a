"""Attacks 21 and 22: callers who ignore their quota, in bytes and in topics."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.clocks import StandingClock
from support.identified import ROOT, Identified, as_user, believing, identified, refusal
from support.produce_scene import part, request
from support.waiting import wait_until_async

from penstock.core.authorization import CLUSTER, Kind, Operation, Prefix, Resource
from penstock.core.quotas import Limit, QuotaRule
from penstock.errors import ErrorCode, ThrottledError
from penstock.proto.v1 import admin_pb2, streams_pb2
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.rpc.errors import PUSHBACK_TRAILER, error_from_rpc
from penstock.rpc.quotas import quotas_from_wire, quotas_to_wire
from penstock.rpc.streams.contract import MessageStream
from penstock.rpc.streams.tcp import TcpStream, open_tcp_stream
from penstock_broker.controller.metadata_store.memory import MemoryMetadataStore
from penstock_broker.observability import AUDIT
from penstock_broker.services.client_streams import ClientStreams
from penstock_broker.serving import edge
from penstock_broker.serving.callers import Caller, Role, entered

__all__ = ["believing"]
pytestmark = pytest.mark.usefixtures("believed")
ADA, BOB = "serviceaccount:etl/ada", "serviceaccount:etl/bob"
T = Resource(Kind.TOPIC, "orders")
RATE = 1_000
RECORD = b"x" * 4_000


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Identified]:
    async with identified(tmp_path) as made:
        await made.create("orders")
        await made.allow(T, "*", Operation.READ, Operation.WRITE, Operation.ALTER)
        yield made


async def limit(cluster: Identified, *rules: QuotaRule) -> None:
    answer = await cluster.admin.AlterQuotas(
        admin_pb2.AlterQuotasRequest(rules=quotas_to_wire(rules)), metadata=as_user(ROOT)
    )
    assert not answer.HasField("error"), answer
    quotas = cluster.broker._view.access.quotas
    wanted = {name: rule.limits for rule in rules for name in rule.principals}
    await wait_until_async(
        lambda: quotas._buckets._limits == wanted, what="the quotas reach the broker"
    )


def ada(**limits: int) -> QuotaRule:
    return QuotaRule((ADA,), {Limit[name.upper()]: value for name, value in limits.items()})


def appended(cluster: Identified) -> Any:
    """The end of the topic's log."""
    return cluster.stub(BrokerServiceStub).ListOffsets(
        pb.ListOffsetsRequest(
            partitions=[pb.ListOffsetsPartition(topic="orders", latest=pb.Latest())]
        ),
        metadata=as_user(ROOT),
    )


async def records(cluster: Identified) -> int:
    return int((await appended(cluster)).results[0].offset)


async def test_a_flood_of_produces_is_refused_and_a_neighbour_is_served(
    cluster: Identified,
) -> None:  # 21
    await limit(cluster, ada(produce=1))  # more than an hour for one record
    data = cluster.stub(BrokerServiceStub)
    flood = [
        refusal(data.Produce(request(1, part("orders", RECORD)), metadata=as_user(ADA)))
        for _ in range(40)
    ]
    neighbour = [
        refusal(data.Produce(request(1, part("orders", RECORD)), metadata=as_user(BOB)))
        for _ in range(10)
    ]
    async with asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(call) for call in (*flood, *neighbour)]
    seen = [call.result() for call in calls]
    assert sorted(seen[:40]) == [ErrorCode.UNSPECIFIED] + [ErrorCode.THROTTLED] * 39
    assert set(seen[40:]) == {ErrorCode.UNSPECIFIED}
    assert await records(cluster) == 11
    counted = cluster.broker.metrics.registry.get_sample_value
    assert counted("penstock_throttled_total", {"principal": ADA}) == 39
    assert counted("penstock_throttled_total", {"principal": BOB}) is None


async def test_a_refusal_says_how_long_to_wait(cluster: Identified) -> None:
    await limit(cluster, ada(produce=RATE))
    data = cluster.stub(BrokerServiceStub)
    await data.Produce(request(1, part("orders", RECORD * 5)), metadata=as_user(ADA))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await data.Produce(request(1, part("orders", RECORD * 5)), metadata=as_user(ADA))
    error = error_from_rpc(caught.value)
    assert isinstance(error, ThrottledError)
    assert error.code is ErrorCode.THROTTLED
    assert 1_000 < error.throttle_ms < 25_000
    assert dict(caught.value.trailing_metadata() or ())[PUSHBACK_TRAILER] == str(error.throttle_ms)
    assert f"{ADA} is above its quota produceBytesPerSecond of 1000" in error.message


async def test_a_flooding_stream_is_held_and_a_neighbour_is_served(
    cluster: Identified,
) -> None:  # 21
    await limit(cluster, ada(produce=1))  # more than an hour for one record
    data = cluster.stub(BrokerServiceStub)
    streams = []
    for _ in range(3):
        stream = data.ProduceStream(metadata=as_user(ADA))
        streams.append(stream)
        for number in range(1, 4):
            await stream.write(request(number, part("orders", RECORD)))
    async with asyncio.TaskGroup() as tasks:
        reads = [tasks.create_task(stream.read()) for stream in streams]
        done, waiting = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        for _ in range(10):
            answer = data.Produce(request(1, part("orders", RECORD)), metadata=as_user(BOB))
            assert await refusal(answer) is ErrorCode.UNSPECIFIED
        assert await records(cluster) == 11, "of three streams, one request got in"
        assert not any(read.done() for read in waiting)
        for read in waiting:
            read.cancel()
    for stream in streams:
        stream.cancel()


async def test_a_held_stream_goes_on_when_its_quota_is_raised(cluster: Identified) -> None:
    await limit(cluster, ada(produce=1))
    stream: Any = cluster.stub(BrokerServiceStub).ProduceStream(metadata=as_user(ADA))
    for number in (1, 2):
        await stream.write(request(number, part("orders", RECORD)))
    assert (await stream.read()).correlation_id == 1
    await limit(cluster)
    assert (await stream.read()).correlation_id == 2
    stream.cancel()


@asynccontextmanager
async def message_stream(
    cluster: Identified,
    monkeypatch: pytest.MonkeyPatch,
    method: streams_pb2.StreamMethod.ValueType,
) -> AsyncIterator[TcpStream]:
    """Ada's."""
    serve = ClientStreams._serve_method

    async def serve_ada(self: ClientStreams, stream: MessageStream, method: int) -> None:
        entered(Caller(Role.USER, ADA))
        await serve(self, stream, method)

    monkeypatch.setattr(ClientStreams, "_serve_method", serve_ada)
    stream = await open_tcp_stream(f"127.0.0.1:{cluster.broker.membership.ports.stream_port}")
    try:
        await stream.send(streams_pb2.StreamHello(method=method).SerializeToString())
        yield stream
    finally:
        await stream.close()


async def test_a_flooding_message_stream_is_held(
    cluster: Identified, monkeypatch: pytest.MonkeyPatch
) -> None:  # 21
    await limit(cluster, ada(produce=1))
    data = cluster.stub(BrokerServiceStub)
    async with message_stream(cluster, monkeypatch, streams_pb2.STREAM_METHOD_PRODUCE) as stream:
        for number in range(1, 4):
            await stream.send(request(number, part("orders", RECORD)).SerializeToString())
        assert await answered(stream) == 1
        for _ in range(10):
            answer = data.Produce(request(1, part("orders", RECORD)), metadata=as_user(BOB))
            assert await refusal(answer) is ErrorCode.UNSPECIFIED
        assert await records(cluster) == 11
        await limit(cluster)
        assert [await answered(stream), await answered(stream)] == [2, 3]


async def answered(stream: TcpStream) -> int:
    """The number of the next answer."""
    message = await stream.receive()
    assert message is not None
    return pb.ProduceResponse.FromString(bytes(message)).correlation_id


async def test_a_fetch_in_debt_is_empty_and_no_error(cluster: Identified) -> None:
    data = cluster.stub(BrokerServiceStub)
    await data.Produce(request(1, part("orders", RECORD)), metadata=as_user(BOB))
    await limit(cluster, ada(fetch=1))
    fetch = pb.FetchRequest(max_wait_ms=1, partitions=[pb.FetchPartition(topic="orders")])
    first = await data.Fetch(fetch, metadata=as_user(ADA))
    assert len(first.results[0].batches) == 1
    for _ in range(3):
        assert not (await data.Fetch(fetch, metadata=as_user(ADA))).results
    assert len((await data.Fetch(fetch, metadata=as_user(BOB))).results[0].batches) == 1


async def test_only_so_many_streams_are_open(cluster: Identified) -> None:
    await limit(cluster, ada(streams=1))
    data = cluster.stub(BrokerServiceStub)
    one: Any = data.ProduceStream(metadata=as_user(ADA))
    await one.write(request(1, part("orders", b"a")))
    assert (await one.read()).correlation_id == 1
    other: Any = data.ProduceStream(metadata=as_user(ADA))
    bobs: Any = data.ProduceStream(metadata=as_user(BOB))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await other.read()
    assert error_from_rpc(caught.value).code is ErrorCode.THROTTLED
    await bobs.write(request(1, part("orders", b"a")))
    assert (await bobs.read()).correlation_id == 1
    one.cancel()
    bobs.cancel()
    open_ones = cluster.broker._view.access.quotas._streams
    await wait_until_async(lambda: not open_ones, what="the streams are given back")


async def test_topics_in_a_loop_are_refused(cluster: Identified) -> None:  # 22
    await cluster.allow(CLUSTER, ADA, Operation.CREATE, prefix=Prefix(Kind.TOPIC, "ada."))
    await limit(cluster, ada(mutations=5))

    def create(name: str, who: str, partitions: int = 1) -> Any:
        topic = admin_pb2.NewTopic(topic=name, partitions=partitions, replication_factor=1)
        return refusal(
            cluster.admin.CreateTopics(
                admin_pb2.CreateTopicsRequest(topics=[topic]), metadata=as_user(who)
            )
        )

    seen = [await create("ada.0", ADA, 8)]
    seen += [await create(f"ada.{number}", ADA) for number in range(1, 5)]
    assert seen == [ErrorCode.UNSPECIFIED] + [ErrorCode.THROTTLED] * 4
    counted = cluster.broker.metrics.registry.get_sample_value
    assert counted("penstock_throttled_total", {"principal": ADA}) == 4
    known = cluster.controller.runtime.machine.stored.topics
    assert {name for name in known if name.startswith("ada.")} == {"ada.0"}
    assert await create("other", ROOT) is ErrorCode.UNSPECIFIED


async def test_quotas_are_shown_compared_and_for_admins(cluster: Identified) -> None:
    rules = (ada(produce=5, streams=2),)
    await limit(cluster, *rules)
    shown = await cluster.admin.DescribeQuotas(
        admin_pb2.DescribeQuotasRequest(), metadata=as_user(ROOT)
    )
    assert quotas_from_wire(shown.rules) == rules
    change = admin_pb2.AlterQuotasRequest(expected=admin_pb2.Quotas())
    stale = cluster.admin.AlterQuotas(change, metadata=as_user(ROOT))
    assert await refusal(stale) is ErrorCode.STALE_RULES
    for call in (
        cluster.admin.AlterQuotas(admin_pb2.AlterQuotasRequest(), metadata=as_user(ADA)),
        cluster.admin.DescribeQuotas(admin_pb2.DescribeQuotasRequest(), metadata=as_user(ADA)),
    ):
        assert await refusal(call) is ErrorCode.PERMISSION_DENIED
    await limit(cluster)
    assert not cluster.broker._view.access.quotas.active


async def test_a_subscription_in_debt_is_pushed_nothing(cluster: Identified) -> None:
    data = cluster.stub(BrokerServiceStub)
    produce = request(1, part("orders", RECORD))
    await data.Produce(produce, metadata=as_user(BOB))
    await limit(cluster, ada(fetch=1))
    stream: Any = data.Subscribe(metadata=as_user(ADA))
    await stream.write(
        pb.SubscribeRequest(credit_bytes=1 << 20, subscribe=[pb.FetchPartition(topic="orders")])
    )
    assert len((await stream.read()).results[0].batches) == 1
    await data.Produce(produce, metadata=as_user(BOB))
    async with asyncio.TaskGroup() as tasks:
        pushed = tasks.create_task(stream.read())
        for _ in range(10):
            fetch = pb.FetchRequest(partitions=[pb.FetchPartition(topic="orders")])
            assert (await data.Fetch(fetch, metadata=as_user(BOB))).results
        assert not pushed.done()
        await limit(cluster)
        assert len((await pushed).results[0].batches) == 1
    stream.cancel()


async def test_calls_without_end_are_refused_by_their_time(cluster: Identified) -> None:
    await limit(cluster, ada(request=1))
    data = cluster.stub(BrokerServiceStub)

    async def codes_of(principal: str) -> set[ErrorCode]:
        """Each call takes the broker a part of a millisecond, and a millisecond pays a second."""
        call = data.Metadata
        return {
            await refusal(call(pb.MetadataRequest(), metadata=as_user(principal)))
            for _ in range(200)
        }

    assert await codes_of(ADA) == {ErrorCode.UNSPECIFIED, ErrorCode.THROTTLED}
    assert await codes_of(BOB) == {ErrorCode.UNSPECIFIED}


async def test_a_fetch_that_is_given_up_pays_no_debt(cluster: Identified) -> None:
    await limit(cluster, ada(request=1))
    quotas, who = cluster.broker._view.access.quotas, Caller(Role.USER, ADA)
    quotas.take(who, Limit.REQUEST, 100_000)
    before_ms = quotas.debt_ms(who, Limit.REQUEST)
    data = cluster.stub(BrokerServiceStub)
    fetch = pb.FetchRequest(max_wait_ms=60_000, partitions=[pb.FetchPartition(topic="orders")])
    seen = cluster.broker.metrics.registry.get_sample_value
    call = data.Fetch(fetch, metadata=as_user(ADA))
    await data.Metadata(pb.MetadataRequest(), metadata=as_user(BOB))  # the fetch is there by now
    call.cancel()
    await wait_until_async(
        lambda: seen("penstock_request_seconds_count", {"method": "Fetch"}) == 1,
        what="the fetch is over",
    )
    assert quotas.debt_ms(who, Limit.REQUEST) > before_ms - 60_000


async def test_a_debt_of_years_is_told_as_any_other(cluster: Identified) -> None:
    await limit(cluster, ada(produce=1))
    quotas = cluster.broker._view.access.quotas
    quotas.take(Caller(Role.USER, ADA), Limit.PRODUCE, 1 << 30)
    data = cluster.stub(BrokerServiceStub)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await data.Produce(request(1, part("orders", RECORD)), metadata=as_user(ADA))
    error = error_from_rpc(caught.value)
    assert isinstance(error, ThrottledError), error
    assert error.throttle_ms == (1 << 31) - 1, "what gRPC's own clients can read"


async def test_a_topic_of_too_many_partitions_leaves_no_debt_of_years(
    cluster: Identified,
) -> None:
    await cluster.allow(CLUSTER, ADA, Operation.CREATE, prefix=Prefix(Kind.TOPIC, "ada."))
    await limit(cluster, ada(mutations=60))

    def create(partitions: int) -> Any:
        topic = admin_pb2.NewTopic(topic="ada.0", partitions=partitions, replication_factor=1)
        request = admin_pb2.CreateTopicsRequest(topics=[topic])
        return cluster.admin.CreateTopics(request, metadata=as_user(ADA))

    refused = await create(4_000_000_000)
    assert refused.results[0].error.code == ErrorCode.INVALID_PARTITIONS
    assert await refusal(create(1)) is ErrorCode.UNSPECIFIED


async def test_a_quota_that_is_too_small_for_its_author_can_be_mended(cluster: Identified) -> None:
    await limit(cluster, QuotaRule(("*",), {Limit.REQUEST: 1}))
    quotas = cluster.broker._view.access.quotas
    for principal in (ROOT, ADA):
        quotas.take(Caller(Role.USER, principal), Limit.REQUEST, 100_000)
    metadata = cluster.stub(BrokerServiceStub).Metadata
    seen = [
        await refusal(metadata(pb.MetadataRequest(), metadata=as_user(principal)))
        for principal in (ADA, ROOT)
    ]
    assert seen == [ErrorCode.THROTTLED, ErrorCode.UNSPECIFIED]
    await limit(cluster)


async def test_a_held_message_stream_whose_client_is_gone_is_given_up(
    cluster: Identified, monkeypatch: pytest.MonkeyPatch
) -> None:
    await limit(cluster, ada(produce=1))
    quotas = cluster.broker._view.access.quotas

    def debt_ms() -> float:
        return quotas.debt_ms(Caller(Role.USER, ADA), Limit.PRODUCE)

    async with message_stream(cluster, monkeypatch, streams_pb2.STREAM_METHOD_PRODUCE) as stream:
        await stream.send(request(1, part("orders", RECORD)).SerializeToString())
        assert await answered(stream) == 1
        before_ms, large = debt_ms(), b"x" * 100_000
        for number in range(2, 12):  # more than a broker reads ahead
            await stream.send(request(number, part("orders", large)).SerializeToString())
        await wait_until_async(lambda: debt_ms() > before_ms + 1e7, what="the second waits")
        stream.cut()
        await wait_until_async(lambda: debt_ms() <= before_ms, what="it is not waited for")
    assert await records(cluster) == 1


async def test_nobody_pays_for_the_time_that_others_take(
    cluster: Identified, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.allow(CLUSTER, ADA, Operation.CREATE, prefix=Prefix(Kind.TOPIC, "ada."))
    await limit(cluster, ada(request=100))
    clock = StandingClock()  # what she takes herself would count too, and the machine may be slow
    monkeypatch.setattr(edge, "monotonic", clock)
    storing, stored, write = threading.Event(), threading.Event(), MemoryMetadataStore.write

    def write_late(self: MemoryMetadataStore, stages: Any) -> Any:
        storing.set()
        assert stored.wait(60)
        return write(self, stages)

    monkeypatch.setattr(MemoryMetadataStore, "write", write_late)
    topic = admin_pb2.NewTopic(topic="ada.0", partitions=1, replication_factor=1)
    creation = cluster.admin.CreateTopics(
        admin_pb2.CreateTopicsRequest(topics=[topic]), metadata=as_user(ADA)
    )
    await wait_until_async(storing.is_set, what="the metadata store is asked")
    clock.now_s += 1.5
    stored.set()
    assert await refusal(creation) is ErrorCode.UNSPECIFIED
    metadata = cluster.stub(BrokerServiceStub).Metadata
    seen = await refusal(metadata(pb.MetadataRequest(), metadata=as_user(ADA)))
    assert seen is ErrorCode.UNSPECIFIED


async def test_calls_that_a_quota_refuses_do_not_fill_the_audit_log(
    cluster: Identified, caplog: pytest.LogCaptureFixture
) -> None:
    await limit(cluster, ada(mutations=1))
    caplog.set_level("INFO", AUDIT)

    def alter() -> Any:
        call = cluster.admin.AlterConfigs
        return refusal(call(admin_pb2.AlterConfigsRequest(topic="orders"), metadata=as_user(ADA)))

    seen = [await alter() for _ in range(20)]
    refused = seen.count(ErrorCode.THROTTLED)
    assert refused >= 10
    lines = [each.getMessage() for each in caplog.records if each.name == AUDIT]
    assert len(lines) == len(seen) - refused
