"""Where a client uses message streams: at ports that answer as brokers do; else it uses gRPC."""

import asyncio

import pytest
from support.processes import ReservedPort
from support.stream_ports import other_server, stream_server
from support.waiting import wait_until_async

from penstock.client.cluster import streams
from penstock.client.cluster.connections import Connections
from penstock.client.cluster.streams import LEAVE_ALONE_S, StreamPort
from penstock.client.model import BrokerDescription
from penstock.errors import ErrorCode, OverloadedError, PenstockError
from penstock.proto.v1 import streams_pb2
from penstock.rpc.streams.contract import MessageStream
from penstock.rpc.streams.frames import PREFACE

HELLO = streams_pb2.StreamHello(method=streams_pb2.STREAM_METHOD_FETCH)
FOR_EVER_S = 1_200.0


async def tell_hello(stream: MessageStream) -> None:
    """Sends back what comes."""
    while (message := await stream.receive()) is not None:
        await stream.send(bytes(message))


def port_at(address: str) -> StreamPort:
    port = StreamPort()
    port.address = address
    return port


async def opens(port: StreamPort) -> bool:
    """Whether there is a stream, whose hello has arrived."""
    stream = await port.open(HELLO)
    if stream is None:
        return False
    assert await stream.receive() == HELLO.SerializeToString()
    await stream.close()
    return True


async def test_without_an_address_there_is_no_stream() -> None:
    assert not await opens(StreamPort())


async def test_a_port_that_refuses_is_tried_again_at_once(reserve: type[ReservedPort]) -> None:
    address = reserve().address
    port = port_at(address)
    assert not await opens(port)
    async with stream_server(tell_hello, address):
        assert await opens(port)
        assert await opens(port)


@pytest.mark.parametrize(
    "greeting",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", PREFACE[:-1] + b"\x02"],
    ids=["http", "ssh", "another version"],
)
async def test_a_port_of_something_else_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, greeting: bytes
) -> None:
    monkeypatch.setattr(streams, "CONNECT_S", FOR_EVER_S)
    async with other_server(greeting) as other, stream_server(tell_hello) as good:
        port = port_at(other.address)
        for _ in range(3):
            assert not await opens(port)
        await wait_until_async(lambda: other.accepted and not other.open, what="it is closed")
        assert other.accepted == 1
        port.address = good
        assert await opens(port), "another port is another matter"
        port.address = other.address
        assert not await opens(port)
        assert other.accepted == 1


@pytest.mark.parametrize("greeting", [b"", PREFACE[:-1]], ids=["silent", "half a preface"])
async def test_a_silent_port_is_left_alone_for_a_while(
    monkeypatch: pytest.MonkeyPatch, greeting: bytes
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(streams, "CONNECT_S", 0.2)
    monkeypatch.setattr(streams, "monotonic", lambda: now_s)
    async with other_server(greeting) as silent:
        port = port_at(silent.address)
        for moved_s, accepted in ((0, 1), (LEAVE_ALONE_S - 1, 1), (2, 2), (1, 2)):
            now_s += moved_s
            assert not await opens(port)
            await wait_until_async(lambda: silent.accepted >= accepted, what="it was asked")  # noqa: B023
            assert silent.accepted == accepted
        await wait_until_async(lambda: not silent.open, what="nothing is left of it")


async def test_a_port_whose_connection_breaks_is_left_alone_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, accepted = 1_000.0, 0

    async def broken(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        writer.close()

    monkeypatch.setattr(streams, "monotonic", lambda: now_s)
    server = await asyncio.start_server(broken, "127.0.0.1", 0)
    async with server:
        port = port_at(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        for moved_s, seen in ((0, 1), (0.5, 1), (1, 2)):
            now_s += moved_s
            assert not await opens(port)
            assert accepted == seen


async def test_who_stops_waiting_for_a_port_leaves_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "CONNECT_S", FOR_EVER_S)
    async with other_server() as silent, asyncio.TaskGroup() as tasks:
        opening = tasks.create_task(port_at(silent.address).open(HELLO))
        await wait_until_async(lambda: silent.open, what="it has connected")
        opening.cancel()
        await wait_until_async(lambda: not silent.open, what="the connection is closed")


async def test_a_broker_that_refuses_the_stream_says_why() -> None:
    async def refuse(stream: MessageStream) -> None:
        raise OverloadedError("too many streams")

    async with stream_server(refuse) as address:
        stream = await port_at(address).open(HELLO)
        assert stream is not None
        with pytest.raises(PenstockError) as refused:
            await stream.receive()
        assert refused.value.code is ErrorCode.OVERLOADED
        await stream.close()


# ---------------------------------------------------------------- what metadata says


def broker(stream_port: int, *, number: int = 0) -> BrokerDescription:
    return BrokerDescription(number, f"broker-{number}", 9092, "", True, stream_port)


async def test_a_connection_knows_the_port_of_the_newest_metadata() -> None:
    connections = Connections()
    before = connections.to("broker-0:9092")
    assert before.streams.address == ""
    connections.learn([broker(9097), broker(9098, number=1)])
    assert before.streams.address == "broker-0:9097"
    assert connections.to("broker-1:9092").streams.address == "broker-1:9098", "a new one too"
    connections.learn([broker(9_999), broker(0, number=1)])
    assert before.streams.address == "broker-0:9999", "it came back with another port"
    assert connections.to("broker-1:9092").streams.address == "", "it has none any more"
    connections.learn([broker(9098, number=1)])
    assert before.streams.address == "", "it is gone"
    await connections.aclose()


async def test_addresses_that_are_resolved_by_the_user_have_no_streams() -> None:
    connections = Connections(lambda address: f"tunnel-{address}")
    connections.learn([broker(9097)])
    assert connections.to("broker-0:9092").streams.address == ""
    await connections.aclose()


async def test_an_address_of_ip_version_6_keeps_its_brackets_right() -> None:
    port = StreamPort()
    async with stream_server(tell_hello) as address:
        port.address = f"[::ffff:127.0.0.1]:{address.rpartition(':')[2]}"
        assert await opens(port)
