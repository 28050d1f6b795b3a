"""`ControllerService`: brokers' sessions, ISR changes, producer ids.

A session is one stream. Its reader feeds the machine, its writer empties the outbox; when either
ends, the stream ends, and the machine's grace period begins. gRPC's keepalive closes half-open
streams; missing heartbeats reveal frozen brokers long before that.
"""

# ruff: noqa: ARG002, N802 - gRPC fixes the names and the arguments of these methods

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from penstock.core.control import contract as c
from penstock.core.control.move_contract import ReplicasReported
from penstock.core.types import BrokerId
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import controller_pb2 as pb
from penstock.proto.v1.controller_pb2_grpc import ControllerServiceServicer
from penstock.rpc.errors import error_to_wire
from penstock_broker.controller.move_wire import report_from_wire
from penstock_broker.controller.outbox import SessionOutbox
from penstock_broker.controller.runtime import ControllerRuntime
from penstock_broker.controller.wire import (
    alter_isr_from_wire,
    heartbeat_from_wire,
    isr_outcome_to_wire,
    registration_from_wire,
)
from penstock_broker.serving.servers import require_broker

_FIRST_MESSAGE_S: Final = 5.0
_WRITE_S: Final = 30.0
"""A broker that accepts no message for this long is not reading: end the stream."""


class _StreamEnd(Exception):  # noqa: N818 - not an error: the way out of the task group
    """One side of the stream has ended."""


class ControllerService(ControllerServiceServicer):
    """See the module."""

    def __init__(self, runtime: ControllerRuntime) -> None:
        self._runtime = runtime

    async def Session(  # type: ignore[override]  # written with context.write
        self, request_iterator: AsyncIterator[pb.SessionRequest], context: Any
    ) -> None:
        """Runs until the broker leaves or is refused."""
        try:
            async with asyncio.timeout(_FIRST_MESSAGE_S):
                first = await anext(request_iterator, None)
        except TimeoutError:
            first = None
        if first is None or first.WhichOneof("message") != "register":
            raise ClusterError(
                "the first message of a session must be Register, sent at once",
                ErrorCode.INVALID_REQUEST,
            )
        require_broker(first.register.broker_id, "register")
        self._runtime.check_active()  # refuse the call before it counts as a stream
        stream_id, outbox = self._runtime.open_stream()
        try:
            self._runtime.feed(registration_from_wire(stream_id, first.register))
            async with asyncio.TaskGroup() as tasks:
                reading = self._read(stream_id, first.register.broker_id, request_iterator)
                tasks.create_task(reading, name="session reader")
                tasks.create_task(_write(outbox, context), name="session writer")
        except* _StreamEnd:
            pass
        finally:
            self._runtime.close_stream(stream_id)

    async def _read(
        self, stream_id: int, broker_id: int, requests: AsyncIterator[pb.SessionRequest]
    ) -> None:
        async for request in requests:
            if request.WhichOneof("message") != "heartbeat":
                raise ClusterError(
                    "a session accepts Register once, then heartbeats", ErrorCode.INVALID_REQUEST
                )
            beat = request.heartbeat
            self._runtime.tls_reports.heard(stream_id, BrokerId(broker_id), beat)
            self._runtime.feed(heartbeat_from_wire(stream_id, beat))
        raise _StreamEnd

    async def AlterIsr(self, request: pb.AlterIsrRequest, context: Any) -> pb.AlterIsrResponse:
        """Answers once every accepted change is durable."""
        require_broker(request.broker_id, "change the ISR")
        try:
            result = await self._runtime.submit(
                lambda request_id: alter_isr_from_wire(request_id, request)
            )
        except PenstockError as error:
            return pb.AlterIsrResponse(error=error_to_wire(error))
        assert isinstance(result, c.IsrAltered)
        return pb.AlterIsrResponse(
            results=[isr_outcome_to_wire(outcome) for outcome in result.outcomes],
            metadata_version=result.metadata_version,
        )

    async def AllocateProducerIds(
        self, request: pb.AllocateProducerIdsRequest, context: Any
    ) -> pb.AllocateProducerIdsResponse:
        """A block of ids, durable before it is answered."""
        require_broker(request.broker_id, "allocate producer ids")
        try:
            result = await self._runtime.submit(
                lambda request_id: c.AllocateProducerIds(
                    request_id,
                    request.cluster_id,
                    BrokerId(request.broker_id),
                    request.broker_session,
                )
            )
        except PenstockError as error:
            return pb.AllocateProducerIdsResponse(error=error_to_wire(error))
        assert isinstance(result, c.ProducerIds)
        return pb.AllocateProducerIdsResponse(first=result.first, count=result.count)

    async def ReportReplicas(
        self, request: pb.ReportReplicasRequest, context: Any
    ) -> pb.ReportReplicasResponse:
        """Answers once what it changes is durable."""
        require_broker(request.broker_id, "report about replicas")
        try:
            result = await self._runtime.submit(
                lambda request_id: report_from_wire(request_id, request)
            )
        except PenstockError as error:
            return pb.ReportReplicasResponse(error=error_to_wire(error))
        assert isinstance(result, ReplicasReported)
        return pb.ReportReplicasResponse(
            metadata_version=result.metadata_version,
            stored=result.stored,
            seated=[
                pb.ReplicaName(topic_id=key.topic_id, partition=key.partition)
                for key in result.seated
            ],
        )


async def _write(outbox: SessionOutbox, context: Any) -> None:
    while True:
        message = await outbox.next()
        try:
            async with asyncio.timeout(_WRITE_S):
                await context.write(message)
        except TimeoutError:
            raise _StreamEnd from None
        if message.WhichOneof("message") == "error":
            raise _StreamEnd
