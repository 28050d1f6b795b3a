"""As `wire`, for moves, cordons and formats."""

from typing import Final

from penstock.core.control import ControllerMachine
from penstock.core.control import move_contract as m
from penstock.core.control.documents import FORMAT_NEWEST, BrokerRegistration, Cordon
from penstock.core.control.move_views import MoveView
from penstock.core.control.sessions import Sessions
from penstock.core.types import BrokerId, MoveReason, ReplicaKey, TopicId
from penstock.proto.v1 import admin_pb2, controller_pb2
from penstock.rpc.errors import error_to_wire

_REASONS: Final = {
    admin_pb2.MOVE_REASON_REPLACE: MoveReason.REPLACE,
    admin_pb2.MOVE_REASON_DRAIN: MoveReason.DRAIN,
    admin_pb2.MOVE_REASON_FACTOR: MoveReason.FACTOR,
    admin_pb2.MOVE_REASON_MANUAL: MoveReason.MANUAL,
    admin_pb2.MOVE_REASON_SPREAD: MoveReason.SPREAD,
}
_REASONS_TO_WIRE: Final = {why: wire for wire, why in _REASONS.items()}
_STATES: Final = {
    m.MoveState.SETTLED: admin_pb2.MOVE_STATE_SETTLED,
    m.MoveState.QUEUED: admin_pb2.MOVE_STATE_QUEUED,
    m.MoveState.COPYING: admin_pb2.MOVE_STATE_COPYING,
}


def report_from_wire(
    request_id: int, request: controller_pb2.ReportReplicasRequest
) -> m.ReportReplicas:
    """The event for a ReportReplicas call."""
    return m.ReportReplicas(
        request_id=request_id,
        cluster_id=request.cluster_id,
        broker_id=BrokerId(request.broker_id),
        broker_session=request.broker_session,
        dropped=tuple(
            m.DroppedReplica(TopicId(one.topic_id), one.partition, one.version)
            for one in request.dropped
        ),
        damaged=tuple(ReplicaKey(TopicId(one.topic_id), one.partition) for one in request.damaged),
        sound=tuple(ReplicaKey(TopicId(one.topic_id), one.partition) for one in request.sound),
        missing=tuple(ReplicaKey(TopicId(one.topic_id), one.partition) for one in request.missing),
    )


def alter_replicas_from_wire(
    request_id: int, request: admin_pb2.AlterReplicasRequest
) -> m.AlterReplicas:
    """The event for an AlterReplicas call."""
    return m.AlterReplicas(
        request_id=request_id,
        cluster_id=request.cluster_id,
        changes=tuple(_change_from_wire(change) for change in request.changes),
        why=_REASONS.get(request.reason, MoveReason.MANUAL),
        change_factor=request.change_factor,
        validate_only=request.validate_only,
    )


def _change_from_wire(change: admin_pb2.ReplicaChange) -> m.ReplicaChange:
    return m.ReplicaChange(
        topic=change.topic,
        topic_id=TopicId(change.topic_id) if change.topic_id else None,
        partition=change.partition,
        expected=tuple(BrokerId(broker_id) for broker_id in change.expected),
        target=tuple(BrokerId(broker_id) for broker_id in change.target),
        cancel=change.cancel,
    )


def replica_outcome_to_wire(outcome: m.ReplicaOutcome) -> admin_pb2.ReplicaChangeResult:
    """One result."""
    return admin_pb2.ReplicaChangeResult(
        topic=outcome.change.topic,
        partition=outcome.change.partition,
        error=None if outcome.error is None else error_to_wire(outcome.error),
        state=_STATES[outcome.state] if outcome.replicas else admin_pb2.MOVE_STATE_UNSPECIFIED,
        replicas=outcome.replicas,
        target=outcome.target,
    )


def describe_moves(
    machine: ControllerMachine, request: admin_pb2.DescribeMovesRequest
) -> admin_pb2.DescribeMovesResponse:
    """The answer to DescribeMoves."""
    cluster = machine.stored.cluster
    return admin_pb2.DescribeMovesResponse(
        moves=[_move_to_wire(view) for view in machine.moves(request.topics)],
        brokers=[
            _placement_to_wire(broker, cluster.cordons.get(broker_id), machine.sessions)
            for broker_id, broker in sorted(cluster.brokers.items())
        ],
        format=cluster.format,
        newest_format=FORMAT_NEWEST,
        paused=machine.journaling,
        copy_rate=cluster.copy_rate,
        copy_rate_by=cluster.copy_rate_by,
        controller_epoch=cluster.controller_epoch,
        metadata_version=machine.stored.metadata_version,
    )


def _move_to_wire(view: MoveView) -> admin_pb2.PartitionMove:
    document, state = view.document, view.document.state
    return admin_pb2.PartitionMove(
        topic=view.topic,
        topic_id=view.topic_id,
        partition=view.partition,
        state=_STATES[view.state],
        reason=admin_pb2.MOVE_REASON_UNSPECIFIED
        if document.why is None
        else _REASONS_TO_WIRE[document.why],
        leader=state.leader,
        replicas=state.replicas,
        isr=state.isr,
        target=document.target,
        adding=state.adding,
        dropping=state.dropping,
        damaged=state.damaged,
        waiting_for=view.waiting_for,
        copies=[
            admin_pb2.Copy(
                broker_id=copy.broker_id,
                bytes_left=copy.bytes_left,
                bytes_per_second=copy.bytes_per_second,
                limited_by=copy.limited_by,
                known_for_ms=copy.known_for_ms,
                stalled_for_ms=copy.stalled_for_ms,
            )
            for copy in view.copies
        ],
    )


def _placement_to_wire(
    broker: BrokerRegistration, cordon: Cordon | None, sessions: Sessions
) -> admin_pb2.BrokerPlacement:
    session = sessions.get(broker.broker_id)
    return admin_pb2.BrokerPlacement(
        broker_id=broker.broker_id,
        directory_id=broker.directory_id,
        rack=broker.rack,
        alive=broker.alive,
        fresh=broker.fresh,
        cordon=None
        if cordon is None
        else admin_pb2.Cordon(
            placement=cordon.placement,
            leadership=cordon.leadership,
            why=cordon.why,
            by=cordon.by,
        ),
        software_version="" if session is None else session.software_version,
        formats=() if session is None else session.formats,
    )


def alter_brokers_from_wire(
    request_id: int, request: admin_pb2.AlterBrokersRequest
) -> m.AlterBrokers:
    """The event for an AlterBrokers call."""
    return m.AlterBrokers(
        request_id=request_id,
        cluster_id=request.cluster_id,
        changes=tuple(
            m.BrokerChange(
                broker_id=BrokerId(change.broker_id),
                directory_id=change.directory_id,
                placement=change.cordon.placement,
                leadership=change.cordon.leadership,
                why=change.cordon.why,
                by=change.cordon.by,
                spread=change.spread,
            )
            for change in request.changes
        ),
        validate_only=request.validate_only,
    )


def alter_throttle_from_wire(
    request_id: int, request: admin_pb2.AlterThrottleRequest
) -> m.AlterThrottle:
    """The event for an AlterThrottle call."""
    return m.AlterThrottle(
        request_id=request_id,
        cluster_id=request.cluster_id,
        copy_rate=request.copy_rate if request.HasField("copy_rate") else None,
        by=request.by,
        validate_only=request.validate_only,
    )


def alter_cluster_from_wire(
    request_id: int, request: admin_pb2.AlterClusterRequest
) -> m.AlterCluster:
    """The event for an AlterCluster call."""
    return m.AlterCluster(
        request_id=request_id,
        cluster_id=request.cluster_id,
        hibernating=request.hibernating,
        validate_only=request.validate_only,
    )
