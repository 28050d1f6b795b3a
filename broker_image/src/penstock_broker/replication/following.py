"""Follower side of replication: one stream to every broker that leads a replica stored here.

    leaders wanted ─▶ LeaderLink per broker ─▶ connect ─▶ PeerConnected ─▶ queries, starts
                                            ◀─ batches ─ CRC checked ─▶ BatchesReceived
                                            ─▶ acks, the newest per partition

Links come and go with the metadata image. A broken link is rebuilt after a growing delay; the
machines get PeerLost and PeerConnected, and start over from their divergence look-up. A batch with
a wrong CRC never reaches a machine (I22): the link is dropped, and the batch is requested again.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from penstock.core.batch import Batch, compute_crc
from penstock.core.replication.contract_follower import (
    BatchesReceived,
    EpochAnswered,
    PeerRefused,
    SendAck,
    SendEpochQuery,
    SendFollowStart,
    SendFollowStop,
)
from penstock.core.types import BrokerId, LeaderEpoch, Offset, ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode, PenstockError, UnreachableError
from penstock.proto.v1 import records_pb2
from penstock.proto.v1 import replication_pb2 as pb
from penstock.rpc.batches import batch_from_wire
from penstock.rpc.cancelling import heeding_cancellation
from penstock.rpc.errors import error_from_wire
from penstock.rpc.peers import towards
from penstock.rpc.streams.calls import OpenedCall
from penstock.rpc.streams.contract import MessageStream
from penstock.rpc.streams.frames import Received
from penstock.rpc.streams.parsing import parsed
from penstock.rpc.transport import Transport
from penstock_broker.metadata.image import LeaderAddress
from penstock_broker.observability import EventLog
from penstock_broker.replication.copies import CopyLink
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.serving.edge import first_error

_BACKOFF_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
_CONNECT_TIMEOUT_S: Final = 5.0
_GRPC_CALL: Final = "/penstock.proto.v1.ReplicationService/Replicate"
_events = EventLog("following")


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """What a link says in its hello."""

    cluster_id: str
    broker_id: BrokerId
    incarnation: str
    window_bytes: int


class LeaderLink:
    """The stream to one leader broker."""

    def __init__(
        self,
        leader: BrokerId,
        address: LeaderAddress,
        config: LinkConfig,
        replicas: ReplicaSet,
        on_received: Callable[[int], None],
        transport: Transport,
    ) -> None:
        self.leader = leader
        self.address = address
        self._config = config
        self._replicas = replicas
        self._on_received = on_received
        self._transport = transport
        self._outbox = FollowerOutbox()
        self._copy_spent = 0
        self._was_up = False

    # ------------------------------------------------------------ copies.CopyLink

    @property
    def unused_credit(self) -> int:
        """Of what was granted on this stream; below zero: the leader's last copy was larger."""
        return self._outbox.copy_credit - self._copy_spent

    def grant(self, size: int) -> None:
        """Lets the leader copy so many bytes more."""
        self._outbox.grant(size)

    # ------------------------------------------------------------ replica.LeaderOutlet

    def send(
        self, key: ReplicaKey, message: SendEpochQuery | SendFollowStart | SendFollowStop | SendAck
    ) -> None:
        """Queues a message; it is sent with all others of this turn of the loop."""
        self._outbox.put(key, message)

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        """Keeps the stream up until cancelled: also while the group of a broken stream's tasks
        ends, where CPython up to 3.12 loses that."""
        failures = 0
        while True:
            try:
                with heeding_cancellation():
                    await self._stream()
            except (PenstockError, TimeoutError) as error:
                if self._was_up or failures == 0:
                    _events.warning(
                        "leader stream broke",
                        leader=self.leader,
                        address=self.address.used,
                        reason=str(error) or "no connection in time",
                    )
            failures = 0 if self._was_up else failures + 1
            await asyncio.sleep(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])

    def _disconnected(self) -> None:
        if self._replicas.leaders.get(self.leader) is self:
            del self._replicas.leaders[self.leader]
            self._replicas.peer_lost(self.leader)

    async def _stream(self) -> None:
        self._outbox = FollowerOutbox()
        self._copy_spent = 0
        self._was_up = False
        stream: MessageStream | None = None
        failure: PenstockError | None = None
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                stream = await self._connect()
                await stream.send(self._hello())
            self._was_up = True
            self._replicas.leaders[self.leader] = self
            _events.info("following", leader=self.leader, address=self.address.used)
            self._replicas.peer_connected(self.leader)
            await self._exchange(stream)
            raise ClusterError("the leader ended the stream", ErrorCode.UNREACHABLE)
        except PenstockError as error:
            failure = error
            raise
        finally:
            self._disconnected()
            if stream is not None:
                await stream.close(failure)

    async def _connect(self) -> MessageStream:
        """Over the leader's own port for this, or over gRPC: see `LeaderAddress`."""
        found = self.address.grpc
        through = towards(self._transport, secured=found.secured)
        if self.address.stream is not None:
            return await through.open_stream(self.address.stream)
        call = OpenedCall(through.open(found.address), _GRPC_CALL)
        try:
            await call.connect()
        except BaseException:
            await call.close()
            raise
        return call

    async def _exchange(self, stream: MessageStream) -> None:
        """Sends and takes messages until the leader ends the stream, or it breaks."""
        try:
            async with asyncio.TaskGroup() as tasks:
                sender = tasks.create_task(self._send(stream))
                await stream.deliver(self._take)
                sender.cancel()
        except ExceptionGroup as group:
            raise first_error(group) from group

    async def _send(self, stream: MessageStream) -> None:
        outbox = self._outbox
        try:
            while True:
                await stream.send((await outbox.take()).SerializeToString())
        except UnreachableError:
            return  # `deliver` knows why the stream is over

    def _hello(self) -> bytes:
        config = self._config
        return pb.FollowerMessage(
            hello=pb.FollowerHello(
                cluster_id=config.cluster_id,
                broker_id=config.broker_id,
                incarnation=config.incarnation,
                window_bytes=config.window_bytes,
            )
        ).SerializeToString()

    # ------------------------------------------------------------ what the leader says

    def _take(self, received: Received) -> None:
        message = parsed(pb.LeaderMessage, received, "the leader")
        for answer in message.epoch_answers:
            replica = self._replica(answer)
            if replica is not None:
                self._replicas.handle(
                    replica,
                    EpochAnswered(
                        leader=self.leader,
                        leader_epoch=LeaderEpoch(answer.leader_epoch),
                        epoch=LeaderEpoch(answer.epoch),
                        end_offset=Offset(answer.end_offset),
                        log_start_offset=Offset(answer.log_start_offset),
                        swept_end=Offset(answer.swept_end),
                    ),
                )
        for append in message.appends:
            self._take_append(append)
        self._copy_spent = max(self._copy_spent, message.copy_spent)
        for refusal in message.errors:
            replica = self._replica(refusal)
            if replica is not None:
                error = error_from_wire(refusal.error)
                self._replicas.handle(replica, PeerRefused(self.leader, error))

    def _take_append(self, append: pb.AppendBatches) -> None:
        replica = self._replica(append)
        if replica is None:
            return
        batches = tuple([checked_batch(replica, wire) for wire in append.batches])
        if batches:
            self._on_received(sum([batch.size_bytes for batch in batches]))
        self._replicas.handle(
            replica,
            BatchesReceived(
                leader=self.leader,
                leader_epoch=LeaderEpoch(append.leader_epoch),
                batches=batches,
                high_watermark=Offset(append.high_watermark),
                log_start_offset=Offset(append.log_start_offset),
                sync_through=Offset(append.sync_through),
            ),
        )

    def _replica(
        self, named: pb.EpochAnswer | pb.AppendBatches | pb.ReplicaError
    ) -> Replica | None:
        return self._replicas.by_key.get(ReplicaKey(TopicId(named.topic_id), named.partition))


def checked_batch(partition: object, wire: records_pb2.RecordBatch) -> Batch:
    """The batch, if its CRC is right; raises ClusterError(DATA_CORRUPTED), naming `partition`."""
    batch = batch_from_wire(wire)
    seen = compute_crc(batch.header, batch.payload)
    if seen != batch.header.crc:
        raise ClusterError(
            f"the leader sent a batch of {partition} at offset {batch.base_offset} with CRC "
            f"{seen:#010x}, its header says {batch.header.crc:#010x}; asking again",
            ErrorCode.DATA_CORRUPTED,
        )
    return batch


class FollowerOutbox:
    """Messages waiting to be sent to the leader: one of each kind per partition."""

    def __init__(self) -> None:
        self._stops: dict[ReplicaKey, None] = {}
        self._queries: dict[ReplicaKey, SendEpochQuery] = {}
        self._starts: dict[ReplicaKey, SendFollowStart] = {}
        self._acks: dict[ReplicaKey, SendAck] = {}
        self.copy_credit = 0
        """Granted since the stream began."""
        self._wake = asyncio.Event()

    def put(
        self, key: ReplicaKey, message: SendEpochQuery | SendFollowStart | SendFollowStop | SendAck
    ) -> None:
        """Queues; the leader reads stops, queries, starts, acks in this order."""
        match message:
            case SendFollowStop():
                self._queries.pop(key, None)
                self._starts.pop(key, None)
                self._acks.pop(key, None)
                self._stops[key] = None
            case SendEpochQuery():
                self._starts.pop(key, None)
                self._acks.pop(key, None)
                self._queries[key] = message
            case SendFollowStart():
                self._acks.pop(key, None)
                self._starts[key] = message
            case SendAck():
                self._acks[key] = message
        self._wake.set()

    def grant(self, size: int) -> None:
        """Lets the leader copy so many bytes more."""
        self.copy_credit += size
        self._wake.set()

    async def take(self) -> pb.FollowerMessage:
        """Waits for messages, and takes all of them.

        All acks of one tick of the writer arrive before this wakes up: they are sent together.
        """
        await self._wake.wait()
        self._wake.clear()
        message = pb.FollowerMessage(
            epoch_queries=[_query(key, query) for key, query in self._queries.items()],
            starts=[_start(key, start) for key, start in self._starts.items()],
            acks=[_ack(key, ack) for key, ack in self._acks.items()],
            stops=[pb.FollowStop(topic_id=k.topic_id, partition=k.partition) for k in self._stops],
            copy_credit=self.copy_credit,
        )
        for queue in (self._stops, self._queries, self._starts, self._acks):
            queue.clear()
        return message


def _query(key: ReplicaKey, query: SendEpochQuery) -> pb.EpochQuery:
    return pb.EpochQuery(
        topic_id=key.topic_id,
        partition=key.partition,
        leader_epoch=query.leader_epoch,
        last_epoch=query.last_epoch,
    )


def _start(key: ReplicaKey, start: SendFollowStart) -> pb.FollowStart:
    return pb.FollowStart(
        topic_id=key.topic_id,
        partition=key.partition,
        leader_epoch=start.leader_epoch,
        from_offset=start.from_offset,
        version=start.version,
    )


def _ack(key: ReplicaKey, ack: SendAck) -> pb.FollowerAck:
    return pb.FollowerAck(
        topic_id=key.topic_id,
        partition=key.partition,
        leader_epoch=ack.leader_epoch,
        written_end=ack.written_end,
        synced_end=ack.synced_end,
    )


class Links:
    """The links this broker needs right now, by leader."""

    def __init__(
        self,
        config: Callable[[], LinkConfig],
        replicas: ReplicaSet,
        on_received: Callable[[int], None],
        transport: Transport,
    ) -> None:
        self._config = config
        self._replicas = replicas
        self._on_received = on_received
        self._transport = transport
        self._running: dict[BrokerId, tuple[LeaderLink, asyncio.Task[None]]] = {}

    def arrange(
        self, addresses: Iterable[tuple[BrokerId, LeaderAddress]], tasks: asyncio.TaskGroup
    ) -> None:
        """Starts links to these leaders, ends all others; a new address means a new link."""
        wanted = dict(addresses)
        for leader, (link, task) in list(self._running.items()):
            if wanted.get(leader) != link.address:
                task.cancel()
                del self._running[leader]
        for leader, address in wanted.items():
            if leader not in self._running:
                link = LeaderLink(
                    leader,
                    address,
                    self._config(),
                    self._replicas,
                    self._on_received,
                    self._transport,
                )
                self._running[leader] = (link, tasks.create_task(link.run()))

    def up(self, leaders: Collection[BrokerId]) -> dict[BrokerId, CopyLink]:
        """The links to these leaders, as far as they are connected."""
        links = {leader: link for leader, (link, _) in self._running.items() if leader in leaders}
        connected = self._replicas.leaders
        return {leader: link for leader, link in links.items() if connected.get(leader) is link}

    def stop(self) -> None:
        """Ends all links."""
        for _, task in self._running.values():
            task.cancel()
        self._running.clear()
