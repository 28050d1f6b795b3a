"""A broker's group coordinators under simulation: the shells that ship, and a desk before them.

    member's stream, calls ─▶ GroupDesk ─▶ WatchedGroups (`logged.hosts`) ─▶ replicas
                                              └ every step ─▶ `group_checks`, before it is obeyed

The desk stands for `services.groups`: it turns what the network brings into the calls that the
service would make, on the node's loop.

Sessions are short: the shortest timeout that a member may ask for is a second of a node's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from penstock.core.groups import GroupConfig
from penstock.core.groups import contract as gc
from penstock.core.groups.loading import Loader
from penstock.core.types import ReplicaKey, TopicId
from penstock.errors import PenstockError
from penstock_broker.groups.coordinator import Coordinator
from penstock_broker.groups.coordinators import Coordinators
from penstock_broker.groups.streams import MemberStream, StreamEndedError
from penstock_broker.logged.log import PartitionLog
from penstock_sim.hosts import WatchedHost

if TYPE_CHECKING:
    from penstock_sim.broker import SimBroker
    from penstock_sim.group_checks import Asked
    from penstock_sim.network import Stream

OFFSETS_KEY: Final = ReplicaKey(TopicId("00000000-0000-4000-8000-000000000002"), 0)
ALIVE: Final = "alive"
CONFIG: Final = GroupConfig(
    heartbeat_interval_ms=500,
    session_timeout_ms=2_000,
    rebalance_timeout_ms=2_000,
    broken_stream_ms=600,
    assignment_interval_ms=120,
    sweep_interval_ms=4_000,
)
"""Of a node's clock, which is `RATE` times faster than the world's."""


class WatchedCoordinator(WatchedHost, Coordinator):
    """One leadership of the offsets partition on one run of a broker."""

    trace_word = "group"

    def __init__(self, broker: SimBroker, *parts: Any) -> None:
        Coordinator.__init__(self, *parts)
        self.watch(broker)
        self.shadow = Loader()
        """The log as this coordinator has read and written it."""
        self._asked: dict[int, Asked] = {}

    def shadow_record(self, key: bytes | None, value: bytes | None) -> None:
        self.shadow.add(key, value)

    def begin(self, now_ms: int) -> gc.Ready:
        self.judge(self.world.group_checks.loaded, self)
        return super().begin(now_ms)

    def decided(self, ready: gc.Ready) -> None:
        super().decided(ready)
        self.note(ready)
        self.judge(self.world.group_checks.decided, self, ready)

    def _appended(self, error: PenstockError | None) -> None:
        super()._appended(error)
        if self.closed is None:
            self.judge(self.world.group_checks.appended, self)

    async def ask(self, make: Callable[[int], gc.Event], *, patience_ms: int = 0) -> gc.Answer:
        numbers: list[int] = []

        def seen(number: int) -> gc.Event:
            event = make(number)
            numbers.append(number)
            self._asked[number] = self.world.group_checks.asked(self, event)  # type: ignore[arg-type]
            return event

        try:
            return await super().ask(seen, patience_ms=patience_ms)
        finally:
            for number in numbers:
                self._asked.pop(number, None)

    def answer(self, request_id: int, answer: gc.Answer | PenstockError) -> None:
        asked = self._asked.get(request_id)
        if asked is not None:
            self.judge(self.world.group_checks.answered, asked, answer)
        super().answer(request_id, answer)


class WatchedGroups(Coordinators):
    """Those of one run of a broker."""

    def watch(self, broker: SimBroker) -> None:
        """Comes before they run."""
        self._broker = broker
        self._config = broker.world.group_config

    def make(self, log: PartitionLog) -> Coordinator:
        return WatchedCoordinator(
            self._broker,
            log,
            self._clock,
            self._config,
            lambda: self._catalog,
            self._count_ready,
            self._transactions,
        )


class GroupDesk:
    """Of one run of a broker: see the module."""

    def __init__(self, broker: SimBroker, hosts: WatchedGroups) -> None:
        assert broker.shell is not None
        self.hosts = hosts
        self._broker = broker
        self._loop = broker.shell.loop
        self._by_stream: dict[int, _MemberEnd] = {}

    @property
    def current(self) -> WatchedCoordinator | None:
        """The coordinator of the one partition, if it is led here."""
        led = [] if self._loop.dead else self.hosts.led
        assert all(isinstance(one, WatchedCoordinator) for one in led)
        return led[0] if led else None  # type: ignore[return-value]  # as asserted

    # ------------------------------------------------------------ calls

    def ask(self, event: gc.Request, respond: Callable[[Any], None]) -> None:
        """A unary call. No answer if the process is dead."""
        if not self._loop.dead:
            self._broker.start_task(self._ask(event, respond))

    async def _ask(self, event: gc.Request, respond: Callable[[Any], None]) -> None:
        answer: Any
        try:
            host = self.hosts.find(event.group_id)  # type: ignore[union-attr]  # of those asked here
            if not isinstance(event, gc.FetchRequested):
                self.hosts.writable(host, None)
            answer = await host.ask(lambda number: replace(event, request_id=number))
        except PenstockError as error:
            answer = error
        respond(answer)

    # ------------------------------------------------------------ members' streams (network.End)

    def receive(self, stream: Stream, message: Any) -> None:
        """A member says hello, sends a heartbeat, leaves."""
        if not self._loop.dead:
            self._loop.run(lambda: self._receive(stream, message))

    def _receive(self, stream: Stream, message: Any) -> None:
        try:
            if isinstance(message, gc.MemberJoined):
                host = self.hosts.find(message.group_id)
                self.hosts.writable(host, None)
                end = self._by_stream[stream.number] = _MemberEnd(self._broker, stream, host)
                host.add_stream(end.member)
                self._broker.start_task(end.write())
                host.handle(message)
            elif stream.number in self._by_stream:
                self._by_stream[stream.number].hear(message)
        except PenstockError as error:
            stream.send(self._broker.id, gc.EndStream(stream.number, error))

    def stream_broken(self, stream: Stream) -> None:
        """A member's stream is gone."""
        end = self._by_stream.pop(stream.number, None)
        if end is not None and not self._loop.dead:
            self._loop.run(end.broken)


class _MemberEnd:
    """The broker's end of a member's stream."""

    def __init__(self, broker: SimBroker, stream: Stream, host: Coordinator) -> None:
        assert broker.shell is not None
        self.member = MemberStream(stream.number)
        self._broker = broker
        self._clock = broker.shell.clock
        self._stream = stream
        self._host = host
        self._told_ms = 0
        self._is_over = False

    def hear(self, event: gc.MemberHeard | gc.MemberLeft) -> None:
        """A member says something; it is shown a sign of life in time."""
        self._host.handle(event)
        session_ms = self.member.session_timeout_ms
        silent_ms = self._clock.now_ms() - self._told_ms
        if isinstance(event, gc.MemberHeard) and silent_ms * 2 >= session_ms > 0:
            self._send(ALIVE)

    async def write(self) -> None:
        """What the coordinator says, until it ends the stream."""
        end = gc.EndStream(self._stream.number, None)
        try:
            while True:
                self._send(await self.member.next())
        except StreamEndedError:
            pass
        except PenstockError as error:
            end = replace(end, error=error)
        self.broken()
        self._send(end)

    def _send(self, message: Any) -> None:
        self._told_ms = self._clock.now_ms()
        self._stream.send(self._broker.id, message)

    def broken(self) -> None:
        """Nothing more is said on it."""
        if not self._is_over:
            self._is_over = True
            self._host.drop_stream(self.member)
