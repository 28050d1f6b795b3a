"""Message streams of clients: produce and fetch without gRPC.

    hello ─▶ PRODUCE ─▶ produce_stream.ProduceMessages
         └─▶ FETCH   ─▶ fetch_stream.FetchMessages

A stream has one method, which its hello names. Everything that streams answer can be had over gRPC
as well; they cost less.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Final

from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import streams_pb2 as pb
from penstock.rpc.peers import towards
from penstock.rpc.streams.contract import Clients, MessageStream
from penstock.rpc.streams.parsing import introduction
from penstock.rpc.transport import Transport
from penstock_broker.services.fetch_stream import FetchMessages
from penstock_broker.services.fetching import Fetching
from penstock_broker.services.produce_stream import ProduceMessages
from penstock_broker.services.producing import Producing
from penstock_broker.serving.callers import IdentifyToken, caller, entered
from penstock_broker.serving.edge import Failed, check_cluster_id, guarded
from penstock_broker.serving.expiry import bounded_by_credentials
from penstock_broker.serving.listener import came_to, listener_of_clients
from penstock_broker.serving.plaintext_clients import PlaintextClients

HELLO_TIMEOUT_S: Final = 5.0


class ClientStreams:
    """Serves the streams at one address."""

    def __init__(
        self,
        producing: Producing,
        fetching: Fetching,
        transport: Transport,
        *,
        cluster_id: Callable[[], str],
        observe: Callable[[str, float], None],
        failed: Failed,
        inflight_max: int,
        streams_max: int,
        identify: IdentifyToken,
        plaintext: PlaintextClients | None,
    ) -> None:
        """`cluster_id` returns "" while unknown; `observe(method, seconds)` times requests.

        `inflight_max`: requests without an answer per stream. Streams above `streams_max` are
        refused. `identify`: users, if the streams have TLS. `plaintext` counts those that have
        none, of a broker that has TLS elsewhere.
        """
        accepting = towards(transport, secured=False)
        self._called = listener_of_clients(transport)
        self._plaintext = plaintext
        self._identify = identify if accepting.tls is not None else None
        self._producing = producing
        self._fetching = fetching
        self._cluster_id = cluster_id
        self._observe = observe
        self._failed = failed
        self.open = 0
        """How many there are now; each is a connection."""
        self._inflight_max = inflight_max
        self._server = accepting.stream_server(
            guarded(self._serve, "a client's stream"),
            streams_max=streams_max,
            clients=Clients.USERS,
        )
        self._listens = False

    async def listen(self, address: str) -> int:
        """Binds the port, and returns it. Raises OSError."""
        port = await self._server.listen(address)
        self._listens = True
        return port

    async def run(self) -> None:
        """Serves until it is cancelled; returns at once if there is no port."""
        if self._listens:
            await self._server.run()

    def close(self) -> None:
        """Gives up the port."""
        self._server.close()

    async def _serve(self, stream: MessageStream) -> None:
        self.open += 1
        try:
            await self._serve_client(stream)
        finally:
            self.open -= 1

    async def _serve_client(self, stream: MessageStream) -> None:
        came_to(self._called)
        counting = self._plaintext
        with nullcontext() if counting is None else counting.streaming(stream.peer_host):
            method = await self._hello(stream)
            if method is not None:
                who = caller()
                with self._producing.quotas.streaming(who), bounded_by_credentials(who):
                    await self._serve_method(stream, method)

    async def _serve_method(self, stream: MessageStream, method: int) -> None:
        match method:
            case pb.STREAM_METHOD_PRODUCE:
                await ProduceMessages(
                    self._producing,
                    stream,
                    partial(self._observe, "Produce"),
                    self._inflight_max,
                    self._cluster_id,
                ).run()
            case pb.STREAM_METHOD_FETCH:
                await FetchMessages(
                    self._fetching,
                    stream,
                    partial(self._observe, "Fetch"),
                    self._inflight_max,
                    self._cluster_id,
                    self._failed,
                ).run()
            case other:
                raise ClusterError(
                    f"a stream's hello names method {other}; this broker knows "
                    f"{pb.STREAM_METHOD_PRODUCE} (produce) and {pb.STREAM_METHOD_FETCH} (fetch)",
                    ErrorCode.INVALID_REQUEST,
                )

    async def _hello(self, stream: MessageStream) -> int | None:
        """The stream's method; None if the client left at once. Raises ClusterError."""
        hello = await introduction(pb.StreamHello, stream, "a client", HELLO_TIMEOUT_S)
        if hello is None:
            return None
        if self._identify is not None:
            entered(await self._identify(hello.token, stream.peer_host))
        check_cluster_id(hello.cluster_id, self._cluster_id())
        return hello.method
