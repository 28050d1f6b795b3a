"""A user's first minutes: wrong addresses, topics that are not there, limits that are kept.

The brokers are real gRPC servers that only know of topics; time is bounded generously where a
limit that was not kept would take minutes.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

import grpc
import pytest
from support.processes import ReservedPort
from support.waiting import wait_until_async

from penstock.client import AsyncAdmin, AsyncProducer, ClientConfig
from penstock.client.cluster import cluster as client_cluster
from penstock.client.cluster.cluster import Cluster
from penstock.errors import ClusterError, ErrorCode, MisuseError, UnreachableError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.broker_pb2_grpc import (
    BrokerServiceServicer,
    add_BrokerServiceServicer_to_server,
)
from penstock.rpc.errors import abort

FOR_EVER_MS = 600_000
IN_TIME_S = 300


class Knowing(BrokerServiceServicer):
    """A broker of a cluster of `ports` that knows `topics`; counts who asks for which, and refuses
    requests for more than `names_max`."""

    @classmethod
    def of(cls, ports: Sequence[int], topics: Sequence[str] = ()) -> Self:
        """A broker; to mypy the class is abstract: its other calls are unimplemented."""
        return cls(ports, topics)

    def __init__(self, ports: Sequence[int], topics: Sequence[str] = ()) -> None:
        self.ports = ports
        self.topics = set(topics)
        self.asked: list[list[str]] = []
        self.names_max = 20_000

    async def Metadata(self, request: Any, context: Any) -> pb.MetadataResponse:  # noqa: N802
        self.asked.append(list(request.topics))
        if len(request.topics) > self.names_max:
            await abort(context, ClusterError("too many", ErrorCode.INVALID_REQUEST))
        return pb.MetadataResponse(
            cluster_id="cluster",
            brokers=[
                pb.BrokerInfo(broker_id=index, host="127.0.0.1", port=port, alive=True)
                for index, port in enumerate(self.ports)
            ],
            topics=[
                pb.TopicInfo(topic=name, topic_id="id", partitions=[pb.PartitionInfo(leader=0)])
                for name in self.topics & set(request.topics)
            ],
        )


@asynccontextmanager
async def serving(broker: Knowing, port: int = 0) -> AsyncIterator[int]:
    """Serves at a port, 0 = any; which."""
    server = grpc.aio.server()
    add_BrokerServiceServicer_to_server(broker, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(grace=None)


@asynccontextmanager
async def brokers(*known: Sequence[str]) -> AsyncIterator[tuple[list[str], list[Knowing]]]:
    """Addresses and brokers, one for each list of topics."""
    ports: list[int] = []
    made = [Knowing.of(ports, topics) for topics in known]
    async with AsyncExitStack() as stack:
        ports += [await stack.enter_async_context(serving(broker)) for broker in made]
        yield [f"127.0.0.1:{port}" for port in ports], made


async def test_addresses_at_which_nothing_listens_are_given_up_soon(
    reserve: Callable[[], ReservedPort],
) -> None:
    dead = [reserve().address for _ in range(2)]
    async with (
        asyncio.timeout(IN_TIME_S),
        AsyncAdmin(dead, connect_timeout_ms=FOR_EVER_MS, request_timeout_ms=FOR_EVER_MS) as admin,
        AsyncProducer(dead, connect_timeout_ms=FOR_EVER_MS) as producer,
    ):
        for call in (admin.list_topics(), producer.send("t", b"v")):
            with pytest.raises(UnreachableError, match="nothing listens") as refused:
                await call
            assert refused.value.refused


async def test_a_name_without_an_address_is_said_to_have_none() -> None:
    unknown = "a..b:9092"  # no resolver takes it, with the internet or without
    async with asyncio.timeout(IN_TIME_S), AsyncAdmin(unknown, connect_timeout_ms=200) as admin:
        with pytest.raises(UnreachableError) as failed:
            await admin.list_topics()
    reason = "a..b:9092 (this name has no address; gRPC says: Misformatted domain name)"
    assert reason in failed.value.message


async def test_a_cluster_that_answered_before_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, reserve: Callable[[], ReservedPort]
) -> None:
    monkeypatch.setattr(client_cluster, "REFUSED_S", 0.0)
    port = reserve().port
    cluster = Cluster((f"127.0.0.1:{port}",), ClientConfig(connect_timeout_ms=FOR_EVER_MS))
    async with asyncio.timeout(IN_TIME_S), asyncio.TaskGroup() as group:
        async with serving(Knowing.of([port]), port):
            await cluster.refresh()
        waiting = group.create_task(cluster.refresh())
        await wait_until_async(
            lambda: client_cluster._all_refused(cluster._silent), what="the restart is noticed"
        )
        async with serving(Knowing.of([port]), port):
            await waiting
    await cluster.aclose()


@pytest.fixture
def mute() -> Any:
    """An address that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


async def test_send_waits_no_longer_than_max_block_ms_for_a_topic(mute: str) -> None:
    async with (
        asyncio.timeout(IN_TIME_S),
        AsyncProducer(mute, max_block_ms=200, connect_timeout_ms=FOR_EVER_MS) as producer,
    ):
        with pytest.raises(UnreachableError, match=mute):
            await producer.send("t", b"v")
        with pytest.raises(UnreachableError, match=mute):
            await producer.send_columns("t", [b"v"])


async def test_a_limit_is_kept_while_somebody_else_asks_the_same(mute: str) -> None:
    cluster = Cluster((mute,), ClientConfig(connect_timeout_ms=FOR_EVER_MS))
    async with asyncio.timeout(IN_TIME_S), asyncio.TaskGroup() as group:
        patient = group.create_task(cluster.refresh())
        await wait_until_async(lambda: cluster._silent, what="the first attempt is over")
        with pytest.raises(UnreachableError, match=r"within 0\.1 s.*no answer in time") as given_up:
            await cluster.refresh(0.1)
        assert not given_up.value.refused
        patient.cancel()
    await cluster.aclose()


async def test_what_a_broker_said_is_told_although_the_last_attempt_was_cut_off(mute: str) -> None:
    said = [ClusterError("planted", ErrorCode.CONTROLLER_UNAVAILABLE)]

    async def call(connection: Any, timeout_s: float) -> None:
        raise said.pop() if said else UnreachableError(f"{mute}: no answer in time")

    cluster = Cluster((mute,), ClientConfig())
    with pytest.raises(ClusterError, match="planted") as told:
        await cluster.ask(call, 0.3)
    assert not said
    assert told.value.code is ErrorCode.CONTROLLER_UNAVAILABLE
    await cluster.aclose()


async def test_an_admin_call_is_bounded_by_its_request_timeout(mute: str) -> None:
    async with (
        asyncio.timeout(IN_TIME_S),
        AsyncAdmin(mute, connect_timeout_ms=FOR_EVER_MS, request_timeout_ms=100) as admin,
    ):
        with pytest.raises(UnreachableError):
            await admin.describe_topics()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is asked again because a machine that stalls answers late."""
    defaults = Cluster.ask.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "patience_s", IN_TIME_S)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("brokers_count", [1, 3])
async def test_an_admin_says_at_once_that_a_topic_does_not_exist(brokers_count: int) -> None:
    async with (
        asyncio.timeout(IN_TIME_S),
        brokers(*[["there"]] * brokers_count) as (addresses, made),
        AsyncAdmin(addresses, unknown_topic_timeout_ms=FOR_EVER_MS) as admin,
    ):
        for _ in range(2):
            with pytest.raises(ClusterError, match="'nosuch' does not exist") as unknown:
                await admin.describe_topics(["nosuch"])
            assert unknown.value.code is ErrorCode.UNKNOWN_TOPIC
        assert [broker.asked for broker in made] == [[["nosuch"]] * 2] * brokers_count
        await admin.describe_topics(["there"])
        answered = [len(broker.asked) for broker in made]
        assert sorted(answered) == [2] * (brokers_count - 1) + [4], "one broker is asked all else"


@pytest.mark.usefixtures("patient")
async def test_an_admin_finds_a_topic_that_only_the_last_broker_has_heard_of() -> None:
    async with (
        asyncio.timeout(IN_TIME_S),
        brokers([], [], ["new"]) as (addresses, made),
        AsyncAdmin(addresses, unknown_topic_timeout_ms=FOR_EVER_MS) as admin,
    ):
        found = await admin.describe_topics(["new"])
        assert list(found) == ["new"]
        assert all(len(broker.asked) <= 1 for broker in made[:2])


async def test_a_producer_waits_for_a_topic_that_is_being_created() -> None:
    async with (
        asyncio.timeout(IN_TIME_S),
        brokers([]) as (addresses, (broker,)),
        AsyncProducer(addresses, unknown_topic_timeout_ms=FOR_EVER_MS) as producer,
        asyncio.TaskGroup() as group,
    ):
        preparing = group.create_task(producer.prepare("late"))
        await wait_until_async(lambda: len(broker.asked) > 2, what="it asks again and again")
        broker.topics.add("late")
        assert (await preparing).name == "late"


async def test_preparing_a_partition_that_does_not_exist_is_refused() -> None:
    async with (
        brokers(["t"]) as (addresses, _),
        AsyncProducer(addresses, unknown_topic_timeout_ms=1) as producer,
    ):
        with pytest.raises(MisuseError, match="0 to 0, not 1"):
            await producer.prepare("t", 1)


async def test_topics_that_were_deleted_are_asked_for_no_more() -> None:
    async with (
        asyncio.timeout(IN_TIME_S),
        brokers(["kept"]) as (addresses, (broker,)),
        AsyncProducer(addresses) as producer,
    ):
        await producer.prepare("kept")
        for number in range(10):
            name = f"reply-{number}"
            broker.topics.add(name)
            await producer.prepare(name)
            broker.topics.remove(name)
        assert producer._cluster is not None
        await producer._cluster.refresh()
        assert max(map(len, broker.asked)) <= 3, "the kept one, the last one and the new one"
        assert producer._cluster._topics == {"kept"}
        await producer._cluster.refresh()
        assert broker.asked[-1] == ["kept"]


async def test_a_topic_too_many_is_refused_and_the_others_stay_known() -> None:
    async with (
        asyncio.timeout(IN_TIME_S),
        brokers(["first", "more"]) as (addresses, (broker,)),
        AsyncProducer(addresses) as producer,
    ):
        broker.names_max = 1
        await producer.prepare("first")
        with pytest.raises(ClusterError) as refused:
            await producer.prepare("more")
        assert refused.value.code is ErrorCode.INVALID_REQUEST
        assert producer._cluster is not None
        assert list((await producer._cluster.refresh()).topics) == ["first"]


async def test_whoever_asks_for_a_topic_while_an_answer_is_on_its_way_asks_again() -> None:
    """The answer of the first is shared by none of the others: it was about something else."""
    async with (
        asyncio.timeout(IN_TIME_S),
        brokers(["a", "b"]) as (addresses, (broker,)),
    ):
        cluster = Cluster(tuple(addresses), ClientConfig(), sticky=True)
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(cluster.topic(name)) for name in ("a", "b", "a")]
        assert [task.result().topic for task in asking] == ["a", "b", "a"]
        assert broker.asked == [["a"], ["a", "b"]]
        await cluster.aclose()
