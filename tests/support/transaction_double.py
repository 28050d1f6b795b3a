"""One broker that leads, and coordinates transactions, by the rules of `transaction_model.py`.

A real gRPC server on loopback. `ends` and `produces` are scripts: per call what happens instead of
the right thing, None = as it should be.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from support.transaction_model import PRODUCER, Branch, Partition, refused

from penstock.core.batch import BatchFlags
from penstock.core.records import decode_batch
from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1 import transaction_pb2 as tx
from penstock.proto.v1.broker_pb2_grpc import (
    BrokerServiceServicer,
    add_BrokerServiceServicer_to_server,
)
from penstock.proto.v1.transaction_pb2_grpc import (
    TransactionServiceServicer,
    add_TransactionServiceServicer_to_server,
)
from penstock.rpc.batches import batch_from_wire
from penstock.rpc.errors import abort, error_to_wire

MAX_TIMEOUT_MS = 900_000
PARTITIONS = 2
Script = Iterator[PenstockError | str | None]
"""An error to answer; "lost before" or "lost after" doing it; "silent": neither done nor answered;
"late": done once `go_on` is set; "invisible": the partitions are not told; "same epoch": the
answer names it as the next one."""


class TransactionDouble(BrokerServiceServicer, TransactionServiceServicer):
    """Topic t with two partitions, and any one transactional id."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self.port = port
        self.branch = Branch()
        self.partitions: list[Partition[bytes]] = [
            Partition(self.branch) for _ in range(PARTITIONS)
        ]
        self.ends: Script = iter(())
        self.produces: Script = iter(())
        self.go_on = asyncio.Event()
        self.inits: list[pb.InitProducerRequest] = []
        self.asked: list[tx.EndTransactionRequest] = []
        self.streams_of_ends = 0
        self.no_streams: grpc.StatusCode | None = None
        self.finds = 0
        self.finds_before_end: list[int] = []
        """Of each End: how often the coordinator had been looked for."""
        self.produced = 0
        self.isolations: dict[str, set[int]] = {}
        """What was asked for, by call."""

    def hear(self) -> None:
        """Every partition has the markers of all that was decided."""
        for partition in self.partitions:
            partition.hear()

    def visible(self) -> list[bytes]:
        """What a read_committed reader sees, sorted."""
        return sorted(value for each in self.partitions for value in each.visible())

    async def Metadata(self, request: Any, context: Any) -> pb.MetadataResponse:  # noqa: N802
        led = [
            pb.PartitionInfo(partition=index, leader=0, leader_epoch=1, replicas=[0], isr=[0])
            for index in range(PARTITIONS)
        ]
        broker = pb.BrokerInfo(broker_id=0, host="127.0.0.1", port=self.port, alive=True)
        return pb.MetadataResponse(
            cluster_id="cluster",
            brokers=[broker],
            topics=[pb.TopicInfo(topic="t", topic_id="id", partitions=led)],
        )

    async def InitProducer(self, request: Any, context: Any) -> pb.InitProducerResponse:  # noqa: N802
        self.inits.append(request)
        if request.transaction_timeout_ms > MAX_TIMEOUT_MS:
            error = refused(ErrorCode.INVALID_REQUEST)
            return pb.InitProducerResponse(error=error_to_wire(error))
        epoch = self.branch.init(request.instance_id)
        self.hear()
        return pb.InitProducerResponse(producer_id=PRODUCER, producer_epoch=epoch)

    async def ProduceStream(self, requests: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        async for request in requests:
            self.produced += 1
            order = next(self.produces, None)
            if order == "late":
                await self.go_on.wait()
            results = [self._append(request, part, order) for part in request.partitions]
            if order == "silent":
                continue
            answer = pb.ProduceResponse(correlation_id=request.correlation_id, results=results)
            await context.write(answer)

    def _append(self, request: Any, part: Any, order: object) -> pb.ProduceResult:
        result = pb.ProduceResult(topic="t", partition=part.partition)
        batch = batch_from_wire(part.batch)
        header = batch.header
        try:
            if isinstance(order, PenstockError):
                raise order
            flagged = bool(header.flags & BatchFlags.TRANSACTIONAL)
            if not request.transactional_id or not flagged or request.acks != pb.ACKS_ALL:
                raise refused(ErrorCode.INVALID_REQUEST)
            sent = () if order == "silent" else decode_batch(batch).values()
            values = [value or b"" for value in sent]
            if values:
                partition = self.partitions[part.partition]
                partition.append(header.producer_epoch, header.base_sequence, values)
        except PenstockError as error:
            result.error.CopyFrom(error_to_wire(error))
        return result

    async def FindTransactionCoordinator(  # noqa: N802
        self, request: Any, context: Any
    ) -> tx.FindTransactionCoordinatorResponse:
        self.finds += 1
        return tx.FindTransactionCoordinatorResponse(host="127.0.0.1", port=self.port)

    async def EndTransaction(self, request: Any, context: Any) -> tx.EndTransactionResponse:  # noqa: N802
        self.asked.append(request)
        self.finds_before_end.append(self.finds)
        order = next(self.ends, None)
        if isinstance(order, PenstockError):
            await abort(context, order)
        if order == "lost before":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        try:
            answer = self.branch.end(request.producer_epoch, commit=request.commit)
        except PenstockError as error:
            await abort(context, error)
        if order == "lost after":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        if order != "invisible":
            self.hear()
        same = order == "same epoch"
        return tx.EndTransactionResponse(
            error=None if answer.error is None else error_to_wire(answer.error),
            next_producer_id=answer.next.producer_id,
            next_producer_epoch=request.producer_epoch if same else answer.next.epoch,
            visible=order != "invisible",
        )

    async def EndTransactionStream(self, requests: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        self.streams_of_ends += 1
        if self.no_streams is not None:
            await context.abort(self.no_streams, "no stream of ends here")
        async for request in requests:
            await context.write(await self.EndTransaction(request, context))

    async def Fetch(self, request: Any, context: Any) -> pb.FetchResponse:  # noqa: N802
        self.isolations.setdefault("Fetch", set()).add(request.isolation_level)
        await asyncio.sleep(request.max_wait_ms / 1000)  # polls as a broker would
        return pb.FetchResponse(results=[pb.FetchResult(topic="t", topic_id="id")])

    async def ListOffsets(self, request: Any, context: Any) -> pb.ListOffsetsResponse:  # noqa: N802
        self.isolations.setdefault("ListOffsets", set()).add(request.isolation_level)
        return pb.ListOffsetsResponse(
            results=[
                pb.ListOffsetsResult(topic="t", partition=each.partition, offset=0)
                for each in request.partitions
            ]
        )


@asynccontextmanager
async def serving(*, transactions: bool = True) -> AsyncIterator[TransactionDouble]:
    """Serves on a port of its own; `transactions` False: as a broker from before."""
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    made = TransactionDouble(port)  # type: ignore[abstract]  # other calls are unimplemented
    add_BrokerServiceServicer_to_server(made, server)
    if transactions:
        add_TransactionServiceServicer_to_server(made, server)
    await server.start()
    try:
        yield made
    finally:
        await server.stop(grace=None)
