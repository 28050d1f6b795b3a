"""Connects a broker's partitions: their replicas, the disk, streams to other brokers.

    image ─ apply ─▶ replicas opened, assigned, dropped ─▶ links to the leaders that they follow
    followers ─▶ Leading ─▶ replicas ─▶ LogWriter ─▶ store
                               ▲   └─▶ isr, joins: set by the caller
                leaders ─▶ Links

The simulator creates the same object, with seams of its own.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from penstock.core.types import TopicId
from penstock.proto.v1 import controller_pb2 as pb
from penstock.rpc.peers import towards
from penstock.rpc.streams.contract import Clients, MessageStream
from penstock.rpc.transport import Transport
from penstock_broker.clock import Clock
from penstock_broker.config import BrokerConfig
from penstock_broker.metadata.image import ClusterView, Topic
from penstock_broker.observability import EventLog
from penstock_broker.replication.assignment import ReplicaAssignment
from penstock_broker.replication.copies import CopyCredits, CopyThrottle
from penstock_broker.replication.following import LinkConfig, Links
from penstock_broker.replication.reads import LogReader
from penstock_broker.replication.recent import RecentCache
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.replication.ticks import TickFacts
from penstock_broker.replication.writer import LogWriter
from penstock_broker.services.leading import Leading
from penstock_broker.serving.callers import entered
from penstock_broker.serving.edge import guarded
from penstock_broker.serving.servers import server_of
from penstock_broker.store.interface import LogStore

_FOLLOWERS_MAX: Final = 1_000
"""Streams of followers at once; each other broker needs one."""
_events = EventLog("replication")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSeams:
    """How a broker's shells reach time, peers, threads, the disk and chance.

    `writing`, `maintaining` and `journaling` have one thread each, `reading` has a few.
    """

    clock: Clock
    transport: Transport
    store: LogStore
    writing: Executor
    reading: Executor
    maintaining: Executor
    journaling: Executor
    chance: Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Meters:
    """Callbacks that count: bytes from leaders, bytes to followers, finished writes."""

    replicated_in: Callable[[int], None]
    replicated_out: Callable[[int], None]
    ticked: Callable[[TickFacts], None]


class Replication:
    """See the module."""

    def __init__(
        self,
        config: BrokerConfig,
        view: ClusterView,
        hello: Callable[[], LinkConfig],
        seams: BrokerSeams,
        meters: Meters,
        *,
        data_intact: bool,
        replica_set: type[ReplicaSet] = ReplicaSet,
    ) -> None:
        """`hello` returns what links send in their hello. `data_intact`: of the directory, as this
        run found it. `replica_set`: a class that the simulator replaces, to watch it."""
        settings = config.settings
        self._view = view
        self._tasks: asyncio.TaskGroup | None = None
        self.writer = LogWriter(seams.store, seams.writing, seams.clock, meters.ticked)
        self.replicas = replica_set(
            config.broker_id,
            self.writer,
            RecentCache(settings.cache_bytes),
            seams.clock,
            snapshot_bytes=settings.producer_snapshot_bytes,
        )
        self.assignment = ReplicaAssignment(self.replicas, self.writer, data_intact=data_intact)
        self.reader = LogReader(seams.store, seams.reading, self.replicas.unreadable)
        self._own_copy_rate = settings.replica_copy_bytes_per_second
        self.copy_rate = self._own_copy_rate or None
        """How fast partitions move from here and to here, in bytes per second each; None: as fast
        as they can."""
        self._throttle = CopyThrottle(self.copy_rate)
        self.leading = Leading(
            self.replicas,
            self.reader,
            self._throttle,
            meters.replicated_out,
            view,
            message_bytes=settings.replica_message_bytes,
        )
        lead = guarded(self._lead_identified, "Replicate")
        self._tls = seams.transport.tls is not None
        accepting = towards(seams.transport, secured=False)
        self._secured = accepting.tls is not None
        self._followers = accepting.stream_server(
            lead, streams_max=_FOLLOWERS_MAX, clients=Clients.CERTIFIED
        )
        self._listens = False
        self._links = Links(hello, self.replicas, meters.replicated_in, seams.transport)
        self.credits = CopyCredits(self.copy_rate, self._links.up)

    def parts(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """The coroutines to run until they are cancelled."""
        return (self.writer.run(), self.replicas.run_ticks(), self.credits.run())

    def set_copy_rate(self, rate: int | None) -> None:
        """As `copy_rate`, from now on."""
        if rate == self.copy_rate:
            return
        _events.info("copy rate changed", before=self.copy_rate, after=rate)
        self.copy_rate = rate
        self._throttle.set_rate(rate)
        self.credits.set_rate(rate)

    async def listen(self, address: str) -> int:
        """Binds the port for followers, and returns it. Raises OSError."""
        port = await self._followers.listen(address)
        self._listens = True
        return port

    async def lead(self) -> None:
        """Serves followers until it is cancelled: over gRPC alone, if there is no port for them."""
        if self._listens:
            await self._followers.run()

    async def _lead_identified(self, stream: MessageStream) -> None:
        if self._secured:
            entered(server_of(stream.peer_uris, self._view.cluster_id))
        await self.leading.lead(stream)

    def close(self) -> None:
        """Gives up the port."""
        self._followers.close()

    async def apply(self, image: pb.ClusterImage, tasks: asyncio.TaskGroup) -> None:
        """Applies an image: machines first, then links to leaders, then waiters.

        Call it for one image at a time, in the controller's order. Links run in `tasks`. Raises
        ClusterError(STALE_CONTROLLER_EPOCH) for an image of a deposed controller.
        """
        known = dict(self._view.brokers)
        changed = self._view.apply(image)
        set_for_all = image.HasField("copy_rate")
        self.set_copy_rate((image.copy_rate if set_for_all else self._own_copy_rate) or None)
        for broker_id, info in self._view.brokers.items():
            if broker_id in known and known[broker_id].incarnation != info.incarnation:
                self.leading.restarted(broker_id, info.incarnation)
        self._tasks = tasks
        async with self.assignment.changing:
            await self._apply_topics(image, changed)
        self._arrange_links(tasks)
        self._view.announce()

    async def _apply_topics(self, image: pb.ClusterImage, changed: list[Topic]) -> None:
        await self.assignment.assign(changed)
        # A full image repeats what could not be deleted before.
        await self.assignment.drop_former(self._view.topics.values() if image.full else changed)
        await self.assignment.drop_topics(TopicId(topic_id) for topic_id in image.deleted_topic_ids)
        if image.full:
            self.assignment.retire_unknown(self._view.topics)
            self.assignment.report_orphans()

    async def reopen(
        self, replica: Replica, *, empty: bool, may_still: Callable[[], bool]
    ) -> Replica | None:
        """See `ReplicaAssignment.reopen`; None: the replica was removed, or its topic, or it may
        not be opened any more."""
        replicas, key = self.replicas, replica.key
        async with self.assignment.changing:
            topic = self._view.topics.get(key.topic_id)
            if topic is None or self._tasks is None or replicas.by_key.get(key) is not replica:
                return None
            if not may_still():
                return None
            await self.assignment.reopen(replica, topic, empty=empty)
        self._arrange_links(self._tasks)
        return replicas.by_key.get(key)

    def _arrange_links(self, tasks: asyncio.TaskGroup) -> None:
        found = [
            (leader, address)
            for leader in self.replicas.leaders_wanted()
            if (address := self._view.leader_address(leader, tls=self._tls)) is not None
        ]
        self._links.arrange(found, tasks)
        self.credits.copied_from(self.replicas.copied_from())

    def stop_following(self) -> None:
        """Ends the streams to leaders."""
        self._links.stop()
