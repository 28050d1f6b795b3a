"""What a scrape sees of a broker's replicas, counted in the endpoint's thread.

It works on copies of what the loop may change, and changes nothing itself.
"""

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from heapq import nsmallest

from penstock.core.replication.contract import Marks
from penstock.core.types import PartitionState
from penstock.errors import PenstockError
from penstock_broker.maintenance.disk import DiskGuard
from penstock_broker.metadata.image import ClusterView
from penstock_broker.partition_metrics import PARTITIONS_MAX, Gathered, PartitionFacts
from penstock_broker.replica_metrics import ReplicaTotals
from penstock_broker.replication.mending import Mending
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.services.fetching import Fetching
from penstock_broker.services.limits import ByteBudget
from penstock_broker.store.interface import LogStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering:
    """The parts of a broker that are asked."""

    replicas: ReplicaSet
    view: ClusterView
    store: LogStore
    disk: DiskGuard
    mending: Mending
    produce_budget: ByteBudget
    fetching: Fetching

    def totals(self) -> ReplicaTotals:
        """Sums over all replicas."""
        replicas = list(self.replicas.by_key.values())
        marks = [replica.machine.look() for replica in replicas]
        led = self._led()
        return ReplicaTotals(
            replicas=len(marks),
            leaders=sum(mark.is_leader for mark in marks),
            under_replicated=sum(len(state.isr) < len(state.replicas) for state, _ in led),
            at_min_isr=sum(len(state.isr) == least < len(state.replicas) for state, least in led),
            under_min_isr=sum(len(state.isr) < least for state, least in led),
            not_preferred=sum(state.leader != state.replicas[0] for state, _ in led),
            isr_shrinks=self.replicas.isr_counts.shrinks,
            isr_expands=self.replicas.isr_counts.expands,
            follower_lags=_follower_lags(replicas, marks),
            offline=sum(mark.leader < 0 for mark in marks),
            stopped=sum(replica.machine.error is not None for replica in replicas),
            damaged=len(self.replicas.damage.found),
            mended_batches=self.mending.mended_batches,
            rebuilt_replicas=self.mending.rebuilt_replicas,
            high_watermarks=sum(mark.high_watermark for mark in marks),
            stable_offset_lags={
                (replica.topic, replica.key.partition): mark.high_watermark
                - mark.last_stable_offset
                for replica, mark in zip(replicas, marks, strict=True)
                if mark.is_leader and mark.last_stable_offset < mark.high_watermark
            },
            log_ends=sum(mark.log_end_offset for mark in marks),
            remembered_producers=sum(replica.machine.producer_count for replica in replicas),
            disk_free_bytes=self.disk.free_bytes,
            disk_total_bytes=self.disk.total_bytes,
            disk_reserve_bytes=self.disk.reserve_bytes,
            inflight_bytes=self.produce_budget.taken_bytes,
            parked_fetches=self.fetching.parked,
        )

    def partitions(self) -> Gathered:
        """Single topics and partitions."""
        replicas = list(self.replicas.by_key.values())
        seen = [(replica, replica.machine.look()) for replica in replicas]
        shown = nsmallest(PARTITIONS_MAX, seen, key=_led_first)
        return Gathered(
            topics=tuple({replica.topic: replica.flow for replica in replicas}.items()),
            partitions=tuple(self._facts(replica, mark) for replica, mark in shown),
            left_out=len(seen) - len(shown),
        )

    def _facts(self, replica: Replica, mark: Marks) -> PartitionFacts:
        size_bytes = None
        with suppress(PenstockError):  # dropped, or closed, since it was listed
            size_bytes = self.store.size_bytes(replica.slot)
        return PartitionFacts(
            topic=replica.topic,
            partition=replica.key.partition,
            leads=mark.is_leader,
            log_start=mark.log_start_offset,
            log_end=mark.log_end_offset,
            size_bytes=size_bytes,
        )

    def _led(self) -> list[tuple[PartitionState, int]]:
        """The partitions led here by the newest image, with their effective min ISR."""
        found = []
        for topic in list(self.view.topics.values()):
            for state in topic.partitions:
                if state.leader == self.replicas.broker_id:
                    least = topic.config.effective_min_insync_replicas(len(state.replicas))
                    found.append((state, least))
        return found


def _led_first(seen: tuple[Replica, Marks]) -> tuple[bool, str, int]:
    replica, mark = seen
    return not mark.is_leader, replica.topic, replica.key.partition


def _follower_lags(replicas: list[Replica], marks: list[Marks]) -> dict[int, int]:
    """By follower: of the partition where it lacks the most, how many offsets."""
    lags: dict[int, int] = defaultdict(int)
    for replica, mark in zip(replicas, marks, strict=True):
        if not mark.is_leader:
            continue
        for follower, written in replica.machine.followers_written():
            lags[follower] = max(lags[follower], mark.written_end - written)
    return dict(lags)
