"""Digests of this broker's logs, and of logs at their leaders.

    scrub ─▶ digest_of(own log) ───────────────────────────────────────▶ compared
       └───▶ Leaders.digest ─▶ ReadDigest ─▶ `led_digest` ─▶ digest_of ─────┘

Both sides read headers from the index, some hundreds at a time, and none of them opens a batch. A
broker says why a part of a log cannot be compared: it is normal, and soon over. The rules are in
`core.replication.digests`.
"""

from typing import Any, Final, Protocol

from penstock.core.replication.digests import RANGE_OFFSETS, Digesting, LogDigest, OffsetRange
from penstock.core.types import BrokerId, LeaderEpoch, Offset, ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import replication_pb2 as pb
from penstock.proto.v1.replication_pb2_grpc import ReplicationServiceStub
from penstock.rpc.transport import Transport
from penstock_broker.metadata.image import ClusterView
from penstock_broker.metadata.peers import PeerChannels
from penstock_broker.replication.reads import LogReader
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet

_CALL_TIMEOUT_S: Final = 20.0


class Leaders(Protocol):
    """Other brokers, which lead partitions that have a replica here."""

    async def digest(
        self, leader: BrokerId, epoch: LeaderEpoch, key: ReplicaKey, within: OffsetRange
    ) -> LogDigest | None:
        """Of the log of who leads in this epoch; None: it cannot be compared now.

        Raises ClusterError if the broker cannot be reached, or is of an older release.
        """
        ...

    async def close(self) -> None:
        """Ends all connections."""
        ...


class RemoteLeaders:
    """`Leaders` over gRPC. Call `close` at the end."""

    def __init__(self, broker_id: BrokerId, view: ClusterView, transport: Transport) -> None:
        self._broker_id = broker_id
        self._view = view
        self._channels = PeerChannels(view, transport)

    async def digest(
        self, leader: BrokerId, epoch: LeaderEpoch, key: ReplicaKey, within: OffsetRange
    ) -> LogDigest | None:
        """See `Leaders`."""
        request = pb.ReadDigestRequest(
            cluster_id=self._view.cluster_id,
            broker_id=self._broker_id,
            topic_id=key.topic_id,
            partition=key.partition,
            leader_epoch=epoch,
            start_offset=within.start,
            end_offset=within.end,
        )
        async with self._channels.to(leader) as channel:
            stub: Any = ReplicationServiceStub(channel)
            answer = await stub.ReadDigest(request, timeout=_CALL_TIMEOUT_S)
        if not answer.HasField("digest"):
            return None
        return LogDigest(answer.digest.batches, answer.digest.crc)

    async def close(self) -> None:
        """Ends all connections."""
        await self._channels.close()


async def digest_of(reader: LogReader, replica: Replica, within: OffsetRange) -> LogDigest | str:
    """Of a log that is here; or why this part of it cannot be compared. Raises ClusterError."""
    digesting, offset, truncations = Digesting(within), within.start, replica.truncations
    while not (why := _why_not(replica, within, truncations)) and offset < within.end:
        headers = await reader.stored_headers(replica, offset, within.end)
        digesting.take(headers)
        offset = headers[-1].next_offset if headers else within.end
    return (
        why or digesting.result or "compaction has rewritten batches of it, or a loss is accepted"
    )


def _why_not(replica: Replica, within: OffsetRange, truncations: int) -> str:
    """Asked before and after each look at the disk."""
    marks = replica.marks
    if replica.config.cleanup_policy.compacts:
        return "each replica compacts it for itself"
    if within.start < marks.log_start_offset:
        return f"the log starts at offset {marks.log_start_offset}"
    if within.end > marks.high_watermark:
        return f"the high watermark is {marks.high_watermark}"
    return "the log was truncated meanwhile" if replica.truncations != truncations else ""


async def led_digest(
    replicas: ReplicaSet, reader: LogReader, request: pb.ReadDigestRequest
) -> pb.ReadDigestResponse:
    """What `ReadDigest` returns. Raises ClusterError: the request is wrong, the log damaged."""
    within = OffsetRange(Offset(request.start_offset), Offset(request.end_offset))
    if not 0 <= within.start < within.end <= within.start + RANGE_OFFSETS:
        raise ClusterError(
            f"offsets [{within.start}, {within.end}) are asked for; it must be 1 to "
            f"{RANGE_OFFSETS} of them",
            ErrorCode.INVALID_REQUEST,
        )
    replica = replicas.by_key.get(ReplicaKey(TopicId(request.topic_id), request.partition))
    if replica is None or not _leads(replicas, replica, request.leader_epoch):
        return _not_leading(replicas, request)
    found = await digest_of(reader, replica, within)
    if not _leads(replicas, replica, request.leader_epoch):
        return _not_leading(replicas, request)
    if isinstance(found, str):
        return pb.ReadDigestResponse(not_comparable=found)
    return pb.ReadDigestResponse(digest=pb.LogDigest(batches=found.batches, crc=found.crc))


def _leads(replicas: ReplicaSet, replica: Replica, epoch: int) -> bool:
    marks = replica.marks
    here = replicas.by_key.get(replica.key) is replica
    return here and marks.is_leader and marks.leader_epoch == epoch


def _not_leading(replicas: ReplicaSet, request: pb.ReadDigestRequest) -> pb.ReadDigestResponse:
    why = f"broker {replicas.broker_id} does not lead it in epoch {request.leader_epoch}"
    return pb.ReadDigestResponse(not_comparable=why)
