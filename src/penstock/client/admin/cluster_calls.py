"""The admin's calls about brokers, and about the data that partitions' leaders hold."""

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.client.admin.asking import Asking, checked
from penstock.client.cluster import leaders
from penstock.client.cluster.connections import Connection
from penstock.client.cluster.leaders import Answers, ask_leaders, known_partition
from penstock.client.cluster.wire import (
    broker_from_wire,
    logs_from_wire,
    plaintext_from_wire,
    quiescence_from_wire,
)
from penstock.client.model import (
    BrokerQuiescence,
    ClusterDescription,
    ListedOffset,
    LogDescription,
    OffsetSpec,
    OrphanedLog,
    OrphanOutcome,
    PlaintextCallers,
)
from penstock.core.types import TopicPartition
from penstock.errors import PenstockError
from penstock.proto.v1 import admin_pb2 as pb
from penstock.proto.v1 import broker_pb2
from penstock.rpc.errors import error_from_wire

_ORPHANS_PER_CALL: Final = 1_000
"""A broker drops as many well within the time for one answer."""


async def describe_cluster(asking: Asking) -> ClusterDescription:
    """See `AsyncAdmin.describe_cluster`."""
    answer = await asking.ask(
        lambda connection, timeout_s: connection.call(
            connection.admin.DescribeCluster, pb.DescribeClusterRequest(), timeout_s
        )
    )
    return ClusterDescription(
        cluster_id=answer.cluster_id,
        controller_epoch=answer.controller_epoch,
        metadata_version=answer.metadata_version,
        controller_reachable=answer.controller_reachable,
        brokers=tuple(broker_from_wire(info) for info in answer.brokers),
        topics=answer.topics,
        partitions=answer.partitions,
        offline_partitions=answer.offline_partitions,
        under_replicated_partitions=answer.under_replicated_partitions,
        under_min_isr_partitions=answer.under_min_isr_partitions,
        hibernating=answer.hibernating,
    )


async def list_offsets(
    asking: Asking, offsets: Mapping[TopicPartition, OffsetSpec | int]
) -> dict[TopicPartition, ListedOffset]:
    """See `AsyncAdmin.list_offsets`."""
    asking.guard.check()
    return await leaders.list_offsets(asking.cluster, offsets, asking.timeout_s)


async def delete_records(
    asking: Asking, before_offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """See `AsyncAdmin.delete_records`."""
    cluster_id = await asking.cluster_id()

    async def call(
        connection: Connection, part: Mapping[TopicPartition, int], timeout_s: float
    ) -> Answers[int]:
        answers: dict[TopicPartition, int | PenstockError] = {}
        for where, before_offset in part.items():
            request = pb.DeleteRecordsRequest(
                cluster_id=cluster_id,
                topic=where.topic,
                partition=where.partition,
                before_offset=before_offset,
            )
            answer = await connection.call(connection.admin.DeleteRecords, request, timeout_s)
            answers[where] = (
                error_from_wire(answer.error)
                if answer.HasField("error")
                else answer.log_start_offset
            )
        return answers

    return await ask_leaders(asking.cluster, before_offsets, call, asking.timeout_s)


async def elect_leaders(
    asking: Asking,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    away_from_broker: int | None = None,
) -> int:
    """See `AsyncAdmin.elect_leaders`."""
    named = list(partitions or ())
    for where in named:
        await known_partition(asking.cluster, where)
    request = pb.ElectLeadersRequest(
        cluster_id=await asking.cluster_id(),
        partitions=[
            broker_pb2.PartitionName(topic=where.topic, partition=where.partition)
            for where in named
        ],
        away_from_broker=-1 if away_from_broker is None else away_from_broker,
        away=away_from_broker is not None,
    )
    answer = await asking.change(lambda connection: connection.admin.ElectLeaders, request)
    return int(answer.moved)


async def unregister_broker(asking: Asking, broker_id: int, directory_id: str) -> None:
    """See `AsyncAdmin.unregister_broker`."""
    request = pb.UnregisterBrokerRequest(
        cluster_id=await asking.cluster_id(), broker_id=broker_id, directory_id=directory_id
    )
    await asking.change(lambda connection: connection.admin.UnregisterBroker, request)


async def plaintext_callers(asking: Asking) -> list[PlaintextCallers]:
    """See `AsyncAdmin.plaintext_callers`."""
    answers: dict[int, pb.DescribeClusterResponse] = await asking.each(
        lambda connection: connection.admin.DescribeCluster,
        pb.DescribeClusterRequest(),
        lambda answer: answer,
    )
    found = [plaintext_from_wire(broker_id, answer) for broker_id, answer in answers.items()]
    return [one for one in found if one is not None]


async def describe_logs(
    asking: Asking, topics: Iterable[str] | None = None, *, broker_ids: Iterable[int] | None = None
) -> list[LogDescription]:
    """See `AsyncAdmin.describe_logs`."""
    await asking.cluster_id()
    request = pb.DescribeLogsRequest(topics=list(topics or ()))
    found = await asking.each(
        lambda connection: connection.admin.DescribeLogs, request, logs_from_wire, broker_ids
    )
    return list(found.values())


async def drop_orphans(
    asking: Asking, broker_id: int, logs: Iterable[OrphanedLog], *, validate_only: bool
) -> list[OrphanOutcome]:
    """See `AsyncAdmin.drop_orphans`."""
    cluster_id, named = await asking.cluster_id(), list(logs)
    connection = (await asking.brokers([broker_id]))[broker_id]
    outcomes: list[OrphanOutcome] = []
    for begin in range(0, len(named), _ORPHANS_PER_CALL):
        request = pb.DropOrphansRequest(
            cluster_id=cluster_id,
            logs=[
                pb.OrphanName(topic_id=log.topic_id, partition=log.partition)
                for log in named[begin : begin + _ORPHANS_PER_CALL]
            ],
            validate_only=validate_only,
        )
        method = connection.admin.DropOrphans
        answer = checked(await connection.call(method, request, asking.timeout_s))
        outcomes += [
            OrphanOutcome(
                one.topic_id,
                one.partition,
                error_from_wire(one.error) if one.HasField("error") else None,
            )
            for one in answer.results
        ]
    return outcomes


async def alter_cluster(asking: Asking, *, hibernating: bool, validate_only: bool) -> None:
    """See `AsyncAdmin.alter_cluster`."""
    request = pb.AlterClusterRequest(
        cluster_id=await asking.cluster_id(), hibernating=hibernating, validate_only=validate_only
    )
    await asking.change(lambda connection: connection.admin.AlterCluster, request)


async def describe_quiescence(asking: Asking) -> list[BrokerQuiescence]:
    """See `AsyncAdmin.describe_quiescence`."""
    request = pb.DescribeQuiescenceRequest(cluster_id=await asking.cluster_id())
    found = await asking.each(
        lambda connection: connection.admin.DescribeQuiescence, request, quiescence_from_wire
    )
    return list(found.values())
