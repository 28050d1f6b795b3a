"""A connection begins anew after every attempt that fails, instead of waiting for gRPC to."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from support.processes import ReservedPort
from support.waiting import wait_until_async

from penstock.certificates import new_authority
from penstock.client.cluster import connections
from penstock.client.cluster.connections import Connection
from penstock.client.cluster.credentials import Credentials
from penstock.errors import PenstockError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.tls import Tls, TlsFiles

Reserve = Callable[[], ReservedPort]
FOR_EVER_S = 1_200.0


async def test_a_channel_that_cannot_connect_is_replaced_until_somebody_listens(
    reserve: Reserve,
) -> None:
    address = reserve().address
    connection = Connection(address, address)
    first = connection.channel
    server = grpc.aio.server()
    async with asyncio.TaskGroup() as tasks:
        connected = tasks.create_task(connection.ready(FOR_EVER_S))
        await wait_until_async(
            lambda: connection.channel is not first, what="the channel with its back-off is gone"
        )
        server.add_insecure_port(address)
        await server.start()
        assert await connected
    try:
        kept = connection.channel
        assert await connection.ready(FOR_EVER_S)
        assert connection.channel is kept, "a channel that works was replaced"
    finally:
        await connection.aclose()
        await server.stop(None)


async def test_nobody_who_listens_is_waited_for_no_longer_than_asked(reserve: Reserve) -> None:
    address = reserve().address
    connection = Connection(address, address)
    assert not await connection.ready(0.1)
    await connection.aclose()


async def test_closing_ends_replaced_channels_too(reserve: Reserve) -> None:
    address = reserve().address
    connection = Connection(address, address)
    replaced = connection.channel
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(connection.ready(FOR_EVER_S))
        await wait_until_async(lambda: connection.channel is not replaced, what="it was replaced")
        waiting.cancel()
    await connection.aclose()
    assert replaced.get_state() is grpc.ChannelConnectivity.SHUTDOWN
    assert connection.channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN


async def test_channels_replaced_for_other_certificates_are_closed_when_their_time_is_up(
    reserve: Reserve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = TlsFiles(tmp_path / "ca.crt", None, None)
    (tmp_path / "ca.crt").write_bytes(new_authority("ca")[0])
    tls, address = Tls(files), reserve().address
    connection = Connection(address, address, Credentials(tls))
    replaced = []
    for _ in range(2):
        replaced.append(connection.channel)
        monkeypatch.setattr(connections, "LAST_STREAMS_S", -1.0 if len(replaced) == 1 else 600.0)
        tls._generation += 1  # the files have changed
        connection.follow_files()
    with pytest.raises(PenstockError):
        await connection.call(connection.broker.Metadata, pb.MetadataRequest(), 0.05)
    shut = [channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN for channel in replaced]
    assert shut == [True, False], "the second may still be in use"
    assert replaced[0] not in [channel for _, channel in connection._replaced]
    await connection.aclose()


async def test_attempts_that_are_cut_short_get_more_time_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody takes connections and says nothing: each attempt ends by its own time."""
    monkeypatch.setattr(connections, "PATIENCE_MAX_S", 0.03)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        connection = Connection(f"{host}:{port}", f"{host}:{port}")
        connection._patience_s = 0.01
        for expected in (0.02, 0.03, 0.03):
            assert not await connection._attempt()
            assert connection._patience_s == expected
        await connection.aclose()
