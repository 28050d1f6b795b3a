"""A broker's group coordinators under simulation: the shells that ship, and a desk before them.

    a member's stream ─▶ `services.groups` ─┐
    calls ─▶ GroupDesk ─────────────────────┴▶ WatchedGroups (`logged.hosts`) ─▶ replicas
                                                 └ every step ─▶ `group_checks`, before it is obeyed

The desk stands for the service's other calls: it turns what the network brings into what the
service would do, on the node's loop.

Sessions are short: the shortest timeout that a member may ask for is a second of a node's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from penstock.core.groups import GroupConfig
from penstock.core.groups import contract as gc
from penstock.core.groups.contract_views import FetchRequested
from penstock.core.groups.loading import Loader
from penstock.core.types import ReplicaKey, TopicId
from penstock.errors import PenstockError
from penstock_broker.groups.coordinator import Coordinator
from penstock_broker.groups.coordinators import Coordinators
from penstock_broker.logged.log import PartitionLog
from penstock_sim.hosts import Desk, WatchedHost

if TYPE_CHECKING:
    from penstock_sim.broker import SimBroker
    from penstock_sim.group_checks import Asked

OFFSETS_KEY: Final = ReplicaKey(TopicId("00000000-0000-4000-8000-000000000002"), 0)
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
            answer: gc.Answer = await super().ask(seen, patience_ms=patience_ms)
            return answer
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


class GroupDesk(Desk[WatchedCoordinator]):
    """Of one run of a broker: see the module."""

    def __init__(self, broker: SimBroker, hosts: WatchedGroups) -> None:
        super().__init__(broker, hosts, WatchedCoordinator)
        self.hosts = hosts

    async def answer(self, event: gc.Request) -> Any:
        host = self.hosts.find(event.group_id)  # type: ignore[union-attr]  # of those asked here
        if not isinstance(event, FetchRequested):
            self.hosts.writable(host, None)
        return await host.ask(lambda number: replace(event, request_id=number))
