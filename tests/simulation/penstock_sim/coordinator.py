"""A broker's group coordinator in the simulator: the production machine, hosted by `hosting`.

Members' streams and requests end here; `group_checks` is told of every step.

Groups live faster than replicas here: `GROUP_CLOCK` of their milliseconds pass in one of the
world's, because the shortest session timeout that members may request is a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.core.groups import GroupConfig, GroupCoordinator
from penstock.core.groups import contract as gc
from penstock.core.groups.config import OFFSETS_TOPIC
from penstock.core.groups.contract_views import FetchRequested
from penstock.core.groups.loading import Loader
from penstock.core.types import ReplicaKey, TopicId
from penstock.errors import PenstockError
from penstock_sim.hosting import BASE_TIME_MS, Hosts, SimHost

if TYPE_CHECKING:
    from penstock_broker.replication.replica import Replica
    from penstock_sim.broker import SimBroker
    from penstock_sim.group_checks import Asked
    from penstock_sim.network import Stream

GROUP_CLOCK: Final = 4
OFFSETS_KEY: Final = ReplicaKey(TopicId("00000000-0000-4000-8000-000000000002"), 0)
ALIVE: Final = "alive"
CONFIG: Final = GroupConfig(
    heartbeat_interval_ms=250,
    session_timeout_ms=1_000,
    rebalance_timeout_ms=1_000,
    broken_stream_ms=300,
    assignment_interval_ms=60,
    sweep_interval_ms=2_000,
)


class SimCoordinator(SimHost):
    """One leadership of the offsets partition on one run of a broker."""

    clock = GROUP_CLOCK
    trace_word = "group"

    def __init__(self, broker: SimBroker, replica: Replica) -> None:
        super().__init__(broker, replica, GroupCoordinator(broker.world.group_config, BASE_TIME_MS))
        self.shadow = Loader()
        """The log as this coordinator has read and written it."""
        self.streams: dict[int, Stream] = {}
        self._told_ms: dict[int, int] = {}
        self._sessions: dict[int, int] = {}
        self._requests: dict[int, tuple[Asked, Callable[[Any], None]]] = {}
        self.moved()

    def _load(self, key: bytes | None, value: bytes | None) -> None:
        self.machine.load(key, value)
        self.shadow.add(key, value)

    def _start(self) -> gc.Ready:
        checks = self._world.group_checks
        checks.loaded(self)
        ready: gc.Ready = self.machine.start(checks.catalog, self.now_ms())
        return ready

    def _decided(self, ready: gc.Ready) -> None:
        self._world.group_checks.decided(self, ready)

    def _appended(self) -> None:
        self._world.group_checks.appended(self)

    def _is_idle_tick(self, event: gc.Event, ready: gc.Ready) -> bool:
        return ready is gc.NOTHING and event == gc.Tick()

    # ------------------------------------------------------------ events

    def tick(self) -> None:
        if self.loaded and self.closed is None and self.machine.next_wake_ms <= self.now_ms():
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
        """Begins a member's stream."""
        self.streams[stream.number] = stream
        self.handle(hello)

    def hear(self, stream: Stream, event: gc.MemberHeard | gc.MemberLeft) -> None:
        """Handles a member's message; sends the member a sign of life in time."""
        self.handle(event)
        session_ms = self._sessions.get(stream.number, 0)
        silent_ms = self.now_ms() - self._told_ms.get(stream.number, 0)
        if isinstance(event, gc.MemberHeard) and silent_ms * 3 >= session_ms > 0:
            self._told_ms[stream.number] = self.now_ms()
            stream.send(self.broker.id, ALIVE)

    def drop_stream(self, stream: Stream) -> None:
        """Ends a stream."""
        self.streams.pop(stream.number, None)
        if self.loaded and self.closed is None:
            self.handle(gc.StreamBroken(stream.number))

    # ------------------------------------------------------------ out

    def _tell(self, output: gc.Output) -> None:
        if isinstance(output, gc.Reply):
            asked, respond = self._requests.pop(output.request_id)
            self._world.group_checks.answered(asked, output.answer)
            respond(output.answer)
            return
        if isinstance(output, gc.SendJoin):
            self.broker.group_link.join(self, output)
            return
        if isinstance(output, gc.SendAbort):
            self.broker.group_link.abort(output)
            return
        stream = self.streams.get(output.stream_id)
        if stream is None:
            return
        self._told_ms[stream.number] = self.now_ms()
        if isinstance(output, gc.SendJoined):
            self._sessions[stream.number] = output.session_timeout_ms
        elif isinstance(output, gc.EndStream):
            del self.streams[stream.number]
        stream.send(self.broker.id, output)

    def _refuse_all(self, error: PenstockError) -> None:
        for _, respond in self._requests.values():
            respond(error)
        for number, stream in self.streams.items():
            stream.send(self.broker.id, gc.EndStream(number, error))
        self.streams.clear()


class Coordinators(Hosts[SimCoordinator]):
    """The coordinator on a run of a broker, while it leads the offsets partition."""

    topic = OFFSETS_TOPIC

    def __init__(self, broker: SimBroker) -> None:
        super().__init__(broker)
        self._by_stream: dict[int, SimCoordinator] = {}

    def _host(self, replica: Replica) -> SimCoordinator:
        return SimCoordinator(self.broker, replica)

    # ------------------------------------------------------------ calls

    def ask(self, event: gc.Request, respond: Callable[[Any], None]) -> None:
        """A unary call. No answer if the process is dead."""
        if self._dead:
            return
        try:
            found = self.find(to_write=not isinstance(event, FetchRequested))
        except PenstockError as error:
            respond(error)
        else:
            found.ask(event, respond)

    # ------------------------------------------------------------ members' streams (network.End)

    def receive(self, stream: Stream, message: Any) -> None:
        """Handles a member's hello, heartbeat or leave."""
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
        """A member's stream broke."""
        found = self._by_stream.pop(stream.number, None)
        if found is not None and not self._dead:
            found.drop_stream(stream)
