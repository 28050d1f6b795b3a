"""The admin's calls about moves, cordons and formats. The controller answers them."""

from collections.abc import Iterable
from typing import Final

from penstock.client.admin.asking import AsksController
from penstock.client.admin.move_model import (
    BrokerChange,
    BrokerPlacement,
    CopyDescription,
    Cordon,
    FormatChange,
    MoveDescription,
    MoveOutcome,
    MovesDescription,
    MoveState,
    ReplicaMove,
)
from penstock.core.control.documents import OperatorLease
from penstock.core.types import MoveReason, TopicPartition
from penstock.proto.v1 import admin_pb2 as pb
from penstock.rpc.errors import error_from_wire

_REASONS: Final = {
    MoveReason.REPLACE: pb.MOVE_REASON_REPLACE,
    MoveReason.DRAIN: pb.MOVE_REASON_DRAIN,
    MoveReason.FACTOR: pb.MOVE_REASON_FACTOR,
    MoveReason.MANUAL: pb.MOVE_REASON_MANUAL,
    MoveReason.SPREAD: pb.MOVE_REASON_SPREAD,
}
_REASON_OF: Final = {wire: reason for reason, wire in _REASONS.items()}
_STATE_OF: Final = {
    pb.MOVE_STATE_SETTLED: MoveState.SETTLED,
    pb.MOVE_STATE_QUEUED: MoveState.QUEUED,
    pb.MOVE_STATE_COPYING: MoveState.COPYING,
}


async def alter_replicas(
    asking: AsksController,
    moves: Iterable[ReplicaMove],
    reason: MoveReason,
    *,
    change_factor: bool,
    validate_only: bool,
) -> list[MoveOutcome]:
    """See `AsyncAdmin.alter_replicas`."""
    request = pb.AlterReplicasRequest(
        cluster_id=await asking.cluster_id(),
        changes=[
            pb.ReplicaChange(
                topic=move.where.topic,
                topic_id=move.topic_id,
                partition=move.where.partition,
                expected=move.expected,
                target=move.target,
                cancel=not move.target,
            )
            for move in moves
        ],
        reason=_REASONS[reason],
        change_factor=change_factor,
        validate_only=validate_only,
    )
    answer = await asking.change(lambda connection: connection.admin.AlterReplicas, request)
    return [
        MoveOutcome(
            where=TopicPartition(result.topic, result.partition),
            state=_STATE_OF.get(result.state),
            replicas=tuple(result.replicas),
            target=tuple(result.target),
            error=error_from_wire(result.error) if result.HasField("error") else None,
        )
        for result in answer.results
    ]


async def describe_moves(asking: AsksController, topics: Iterable[str] | None) -> MovesDescription:
    """See `AsyncAdmin.describe_moves`."""
    request = pb.DescribeMovesRequest(
        cluster_id=await asking.cluster_id(), topics=list(topics or ())
    )
    answer = await asking.read(lambda connection: connection.admin.DescribeMoves, request)
    asking.told.hear(answer.controller_epoch, answer.metadata_version)
    return MovesDescription(
        moves=tuple(_move(move) for move in answer.moves),
        brokers=tuple(_placement(broker) for broker in answer.brokers),
        format=answer.format,
        newest_format=answer.newest_format,
        paused=answer.paused,
        copy_rate=answer.copy_rate if answer.HasField("copy_rate") else None,
        copy_rate_by=answer.copy_rate_by if answer.HasField("copy_rate_by") else None,
        controller_epoch=answer.controller_epoch,
        metadata_version=answer.metadata_version,
    )


def _move(move: pb.PartitionMove) -> MoveDescription:
    return MoveDescription(
        where=TopicPartition(move.topic, move.partition),
        topic_id=move.topic_id,
        state=_STATE_OF[move.state],
        reason=_REASON_OF.get(move.reason),
        leader=move.leader,
        replicas=tuple(move.replicas),
        isr=tuple(move.isr),
        target=tuple(move.target),
        adding=tuple(move.adding),
        dropping=tuple(move.dropping),
        damaged=tuple(move.damaged),
        waiting_for=move.waiting_for,
        copies=tuple(
            CopyDescription(
                broker_id=copy.broker_id,
                bytes_left=copy.bytes_left,
                bytes_per_second=copy.bytes_per_second,
                limited_by=copy.limited_by,
                known_for_ms=copy.known_for_ms,
                stalled_for_ms=copy.stalled_for_ms,
            )
            for copy in move.copies
        ),
    )


def _placement(broker: pb.BrokerPlacement) -> BrokerPlacement:
    cordon = None
    if broker.HasField("cordon"):
        cordon = Cordon(
            placement=broker.cordon.placement,
            leadership=broker.cordon.leadership,
            why=broker.cordon.why,
            by=broker.cordon.by,
        )
    return BrokerPlacement(
        broker_id=broker.broker_id,
        directory_id=broker.directory_id,
        rack=broker.rack,
        alive=broker.alive,
        fresh=broker.fresh,
        cordon=cordon,
        software_version=broker.software_version,
        formats=tuple(broker.formats),
    )


async def alter_brokers(
    asking: AsksController, changes: Iterable[BrokerChange], *, validate_only: bool
) -> None:
    """See `AsyncAdmin.alter_brokers`."""
    request = pb.AlterBrokersRequest(
        cluster_id=await asking.cluster_id(),
        changes=[_change(change) for change in changes],
        validate_only=validate_only,
    )
    await asking.change(lambda connection: connection.admin.AlterBrokers, request)


def _change(change: BrokerChange) -> pb.BrokerChange:
    wire = pb.BrokerChange(broker_id=change.broker_id, directory_id=change.directory_id)
    if change.cordon is not None:
        wire.cordon.placement = change.cordon.placement
        wire.cordon.leadership = change.cordon.leadership
        wire.cordon.why = change.cordon.why
        wire.cordon.by = change.cordon.by
        wire.cordon.SetInParent()
    else:
        wire.spread = change.spread
    return wire


async def alter_throttle(
    asking: AsksController, copy_rate: int | None, by: str, *, validate_only: bool
) -> None:
    """See `AsyncAdmin.alter_throttle`."""
    request = pb.AlterThrottleRequest(
        cluster_id=await asking.cluster_id(),
        copy_rate=copy_rate,
        by=by,
        validate_only=validate_only,
    )
    await asking.change(lambda connection: connection.admin.AlterThrottle, request)


async def finalize(asking: AsksController, to: int, *, validate_only: bool) -> FormatChange:
    """See `AsyncAdmin.finalize`."""
    request = pb.FinalizeRequest(
        cluster_id=await asking.cluster_id(), to=to, validate_only=validate_only
    )
    answer = await asking.change(lambda connection: connection.admin.Finalize, request)
    return FormatChange(answer.format_before, answer.format)


async def acquire_operator_epoch(asking: AsksController, lease: OperatorLease) -> int:
    """See `AsyncAdmin.acquire_operator_epoch`."""
    request = pb.AcquireOperatorEpochRequest(
        cluster_id=await asking.cluster_id(),
        lease_uid=lease.uid,
        lease_created_s=lease.created_s,
        lease_transitions=lease.transitions,
        lease_holder=lease.holder,
    )
    # It names no epoch: the one before may have been refused.
    answer = await asking.read(lambda connection: connection.admin.AcquireOperatorEpoch, request)
    return int(answer.operator_epoch)
