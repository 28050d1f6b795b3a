"""As `wire`, for moves, cordons and formats."""

from typing import Final

from penstock.core.control import move_contract as m
from penstock.core.control.partition import MoveReason
from penstock.core.types import BrokerId, ReplicaKey, TopicId
from penstock.proto.v1 import admin_pb2, controller_pb2
from penstock.rpc.errors import error_to_wire

_REASONS: Final = {
    admin_pb2.MOVE_REASON_REPLACE: MoveReason.REPLACE,
    admin_pb2.MOVE_REASON_DRAIN: MoveReason.DRAIN,
    admin_pb2.MOVE_REASON_FACTOR: MoveReason.FACTOR,
    admin_pb2.MOVE_REASON_SPREAD: MoveReason.SPREAD,
}
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
