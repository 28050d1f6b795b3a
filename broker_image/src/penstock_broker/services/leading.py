"""The leader's side of streams between brokers, whatever carries them.

    hello ─▶ FollowerStream registered ─▶ queries, starts, acks ─▶ machines
                                       ◀─ answers, batches (feeding) ─

`lead` serves a message stream (`penstock.rpc.streams`); `Replicate` is the same over gRPC, for
followers of older releases. A follower has one stream; a new one replaces the old one, because the
follower knows best whether the old one is alive. When a stream ends, the machines are told that the
follower is lost.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

from penstock.core.replication.contract import Event
from penstock.core.replication.contract_leader import (
    EpochQueried,
    Feed,
    FollowerAcked,
    FollowStarted,
)
from penstock.core.types import BrokerId, LeaderEpoch, Offset, ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import replication_pb2 as pb
from penstock.proto.v1.replication_pb2_grpc import ReplicationServiceServicer
from penstock.rpc.streams.calls import ServedCall
from penstock.rpc.streams.contract import MessageStream
from penstock.rpc.streams.frames import Received
from penstock.rpc.streams.parsing import introduction, parsed
from penstock_broker.metadata.image import ClusterView
from penstock_broker.observability import EventLog
from penstock_broker.replication.copies import CopyThrottle
from penstock_broker.replication.digests import led_digest
from penstock_broker.replication.exact import stored_exactly
from penstock_broker.replication.feeding import FollowerStream
from penstock_broker.replication.reads import LogReader
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.serving.edge import check_cluster_id
from penstock_broker.serving.servers import require_broker

HELLO_TIMEOUT_S: Final = 5.0
_events = EventLog("leading")


class Leading(ReplicationServiceServicer):
    """Serves the followers of partitions led here."""

    def __init__(
        self,
        replicas: ReplicaSet,
        reader: LogReader,
        throttle: CopyThrottle,
        on_sent: Callable[[int], None],
        view: ClusterView,
        *,
        message_bytes: int,
    ) -> None:
        """`on_sent` gets the number of bytes of batches sent."""
        self._view = view
        self._replicas = replicas
        self._reader = reader
        self._throttle = throttle
        self._on_sent = on_sent
        self._message_bytes = message_bytes

    async def Replicate(  # type: ignore[override]  # noqa: N802 - the service's name for it
        self, request_iterator: AsyncIterator[pb.FollowerMessage], context: Any
    ) -> None:
        """As `lead`, for followers that know no other way."""
        await self.lead(ServedCall(request_iterator, context))

    async def ReadExact(  # noqa: N802 - the service's name for it
        self,
        request: pb.ReadExactRequest,
        context: Any,  # noqa: ARG002 - gRPC's
    ) -> pb.ReadExactResponse:
        """For another broker whose own copy of a batch is damaged: see `exact`."""
        require_broker(request.broker_id, "read a batch")
        stored = await stored_exactly(self._replicas, self._reader, request)
        return pb.ReadExactResponse(batch=stored)

    async def ReadDigest(  # noqa: N802 - the service's name for it
        self,
        request: pb.ReadDigestRequest,
        context: Any,  # noqa: ARG002 - gRPC's
    ) -> pb.ReadDigestResponse:
        """For a follower that compares its log with this one: see `digests`."""
        require_broker(request.broker_id, "compare a log")
        return await led_digest(self._replicas, self._reader, request)

    async def lead(self, stream: MessageStream) -> None:
        """Serves one follower's stream, until either side ends it. Raises PenstockError."""
        hello = await self._hello(stream)
        if hello is None:
            return
        feeding = FollowerStream(
            hello, self._message_bytes, self._reader, self._throttle, self._on_sent
        )
        self._replace(feeding)
        try:
            async with asyncio.TaskGroup() as tasks:
                halves = (self._write(feeding, stream), feeding.read_ahead())
                running = [tasks.create_task(half) for half in halves]
                await stream.deliver(lambda message: self._take(feeding, message))
                for task in running:
                    task.cancel()
        finally:
            self._end(feeding)

    async def _hello(self, stream: MessageStream) -> pb.FollowerHello | None:
        """A follower's checked introduction; None if it left at once. Raises ClusterError."""
        message = await introduction(pb.FollowerMessage, stream, "a follower", HELLO_TIMEOUT_S)
        if message is None:
            return None
        if not message.HasField("hello"):
            raise ClusterError(
                "the first message of a Replicate stream must be a hello",
                ErrorCode.INVALID_REQUEST,
            )
        check_cluster_id(message.hello.cluster_id, self._view.cluster_id)
        require_broker(message.hello.broker_id, "follow")
        self._check_run(message.hello)
        return message.hello

    def _check_run(self, hello: pb.FollowerHello) -> None:
        """Accepts only a follower's current run; raises ClusterError(STALE_BROKER_SESSION).

        Data that an earlier run acknowledged may be lost: its acknowledgements must not count for
        the current run, nor for a run that the controller has not announced here yet (decision 7).
        Either is refused and tries again: a run that is over cannot do so for long; a new one
        succeeds once the image here names it.
        """
        info = self._view.brokers.get(BrokerId(hello.broker_id))
        known = None if info is None else info.incarnation
        if hello.incarnation != known:
            raise ClusterError(
                f"broker {hello.broker_id} reports incarnation {hello.incarnation!r}, but "
                f"metadata version {self._view.metadata_version} has {known!r}: try again when "
                "the new one is known",
                ErrorCode.STALE_BROKER_SESSION,
            )

    def _replace(self, stream: FollowerStream) -> None:
        """Registers a stream; ends the follower's older one."""
        old = self._replicas.followers.get(stream.follower)
        if isinstance(old, FollowerStream):
            self._end(old)
        self._replicas.followers[stream.follower] = stream
        _events.info("follower connected", follower=stream.follower, incarnation=stream.incarnation)

    def _end(self, stream: FollowerStream) -> None:
        if stream.closed:
            return
        stream.close()
        del self._replicas.followers[stream.follower]
        _events.info("follower gone", follower=stream.follower, partitions=len(stream.replicas))
        for replica in stream.replicas:
            replica.feeders.pop(stream.follower, None)
        self._replicas.peer_lost(stream.follower, stream.replicas)

    def restarted(self, follower: BrokerId, incarnation: str) -> None:
        """The controller names this as the follower's current run: an older run's stream ends."""
        stream = self._replicas.followers.get(follower)
        if isinstance(stream, FollowerStream) and stream.incarnation == incarnation:
            return
        if isinstance(stream, FollowerStream):
            self._end(stream)
        self._replicas.peer_restarted(follower)

    @staticmethod
    async def _write(feeding: FollowerStream, stream: MessageStream) -> None:
        while not feeding.closed:
            for message in await feeding.next_messages():
                await stream.send(message)
        raise ClusterError(
            "a newer stream of this follower replaced this one", ErrorCode.SHUTTING_DOWN
        )

    def _take(self, stream: FollowerStream, received: Received) -> None:
        if stream.closed:
            return
        message = parsed(pb.FollowerMessage, received, "a follower")
        follower = stream.follower
        for stop in message.stops:
            self._stop(stream, ReplicaKey(TopicId(stop.topic_id), stop.partition))
        self._each(
            stream,
            (
                (query, EpochQueried(follower, _epoch(query), LeaderEpoch(query.last_epoch)))
                for query in message.epoch_queries
            ),
        )
        self._each(stream, ((start, _started(follower, start)) for start in message.starts))
        if message.copy_credit:
            stream.credited(message.copy_credit)
        for ack in message.acks:
            key = ReplicaKey(TopicId(ack.topic_id), ack.partition)
            replica = self._replicas.by_key.get(key)
            if replica is not None:
                written = Offset(ack.written_end)
                stream.acked(key, _epoch(ack), written)
                self._replicas.handle(
                    replica, FollowerAcked(follower, _epoch(ack), written, Offset(ack.synced_end))
                )

    def _each(
        self,
        stream: FollowerStream,
        events: Iterable[tuple[pb.EpochQuery | pb.FollowStart, Event]],
    ) -> None:
        for named, event in events:
            key = ReplicaKey(TopicId(named.topic_id), named.partition)
            replica = self._replicas.by_key.get(key)
            if replica is None:
                stream.refuse(
                    key,
                    ClusterError(
                        f"broker {self._replicas.broker_id} has no replica of {key} (yet)",
                        ErrorCode.UNKNOWN_PARTITION,
                    ),
                )
            else:
                self._replicas.handle(replica, event)

    def _stop(self, stream: FollowerStream, key: ReplicaKey) -> None:
        replica = self._replicas.by_key.get(key)
        if replica is not None:
            replica.feeders.pop(stream.follower, None)
            stream.feed(replica, Feed(stream.follower, LeaderEpoch(0), None))


def _started(follower: BrokerId, start: pb.FollowStart) -> FollowStarted:
    return FollowStarted(follower, _epoch(start), Offset(start.from_offset), start.version)


def _epoch(message: pb.EpochQuery | pb.FollowStart | pb.FollowerAck) -> LeaderEpoch:
    return LeaderEpoch(message.leader_epoch)
