"""Protocol messages to the client's own types: the one place that reads Metadata answers."""

from typing import Final

from penstock.client.cluster.view import MetadataSnapshot
from penstock.client.config import ClientConfig, ConsumerConfig, IsolationLevel
from penstock.client.model import (
    BrokerDescription,
    BrokerQuiescence,
    LogDescription,
    OffsetSpan,
    OrphanedLog,
    PartitionDescription,
    PartitionLog,
    PlaintextCaller,
    PlaintextCallers,
    TopicDescription,
)
from penstock.proto.v1 import admin_pb2
from penstock.proto.v1 import broker_pb2 as pb

ISOLATION_TO_WIRE: Final[dict[IsolationLevel, pb.IsolationLevel.ValueType]] = {
    "read_committed": pb.ISOLATION_LEVEL_READ_COMMITTED,
    "read_uncommitted": pb.ISOLATION_LEVEL_READ_UNCOMMITTED,
}


def isolation_to_wire(config: ClientConfig) -> pb.IsolationLevel.ValueType:
    """What a consumer reads; without a setting, committed records."""
    if isinstance(config, ConsumerConfig):
        return ISOLATION_TO_WIRE[config.isolation_level]
    return pb.ISOLATION_LEVEL_READ_COMMITTED


def view_from_wire(answer: pb.MetadataResponse) -> MetadataSnapshot:
    """The view in one Metadata answer; topics with an error are left out."""
    brokers = [broker_from_wire(info) for info in answer.brokers]
    return MetadataSnapshot(
        cluster_id=answer.cluster_id,
        controller_epoch=answer.controller_epoch,
        metadata_version=answer.metadata_version,
        brokers={broker.broker_id: broker for broker in brokers},
        topics={
            info.topic: topic_from_wire(info)
            for info in answer.topics
            if not info.HasField("error")
        },
    )


def broker_from_wire(info: pb.BrokerInfo) -> BrokerDescription:
    return BrokerDescription(
        info.broker_id, info.host, info.port, info.rack, info.alive, info.stream_port
    )


def topic_from_wire(info: pb.TopicInfo) -> TopicDescription:
    """Partitions come in order of their index, whatever order they were sent in."""
    partitions = (
        PartitionDescription(
            partition=entry.partition,
            leader=entry.leader,
            leader_epoch=entry.leader_epoch,
            replicas=tuple(entry.replicas),
            isr=tuple(entry.isr),
            version=entry.version,
        )
        for entry in info.partitions
    )
    return TopicDescription(
        topic=info.topic,
        topic_id=info.topic_id,
        partitions=tuple(sorted(partitions, key=lambda entry: entry.partition)),
        configs=dict(info.configs),
        internal=info.internal,
        inherited=frozenset(info.inherited_configs),
    )


def plaintext_from_wire(
    broker_id: int, answer: admin_pb2.DescribeClusterResponse
) -> PlaintextCallers | None:
    """None: the broker has not plaintext beside TLS."""
    if not answer.HasField("plaintext"):
        return None
    told = answer.plaintext
    callers = tuple(PlaintextCaller(one.host, one.open, one.idle_ms) for one in told.callers)
    return PlaintextCallers(broker_id, told.watched_ms, callers)


def quiescence_from_wire(answer: admin_pb2.DescribeQuiescenceResponse) -> BrokerQuiescence:
    """The answer of one broker."""
    return BrokerQuiescence(
        broker_id=answer.broker_id,
        quiet=answer.quiet,
        waiting_for=tuple(answer.waiting_for),
        log_ends=answer.log_ends,
        metadata_version=answer.metadata_version,
    )


def logs_from_wire(answer: admin_pb2.DescribeLogsResponse) -> LogDescription:
    """The logs of one broker."""
    return LogDescription(
        broker_id=answer.broker_id,
        disk_free_bytes=answer.disk_free_bytes,
        disk_total_bytes=answer.disk_total_bytes,
        disk_reserve_bytes=answer.disk_reserve_bytes,
        copy_rate=answer.copy_rate if answer.HasField("copy_rate") else None,
        logs=tuple(
            PartitionLog(
                topic=log.topic,
                topic_id=log.topic_id,
                partition=log.partition,
                is_leader=log.is_leader,
                leader_epoch=log.leader_epoch,
                log_start_offset=log.log_start_offset,
                high_watermark=log.high_watermark,
                log_end_offset=log.log_end_offset,
                size_bytes=log.bytes,
                lost=tuple(OffsetSpan(one.first, one.last) for one in log.lost),
                mending=log.mending,
                differs=log.differs,
            )
            for log in answer.logs
        ),
        orphans=tuple(
            OrphanedLog(log.topic_id, log.partition, log.bytes) for log in answer.orphans
        ),
    )
