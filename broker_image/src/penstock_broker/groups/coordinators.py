"""The coordinators of a broker: one per offsets partition that it leads, for as long as it does.

    image or role change ─▶ look(replica) ─┬─ led in a new epoch ─▶ Coordinator, loading
                                           └─ not led any more ───▶ closed, members ask elsewhere

Without the internal topic there is nothing here; the first FindCoordinator has it created. One
timer serves all coordinators; a coordinator without anything due is asked for one number.
"""

import asyncio
from collections import Counter
from typing import Final

from penstock.core.groups import GroupConfig
from penstock.core.groups.config import OFFSETS_TOPIC, check_group_id, coordinator_partition
from penstock.core.groups.contract import Catalog, GroupState, Ready
from penstock.core.types import PartitionState, ReplicaKey
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_broker.groups.coordinator import Coordinator
from penstock_broker.groups.topic import catalog_of, create_offsets_topic, is_same
from penstock_broker.metadata.image import ClusterView
from penstock_broker.metadata.session import ControllerSession
from penstock_broker.metrics import GroupTotals, Metrics
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
_TOPIC_WAIT_S: Final = 10.0
_CLUSTER_START_S: Final = 30.0
_events = EventLog("groups")


class Coordinators:
    """See the module."""

    def __init__(
        self,
        view: ClusterView,
        replicas: ReplicaSet,
        session: ControllerSession,
        reader: LogReader,
        metrics: Metrics,
        config: GroupConfig,
    ) -> None:
        self._view = view
        self._replicas = replicas
        self._session = session
        self._reader = reader
        self._metrics = metrics
        self._config = config
        self._catalog = Catalog()
        self._watched: dict[ReplicaKey, Replica] = {}
        self._by_partition: dict[int, Coordinator] = {}
        self._retry_at_s: dict[int, float] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._creating = asyncio.Lock()
        self._started_s = 0.0
        self.totals = GroupTotals()

    async def run(self) -> None:
        """Until cancelled."""
        self._started_s = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._tick())
            while True:
                self._sync()
                await self._view.next_image()

    # ------------------------------------------------------------ leaderships

    def _sync(self) -> None:
        """After an image: replicas that came or went, epochs, topics of users."""
        topic_id = self._view.names.get(OFFSETS_TOPIC)
        for key, replica in list(self._watched.items()):
            if key.topic_id != topic_id or self._replicas.by_key.get(key) is not replica:
                replica.waiters.discard(self)
                del self._watched[key]
                self._close(replica)
        if topic_id is None:
            return
        if not is_same(self._catalog, self._view):
            self._catalog = catalog_of(self._view)
            for coordinator in list(self._by_partition.values()):
                coordinator.topics_changed(self._catalog)
        for partition in range(len(self._view.topics[topic_id].partitions)):
            key = ReplicaKey(topic_id, partition)
            known = self._replicas.by_key.get(key)
            if known is not None:
                self._watched[key] = known
                known.waiters.add(self)
                self.wake(known)

    def wake(self, replica: Replica) -> None:
        """The replica has news (replica.Waiter): role, epoch, high watermark, or its end."""
        marks = replica.marks
        coordinator = self._by_partition.get(replica.key.partition)
        present = self._replicas.by_key.get(replica.key) is replica
        if coordinator is not None and (
            coordinator.replica is not replica
            or not (present and marks.is_leader)
            or coordinator.leader_epoch != marks.leader_epoch
        ):
            self._close(coordinator.replica)
            coordinator = None
        if coordinator is not None:
            coordinator.moved()
        elif present and marks.is_leader:
            self._open(replica)

    def _open(self, replica: Replica) -> None:
        assert self._tasks is not None, "runs"
        coordinator = Coordinator(replica, self._replicas, self._config, self._count)
        self._by_partition[replica.key.partition] = coordinator
        self._tasks.create_task(self._load(coordinator))

    async def _load(self, coordinator: Coordinator) -> None:
        try:
            with self._metrics.group_load_seconds.time():
                await coordinator.load(self._reader, lambda: self._catalog)
        except PenstockError as error:
            _events.error("groups cannot be loaded", partition=str(coordinator), reason=error)
            if error.code in _CORRUPT:
                coordinator.close(error)
            else:
                coordinator.close(
                    ClusterError(
                        f"the coordinator's log, {coordinator}, cannot be read now ({error}); "
                        "try again",
                        ErrorCode.COORDINATOR_LOADING,
                    )
                )

    def _close(self, replica: Replica) -> None:
        coordinator = self._by_partition.get(replica.key.partition)
        if coordinator is not None and coordinator.replica is replica:
            del self._by_partition[replica.key.partition]
            self._retry_at_s.pop(replica.key.partition, None)
            coordinator.close(self._elsewhere(replica.key.partition))

    # ------------------------------------------------------------ time

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        last_s, count_at_s = loop.time(), 0.0
        while True:
            await asyncio.sleep(_TICK_S)
            now_s = loop.time()
            stalled, last_s = now_s - last_s > _STALL_S, now_s
            if stalled:
                continue  # what members said meanwhile is read before anyone is called late
            now_ms = self._replicas.now_ms()
            for partition, coordinator in list(self._by_partition.items()):
                if coordinator.closed is None:
                    coordinator.tick(now_ms)
                else:
                    self._try_again(partition, coordinator, now_s)
            if now_s >= count_at_s:
                count_at_s = now_s + _COUNT_INTERVAL_S
                self._count_totals()

    def _try_again(self, partition: int, coordinator: Coordinator, now_s: float) -> None:
        """A coordinator that ended though its partition is led here is built anew, in a while."""
        corrupt = coordinator.closed is not None and coordinator.closed.code in _CORRUPT
        pause_s = _CORRUPT_RETRY_S if corrupt else _RETRY_S
        due_s = self._retry_at_s.setdefault(partition, now_s + pause_s)
        if now_s >= due_s:
            del self._retry_at_s[partition]
            del self._by_partition[partition]
            self.wake(coordinator.replica)

    def _count(self, ready: Ready) -> None:
        if ready.commits:
            self._metrics.group_commits.inc(ready.commits)
        if ready.rebalances:
            self._metrics.group_rebalances.inc(ready.rebalances)

    def _count_totals(self) -> None:
        states: Counter[GroupState] = Counter()
        members = loading = 0
        for coordinator in self._by_partition.values():
            if coordinator.loaded:
                census = coordinator.machine.census
                states += census.states
                members += census.members
            else:
                loading += 1
        self.totals = GroupTotals(
            {state.value: states[state] for state in GroupState}, members, loading
        )

    # ------------------------------------------------------------ finding

    @property
    def led(self) -> list[Coordinator]:
        """All coordinators here, by partition; some may be loading or closed."""
        return [coordinator for _, coordinator in sorted(self._by_partition.items())]

    def find(self, group_id: str) -> Coordinator:
        """The group's coordinator, if it is here and loaded.

        Raises ClusterError: INVALID_REQUEST, NOT_COORDINATOR, COORDINATOR_LOADING.
        """
        check_group_id(group_id)
        topic_id = self._view.names.get(OFFSETS_TOPIC)
        if topic_id is None:
            raise ClusterError(
                "this cluster has kept no group yet; ask FindCoordinator first",
                ErrorCode.NOT_COORDINATOR,
            )
        partitions = len(self._view.topics[topic_id].partitions)
        partition = coordinator_partition(group_id, partitions)
        found = self._by_partition.get(partition)
        if found is None:
            raise self._elsewhere(partition)
        found.check()
        return found

    def writable(self, coordinator: Coordinator, refusal: PenstockError | None) -> None:
        """Raises what would make an append fail: better before the machine has decided.

        `refusal`: why this broker writes nothing now, or None.
        """
        if refusal is not None:
            raise refusal
        replica = coordinator.replica
        state = self._view.state(replica.key)
        replicas = len(state.replicas) if state is not None else 1
        least = replica.config.effective_min_insync_replicas(replicas)
        if len(replica.marks.isr) < least:
            raise ClusterError(
                f"{replica} has {len(replica.marks.isr)} in-sync replicas, {least} are needed: "
                "group changes and commits wait until more brokers are back; try again",
                ErrorCode.NOT_ENOUGH_REPLICAS,
            )

    async def locate(self, group_id: str) -> tuple[int, PartitionState]:
        """The group's partition and who leads it; creates the internal topic if need be.

        Raises PenstockError: INVALID_REQUEST, LEADER_NOT_AVAILABLE, what the controller says.
        """
        check_group_id(group_id)
        if OFFSETS_TOPIC not in self._view.names:
            await self._create()
        topic = self._view.topic(OFFSETS_TOPIC)
        partition = coordinator_partition(group_id, len(topic.partitions))
        state = topic.partitions[partition]
        if state.leader not in self._view.brokers:
            raise ClusterError(
                f"nobody leads {OFFSETS_TOPIC}/{partition}, which holds group {group_id!r}; "
                "try again",
                ErrorCode.LEADER_NOT_AVAILABLE,
            )
        return partition, state

    async def _create(self) -> None:
        async with self._creating:
            if not self._view.complete or OFFSETS_TOPIC in self._view.names:
                return
            up_s = asyncio.get_running_loop().time() - self._started_s
            await create_offsets_topic(self._session, self._view, settled=up_s >= _CLUSTER_START_S)
            _events.info("internal topic created", topic=OFFSETS_TOPIC)
            try:
                async with asyncio.timeout(_TOPIC_WAIT_S):
                    while OFFSETS_TOPIC not in self._view.names:
                        await self._view.next_image()
            except TimeoutError:
                raise ClusterError(
                    f"{OFFSETS_TOPIC} was created and is not in this broker's metadata yet; "
                    "try again",
                    ErrorCode.LEADER_NOT_AVAILABLE,
                ) from None

    def _elsewhere(self, partition: int) -> ClusterError:
        topic_id = self._view.names.get(OFFSETS_TOPIC)
        state = None if topic_id is None else self._view.state(ReplicaKey(topic_id, partition))
        leader = -1 if state is None else state.leader
        return ClusterError(
            f"broker {self._replicas.broker_id} does not coordinate {OFFSETS_TOPIC}/{partition}; "
            + (f"broker {leader} does" if leader >= 0 else "nobody does at the moment")
            + ": ask FindCoordinator again",
            ErrorCode.NOT_COORDINATOR,
        )
