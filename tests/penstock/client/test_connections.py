"""A connection begins anew after every attempt that fails, instead of waiting for gRPC to."""

from collections.abc import Callable

import grpc
from support.processes import ReservedPort

from penstock.client.connections import Connection

Reserve = Callable[[], ReservedPort]


async def test_a_channel_that_cannot_connect_is_replaced_until_somebody_listens(
    reserve: Reserve,
) -> None:
    address = reserve().address
    connection = Connection(address, address)
    first = connection.channel
    assert not await connection.ready(0.4)
    assert connection.channel is not first, "the channel with its back-off is still in use"
    server = grpc.aio.server()
    server.add_insecure_port(address)
    await server.start()
    try:
        assert await connection.ready(30.0)
        kept = connection.channel
        assert await connection.ready(30.0)
        assert connection.channel is kept, "a channel that works was replaced"
    finally:
        await connection.aclose()
        await server.stop(None)


async def test_closing_ends_replaced_channels_too(reserve: Reserve) -> None:
    address = reserve().address
    connection = Connection(address, address)
    replaced = connection.channel
    assert not await connection.ready(0.2)
    await connection.aclose()
    assert replaced.get_state() is grpc.ChannelConnectivity.SHUTDOWN
    assert connection.channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN
