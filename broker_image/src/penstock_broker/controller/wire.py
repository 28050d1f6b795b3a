"""Converts the machine's types to protocol messages and back. No decisions, no I/O."""

from collections.abc import Sequence

from penstock.core.authorization import Kind, Resource
from penstock.core.control import contract as c
from penstock.core.control.documents import BrokerRegistration, ClusterAccess, OperatorLease
from penstock.core.control.operator_contract import AcquireOperatorEpoch
from penstock.core.control.views import Image, TopicImage
from penstock.core.types import (
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    PartitionState,
    TopicId,
    TopicPartition,
)
from penstock.errors import PenstockError
from penstock.proto.v1 import admin_pb2, broker_pb2, controller_pb2, errors_pb2
from penstock.rpc.access import (
    access_to_wire,
    resource_from_wire,
    rules_from_wire,
    rules_to_wire,
)
from penstock.rpc.errors import error_to_wire
from penstock.rpc.quotas import quotas_from_wire, quotas_to_wire


def image_to_wire(image: Image) -> controller_pb2.ClusterImage:
    """The message for one image."""
    return controller_pb2.ClusterImage(
        controller_epoch=image.controller_epoch,
        metadata_version=image.metadata_version,
        full=image.full,
        brokers=[broker_to_wire(broker) for broker in image.brokers],
        topics=[_topic_to_wire(topic) for topic in image.topics],
        deleted_topic_ids=image.deleted_topic_ids,
        access=None if image.access is None else _access_to_wire(image.access),
        quotas=None
        if image.quotas is None
        else controller_pb2.QuotasImage(rules=quotas_to_wire(image.quotas.rules)),
        copy_rate=image.copy_rate,
        hibernating=image.hibernating,
        topic_access=[
            access_to_wire(Resource(Kind.TOPIC, topic.name), topic.access)
            for topic in image.topics
            if topic.access
        ],
    )


def _access_to_wire(access: ClusterAccess) -> controller_pb2.AccessImage:
    return controller_pb2.AccessImage(
        cluster=rules_to_wire(access.rules),
        groups=[
            access_to_wire(Resource(Kind.GROUP, name), own) for name, own in access.groups.items()
        ],
    )


def broker_to_wire(broker: BrokerRegistration) -> broker_pb2.BrokerInfo:
    """A broker as it appears in images and DescribeCluster."""
    return broker_pb2.BrokerInfo(
        broker_id=broker.broker_id,
        host=broker.host,
        port=broker.port,
        rack=broker.rack,
        alive=broker.alive,
        incarnation=broker.incarnation,
        external_host=broker.external_host,
        external_port=broker.external_port,
        replication_port=broker.replication_port,
        stream_port=broker.stream_port,
        internal_port=broker.internal_port,
        certificate_port=broker.certificate_port,
        external_certificate_port=broker.external_certificate_port,
        secure_port=broker.secure_port,
        secure_internal_port=broker.secure_internal_port,
        features=broker.features,
    )


def _topic_to_wire(topic: TopicImage) -> broker_pb2.TopicInfo:
    return broker_pb2.TopicInfo(
        topic=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            _partition_to_wire(index, state) for index, state in enumerate(topic.partitions)
        ],
        configs=topic.configs,
        inherited_configs=sorted(topic.inherited),
        internal=topic.internal,
    )


def _partition_to_wire(partition: int, state: PartitionState) -> broker_pb2.PartitionInfo:
    return broker_pb2.PartitionInfo(
        partition=partition,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        replicas=state.replicas,
        isr=state.isr,
        version=state.version,
        adding=state.adding,
        dropping=state.dropping,
        damaged=state.damaged,
    )


# ---------------------------------------------------------------- sessions


def registration_from_wire(stream_id: int, message: controller_pb2.Register) -> c.BrokerRegistered:
    """The event for a Register."""
    return c.BrokerRegistered(
        stream_id=stream_id,
        cluster_id=message.cluster_id,
        broker_id=BrokerId(message.broker_id),
        incarnation=message.incarnation,
        host=message.host,
        port=message.port,
        rack=message.rack,
        directory_id=message.directory_id,
        data_intact=message.data_intact,
        seen_controller_epoch=ControllerEpoch(message.controller_epoch),
        seen_metadata_version=message.metadata_version,
        external_host=message.external_host,
        external_port=message.external_port,
        replication_port=message.replication_port,
        stream_port=message.stream_port,
        internal_port=message.internal_port,
        certificate_port=message.certificate_port,
        external_certificate_port=message.external_certificate_port,
        secure_port=message.secure_port,
        secure_internal_port=message.secure_internal_port,
        features=tuple(message.features),
        promised_controller_epoch=ControllerEpoch(message.promised_controller_epoch),
        software_version=message.software_version,
        formats=tuple(message.formats) or (1,),
        opening=message.opening,
        generations=tuple(message.generations),
    )


def heartbeat_from_wire(stream_id: int, message: controller_pb2.Heartbeat) -> c.HeartbeatReceived:
    """The event for a Heartbeat."""
    return c.HeartbeatReceived(
        stream_id=stream_id,
        metadata_version=message.metadata_version,
        wants_stop=message.wants_stop,
        disk_full=message.disk_full,
        opened=message.opened,
        copies=tuple(
            c.CopyProgress(
                topic_id=TopicId(copy.topic_id),
                partition=copy.partition,
                broker_id=BrokerId(copy.broker_id),
                bytes_left=copy.bytes_left,
                bytes_per_second=copy.bytes_per_second,
                limited_by=copy.limited_by,
            )
            for copy in message.copies
        ),
        no_space_for_copies=message.no_space_for_copies,
        generation=message.generation,
    )


def session_message_to_wire(
    message: c.SessionMessage, wall_ms: int
) -> controller_pb2.SessionResponse:
    """The message for the stream, at `wall_ms` (since 1970)."""
    match message:
        case c.SessionAccepted():
            return controller_pb2.SessionResponse(
                registered=controller_pb2.Registered(
                    cluster_id=message.cluster_id,
                    controller_epoch=message.controller_epoch,
                    broker_session=message.broker_session,
                    heartbeat_interval_ms=message.heartbeat_interval_ms,
                    session_timeout_ms=message.session_timeout_ms,
                    wall_ms=wall_ms,
                )
            )
        case c.SessionRefused():
            return controller_pb2.SessionResponse(error=error_to_wire(message.error))
        case c.HeartbeatAnswered():
            ack = controller_pb2.HeartbeatAck(may_stop=message.may_stop, wall_ms=wall_ms)
            return controller_pb2.SessionResponse(heartbeat_ack=ack)


# ---------------------------------------------------------------- ISR


def alter_isr_from_wire(request_id: int, request: controller_pb2.AlterIsrRequest) -> c.AlterIsr:
    """The event for an AlterIsr call."""
    return c.AlterIsr(
        request_id=request_id,
        cluster_id=request.cluster_id,
        broker_id=BrokerId(request.broker_id),
        broker_session=request.broker_session,
        controller_epoch=ControllerEpoch(request.controller_epoch),
        changes=tuple(
            c.IsrChange(
                topic_id=TopicId(change.topic_id),
                partition=change.partition,
                leader_epoch=LeaderEpoch(change.leader_epoch),
                version=change.version,
                isr=tuple(BrokerId(broker_id) for broker_id in change.isr),
            )
            for change in request.changes
        ),
    )


def isr_outcome_to_wire(outcome: c.IsrOutcome) -> controller_pb2.IsrChangeResult:
    """One result; the partition is absent only if it is unknown."""
    change, state = outcome.change, outcome.state
    return controller_pb2.IsrChangeResult(
        topic_id=change.topic_id,
        error=_error(outcome.error),
        partition=None if state is None else _partition_to_wire(change.partition, state),
    )


# ---------------------------------------------------------------- admin


def new_topic_from_wire(topic: admin_pb2.NewTopic, topic_id: TopicId) -> c.NewTopic:
    """`topic_id` is its id if it is created."""
    return c.NewTopic(
        name=topic.topic,
        topic_id=topic_id,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=dict(topic.configs),
        assignment=tuple(
            tuple(BrokerId(broker_id) for broker_id in replicas.broker_ids)
            for replicas in topic.assignment
        ),
    )


def topic_results(
    outcomes: Sequence[c.TopicOutcome], *, with_id_on_error: bool
) -> list[admin_pb2.TopicResult]:
    """One result per topic. A topic that was not created has no id to return."""
    return [
        admin_pb2.TopicResult(
            topic=outcome.topic,
            topic_id=outcome.topic_id if with_id_on_error or outcome.error is None else "",
            error=_error(outcome.error),
        )
        for outcome in outcomes
    ]


def elect_leaders_from_wire(
    request_id: int, request: admin_pb2.ElectLeadersRequest
) -> c.ElectLeaders:
    """The event for an ElectLeaders call."""
    return c.ElectLeaders(
        request_id,
        request.cluster_id,
        tuple(TopicPartition(name.topic, name.partition) for name in request.partitions),
        BrokerId(request.away_from_broker) if request.away else None,
    )


def alter_access_from_wire(request_id: int, request: admin_pb2.AlterAccessRequest) -> c.AlterAccess:
    """The event for an AlterAccess call. Raises ClusterError(INVALID_REQUEST)."""
    return c.AlterAccess(
        request_id=request_id,
        cluster_id=request.cluster_id,
        resource=resource_from_wire(request.resource),
        rules=rules_from_wire(request.rules),
        validate_only=request.validate_only,
        expected=(
            rules_from_wire(request.expected.rules) if request.HasField("expected") else None
        ),
    )


def alter_quotas_from_wire(request_id: int, request: admin_pb2.AlterQuotasRequest) -> c.AlterQuotas:
    """The event for an AlterQuotas call."""
    return c.AlterQuotas(
        request_id=request_id,
        cluster_id=request.cluster_id,
        rules=quotas_from_wire(request.rules),
        validate_only=request.validate_only,
        expected=(
            quotas_from_wire(request.expected.rules) if request.HasField("expected") else None
        ),
    )


def _error(error: PenstockError | None) -> errors_pb2.Error | None:
    return None if error is None else error_to_wire(error)


def acquire_from_wire(
    request_id: int, request: admin_pb2.AcquireOperatorEpochRequest
) -> AcquireOperatorEpoch:
    """The event."""
    lease = OperatorLease(
        uid=request.lease_uid,
        created_s=request.lease_created_s,
        transitions=request.lease_transitions,
        holder=request.lease_holder,
    )
    return AcquireOperatorEpoch(request_id, request.cluster_id, lease)
