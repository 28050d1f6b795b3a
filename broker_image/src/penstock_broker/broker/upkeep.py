"""What a broker does for its logs in the background: the parts of `maintenance`, put together."""

from collections.abc import Callable, Coroutine
from typing import Any

from prometheus_client import CollectorRegistry

from penstock_broker.broker.replication import BrokerSeams
from penstock_broker.config import Settings
from penstock_broker.datadir import DataDirectory
from penstock_broker.maintenance.clock_watch import ClockWatch
from penstock_broker.maintenance.compaction import Compaction
from penstock_broker.maintenance.compaction_metrics import CompactionMetrics
from penstock_broker.maintenance.comparing import LogComparison
from penstock_broker.maintenance.disk import DiskGuard
from penstock_broker.maintenance.producer_expiry import ProducerExpiry
from penstock_broker.maintenance.retention import Retention
from penstock_broker.maintenance.scrub import Scrub
from penstock_broker.maintenance.scrub_metrics import ScrubMetrics
from penstock_broker.metadata.image import ClusterView
from penstock_broker.replication.digests import RemoteLeaders
from penstock_broker.replication.replicas import ReplicaSet


class Upkeep:
    """`disk`, `clock_watch`, `comparison` and `scrub` are for others, too."""

    def __init__(
        self,
        settings: Settings,
        directory: DataDirectory,
        replicas: ReplicaSet,
        seams: BrokerSeams,
        registry: CollectorRegistry,
        on_disk_change: Callable[[], None],
        *,
        view: ClusterView,
    ) -> None:
        """`on_disk_change`: the disk is full, or has space again."""
        self._directory = directory
        self.disk = DiskGuard(
            self._measure_disk,
            reserve_bytes=settings.disk_reserve_bytes,
            interval_s=settings.disk_check_interval_ms / 1000,
            executor=seams.maintaining,
            on_change=on_disk_change,
        )
        self._retention = Retention(
            replicas,
            seams.store,
            seams.maintaining,
            seams.clock,
            interval_s=settings.retention_check_interval_ms / 1000,
        )
        self.clock_watch = ClockWatch(seams.clock.wall)
        self._producers = ProducerExpiry(replicas, settings.producer_id_expiration_ms)
        metrics = CompactionMetrics(registry)
        self._compaction = Compaction(
            replicas, seams.store, metrics, settings, self.disk, seams.clock
        )
        scrub_metrics = ScrubMetrics(registry)
        self.comparison = LogComparison(
            replicas,
            view,
            RemoteLeaders(replicas.broker_id, view, seams.transport),
            scrub_metrics,
            seams.clock,
        )
        self.scrub = Scrub(
            replicas,
            seams.store,
            directory.scrub_file,
            self.disk,
            scrub_metrics,
            seams.clock,
            comparison=self.comparison,
            interval_days=settings.scrub_interval_days,
        )

    def parts(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """The coroutines to run until they are cancelled."""
        return (
            self.disk.run(),
            self.clock_watch.run(),
            self._retention.run(),
            self._producers.run(),
            self._compaction.run(),
            self.scrub.run(),
        )

    def _measure_disk(self) -> tuple[int, int]:
        return self._directory.free_bytes(), self._directory.total_bytes()
