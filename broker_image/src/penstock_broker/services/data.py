"""The `BrokerService`: each call goes to the module that knows how to answer it."""

# ruff: noqa: ARG002, N802 - gRPC fixes the names and the arguments of these methods

import asyncio
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Any

from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceServicer
from penstock_broker.metadata.image import ClusterView
from penstock_broker.services import metadata
from penstock_broker.services.fetching import Fetching
from penstock_broker.services.limits import ByteBudget
from penstock_broker.services.metadata import ProducerIds
from penstock_broker.services.offsets import Offsets
from penstock_broker.services.producing import Producing
from penstock_broker.services.subscribing import Subscription
from penstock_broker.services.transactions import Transactions
from penstock_broker.serving.listener import host_of_peer


class DataService(BrokerServiceServicer):
    """What producers and consumers call; errors and cluster ids are checked by `edge`."""

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
        fetch_budget: ByteBudget,
        stream_inflight_max: int,
    ) -> None:
        """`observe(method, seconds)` hears of requests on streams; of calls the edge tells."""
        self._view = view
        self._producing = producing
        self._fetching = fetching
        self._offsets = offsets
        self._producer_ids = producer_ids
        self._transactions = transactions
        self._observe = observe
        self._fetch_budget = fetch_budget
        self._stream_inflight_max = stream_inflight_max

    async def Produce(self, request: pb.ProduceRequest, context: Any) -> pb.ProduceResponse:
        """See `producing`."""
        return await self._producing.produce(request)

    async def ProduceStream(  # type: ignore[override]
        self, request_iterator: AsyncIterator[pb.ProduceRequest], context: Any
    ) -> None:
        """Requests are appended in order and answered as they finish, so many at a time.

        Each is timed as a `Produce` from its arrival, the wait for its turn included, until its
        answer is there: a client slow to read is no slow broker.
        """
        slots = asyncio.Semaphore(self._stream_inflight_max)
        writing = asyncio.Lock()

        async def answer(request: pb.ProduceRequest, arrived: float) -> None:
            try:
                try:
                    response = await self._producing.produce(request)
                finally:
                    self._observe("Produce", monotonic() - arrived)
                del request  # a client slow to read answers must not keep payloads here
                async with writing:
                    await context.write(response)
            finally:
                slots.release()

        # Tasks start in the order they are made and submit before their first await: order holds.
        async with asyncio.TaskGroup() as tasks:
            async for request in request_iterator:
                arrived = monotonic()
                await slots.acquire()
                tasks.create_task(answer(request, arrived))

    async def Fetch(  # type: ignore[override]  # answers bytes: see `edge`
        self, request: pb.FetchRequest, context: Any
    ) -> bytes:
        """See `fetching`. The answer counts against the budget until it is sent."""
        response, taken_bytes = await self._fetching.fetch(request)
        context.add_done_callback(lambda _: self._fetch_budget.give(taken_bytes))
        return response

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
        return metadata.describe(self._view, request)

    async def InitProducer(
        self, request: pb.InitProducerRequest, context: Any
    ) -> pb.InitProducerResponse:
        """See `metadata`, and `transactions` if it names a transactional id."""
        if request.transactional_id:
            return await self._transactions.init(request, host_of_peer(context.peer()))
        return await self._producer_ids.init(request)
