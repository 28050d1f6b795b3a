"""Producing and consuming over message streams of real brokers, and what happens without them."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest
from support.cluster import Cluster
from support.stream_ports import cut_connections, other_server
from support.waiting import wait_until_async

from penstock.client import AsyncConsumer, AsyncProducer, BrokerDescription, TopicPartition
from penstock.client.cluster import connections, streams
from penstock.client.cluster.streams import StreamPort
from penstock.rpc.streams.tcp import TcpStream

MakeCluster = Callable[..., Cluster]
FOR_EVER_S = 1_200.0
BATCH_BYTES = 2_000


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is opened slowly is used all the same, and gRPC in place of none."""
    monkeypatch.setattr(streams, "CONNECT_S", FOR_EVER_S)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[TcpStream]:
    """The streams that clients of this test have opened."""
    found: list[TcpStream] = []
    inner = StreamPort.open

    async def noted(self: StreamPort, *asked: Any) -> TcpStream | None:
        stream = await inner(self, *asked)
        if stream is not None:
            found.append(stream)
        return stream

    monkeypatch.setattr(StreamPort, "open", noted)
    return found


def port_of(cluster: Cluster, broker_id: int = 0) -> int:
    return next(
        info.stream_port for info in cluster.metadata(0).brokers if info.broker_id == broker_id
    )


async def deliver(producer: AsyncProducer, topic: str, value: bytes) -> None:
    await (await producer.send(topic, value, partition=0))


async def more_than(used: list[TcpStream], count: int) -> None:
    await wait_until_async(lambda: len(used) > count, what="another stream")


async def start(consumer: AsyncConsumer, topic: str) -> None:
    """At the beginning of its only partition."""
    await consumer.assign([TopicPartition(topic, 0)])
    await consumer.seek(TopicPartition(topic, 0), 0)


async def read(
    cluster: Cluster,
    total: int,
    after: Callable[[int], object] = lambda _: None,
    *,
    at_the_end: Callable[[], Awaitable[object]] | None = None,
) -> list[bytes | None]:
    """All of them; `after` is told how many there are so far."""
    values: list[bytes | None] = []
    async with AsyncConsumer(cluster.bootstrap, max_partition_fetch_bytes=4_000) as consumer:
        await start(consumer, "t")
        while len(values) < total:
            for batch in await consumer.poll(1.0, 100):
                values += batch.values()
            after(len(values))
        if at_the_end is not None:
            await at_the_end()
        values += [value for batch in await consumer.poll(0) for value in batch.values()]
    return values


async def test_connections_that_break_cost_nothing_and_double_nothing(
    shared_broker: Cluster, used: list[TcpStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "BROKEN_S", 0.0)  # some are cut while they are opened
    shared_broker.create_topic("t")
    port, rounds, each = port_of(shared_broker), 8, 300
    expected = [b"%d" % number for number in range(rounds * each)]
    async with AsyncProducer(shared_broker.bootstrap, batch_bytes=BATCH_BYTES) as producer:
        cut_at = 0
        for number, value in enumerate(expected):
            await producer.send("t", value, partition=0)
            if number % each == each // 2:
                await more_than(used, cut_at)
            elif number % each > each // 2:
                await asyncio.sleep(0)  # polls nothing: some are sent, not all are answered
                if number % each == each - 1:
                    cut_at = len(used)
                    assert cut_connections(port)
        await producer.flush()
    produced_over = len(used)
    assert produced_over >= rounds

    turns = count()

    def cut_sometimes(_read: int) -> None:
        if next(turns) % 3 == 1:
            cut_connections(port)

    async def cut_once_more() -> None:
        """While a fetch waits for records that never come."""
        await more_than(used, produced_over)
        cut_at = len(used)
        cut_connections(port)
        await more_than(used, cut_at)

    found = await read(shared_broker, len(expected), cut_sometimes, at_the_end=cut_once_more)
    assert found == expected


async def test_a_broker_that_comes_back_with_another_port_is_found_there(
    make_cluster: MakeCluster, used: list[TcpStream]
) -> None:
    cluster = make_cluster(brokers=1)
    cluster.create_topic("t")
    before = port_of(cluster)
    async with AsyncProducer(cluster.bootstrap) as producer:
        await deliver(producer, "t", b"a")
        assert len(used) == 1
        cluster.brokers[0].stop()
        cluster.brokers[0].start()
        await asyncio.to_thread(cluster.wait_leaders, "t")
        await wait_until_async(lambda: port_of(cluster) != before, what="it says its new port")
        await deliver(producer, "t", b"b")

        async def over_the_new_port() -> bool:
            await deliver(producer, "t", b"c")
            peer = used[-1]._transport
            return peer is not None and peer.get_extra_info("peername")[1] == port_of(cluster)

        await wait_until_async(
            over_the_new_port,
            what="a stream at the new port",
            timeout_s=150,  # the old one is left alone for 30 s if it was silent
        )
    values = await read(cluster, 3)
    assert values[:2] == [b"a", b"b"]


async def test_a_producer_over_grpc_changes_to_the_port_for_messages_once_it_is_known(
    shared_broker: Cluster, used: list[TcpStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_broker.create_topic("late.port")
    learn = connections.Connections.learn
    told: list[tuple[connections.Connections, list[BrokerDescription]]] = []
    monkeypatch.setattr(
        connections.Connections, "learn", lambda self, brokers: told.append((self, list(brokers)))
    )
    async with AsyncProducer(shared_broker.bootstrap) as producer:
        await deliver(producer, "late.port", b"a")
        assert used == []
        learn(*told[-1])
        await deliver(producer, "late.port", b"b")
    assert len(used) == 1


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_with_something_else_at_the_port_everything_works_over_grpc(
    shared_broker: Cluster,
    used: list[TcpStream],
    monkeypatch: pytest.MonkeyPatch,
    greeting: bytes,
) -> None:
    topic = f"grpc.{len(greeting)}"
    shared_broker.create_topic(topic)
    monkeypatch.setattr(streams, "CONNECT_S", 0.2)
    monkeypatch.setattr(streams, "LEAVE_ALONE_S", FOR_EVER_S)
    async with other_server(greeting) as other:
        monkeypatch.setattr(
            connections.Connections, "learn", lambda self, _: point_at(self, other.address)
        )
        async with AsyncProducer(shared_broker.bootstrap) as producer:
            await deliver(producer, topic, b"a")
        async with AsyncConsumer(shared_broker.bootstrap) as consumer:
            await start(consumer, topic)
            batches = await consumer.poll(120.0)
        assert [value for batch in batches for value in batch.values()] == [b"a"]
        assert other.accepted == 2, "once by each client"
    assert used == []


def point_at(found: connections.Connections, address: str) -> None:
    for connection in found._by_address.values():
        connection.streams.address = address
    known = found._stream_addresses
    known.update(dict.fromkeys(found._by_address, address))
