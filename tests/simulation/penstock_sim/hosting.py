"""A machine whose state is a log, on a simulated broker: fed as by its production shell.

Keeps the contract of `penstock.core.groups.contract` in the order of `penstock_broker.logged.host`:
a new leadership waits until its whole log is committed, loads it, starts; records are appended to
the log one append at a time; outputs are sent once the records are committed. When a leadership
ends, the machine ends. `SimHost` is one leadership; `Hosts` creates them on one run of a broker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from penstock.core.defect import raise_defect
from penstock.core.encode import encode_columns
from penstock.core.records import build_batch, decode_batch
from penstock.core.replication.contract_leader import ProduceReply
from penstock.core.types import Acks, Offset, Sync
from penstock.errors import ClusterError, ErrorCode, PenstockError

if TYPE_CHECKING:
    from penstock_broker.replication.replica import Replica
    from penstock_sim.broker import SimBroker

BASE_TIME_MS: Final = 1_700_000_000_000
"""The wall clock at the beginning of a history."""
_TICK_MS: Final = 15
_RETRY_MS: Final = 60
_APPEND_TIMEOUT_MS: Final = 600_000


class SimHost(ABC):
    """One leadership of an internal partition on one run of a broker."""

    clock: int = 1
    """How many of the machine's milliseconds pass in one of the world's."""
    trace_word: str = "machine"

    def __init__(self, broker: SimBroker, replica: Replica, machine: Any) -> None:
        self.broker = broker
        self.replica = replica
        self.leader_epoch = replica.machine.marks.leader_epoch
        self.loaded = False
        self.closed: PenstockError | None = None
        self.machine = machine
        self._world = broker.world
        self._end = replica.machine.marks.log_end_offset
        self._loading = False
        self._unsent: deque[tuple[tuple[bytes, bytes | None], ...]] = deque()
        self._waiting: deque[tuple[int, tuple[Any, ...]]] = deque()
        self._handed = self._sent = self._durable = 0
        self._flushing = False

    def __str__(self) -> str:
        return f"{self.broker.name} as coordinator in epoch {self.leader_epoch}"

    @property
    def quiet(self) -> bool:
        """Everything decided is committed."""
        return self._handed == self._durable

    def now_ms(self) -> int:
        """The machine's clock."""
        return self._world.scheduler.now_us * self.clock // 1000

    # ------------------------------------------------------------ what kinds differ in

    @abstractmethod
    def _load(self, key: bytes | None, value: bytes | None) -> None:
        """Loads the next record of the log."""

    @abstractmethod
    def _start(self) -> Any:
        """Everything is loaded: returns the machine's first Ready."""

    def _began(self) -> None:  # noqa: B027 - most kinds need nothing
        """It serves from now on: sends what the machine needs at once."""

    @abstractmethod
    def _decided(self, ready: Any) -> None:
        """For the checks: called before a Ready is carried out."""

    @abstractmethod
    def _appended(self) -> None:
        """For the checks: the appended records are committed."""

    @abstractmethod
    def _tell(self, output: Any) -> None:
        """Sends an output."""

    @abstractmethod
    def _refuse_all(self, error: PenstockError) -> None:
        """Gives `error` to all waiting callers."""

    @abstractmethod
    def _is_idle_tick(self, event: Any, ready: Any) -> bool:
        """Whether to leave this out of the trace."""

    @abstractmethod
    def tick(self) -> None:
        """Called often: handles what is due."""

    # ------------------------------------------------------------ loading

    def moved(self) -> None:
        """The replica's marks changed."""
        if not self._loading and self.replica.machine.marks.high_watermark >= self._end:
            self._loading = True
            scheduler = self._world.scheduler
            start = self.replica.machine.marks.log_start_offset
            scheduler.after(scheduler.between(0.2, 4), self._read, start)

    def _read(self, offset: Offset) -> None:
        if self.closed is not None:
            return
        batches = self.broker.read(self.replica, offset, self._end, 16)
        for batch in batches:
            columns = decode_batch(batch)
            for key, value in zip(columns.keys(), columns.values(), strict=True):
                self._load(key, value)
        if batches and batches[-1].next_offset < self._end:
            scheduler = self._world.scheduler
            scheduler.after(scheduler.between(0.1, 2), self._read, batches[-1].next_offset)
            return
        ready = self._start()
        self.loaded = True
        self._world.scheduler.note(self.broker.name, "coordinates", self.leader_epoch, self._end)
        self._obey(ready)
        self._began()

    # ------------------------------------------------------------ events

    def check(self) -> None:
        """Raises ClusterError: NOT_COORDINATOR when closed, COORDINATOR_LOADING."""
        if self.closed is not None:
            raise self.closed
        if not self.loaded:
            raise ClusterError("loading", ErrorCode.COORDINATOR_LOADING)

    def handle(self, event: Any) -> None:
        """Handles an event and carries out its `Ready`. Raises what `check` raises."""
        self.check()
        ready = self.machine.handle(event, self.now_ms())
        raise_defect(ready.stopped)
        if self._world.scheduler.traced and not self._is_idle_tick(event, ready):
            shown = [decision.event for decision in ready.decisions]
            self._world.scheduler.note(
                self.broker.name, self.trace_word, event, shown, *ready.records, *ready.outputs
            )
        self._obey(ready)

    # ------------------------------------------------------------ out

    def _obey(self, ready: Any) -> None:
        self._decided(ready)
        if ready.records:
            self._handed += 1
            self._unsent.append(ready.records)
        if ready.outputs:
            self._waiting.append((self._handed, ready.outputs))
        self._flush_soon()
        self._release()

    def _flush_soon(self) -> None:
        if self._unsent and self._sent == self._durable and not self._flushing:
            self._flushing = True
            scheduler = self._world.scheduler
            scheduler.after(scheduler.between(0.02, 2), self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self.closed is not None or not self._unsent:
            return
        records: list[tuple[bytes, bytes | None]] = []
        while self._unsent and (not records or self._world.scheduler.chance(0.9)):
            records += self._unsent.popleft()
            self._sent += 1
        columns = encode_columns(
            [value for _, value in records],
            [key for key, _ in records],
            timestamps_ms=BASE_TIME_MS + self._world.scheduler.now_ms,
        )
        batch, sent = build_batch(columns), self._sent

        def appended(reply: ProduceReply) -> None:
            if self.closed is not None:
                return
            if reply.error is not None:
                self.close(ClusterError(str(reply.error), ErrorCode.COORDINATOR_LOADING))
                return
            self._world.checks.acknowledged(self.broker, self.replica, batch, reply)
            self._durable = sent
            self._appended()
            self._release()
            self._flush_soon()

        request = {
            "batch": batch,
            "acks": Acks.ALL,
            "sync": Sync.OS,
            "timeout_ms": _APPEND_TIMEOUT_MS,
            "expected_epoch": self.leader_epoch,
        }
        self.broker.produce(self.replica.key, request, appended)

    def _release(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._durable:
            for output in self._waiting.popleft()[1]:
                self._tell(output)

    def close(self, error: PenstockError) -> None:
        """Gives `error` to all waiting callers."""
        if self.closed is not None:
            return
        self._world.scheduler.note(self.broker.name, "coordinates no more", error)
        self.closed = error
        self._refuse_all(error)


HostT = TypeVar("HostT", bound=SimHost)


class Hosts(ABC, Generic[HostT]):
    """The host on a run of a broker, while it leads the internal partition."""

    topic: str

    def __init__(self, broker: SimBroker) -> None:
        self.broker = broker
        self.current: HostT | None = None
        self._retry_at_ms: int | None = None
        self._dead = False
        broker.world.scheduler.after(_TICK_MS, self._tick)

    @abstractmethod
    def _host(self, replica: Replica) -> HostT:
        """Creates the host for a leadership that has begun."""

    def kill(self) -> None:
        """Dies with the process: no caller is told."""
        self._dead = True
        if self.current is not None:
            self.current.closed = ClusterError("killed", ErrorCode.NOT_COORDINATOR)

    def wake(self, replica: Replica) -> None:
        """The partition's replica changed: role, epoch or high watermark."""
        marks, current = replica.machine.marks, self.current
        if current is not None and not (
            marks.is_leader and current.leader_epoch == marks.leader_epoch
        ):
            self.current, self._retry_at_ms = None, None
            current.close(self._elsewhere())
            current = None
        if current is not None:
            current.moved()
        elif marks.is_leader:
            self.current = self._host(replica)

    def _tick(self) -> None:
        if self._dead:
            return
        scheduler, current = self.broker.world.scheduler, self.current
        scheduler.after(_TICK_MS, self._tick)
        if current is None:
            return
        if current.closed is None:
            current.tick()
        elif self._retry_at_ms is None:
            self._retry_at_ms = scheduler.now_ms + _RETRY_MS
        elif scheduler.now_ms >= self._retry_at_ms:
            self.current, self._retry_at_ms = None, None
            self.wake(current.replica)

    def find(self, *, to_write: bool = True) -> HostT:
        """Raises ClusterError: NOT_COORDINATOR, COORDINATOR_LOADING, NOT_ENOUGH_REPLICAS."""
        current = self.current
        if current is None:
            raise self._elsewhere()
        current.check()
        if to_write and len(current.replica.machine.marks.isr) < self.broker.world.min_isr:
            raise ClusterError("too few in sync", ErrorCode.NOT_ENOUGH_REPLICAS)
        return current

    def _elsewhere(self) -> ClusterError:
        return ClusterError(
            f"{self.broker.name} does not coordinate {self.topic}", ErrorCode.NOT_COORDINATOR
        )
