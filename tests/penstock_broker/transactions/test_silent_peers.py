"""A peer that takes calls and answers none, because its disk hangs: nobody waits for ever."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio
import pytest

from penstock.core.groups.contract import SendAbort
from penstock.core.transactions import contract as c
from penstock.core.transactions.records import GroupParticipant
from penstock.core.types import BrokerId, ProducerId
from penstock.errors import PenstockError
from penstock.proto.v1 import broker_pb2
from penstock.rpc.transport import GrpcTransport
from penstock_broker.metadata.image import ClusterView
from penstock_broker.transactions import transport
from penstock_broker.transactions.transport import RemotePeers

PEER: Final = BrokerId(1)
GROUP: Final = GroupParticipant("g")
JOIN: Final = c.JoinRequested(
    request_id=1,
    transactional_id="app",
    producer_id=ProducerId(7),
    producer_epoch=0,
    participant=GROUP,
)
END: Final = c.End(
    participant=GROUP,
    producer_id=ProducerId(7),
    producer_epoch=0,
    commit=True,
    transactional_id="app",
)
CALLS: Final[dict[str, Callable[[RemotePeers], Awaitable[object]]]] = {
    "join": lambda peers: peers.join(PEER, [JOIN]),
    "end": lambda peers: peers.end(PEER, [END]),
    "abort": lambda peers: peers.abort(PEER, SendAbort("app", "its member left")),
    "find": lambda peers: peers.find(PEER, frozenset()),
}


class Silence(grpc.GenericRpcHandler):
    """Every call is taken, and never answered."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        del handler_call_details

        async def wait(request: bytes, context: object) -> None:
            del request, context
            await asyncio.get_running_loop().create_future()

        return grpc.unary_unary_rpc_method_handler(wait)


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_to_a_silent_peer_ends(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for timeout in ("CALL_TIMEOUT_S", "FIND_TIMEOUT_S"):
        monkeypatch.setattr(transport, timeout, 0.1)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([Silence()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    info = broker_pb2.BrokerInfo(broker_id=PEER, host="127.0.0.1", port=port, alive=True)
    peers = RemotePeers(BrokerId(0), ClusterView("id", brokers={PEER: info}), GrpcTransport())
    try:
        async with asyncio.timeout(20):
            with pytest.raises(PenstockError) as late:
                await CALLS[name](peers)
        assert late.value.retriable
    finally:
        await peers.close()
        await server.stop(None)
