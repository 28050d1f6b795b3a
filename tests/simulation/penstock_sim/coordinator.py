"""A broker's group coordinator under simulation: the production machine, fed as its shell does.

Keeps `penstock.core.groups.contract` in the order of `penstock_broker.logged.host`: a new
leadership waits until its whole log is committed, loads it, starts; records go into the log one
append at a time; what they entitle to say leaves once they are committed. Whatever ends a
leadership ends the machine. `group_checks` hears of every step.

Groups live faster than replicas here: `GROUP_CLOCK` of their milliseconds pass in one of the
world's, because the shortest session timeout that members may ask for is a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.core.defect import raise_defect
from penstock.core.encode import encode_columns
from penstock.core.groups import GroupConfig, GroupCoordinator
from penstock.core.groups import contract as gc
from penstock.core.groups.config import OFFSETS_TOPIC
from penstock.core.groups.state import Loader
from penstock.core.records import build_batch, decode_batch
from penstock.core.replication.contract_leader import ProduceReply
from penstock.core.types import Acks, Offset, ReplicaKey, Sync, TopicId
from penstock.errors import ClusterError, ErrorCode, PenstockError

if TYPE_CHECKING:
    from penstock_sim.broker import Replica, SimBroker
    from penstock_sim.group_checks import Asked
    from penstock_sim.network import Stream

GROUP_CLOCK: Final = 4
OFFSETS_KEY: Final = ReplicaKey(TopicId("00000000-0000-4000-8000-000000000002"), 0)
ALIVE: Final = "alive"
BASE_TIME_MS: Final = 1_700_000_000_000
"""What the wall clock shows when a history begins."""
_CONFIG: Final = GroupConfig(
    heartbeat_interval_ms=250,
    session_timeout_ms=1_000,
    rebalance_timeout_ms=1_000,
    broken_stream_ms=300,
    assignment_interval_ms=60,
    sweep_interval_ms=2_000,
)
_TICK_MS: Final = 15
_RETRY_MS: Final = 60
_APPEND_TIMEOUT_MS: Final = 600_000


class SimCoordinator:
    """One leadership of the offsets partition on one run of a broker."""

    def __init__(self, broker: SimBroker, replica: Replica) -> None:
        self.broker = broker
        self.replica = replica
        self.leader_epoch = replica.machine.marks.leader_epoch
        self.loaded = False
        self.closed: PenstockError | None = None
        self.machine = GroupCoordinator(_CONFIG, BASE_TIME_MS)
        self.shadow = Loader()
        """The log as this coordinator has read and written it."""
        self.streams: dict[int, Stream] = {}
        self._told_ms: dict[int, int] = {}
        self._sessions: dict[int, int] = {}
        self._requests: dict[int, tuple[Asked, Callable[[Any], None]]] = {}
        self._world = broker.world
        self._end = replica.machine.marks.log_end_offset
        self._loading = False
        self._unsent: deque[tuple[tuple[bytes, bytes | None], ...]] = deque()
        self._waiting: deque[tuple[int, tuple[gc.Output, ...]]] = deque()
        self._handed = self._sent = self._durable = 0
        self._flushing = False
        self.moved()

    def __str__(self) -> str:
        return f"{self.broker.name} as coordinator in epoch {self.leader_epoch}"

    @property
    def quiet(self) -> bool:
        """All that was decided is committed."""
        return self._handed == self._durable

    def _now_ms(self) -> int:
        return self._world.scheduler.now_us * GROUP_CLOCK // 1000

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
                self.machine.load(key, value)
                self.shadow.add(key, value)
        if batches and batches[-1].next_offset < self._end:
            scheduler = self._world.scheduler
            scheduler.after(scheduler.between(0.1, 2), self._read, batches[-1].next_offset)
            return
        checks = self._world.group_checks
        checks.loaded(self)
        ready = self.machine.start(checks.catalog, self._now_ms())
        self.loaded = True
        self._world.scheduler.note(self.broker.name, "coordinates", self.leader_epoch, self._end)
        self._obey(ready)

    # ------------------------------------------------------------ events

    def check(self) -> None:
        """Raises ClusterError: NOT_COORDINATOR when closed, COORDINATOR_LOADING."""
        if self.closed is not None:
            raise self.closed
        if not self.loaded:
            raise ClusterError("loading", ErrorCode.COORDINATOR_LOADING)

    def handle(self, event: gc.Event) -> None:
        """Event in, `Ready` out, obeyed. Raises what `check` raises."""
        self.check()
        ready = self.machine.handle(event, self._now_ms())
        raise_defect(ready.stopped)
        if self._world.scheduler.traced and (ready is not gc.NOTHING or event != gc.Tick()):
            shown = [decision.event for decision in ready.decisions]
            self._world.scheduler.note(
                self.broker.name, "group", event, shown, *ready.records, *ready.outputs
            )
        self._obey(ready)

    def tick(self) -> None:
        if self.loaded and self.closed is None and self.machine.next_wake_ms <= self._now_ms():
            self.handle(gc.Tick())

    def ask(self, event: gc.Request, respond: Callable[[Any], None]) -> None:
        """`respond` gets the answer, or an error, once."""
        self._requests[event.request_id] = (self._world.group_checks.asked(self, event), respond)
        try:
            self.handle(event)
        except PenstockError as error:
            del self._requests[event.request_id]
            respond(error)

    def join(self, stream: Stream, hello: gc.MemberJoined) -> None:
        """A member's stream begins."""
        self.streams[stream.number] = stream
        self.handle(hello)

    def hear(self, stream: Stream, event: gc.MemberHeard | gc.MemberLeft) -> None:
        """A member says something; it is shown a sign of life in time."""
        self.handle(event)
        session_ms = self._sessions.get(stream.number, 0)
        silent_ms = self._now_ms() - self._told_ms.get(stream.number, 0)
        if isinstance(event, gc.MemberHeard) and silent_ms * 3 >= session_ms > 0:
            self._told_ms[stream.number] = self._now_ms()
            stream.send(self.broker.id, ALIVE)

    def drop_stream(self, stream: Stream) -> None:
        """The stream is over."""
        self.streams.pop(stream.number, None)
        if self.loaded and self.closed is None:
            self.handle(gc.StreamBroken(stream.number))

    # ------------------------------------------------------------ out

    def _obey(self, ready: gc.Ready) -> None:
        self._world.group_checks.decided(self, ready)
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
            self._world.group_checks.appended(self)
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

    def _tell(self, output: gc.Output) -> None:
        if isinstance(output, gc.Reply):
            asked, respond = self._requests.pop(output.request_id)
            self._world.group_checks.answered(asked, output.answer)
            respond(output.answer)
            return
        stream = self.streams.get(output.stream_id)
        if stream is None:
            return
        self._told_ms[stream.number] = self._now_ms()
        if isinstance(output, gc.SendJoined):
            self._sessions[stream.number] = output.session_timeout_ms
        elif isinstance(output, gc.EndStream):
            del self.streams[stream.number]
        stream.send(self.broker.id, output)

    def close(self, error: PenstockError) -> None:
        """Everyone waiting hears `error`."""
        if self.closed is not None:
            return
        self._world.scheduler.note(self.broker.name, "coordinates no more", error)
        self.closed = error
        for _, respond in self._requests.values():
            respond(error)
        for number, stream in self.streams.items():
            stream.send(self.broker.id, gc.EndStream(number, error))
        self.streams.clear()


class Coordinators:
    """A run of a broker: its coordinator while it leads the offsets partition."""

    def __init__(self, broker: SimBroker) -> None:
        self.broker = broker
        self.current: SimCoordinator | None = None
        self._by_stream: dict[int, SimCoordinator] = {}
        self._retry_at_ms: int | None = None
        self._dead = False
        broker.world.scheduler.after(_TICK_MS, self._tick)

    def kill(self) -> None:
        """With the process: nobody is told anything."""
        self._dead = True
        if self.current is not None:
            self.current.closed = ClusterError("killed", ErrorCode.NOT_COORDINATOR)

    def wake(self, replica: Replica) -> None:
        """The offsets partition's replica has news: role, epoch, high watermark."""
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
            self.current = SimCoordinator(self.broker, replica)

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

    # ------------------------------------------------------------ calls

    def find(self, *, to_write: bool = True) -> SimCoordinator:
        """Raises ClusterError: NOT_COORDINATOR, COORDINATOR_LOADING, NOT_ENOUGH_REPLICAS."""
        current = self.current
        if current is None:
            raise self._elsewhere()
        current.check()
        if to_write and len(current.replica.machine.marks.isr) < self.broker.world.min_isr:
            raise ClusterError("too few in sync", ErrorCode.NOT_ENOUGH_REPLICAS)
        return current

    def ask(self, event: gc.Request, respond: Callable[[Any], None]) -> None:
        """A unary call. No answer if the process is dead."""
        if self._dead:
            return
        try:
            found = self.find(to_write=not isinstance(event, gc.FetchRequested))
        except PenstockError as error:
            respond(error)
        else:
            found.ask(event, respond)

    def _elsewhere(self) -> ClusterError:
        return ClusterError(
            f"{self.broker.name} does not coordinate {OFFSETS_TOPIC}", ErrorCode.NOT_COORDINATOR
        )

    # ------------------------------------------------------------ members' streams (network.End)

    def receive(self, stream: Stream, message: Any) -> None:
        """A member says hello, sends a heartbeat, leaves."""
        if self._dead:
            return
        try:
            if isinstance(message, gc.MemberJoined):
                found = self._by_stream[stream.number] = self.find()
                found.join(stream, message)
            elif stream.number in self._by_stream:
                self._by_stream[stream.number].hear(stream, message)
        except PenstockError as error:
            stream.send(self.broker.id, gc.EndStream(stream.number, error))

    def stream_broken(self, stream: Stream) -> None:
        """A member's stream is gone."""
        found = self._by_stream.pop(stream.number, None)
        if found is not None and not self._dead:
            found.drop_stream(stream)
