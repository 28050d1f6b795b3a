"""The `BrokerService`: passes each call to the module that answers it."""

# ruff: noqa: ARG002, N802 - gRPC fixes the names and the arguments of these methods

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceServicer
from penstock.rpc.splice import fetch_response
from penstock_broker.metadata.image import ClusterView
from penstock_broker.services import metadata
from penstock_broker.services.fetching import Fetching
from penstock_broker.services.metadata import ProducerIds
from penstock_broker.services.offsets import Offsets
from penstock_broker.services.produce_stream import ProduceStream
from penstock_broker.services.producing import Producing
from penstock_broker.services.subscribing import Subscription
from penstock_broker.services.transactions import Transactions
from penstock_broker.serving.listener import host_of_peer


class DataService(BrokerServiceServicer):
    """What producers and consumers call; `edge` handles errors and checks cluster ids."""

    def __init__(
        self,
        view: ClusterView,
        producing: Producing,
        fetching: Fetching,
        offsets: Offsets,
        producer_ids: ProducerIds,
        transactions: Transactions,
        *,
        observe: Callable[[str, float], None],
        stream_inflight_max: int,
    ) -> None:
        """`observe(method, seconds)` times requests on streams; the edge times unary calls."""
        self._view = view
        self._producing = producing
        self._fetching = fetching
        self._offsets = offsets
        self._producer_ids = producer_ids
        self._transactions = transactions
        self._observe = observe
        self._stream_inflight_max = stream_inflight_max

    async def Produce(self, request: pb.ProduceRequest, context: Any) -> pb.ProduceResponse:
        """See `producing`."""
        return await self._producing.produce(request)

    async def ProduceStream(  # type: ignore[override]
        self, request_iterator: AsyncIterator[pb.ProduceRequest], context: Any
    ) -> None:
        """See `produce_stream`."""
        stream = ProduceStream(
            self._producing, context, partial(self._observe, "Produce"), self._stream_inflight_max
        )
        await stream.run(request_iterator)

    async def Fetch(  # type: ignore[override]  # answers bytes: see `edge`
        self, request: pb.FetchRequest, context: Any
    ) -> bytes:
        """See `fetching`. The answer counts against the budget until it is sent."""
        answer = await self._fetching.fetch(request)
        context.add_done_callback(lambda _: answer.sent())
        return fetch_response(answer.results)

    async def Subscribe(  # type: ignore[override]
        self, request_iterator: AsyncIterator[pb.SubscribeRequest], context: Any
    ) -> None:
        """See `subscribing`."""
        await Subscription(self._fetching).run(request_iterator, context)

    async def ListOffsets(
        self, request: pb.ListOffsetsRequest, context: Any
    ) -> pb.ListOffsetsResponse:
        """See `offsets`."""
        return await self._offsets.list_offsets(request)

    async def Metadata(self, request: pb.MetadataRequest, context: Any) -> pb.MetadataResponse:
        """See `metadata`."""
        return await metadata.describe(self._view, request)

    async def InitProducer(
        self, request: pb.InitProducerRequest, context: Any
    ) -> pb.InitProducerResponse:
        """See `metadata`, and `transactions` if it names a transactional id."""
        self._view.check_awake()
        if request.transactional_id:
            return await self._transactions.init(request, host_of_peer(context.peer()))
        return await self._producer_ids.init(request)
