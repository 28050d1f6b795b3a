"""The call that gives up batches which no replica has: asked of the partition's leader."""

from penstock.core.authorization import Operation
from penstock.core.types import BrokerId, Offset
from penstock.errors import PenstockError
from penstock.proto.v1 import admin_pb2 as pb
from penstock.rpc.errors import error_to_wire
from penstock_broker.replication.accepting import Loss, Losses
from penstock_broker.services.locate import Locator


async def accept_loss(
    locator: Locator, losses: Losses, request: pb.AcceptLossRequest
) -> pb.AcceptLossResponse:
    """See `Losses.accept`."""
    try:
        # Of three damaged replicas, the last one found may have stopped before it was to lead.
        replica = locator.assigned(
            request.topic, request.topic_id, request.partition, Operation.DELETE
        )
        asked = request.offsets
        without = frozenset(BrokerId(one) for one in request.without)
        loss = Loss(Offset(asked.first), Offset(asked.last), without)
        headers = await losses.accept(replica, loss, validate_only=request.validate_only)
    except PenstockError as error:
        return pb.AcceptLossResponse(error=error_to_wire(error))
    return pb.AcceptLossResponse(
        lost=[pb.OffsetSpan(first=one.base_offset, last=one.next_offset - 1) for one in headers]
    )
