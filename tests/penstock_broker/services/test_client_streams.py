"""Message streams of clients, served by a whole broker over TCP: the client is played by hand."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.local_broker import LocalBroker, local_broker, topic_info
from support.waiting import wait_until_async
from support.wire import make_batch

from penstock.core.records import decode_batch
from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1 import streams_pb2
from penstock.rpc.batches import batch_from_wire, batch_to_wire
from penstock.rpc.errors import error_from_wire
from penstock.rpc.splice import stream_fetch_read, stream_fetch_request
from penstock.rpc.streams.contract import FIRST_MESSAGE_BYTES_MAX
from penstock.rpc.streams.frames import PREFACE, message_frame
from penstock.rpc.streams.tcp import TcpStream, open_tcp_stream
from penstock_broker.services import client_streams

HOST = "127.0.0.1"
PRODUCE = streams_pb2.STREAM_METHOD_PRODUCE
FETCH = streams_pb2.STREAM_METHOD_FETCH
LONG_MS = 60_000
MIB = 2**20


@asynccontextmanager
async def broker_of_two_topics(path: Path, *settings: str) -> AsyncIterator[LocalBroker]:
    """Leads "t" and "u", which are empty."""
    async with local_broker(path, *settings) as broker:
        await broker.apply(topic_info("t"), topic_info("u", topic_id="id-2"))
        yield broker


@asynccontextmanager
async def connected(broker: LocalBroker) -> AsyncIterator[TcpStream]:
    stream = await open_tcp_stream(f"{HOST}:{broker.process.membership.ports.stream_port}")
    try:
        yield stream
    finally:
        await stream.close()


@asynccontextmanager
async def opened(
    broker: LocalBroker, method: streams_pb2.StreamMethod.ValueType
) -> AsyncIterator[TcpStream]:
    async with connected(broker) as stream:
        await stream.send(hello(method))
        yield stream


def hello(method: streams_pb2.StreamMethod.ValueType, cluster_id: str = "cluster") -> bytes:
    return streams_pb2.StreamHello(method=method, cluster_id=cluster_id).SerializeToString()


def fetch(number: int, *topics: str, offset: int = 0, wait_ms: int = LONG_MS) -> bytes:
    """From the only partition of each topic; `number` comes back with the answer."""
    parts = [pb.FetchPartition(topic=topic, offset=offset) for topic in topics]
    request = pb.FetchRequest(cluster_id="cluster", max_wait_ms=wait_ms, partitions=parts)
    return stream_fetch_request(number, request)


async def answer(stream: TcpStream) -> tuple[int, list[bytes | None] | PenstockError]:
    """The next one's number, and its records or its error."""
    message = await stream.receive()
    assert message is not None
    head, payloads = stream_fetch_read(message)
    if head.HasField("error"):
        return head.correlation_id, error_from_wire(head.error)
    batches = [batch for result in head.fetch.results for batch in result.batches]
    records: list[bytes | None] = []
    for batch, payload in zip(batches, payloads, strict=True):
        records += decode_batch(batch_from_wire(batch, payload)).values()
    return head.correlation_id, records


async def failure(stream: TcpStream) -> PenstockError:
    """What ends the stream next."""
    with pytest.raises(PenstockError) as caught:
        await stream.receive()
    return caught.value


def parked(broker: LocalBroker) -> int:
    return broker.process._fetching.parked


def taken_bytes(broker: LocalBroker) -> int:
    return broker.process._fetch_budget.taken_bytes


def metric(broker: LocalBroker, name: str, **labels: str) -> float:
    registry = broker.process.metrics.registry
    return registry.get_sample_value(f"penstock_{name}", labels) or 0.0


async def produce(broker: LocalBroker, topic: str, *values: bytes) -> None:
    part = pb.ProducePartition(topic=topic, batch=batch_to_wire(make_batch(values)))
    answered = await broker.data.Produce(pb.ProduceRequest(partitions=[part]), timeout=60)
    assert not answered.results[0].HasField("error")


# ---------------------------------------------------------------- fetches


async def test_a_fetch_that_waits_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async with broker_of_two_topics(tmp_path) as broker, opened(broker, FETCH) as stream:
        await produce(broker, "u", b"a", b"b")
        await stream.send(fetch(1, "t"))
        await wait_until_async(lambda: parked(broker) == 1, what="the first one waits")
        await stream.send(fetch(2, "u"))
        assert await answer(stream) == (2, [b"a", b"b"])
        await stream.send(fetch(3, "u", offset=1, wait_ms=0))
        assert await answer(stream) == (3, [b"a", b"b"]), "whole batches"
        await produce(broker, "t", b"c")
        assert await answer(stream) == (1, [b"c"])
        assert taken_bytes(broker) == 0


async def test_a_fetch_that_fails_is_answered_with_its_error_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    async with (
        broker_of_two_topics(tmp_path, "fetch.parked.max=1") as broker,
        opened(broker, FETCH) as stream,
    ):
        await stream.send(fetch(1, "t"))
        await wait_until_async(lambda: parked(broker) == 1, what="the first one waits")
        await stream.send(fetch(2, "u"))
        number, error = await answer(stream)
        assert number == 2
        assert isinstance(error, PenstockError)
        assert (error.code, error.retriable) == (ErrorCode.OVERLOADED, True)
        await stream.send(fetch(3, *["t"] * 20_001))
        number, error = await answer(stream)
        assert number == 3
        assert isinstance(error, PenstockError)
        assert error.code is ErrorCode.INVALID_REQUEST
        assert "20001 partitions" in str(error)
        await produce(broker, "t", b"a")
        assert await answer(stream) == (1, [b"a"])
        assert taken_bytes(broker) == 0


async def test_a_partitions_own_error_stands_in_its_answer(tmp_path: Path) -> None:
    async with broker_of_two_topics(tmp_path) as broker, opened(broker, FETCH) as stream:
        await produce(broker, "t", b"a")
        await stream.send(fetch(1, "none", "t"))
        message = await stream.receive()
        assert message is not None
        head, payloads = stream_fetch_read(message)
        none, found = head.fetch.results
        assert error_from_wire(none.error).code is ErrorCode.UNKNOWN_TOPIC
        assert (len(found.batches), len(payloads)) == (1, 1)


async def test_so_many_fetches_of_a_stream_wait_at_one_time(tmp_path: Path) -> None:
    async with (
        broker_of_two_topics(tmp_path, "produce.stream.inflight.max=2") as broker,
        opened(broker, FETCH) as stream,
        opened(broker, FETCH) as other,
    ):
        await produce(broker, "u", b"b")
        for number in range(5):
            await stream.send(fetch(number, "t"))
        await wait_until_async(lambda: parked(broker) == 2, what="two wait")
        await other.send(fetch(7, "u"))
        assert await answer(other) == (7, [b"b"]), "other streams are not held up"
        assert parked(broker) == 2
        await produce(broker, "t", b"a")
        answers = [await answer(stream) for _ in range(5)]
        assert sorted(number for number, _ in answers) == list(range(5))
        assert all(records == [b"a"] for _, records in answers)


async def test_what_a_client_does_not_read_counts_until_it_does_or_is_gone(tmp_path: Path) -> None:
    """Answers wait for their turn to be sent one by one, not all when a little was read."""
    fetches = 60
    async with (
        broker_of_two_topics(tmp_path, "produce.stream.inflight.max=100") as broker,
        opened(broker, FETCH) as other,
    ):
        await produce(broker, "u", b"b")
        await produce(broker, "t", bytes(MIB - 1_000))
        with socket.create_connection((HOST, broker.process.membership.ports.stream_port)) as raw:
            raw.setblocking(False)
            loop = asyncio.get_running_loop()
            sent = PREFACE + message_frame(hello(FETCH))
            sent += b"".join(message_frame(fetch(number, "t")) for number in range(fetches))
            await loop.sock_sendall(raw, sent)
            await wait_until_async(
                lambda: metric(broker, "request_seconds_count", method="Fetch") == fetches,
                what="all are put together",
            )
            await other.send(fetch(1, "u"))
            await answer(other)
            waiting = taken_bytes(broker)
            assert waiting > 30 * MIB
            read = 0
            while taken_bytes(broker) == waiting:
                read += len(await loop.sock_recv(raw, MIB))
            await other.send(fetch(2, "u"))
            await answer(other)
            assert taken_bytes(broker) > waiting - read - 8 * MIB, "they leave one by one"
        await wait_until_async(lambda: taken_bytes(broker) == 0, what="the client is gone")
        await other.send(fetch(3, "u"))
        assert await answer(other) == (3, [b"b"])


async def test_errors_that_a_client_does_not_read_count_and_never_exceed_the_budget(
    tmp_path: Path,
) -> None:
    """A name of a few bytes is answered with hundreds."""
    filling, refused, names = 20, 20, [f"t{index}" for index in range(2_000)]
    setting = f"fetch.inflight.bytes={40 * MIB}"
    async with (
        broker_of_two_topics(tmp_path, setting) as broker,
        opened(broker, FETCH) as other,
    ):
        await produce(broker, "u", b"b")
        await produce(broker, "t", bytes(MIB - 1_000))
        with socket.create_connection((HOST, broker.process.membership.ports.stream_port)) as raw:
            raw.setblocking(False)
            loop = asyncio.get_running_loop()
            sent = PREFACE + message_frame(hello(FETCH))
            sent += message_frame(fetch(1, "t")) * filling
            await loop.sock_sendall(raw, sent + message_frame(fetch(1, *names)) * refused)
            await wait_until_async(
                lambda: (
                    metric(broker, "request_seconds_count", method="Fetch") == filling + refused
                ),
                what="all are put together",
            )
            assert 24 * MIB < taken_bytes(broker) <= 40 * MIB
        await wait_until_async(lambda: taken_bytes(broker) == 0, what="the client is gone")
        await other.send(fetch(1, "u"))
        assert await answer(other) == (1, [b"b"])


async def test_of_errors_as_many_are_told_as_there_is_room_for(tmp_path: Path) -> None:
    setting = f"fetch.inflight.bytes={MIB // 2}"
    async with broker_of_two_topics(tmp_path, setting) as broker, opened(broker, FETCH) as stream:
        names = [f"t{index}" for index in range(2_000)]
        await stream.send(fetch(1, *names))
        message = await stream.receive()
        assert message is not None
        head, _ = stream_fetch_read(message)
        told = [result.topic for result in head.fetch.results]
        assert 100 < len(told) < 2_000
        assert told == names[: len(told)]
        assert all(result.HasField("error") for result in head.fetch.results)
        await wait_until_async(lambda: taken_bytes(broker) == 0, what="the answer has left")


@pytest.mark.parametrize("in_order", [True, False], ids=["ended", "cut"])
async def test_nothing_waits_any_more_for_a_client_that_is_gone(
    tmp_path: Path, in_order: bool
) -> None:
    async with broker_of_two_topics(tmp_path) as broker, opened(broker, FETCH) as stream:
        for number in range(3):
            await stream.send(fetch(number, "t"))
        await wait_until_async(lambda: parked(broker) == 3, what="all wait")
        if in_order:
            await stream.close()
        else:
            stream.cut()
        await wait_until_async(lambda: parked(broker) == 0, what="nobody waits")
        assert taken_bytes(broker) == 0


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"\xff\xff\xff", "a consumer sent 3 bytes; a fetch begins with a correlation id of 8"),
        (bytes(8) + b"\xff\xff", "2 bytes"),
    ],
    ids=["short", "garbage"],
)
async def test_a_message_that_is_no_fetch_ends_the_stream(
    tmp_path: Path, sent: bytes, words: str
) -> None:
    async with broker_of_two_topics(tmp_path) as broker, opened(broker, FETCH) as stream:
        await stream.send(fetch(1, "t"))
        await stream.send(sent)
        error = await failure(stream)
        assert error.code is ErrorCode.INVALID_REQUEST
        assert words in str(error)
        await wait_until_async(lambda: parked(broker) == 0, what="what waited is given up")


async def test_a_fetch_for_another_cluster_ends_the_stream(tmp_path: Path) -> None:
    async with broker_of_two_topics(tmp_path) as broker, opened(broker, FETCH) as stream:
        await stream.send(stream_fetch_request(1, pb.FetchRequest(cluster_id="another")))
        assert (await failure(stream)).code is ErrorCode.CLUSTER_ID_MISMATCH


# ---------------------------------------------------------------- produces


async def test_produces_are_answered_with_their_offsets(tmp_path: Path) -> None:
    async with broker_of_two_topics(tmp_path) as broker, opened(broker, PRODUCE) as stream:
        for number in range(20):
            part = pb.ProducePartition(
                topic="t", batch=batch_to_wire(make_batch([b"%d" % number, bytes(100_000)]))
            )
            request = pb.ProduceRequest(correlation_id=number, acks=pb.ACKS_ALL, partitions=[part])
            await stream.send(request.SerializeToString())
        offsets = {}
        for _ in range(20):
            answered = pb.ProduceResponse.FromString(bytes(await stream.receive() or b""))
            offsets[answered.correlation_id] = answered.results[0].base_offset
        assert offsets == {number: 2 * number for number in range(20)}


# ---------------------------------------------------------------- hello


BAD_HELLOS = (
    (hello(streams_pb2.STREAM_METHOD_UNSPECIFIED), ErrorCode.INVALID_REQUEST, "names method 0"),
    (b"\x10\x63", ErrorCode.INVALID_REQUEST, "method 99; this broker knows 1 (produce)"),
    (hello(FETCH, "another"), ErrorCode.CLUSTER_ID_MISMATCH, "is for cluster another"),
    (b"\xff\xff", ErrorCode.INVALID_REQUEST, "a client sent 2 bytes that are no StreamHello"),
    (bytes(FIRST_MESSAGE_BYTES_MAX + 1), ErrorCode.INVALID_REQUEST, "at most 65536"),
)


async def test_a_hello_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async with broker_of_two_topics(tmp_path) as broker:
        for first, code, words in BAD_HELLOS:
            async with connected(broker) as stream:
                await stream.send(first)
                error = await failure(stream)
                assert error.code is code
                assert words in str(error)


async def test_who_says_nothing_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_streams, "HELLO_TIMEOUT_S", 0.01)
    async with broker_of_two_topics(tmp_path) as broker, connected(broker) as stream:
        error = await failure(stream)
        assert error.code is ErrorCode.INVALID_REQUEST
        assert "no hello came within" in str(error)


async def test_who_leaves_without_a_hello_leaves_no_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_of_two_topics(tmp_path) as broker:
        async with connected(broker):
            pass
        async with opened(broker, FETCH) as stream:
            await stream.send(fetch(1, "t", wait_ms=0))
            assert await answer(stream) == (1, [])
    assert "unexpectedly" not in caplog.text


# ---------------------------------------------------------------- the whole


async def test_streams_end_with_the_broker(tmp_path: Path) -> None:
    async with (
        broker_of_two_topics(tmp_path) as broker,
        opened(broker, FETCH) as fetching,
        opened(broker, PRODUCE) as producing,
        connected(broker) as silent,
    ):
        await fetching.send(fetch(1, "t"))
        await wait_until_async(lambda: parked(broker) == 1, what="it waits")
        broker.process.stop_requested.set()
        for stream in (fetching, producing, silent):
            assert (await failure(stream)).code is ErrorCode.SHUTTING_DOWN


async def test_requests_are_timed_as_over_grpc_without_their_waits(tmp_path: Path) -> None:
    wait_ms = 500
    request = pb.FetchRequest(max_wait_ms=wait_ms, partitions=[pb.FetchPartition(topic="t")])
    async with (
        broker_of_two_topics(tmp_path) as broker,
        opened(broker, FETCH) as fetching,
        opened(broker, PRODUCE) as producing,
    ):
        await broker.data.Fetch(request, timeout=60)
        assert metric(broker, "request_seconds_count", method="Fetch") == 1
        await fetching.send(fetch(1, "t", wait_ms=wait_ms))
        assert await answer(fetching) == (1, [])
        assert metric(broker, "request_seconds_count", method="Fetch") == 2
        assert metric(broker, "fetch_wait_seconds_count") == 2
        waited_s = metric(broker, "fetch_wait_seconds_sum")
        assert metric(broker, "request_seconds_sum", method="Fetch") < waited_s / 2
        await producing.send(pb.ProduceRequest(correlation_id=5).SerializeToString())
        await producing.receive()
        assert metric(broker, "request_seconds_count", method="Produce") == 1
        await produce(broker, "t", b"a")
        assert metric(broker, "request_seconds_count", method="Produce") == 2
        await fetching.send(fetch(2, "t"))
        assert await answer(fetching) == (2, [b"a"])
        assert metric(broker, "records_out_total") == 1
