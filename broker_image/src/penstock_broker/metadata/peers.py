"""Connections to the other brokers of the cluster: one for each run of a broker.

A channel that was idle while a pod was replaced tries the old pod's address first, and delays its
caller for seconds. So a broker that has registered again is resolved again. A channel keeps the
certificate that it began with, so other files of TLS need another channel, too.
"""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from penstock.core.types import BrokerId
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import broker_pb2
from penstock.rpc.errors import error_from_rpc
from penstock.rpc.peers import PeerAddress, peer_address, towards
from penstock.rpc.tls import generation_of
from penstock.rpc.transport import Transport
from penstock_broker.metadata.image import ClusterView

_Run = tuple[PeerAddress, str, int]
"""(address, incarnation, generation of TLS)"""


class PeerChannels:
    """Channels, opened on first use. Call `close` at the end."""

    def __init__(self, view: ClusterView, transport: Transport) -> None:
        self._view = view
        self._transport = transport
        self._channels: dict[_Run, grpc.aio.Channel] = {}
        self._busy: Counter[_Run] = Counter()

    @asynccontextmanager
    async def to(self, broker_id: BrokerId) -> AsyncIterator[grpc.aio.Channel]:
        """The channel to a broker, open for as long as the block runs, unless `close` is called.

        Raises ClusterError(UNREACHABLE) if the broker is not alive, and the PenstockError of a call
        in the block that fails.
        """
        info = self._view.brokers.get(broker_id)
        if info is None or not info.alive:
            raise ClusterError(f"broker {broker_id} is not alive", ErrorCode.UNREACHABLE)
        run = self._run(info)
        await self._close_unused()
        if run not in self._channels:
            found = run[0]
            through = towards(self._transport, secured=found.secured)
            self._channels[run] = through.open(found.address)
        self._busy[run] += 1
        try:
            yield self._channels[run]
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        finally:
            self._busy[run] -= 1
            if not self._busy[run]:
                del self._busy[run]

    async def close(self) -> None:
        """Ends all connections."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    async def _close_unused(self) -> None:
        """Closes channels of brokers that left, or came back, once nobody uses them."""
        known = {self._run(info) for info in self._view.brokers.values()}
        gone = [run for run in self._channels if run not in known and not self._busy[run]]
        for channel in [self._channels.pop(run) for run in gone]:
            await channel.close()

    def _run(self, info: broker_pb2.BrokerInfo) -> _Run:
        tls = self._transport.tls
        return peer_address(info, tls=tls is not None), info.incarnation, generation_of(tls)
