"""One run of a broker's process: the production shells on a loop, a disk and a network of ours.

    SimBroker.start ─▶ Shell: NodeLoop, Membership, Replication, a server      kill ─▶ nothing runs
    event of a replica ─▶ WatchedMachine ─▶ checks    obeyed ─▶ SimBroker.moved
    image ─▶ WatchedView ─▶ checks

What is done with a machine's `Ready` is the shells' own affair; the world only watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from penstock.core.compaction.plan import Cleaned
from penstock.core.defect import raise_defect
from penstock.core.replication import contract as rc
from penstock.core.replication.contract_leader import IsrAnswered, LogStartMoved
from penstock.core.replication.machine import ReplicaMachine
from penstock.core.types import ReplicaKey
from penstock.errors import ClusterError, ErrorCode, StaleDataDirectoryError
from penstock.proto.v1 import controller_pb2 as pb
from penstock.proto.v1.journal_pb2_grpc import add_JournalServiceServicer_to_server
from penstock.proto.v1.replication_pb2_grpc import add_ReplicationServiceServicer_to_server
from penstock.rpc.streams.contract import Clients
from penstock_broker.broker.membership import Member, Membership
from penstock_broker.broker.replication import BrokerSeams, Meters, Replication
from penstock_broker.clock import SystemClock
from penstock_broker.config import BrokerConfig, Settings
from penstock_broker.logged.hosts import Surroundings
from penstock_broker.maintenance.producer_expiry import ProducerExpiry
from penstock_broker.metadata.condition import Condition
from penstock_broker.metadata.image import ClusterView, Topic
from penstock_broker.metadata.session import Ports
from penstock_broker.replication.following import LinkConfig
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.services.metadata import ProducerIds
from penstock_broker.services.quiescence import Quiescence
from penstock_broker.serving.edge import Edge
from penstock_broker.store.interface import PartitionWrite, Rewrite, Slot
from penstock_sim.admin_calls import add_descriptions
from penstock_sim.damage import check_mended
from penstock_sim.node_loop import NodeLoop, SimExecutor
from penstock_sim.nodes import (
    CONTROLLERS,
    HOST,
    broker_address,
    broker_port,
    controller_address,
    replication_port,
)
from penstock_sim.scheduler import RATE
from penstock_sim.upkeep import upkeep
from penstock_sim.wire.transport import SimTransport

if TYPE_CHECKING:
    from penstock_sim.broker import SimBroker

LAG_MAX_MS: Final = 350
_GRACE_S: Final = 1.0
_DRAIN_S: Final = 10.0
_EXPIRY_S: Final = 2.0
SHUFFLED_EVERY: Final = 3
_OLDER: Final = 0.2
"""So many runs of brokers have no port for followers, as in releases that knew only gRPC."""


async def reporting(loop: NodeLoop, process: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Runs what a node is; an end that it did not ask for ends the history."""
    try:
        await process()
    except Exception as error:  # noqa: BLE001 - whatever it raises is a finding
        if not loop.dead:
            loop.scheduler.fail(_first(error))


def _first(error: BaseException) -> BaseException:
    """What a task group has raised first of all."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class SimClock(SystemClock):
    """The machines' clock is the node's; so is the wall's, and all nodes agree on it."""

    def __init__(self, loop: NodeLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def wall_ms(self) -> int:
        return self._loop.scheduler.wall_ms


class WatchedMachine(ReplicaMachine):
    """Shows every step to `watch`, before the shell obeys."""

    watch: Callable[[rc.Event, rc.Marks, rc.Ready], None]

    def handle(self, event: rc.Event, now_ms: int) -> rc.Ready:
        before = self.marks
        ready = super().handle(event, now_ms)
        self.watch(event, before, ready)
        return ready


class WatchedReplicas(ReplicaSet):
    """The production shell, and a world that looks over its shoulder."""

    broker: SimBroker
    _handling: Replica | None = None

    def handle(self, replica: Replica, event: rc.Event) -> None:
        shell = self.broker.shell
        if shell is None or shell.replicas is not self or shell.loop.dead:
            return  # a task of a killed process, closed when the world ends
        if isinstance(event, IsrAnswered) and event.state is not None:
            self.broker.told(replica.key, event.state)
        changes = self.broker.world.changes
        if changes is not None and isinstance(event, LogStartMoved):
            moves = partial(
                changes.checks.moves_start, self.broker, replica, event.log_start_offset
            )
            self.broker.check(moves)
        outer, self._handling = self._handling, replica
        super().handle(replica, event)
        self._handling = outer
        if replica.feeders:
            self.broker.check(partial(self.broker.world.checks.moving.fed, self.broker, replica))

    async def rewrite(
        self, replica: Replica, rewrite: Rewrite | None, cleaned: Cleaned | None, truncations: int
    ) -> bool:
        changes = self.broker.world.changes
        if changes is not None and rewrite is not None:
            self.broker.check(partial(changes.checks.rewrites, self.broker, replica))
        return await super().rewrite(replica, rewrite, cleaned, truncations)

    def machine_on(self, log: rc.RecoveredLog) -> ReplicaMachine:
        machine = WatchedMachine(self.broker_id, log, self.now_ms())
        machine.watch = self._watch
        return machine

    def _watch(self, event: rc.Event, before: rc.Marks, ready: rc.Ready) -> None:
        assert self._handling is not None
        try:
            raise_defect(ready.stopped)
            self.broker.handled(self._handling, event, before, ready)
        except Exception as error:  # noqa: BLE001 - in a shell's task: it might be swallowed
            self.broker.world.scheduler.fail(error)

    def config_of(self, topic: Topic) -> rc.ReplicaConfig:
        return rc.ReplicaConfig(
            topic.config.min_insync_replicas,
            LAG_MAX_MS * RATE,
            max_pending_produces=50,
            follows_unclean=topic.config.unclean_leader_election,
        )


class WatchedView(ClusterView):
    """What a broker knows of the cluster, and a world that sees every image."""

    broker: SimBroker

    def apply(self, image: pb.ClusterImage) -> list[Topic]:
        changed = super().apply(image)
        for topic in changed:
            for index, state in enumerate(topic.partitions):
                self.broker.told(ReplicaKey(topic.topic_id, index), state)
        return changed


class WatchedStore:
    """A broker's disk, as `LogStore`."""

    def __init__(self, broker: SimBroker, chance: Random) -> None:
        self._broker = broker
        self._disk = broker.disk
        self._chance = chance
        self._at_once = chance.choice((0.0, 0.5, 1.0))
        self.open_slot = self._disk.open_slot
        self.slots = self._disk.slots
        self.recover = self._disk.recover
        self.read = self._disk.read
        self.header = self._disk.header
        self.aborted = self._disk.aborted
        self.compaction_facts = self._disk.store.compaction_facts
        self.chunk_start = self._disk.store.chunk_start
        self.find_timestamp = self._disk.store.find_timestamp

    def drop(self, slot: Slot) -> None:
        [key] = [key for key, one in self._disk.slots().items() if one == slot]
        self._broker.check(partial(self._broker.world.checks.moving.dropped, self._broker, key))
        self._disk.drop(slot)

    def try_write(self, writes: Sequence[PartitionWrite]) -> bool:
        if self._chance.random() >= self._at_once:
            return False
        self.write(writes, sync=False)
        return True

    def write(self, writes: Sequence[PartitionWrite], *, sync: bool) -> None:
        mended = {
            write.slot: self._disk.headers(write.slot)
            for write in writes
            if write.mended or write.lost
        }
        self._disk.write(writes, sync=sync)
        if mended:
            self._broker.check(partial(check_mended, self._broker, mended))
        self._broker.check(partial(self._broker.world.checks.written, self._broker, writes))
        if (changes := self._broker.world.changes) is not None:
            self._broker.check(partial(changes.tombstones.written, self._broker, writes))


class Shell:
    """See the module."""

    def __init__(self, broker: SimBroker) -> None:
        world = broker.world
        self.broker = broker
        self.run: str = f"{broker.id}.{broker.incarnation}"
        """Names this run of the process."""
        shuffled = world.seed % SHUFFLED_EVERY == 0
        self.loop: NodeLoop = NodeLoop.of(
            world.scheduler, f"b{self.run}", shuffled=shuffled, rate=RATE
        )
        self.clock: SimClock = SimClock(self.loop)
        self._chance = world.scheduler.generator(f"shell {self.run}")
        directory = broker.directory
        self.view: WatchedView = WatchedView(
            cluster_id=directory.cluster_id,
            controller_epoch=directory.controller_epoch,
            metadata_version=directory.metadata_version,
        )
        self.view.broker = broker
        self.transport = SimTransport(world.net, int(broker.id), self.loop)
        self.replication_port = 0 if self._chance.random() < _OLDER else replication_port(broker.id)
        self.config = BrokerConfig(
            broker_id=broker.id,
            data_dir=Path("/nowhere"),
            listen=broker_address(broker.id),
            advertise_host=HOST,
            advertise_port=broker_port(broker.id),
            controllers=tuple(map(controller_address, CONTROLLERS)),
            rack="" if world.drainer is None else world.drainer.racks[broker.id],
            settings=self._settings(),
        )
        seams = self._seams()
        self._replication = Replication(
            self.config,
            self.view,
            self._hello,
            seams,
            Meters(replicated_in=_ignore, replicated_out=_ignore, ticked=_ignore),
            data_intact=directory.data_intact,
            replica_set=WatchedReplicas,
        )
        self._replication.credits.has_space = lambda: not broker.disk.full
        self._replication.writer.tick_bytes = self._chance.choice((50, 1 << 20))
        assert isinstance(self._replication.replicas, WatchedReplicas)
        self.replicas: WatchedReplicas = self._replication.replicas
        self.replicas.broker = broker
        self.reader = self._replication.reader
        self.around = Surroundings(self.view, self.replicas, self.reader, self.clock)
        """What coordinators stand on."""
        member = Member(
            config=self.config,
            directory=directory,
            incarnation=self.run,
            ports=lambda: Ports(
                port=broker_port(broker.id), replication_port=self.replication_port
            ),
            condition=lambda: Condition(disk_full=broker.disk.full),
        )
        self.membership: Membership = Membership(
            member, self.view, self._replication, seams, _serving
        )
        self.producer_ids = ProducerIds(self.membership.session, self.view, broker.id)
        self.quiescence = Quiescence(self.view, self.replicas, self._replication.writer)
        self._upkeep = partial(upkeep, self, seams)
        self._server = self.transport.server([Edge(lambda: self.view.cluster_id, _ignore_two)])
        self._stopping = False
        self.start(self._main)

    def _settings(self) -> Settings:
        """Sizes that are met: windows and caches of a few batches, in some runs."""
        choose = self._chance.choice
        return Settings(
            replica_window_bytes=choose((600, 3_000, 1 << 20)),
            replica_message_bytes=choose((500, 2_000, 1 << 20)),
            cache_bytes=choose((2_000, 20_000, 1 << 20)),
            producer_snapshot_bytes=choose((100, 1_500)),
            transaction_max_timeout_ms=choose((0, 5_000)),
            transaction_orphan_grace_ms=choose((400, 2_000)),
        )

    def _seams(self) -> BrokerSeams:
        disk, between, chance = self.broker.disk, self._chance.uniform, self._chance

        def write_ms() -> float:
            return disk.latency_ms(sync=chance.random() < 0.2)

        def read_ms() -> float:
            return between(0.05, 2) + (between(5, 60) if disk.slow else 0)

        return BrokerSeams(
            clock=self.clock,
            transport=self.transport,
            store=WatchedStore(self.broker, chance),  # type: ignore[arg-type]  # as far as shells use it
            writing=SimExecutor(self.loop, write_ms),
            reading=SimExecutor(self.loop, read_ms, workers=4),
            maintaining=SimExecutor(self.loop, lambda: between(0.05, 2)),
            journaling=SimExecutor(self.loop, lambda: between(0.2, 4)),
            chance=chance,
        )

    def _hello(self) -> LinkConfig:
        return LinkConfig(
            cluster_id=self.view.cluster_id,
            broker_id=self.broker.id,
            incarnation=self.run,
            window_bytes=self.config.settings.replica_window_bytes,
        )

    async def _main(self) -> None:
        """As the process: ends by itself only if its data directory is refused."""
        try:
            await self._run()
        except* StaleDataDirectoryError:
            self.broker.refused(self)

    async def _run(self) -> None:
        """As `BrokerProcess.run`, as far as it goes here."""
        server = self._server
        add_ReplicationServiceServicer_to_server(self._replication.leading, server)
        add_JournalServiceServicer_to_server(self.membership.journal, server)
        if self.broker.coordination is not None:
            self.broker.coordination.add_to(server)
        add_descriptions(self, server)
        self.transport.bind(server, self.config.listen, Clients.CERTIFIED)
        await server.start()
        async with asyncio.TaskGroup() as tasks:
            self.membership.tasks = tasks
            if self.replication_port:
                await self._replication.listen(f"{HOST}:{self.replication_port}")
            tasks.create_task(self._replication.lead())
            for part in (*self._replication.parts(), *self.membership.parts()):
                tasks.create_task(part)
            tasks.create_task(self._forget_producers())
            for part in () if self.broker.world.changes is None else self._upkeep():
                tasks.create_task(part)

    async def _forget_producers(self) -> None:
        """As `ProducerExpiry.run`, more often. No history lasts as long as producers are kept."""
        expiry = ProducerExpiry(self.replicas, self.config.settings.producer_id_expiration_ms)
        while True:
            await self.clock.sleep(_EXPIRY_S)
            await expiry.expire()

    async def stop(self) -> bool:
        """As `BrokerProcess` at SIGTERM, as far as it goes here. False: not all was written."""
        names = self.broker.names_generations
        leave = self.membership.leave if names else self.membership.session.hand_over
        await leave(self.config.settings.shutdown_timeout_ms / 1000)
        self._stopping = True
        self._replication.stop_following()
        await self._server.stop(_GRACE_S)
        self.replicas.save_all()
        self._replication.writer.sync()
        return await self._replication.writer.drained(_DRAIN_S)

    def refusal(self) -> ClusterError | None:
        """As `BrokerProcess` and `ClusterView` say it to producers: why no record is taken now."""
        if self._stopping:
            return ClusterError("stopping; nothing was appended", ErrorCode.SHUTTING_DOWN)
        return self.view.refusal()

    def start(self, task: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Runs something as a part of the process."""
        self.loop.start(reporting(self.loop, task))

    def deadline_ms(self, in_ms: float) -> int:
        """`in_ms` of the world's from now, on the machines' clock."""
        return self.clock.now_ms() + int(in_ms * RATE)

    def kill(self) -> None:
        """With the process."""
        self.loop.kill()


async def _serving() -> None:
    """Nobody asks for its health."""


def _ignore(_what: Any) -> None:
    """Nobody measures here."""


def _ignore_two(_what: Any, _how: Any) -> None:
    """As `_ignore`."""
