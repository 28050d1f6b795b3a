"""A broker process: its parts, how it starts and how it stops.

    start   data directory and store open ─▶ port bound ─▶ session ─▶ first image ─▶ SERVING
    stop    SIGTERM ─▶ leaderships handed over ─▶ no more calls ─▶ lazy state, fsync ─▶ exit

Everything runs on one event loop and belongs to one TaskGroup: a part that fails ends the process,
which loses nothing that was acknowledged (I7). Threads: one writes the store, a few read it, one
does maintenance, one stores journals, because controllers wait for them only briefly, one opens
large batches for compacted topics.
"""

import asyncio
import uuid
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from typing import Any, Final

from penstock.core.authorization import Rulebook
from penstock.core.types import BrokerId
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.rpc.transport import Transport
from penstock_broker.broker.coordination import Coordination, Foundation
from penstock_broker.broker.gathering import Gathering
from penstock_broker.broker.listeners import Listeners, Services
from penstock_broker.broker.membership import Member, Membership
from penstock_broker.broker.replication import BrokerSeams, Meters, Replication
from penstock_broker.broker.upkeep import Upkeep
from penstock_broker.clock import SystemClock
from penstock_broker.config import BrokerConfig
from penstock_broker.datadir import DataDirectory
from penstock_broker.groups.lag import LagCollection
from penstock_broker.groups.lag_metrics import GroupLagMetrics
from penstock_broker.groups.leaders import PeerLeaders
from penstock_broker.logged.hosts import Surroundings
from penstock_broker.metadata.condition import Condition
from penstock_broker.metadata.image import ClusterView
from penstock_broker.metrics import Metrics
from penstock_broker.observability import EventLog
from penstock_broker.partition_metrics import PartitionMetrics
from penstock_broker.process_metrics import ProcessMetrics
from penstock_broker.replica_metrics import ReplicaTotals
from penstock_broker.replication.following import LinkConfig
from penstock_broker.replication.progress import CopyWatch
from penstock_broker.replication.ticks import TickFacts
from penstock_broker.services.admin import AdminService, Here
from penstock_broker.services.client_streams import ClientStreams
from penstock_broker.services.configs import Configs
from penstock_broker.services.data import DataService
from penstock_broker.services.fetching import Fetching
from penstock_broker.services.limits import ByteBudget
from penstock_broker.services.locate import Locator
from penstock_broker.services.logs import StoredLogs
from penstock_broker.services.losses import accept_loss
from penstock_broker.services.metadata import ProducerIds
from penstock_broker.services.offsets import Offsets
from penstock_broker.services.opening import Opener
from penstock_broker.services.orphans import Orphans
from penstock_broker.services.producing import Producing
from penstock_broker.services.quiescence import Quiescence
from penstock_broker.services.scrubbing import Scrubbing
from penstock_broker.serving.plaintext_clients import PlaintextClients, PlaintextMetrics
from penstock_broker.serving.tls_watch import CertificateMetrics, watch_tls
from penstock_broker.serving.tokens.login import LookAgain, no_look_again
from penstock_broker.serving.tokens.users import Users
from penstock_broker.store.interface import LogStore
from penstock_broker.store.losses import promise_nothing
from penstock_broker.store.metrics import StoreMetrics
from penstock_broker.transactions.metrics import TransactionMetrics

_READ_THREADS: Final = 4
_DRAIN_S: Final = 10.0
_events = EventLog("process")


class BrokerProcess:
    """One broker. Created once its data directory and store are open; `run` serves."""

    def __init__(
        self,
        config: BrokerConfig,
        directory: DataDirectory,
        store: LogStore,
        transport: Transport,
        *,
        look_again: LookAgain = no_look_again,
    ) -> None:
        """`look_again`: for keys of users' tokens that the file of issuers does not have."""
        self.users = Users(config.token_issuers, look_again, calls_max=config.settings.rpcs_max)
        if not directory.data_intact:
            promise_nothing(store)
        self._config = config
        self._directory = directory
        self._incarnation = str(uuid.uuid4())
        self._stopping = False
        self.listening, self.stop_requested = asyncio.Event(), asyncio.Event()
        self.metrics = Metrics()
        self._seams = _seams(transport, store)
        self._plaintext = None if transport.plaintext is None else PlaintextClients()
        self._view = ClusterView(
            cluster_id=directory.cluster_id,
            controller_epoch=directory.controller_epoch,
            metadata_version=directory.metadata_version,
            rules=Rulebook(config.admins, config.viewers),
        )
        self._replication = Replication(
            config,
            self._view,
            self._link_config,
            self._seams,
            Meters(
                replicated_in=self.metrics.replicated_in.inc,
                replicated_out=self.metrics.replicated_out.inc,
                ticked=self._ticked,
            ),
            data_intact=directory.data_intact,
        )
        self._replicas = self._replication.replicas
        self.membership = Membership(
            Member(
                config=config,
                directory=directory,
                incarnation=self._incarnation,
                ports=lambda: self._listeners.ports,
                condition=self._condition,
            ),
            self._view,
            self._replication,
            self._seams,
            self._serving,
        )
        self._session = self.membership.session
        self._copies = CopyWatch(self._replicas, self._view, store, self._seams.reading)
        self._build_maintenance()
        self._build_services(store)
        self._observe(store)

    def _observe(self, store: LogStore) -> None:
        """What a scrape asks for."""
        self._gathering = Gathering(
            replicas=self._replicas,
            view=self._view,
            store=store,
            disk=self._disk,
            mending=self.membership.mending,
            produce_budget=self._produce_budget,
            fetching=self._fetching,
        )
        registry = self.metrics.registry
        self._process_metrics = ProcessMetrics(registry, "broker")
        registry.register(PartitionMetrics(self._gathering.partitions))
        registry.register(StoreMetrics(store))
        self.metrics.observe_controller(lambda: self._session.connected)
        self.metrics.observe_replicas(self.totals)
        self.metrics.observe_streams(
            lambda: {
                "client": self._services.client_streams.open,
                "grpc": self._listeners.open_streams,
                "follower": len(self._replicas.followers),
            }
        )

    def _condition(self) -> Condition:
        return Condition(
            disk_full=self._disk.is_full,
            no_space_for_copies=not self._disk.has_space_for_copies,
            copies=self._copies.newest,
        )

    def _build_maintenance(self) -> None:
        tls = self._seams.transport.tls
        if tls is not None:
            self.metrics.registry.register(CertificateMetrics(tls))
        self.metrics.observe_grace(lambda: self.users.grace.is_on)
        if self._plaintext is not None:
            self.metrics.registry.register(PlaintextMetrics(self._plaintext))
        self._upkeep = Upkeep(
            self._config.settings,
            self._directory,
            self._replicas,
            self._seams,
            self.metrics.registry,
            self._session.beat,
            view=self._view,
        )
        self._disk = self._upkeep.disk
        self.metrics.observe_clock(lambda: self._upkeep.clock_watch.is_doubted)
        self._replication.credits.has_space = lambda: self._disk.has_space_for_copies
        self.membership.mending.on_mended = self._upkeep.scrub.mended

    def _build_services(self, store: LogStore) -> None:
        settings = self._config.settings
        self._produce_budget = ByteBudget(settings.produce_inflight_bytes, "produce")
        self._fetch_budget = ByteBudget(settings.fetch_inflight_bytes, "fetch")
        locator = Locator(self._view, self._replicas)
        offsets = Offsets(locator, self._replicas, store, self._seams.reading)
        producer_ids = ProducerIds(self._session, self._view, self._config.broker_id)
        base = Foundation(
            around=Surroundings(
                self._view, self._replicas, self._replication.reader, self._seams.clock
            ),
            session=self._session,
            transport=self._seams.transport,
            metrics=self.metrics,
            transaction_metrics=TransactionMetrics(
                self.metrics.registry, self._seams.clock.wall_ms
            ),
            settings=settings,
            refusal=self._refusal,
            observe=self.metrics.observe_request,
        )
        self._coordination = Coordination(base, locator, producer_ids)
        self._fetching = Fetching(
            locator,
            self._replication.reader,
            self._fetch_budget,
            self.metrics,
            parked_max=settings.fetch_parked_max,
        )
        self._opening = ThreadPoolExecutor(1, "opener")
        producing = Producing(
            locator,
            self._replicas,
            self._produce_budget,
            self.metrics,
            lambda: self._refusal() or self._view.refusal(),
            self._seams.clock,
            opener=Opener(self._view, self._opening),
        )
        self._services = self._make_services(store, locator, producing, offsets, producer_ids)
        self._listeners = Listeners(
            self._config,
            self._seams.transport,
            self._services,
            lambda: self._view.cluster_id,
            self.metrics.observe_request,
            identify=self.users.identify,
            access=self._view.access,
            plaintext=self._plaintext,
            failed=self.metrics.request_errors.failed,
        )
        self.metrics.observe_throttled(lambda: self._view.access.quotas.refused)
        self.metrics.observe_groups(lambda: self._coordination.groups.totals)
        self._lag = LagCollection(
            lambda: self._coordination.groups.led, PeerLeaders(self._view, self._seams.transport)
        )
        self.metrics.registry.register(GroupLagMetrics(self._lag))

    def _make_services(
        self,
        store: LogStore,
        locator: Locator,
        producing: Producing,
        offsets: Offsets,
        producer_ids: ProducerIds,
    ) -> Services:
        """What answers at the ports."""
        settings = self._config.settings
        data = DataService(
            self._view,
            producing,
            self._fetching,
            offsets,
            producer_ids,
            self._coordination.calls,
            observe=self.metrics.observe_request,
            stream_inflight_max=settings.stream_inflight_max,
        )
        return Services(
            broker=data,
            admin=AdminService(
                self._view,
                self._session,
                self._replicas,
                offsets,
                self._here(store, locator),
            ),
            group=self._coordination.group_service,
            transaction=self._coordination.transaction_service,
            transaction_peer=self._coordination.peer_service,
            journal=self.membership.journal,
            replication=self._replication,
            client_streams=ClientStreams(
                producing,
                self._fetching,
                self._seams.transport,
                cluster_id=lambda: self._view.cluster_id,
                observe=self.metrics.observe_request,
                failed=self.metrics.request_errors.failed,
                inflight_max=settings.stream_inflight_max,
                streams_max=max(1, settings.rpcs_max // 2),
                identify=self.users.identify_token,
                plaintext=self._plaintext,
            ),
        )

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        """Serves until `stop_requested`; raises PenstockError if it cannot start or continue."""
        try:
            await self._listeners.bind()
            async with asyncio.TaskGroup() as tasks:
                self.membership.tasks = tasks
                await self._listeners.start(tasks)
                background = [
                    tasks.create_task(part)
                    for part in (
                        *self._replication.parts(),
                        *self.membership.parts(),
                        self._copies.run(self._session.beat),
                        *self._upkeep.parts(),
                        *self._coordination.parts(),
                        self._lag.run(),
                        self._process_metrics.run(),
                        *self._watching_tls(),
                    )
                ]
                self.listening.set()
                await self.stop_requested.wait()
                await self._shut_down()
                for task in background:
                    task.cancel()
                self._replication.stop_following()
        finally:
            await self._listeners.close()
            await self._coordination.close()
            for executor in (
                self._seams.writing,
                self._seams.reading,
                self._seams.maintaining,
                self._seams.journaling,
                self._opening,
            ):
                executor.shutdown(wait=True)
            self.users.close()

    def _watching_tls(self) -> tuple[Coroutine[Any, Any, None], ...]:
        tls = self._seams.transport.tls
        return () if tls is None else (watch_tls(tls),)

    async def _shut_down(self) -> None:
        """Hands over leaderships, stops serving, then makes lazily written state durable."""
        timeout_s = self._config.settings.shutdown_timeout_ms / 1000
        handed_over = await self.membership.leave(timeout_s)
        _events.info("stopping", leaderships_handed_over=handed_over)
        self._stopping = True
        await self._listeners.health.stopping()
        self._replication.stop_following()
        await self._listeners.stop()
        self._replicas.save_all()
        self._replication.writer.sync()
        if not await self._replication.writer.drained(_DRAIN_S):
            raise ClusterError(
                f"the last writes did not finish within {_DRAIN_S:.0f} s", ErrorCode.STORAGE_FAILED
            )

    # ------------------------------------------------------------ what parts ask for

    async def _serving(self) -> None:
        """The first image is applied."""
        await self._listeners.health.serving()
        _events.info(
            "serving",
            cluster_id=self._view.cluster_id,
            metadata_version=self._view.metadata_version,
            replicas=len(self._replicas.by_key),
        )

    def _here(self, store: LogStore, locator: Locator) -> Here:
        """What this broker alone knows and does."""
        logs = StoredLogs(
            store,
            self._seams.maintaining,
            self._disk_bytes,
            self._copy_rate,
            self.membership.mending,
            self._upkeep.comparison.says,
        )
        orphans = Orphans(
            self._replicas.broker_id, self._view, self._session, self._replication.assignment
        )
        return Here(
            logs=logs,
            quiescence=Quiescence(self._view, self._replicas, self._replication.writer),
            scrubbing=Scrubbing(self._view, self._upkeep.scrub, self._config.broker_id),
            configs=Configs(self._config.broker_id, self._config.settings, self._copy_rate),
            accept_loss=partial(accept_loss, locator, self.membership.losses),
            drop_orphans=orphans.drop,
            plaintext=self._plaintext,
        )

    def _copy_rate(self) -> int | None:
        return self._replication.copy_rate

    def _link_config(self) -> LinkConfig:
        return LinkConfig(
            cluster_id=self._view.cluster_id,
            broker_id=BrokerId(self._config.broker_id),
            incarnation=self._incarnation,
            window_bytes=self._config.settings.replica_window_bytes,
        )

    def _refusal(self) -> PenstockError | None:
        if self._stopping:
            return ClusterError(
                f"broker {self._config.broker_id} is stopping; nothing was appended; ask the new "
                "leader",
                ErrorCode.SHUTTING_DOWN,
            )
        return self._disk.refusal()

    def _disk_bytes(self) -> tuple[int, int, int]:
        return self._disk.free_bytes, self._disk.total_bytes, self._disk.reserve_bytes

    def _ticked(self, facts: TickFacts) -> None:
        self.metrics.tick_seconds.observe(facts.seconds)

    def totals(self) -> ReplicaTotals:
        """Called by the metrics thread."""
        return self._gathering.totals()


def _seams(transport: Transport, store: LogStore) -> BrokerSeams:
    return BrokerSeams(
        clock=SystemClock(),
        transport=transport,
        store=store,
        writing=ThreadPoolExecutor(1, "writer"),
        reading=ThreadPoolExecutor(_READ_THREADS, "reader"),
        maintaining=ThreadPoolExecutor(1, "maintenance"),
        journaling=ThreadPoolExecutor(1, "journal"),
        chance=Random(),  # noqa: S311 - nothing secret comes from it
    )
