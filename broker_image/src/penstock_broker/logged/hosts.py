"""The hosts of a broker for one internal topic: one per partition, while it is led here.

    image or role change ─▶ wake(replica) ─┬─ led in a new epoch ─▶ a host, loading
                                           └─ not led any more ───▶ closed, callers ask elsewhere

Without the topic there are no hosts. One timer serves all of them; for a host with nothing due it
reads one number. A host that ended while its partition is still led here is replaced after a pause.
"""

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from penstock.core.types import ReplicaKey
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_broker.clock import Clock
from penstock_broker.logged.finding import Finder
from penstock_broker.logged.host import MachineHost
from penstock_broker.logged.log import PartitionLog, ReplicaLog
from penstock_broker.metadata.image import ClusterView
from penstock_broker.observability import EventLog
from penstock_broker.replication.reads import LogReader
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet

_TICK_S: Final = 0.1
_STALL_S: Final = 1.0
_COUNT_INTERVAL_S: Final = 5.0
_RETRY_S: Final = 0.5
_CORRUPT_RETRY_S: Final = 30.0
_CORRUPT: Final = frozenset({ErrorCode.DATA_CORRUPTED, ErrorCode.CORRUPT_BATCH})

HostT = TypeVar("HostT", bound=MachineHost[Any, Any, Any])


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What hosts need: the cluster's metadata, the replicas here, their logs, time."""

    view: ClusterView
    replicas: ReplicaSet
    reader: LogReader
    clock: Clock


@dataclass(slots=True)
class _Led(Generic[HostT]):
    """A partition led here. `retry_at_s`: when an ended host is replaced; None: not set yet."""

    replica: Replica
    host: HostT
    retry_at_s: float | None = None


class Hosts(ABC, Generic[HostT]):
    """See the module. Each kind of machine adds how a host is made, and what it counts."""

    def __init__(self, around: Surroundings, finder: Finder, events: EventLog) -> None:
        self.finder = finder
        self._around = around
        self._view = around.view
        self._replicas = around.replicas
        self._clock = around.clock
        self._events = events
        self._watched: dict[ReplicaKey, Replica] = {}
        self._by_partition: dict[int, _Led[HostT]] = {}
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._tick())
            while True:
                self._sync()
                await self._view.next_image()

    # ------------------------------------------------------------ what a kind of machine adds

    @abstractmethod
    def make(self, log: PartitionLog) -> HostT:
        """Creates the host of a partition that is led here from now on."""

    def began(self, host: HostT) -> None:
        """A host is loaded, and serves from now on."""

    @abstractmethod
    def image_applied(self) -> None:
        """The topic exists, and a new image was applied."""

    @abstractmethod
    def count(self) -> None:
        """Called now and then, to update totals."""

    @abstractmethod
    def load_took(self, seconds: float) -> None:
        """A host was loaded, or loading it failed."""

    # ------------------------------------------------------------ leaderships

    def _sync(self) -> None:
        """After an image: handles replicas that came or went, and new epochs."""
        topic_id = self.finder.topic_id
        for key, replica in list(self._watched.items()):
            if key.topic_id != topic_id or self._replicas.by_key.get(key) is not replica:
                replica.waiters.discard(self)
                del self._watched[key]
                self._close(replica)
        if topic_id is None:
            return
        self.image_applied()
        for partition in range(len(self._view.topics[topic_id].partitions)):
            key = ReplicaKey(topic_id, partition)
            known = self._replicas.by_key.get(key)
            if known is not None:
                self._watched[key] = known
                known.waiters.add(self)
                self.wake(known)

    def wake(self, replica: Replica) -> None:
        """The replica changed (replica.Waiter): role, epoch, high watermark, or removal."""
        marks = replica.marks
        led = self._by_partition.get(replica.key.partition)
        present = self._replicas.by_key.get(replica.key) is replica
        if led is not None and (
            led.replica is not replica
            or not (present and marks.is_leader)
            or led.host.leader_epoch != marks.leader_epoch
        ):
            self._close(led.replica)
            led = None
        if led is not None:
            led.host.moved()
        elif present and marks.is_leader:
            self._open(replica)

    def _open(self, replica: Replica) -> None:
        assert self._tasks is not None, "runs"
        host = self.make(ReplicaLog(replica, self._replicas, self._around.reader))
        self._by_partition[replica.key.partition] = _Led(replica, host)
        self._tasks.create_task(self._load(host))

    async def _load(self, host: HostT) -> None:
        started_s = self._clock.now_s()
        try:
            await host.load()
            if host.serving:
                self.began(host)
        except PenstockError as error:
            self._events.error("coordinator cannot be loaded", partition=str(host), reason=error)
            if error.code in _CORRUPT:
                host.close(error)
            else:
                host.close(host.loading(f"it cannot be read now ({error})"))
        finally:
            self.load_took(self._clock.now_s() - started_s)

    def _close(self, replica: Replica) -> None:
        led = self._by_partition.get(replica.key.partition)
        if led is not None and led.replica is replica:
            del self._by_partition[replica.key.partition]
            led.host.close(self._elsewhere(replica.key.partition))

    # ------------------------------------------------------------ time

    async def _tick(self) -> None:
        last_s, count_at_s = self._clock.now_s(), 0.0
        while True:
            await self._clock.sleep(_TICK_S)
            now_s = self._clock.now_s()
            stalled, last_s = now_s - last_s > _STALL_S, now_s
            if stalled:
                continue  # first read what members sent meanwhile; only then expire any
            now_ms = self._clock.now_ms()
            for led in list(self._by_partition.values()):
                if led.host.closed is None:
                    led.host.tick(now_ms)
                else:
                    self._try_again(led, now_s)
            if now_s >= count_at_s:
                count_at_s = now_s + _COUNT_INTERVAL_S
                self._count()

    def _count(self) -> None:
        try:
            self.count()
        except Exception as error:  # noqa: BLE001 - a failure here costs only metrics
            self._events.defect("coordinators cannot be counted", error)

    def _try_again(self, led: _Led[HostT], now_s: float) -> None:
        """Replaces a host that ended while its partition is led here, after a pause."""
        if led.retry_at_s is None:
            corrupt = led.host.closed is not None and led.host.closed.code in _CORRUPT
            led.retry_at_s = now_s + (_CORRUPT_RETRY_S if corrupt else _RETRY_S)
        if now_s >= led.retry_at_s:
            del self._by_partition[led.replica.key.partition]
            self.wake(led.replica)

    # ------------------------------------------------------------ asking

    @property
    def led(self) -> list[HostT]:
        """All hosts here, by partition; some may be loading or closed."""
        return [led.host for _, led in sorted(self._by_partition.items())]

    def find(self, key: str) -> HostT:
        """The host of the partition that holds `key`, if it is here and loaded.

        Raises ClusterError: INVALID_REQUEST, NOT_COORDINATOR, COORDINATOR_LOADING.
        """
        partition = self.finder.partition_of(key)
        found = self._by_partition.get(partition)
        if found is None:
            raise self._elsewhere(partition)
        found.host.check()
        return found.host

    def writable(self, host: HostT, refusal: PenstockError | None) -> None:
        """Raises the error that an append would fail with: better before the machine has decided.

        `refusal`: why this broker accepts no writes now, or None.
        """
        if refusal is not None:
            raise refusal
        state = self.finder.state(host.partition)
        replicas = 1 if state is None else len(state.replicas)
        least = host.log.config.effective_min_insync_replicas(replicas)
        if len(host.log.marks.isr) < least:
            raise ClusterError(
                f"{host.log} has {len(host.log.marks.isr)} in-sync replicas, {least} are needed: "
                f"{self.finder.topic.what_waits} wait until more brokers are back; try again",
                ErrorCode.NOT_ENOUGH_REPLICAS,
            )

    def _elsewhere(self, partition: int) -> ClusterError:
        return self.finder.elsewhere(partition, self._replicas.broker_id)
