"""A broker's part in transactions under simulation: the shells that ship, and a desk before them.

    client ─▶ TransactionDesk ─▶ WatchedTransactions (`logged.hosts`) ─▶ the node's replicas
    host ─ Ends ─▶ links ─▶ participants here, or by LatePeers those of other brokers

The desk stands for `services.transactions`. Every call may come late, twice, far behind the next
transaction, or never; `transaction_checks` sees every step, before it is obeyed.
"""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from penstock.core.transactions import TransactionConfig
from penstock.core.transactions import contract as tc
from penstock.core.transactions.contract_views import (
    DescribeRequested,
    LedgersRequested,
    ListRequested,
)
from penstock.core.types import BrokerId, ReplicaKey, TopicId
from penstock.errors import PenstockError
from penstock.rpc.transport import Transport
from penstock_broker.logged.log import PartitionLog
from penstock_broker.metadata.image import ClusterView
from penstock_broker.transactions.coordinator import Coordinator
from penstock_broker.transactions.coordinators import Coordinators
from penstock_broker.transactions.transport import RemotePeers
from penstock_sim.hosts import Desk, WatchedHost
from penstock_sim.scheduler import RATE
from penstock_sim.wire.transport import SimTransport

if TYPE_CHECKING:
    from penstock_sim.broker import SimBroker
    from penstock_sim.world import World

TRANSACTIONS_KEY: Final = ReplicaKey(TopicId("00000000-0000-4000-8000-000000000003"), 0)
CONFIG: Final = TransactionConfig(
    default_timeout_ms=2_400,
    park_ms=1_200,
    retry_min_ms=120,
    retry_max_ms=640,
    finished_flush_ms=400,
    visible_wait_max_ms=1_600,
    sweep_interval_ms=8_000,
)
"""Of a node's clock, which is `RATE` times faster than the world's."""
CALL_TIMEOUT_MS: Final = 120
LATE_MS: Final = 600
"""A copy of a call comes up to so much later: by then other transactions have begun and ended."""
_LATE_CALLS: Final = 0.06
_LATE_ANSWER_MS: Final = 150
_TIMES: Final = ("timeout_ms", "wait_visible_ms", "older_than_ms")
_READING: Final = (ListRequested, DescribeRequested, LedgersRequested)


class WatchedCoordinator(WatchedHost, Coordinator):
    """One leadership of the transactions partition on one run of a broker."""

    trace_word = "transactions"

    def __init__(self, broker: SimBroker, *parts: Any) -> None:
        Coordinator.__init__(self, *parts)
        self.watch(broker)
        self.shadow: dict[bytes, bytes | None] = {}
        """The log as this coordinator has read and written it."""

    def shadow_record(self, key: bytes | None, value: bytes | None) -> None:
        assert key is not None
        self.shadow[key] = value

    def decided(self, ready: tc.Ready) -> None:
        super().decided(ready)
        self.note(ready)
        self.shadow.update(ready.records)
        self.judge(self.world.transaction_checks.decided, self, ready)

    def tell(self, ready: tc.Ready) -> None:
        world = self.world
        ends = any(isinstance(one, tc.SendEnds) for one in ready.outputs)
        nemesis = world.transactions
        if ends and world.chaotic and nemesis is not None and nemesis.strikes_here():
            # Decided and committed, and nobody has heard: the next coordinator must tell them.
            world.scheduler.after(0.001, nemesis.kill, self.broker)
        else:
            super().tell(ready)


class WatchedTransactions(Coordinators):
    """Those of one run of a broker."""

    def watch(self, broker: SimBroker) -> None:
        """Comes before they run."""
        self._broker = broker
        self._config = CONFIG

    def make(self, log: PartitionLog) -> Coordinator:
        parts = (log, self._clock, self._config, self._ends, self._metrics)
        return WatchedCoordinator(self._broker, *parts)


class LatePeers(RemotePeers):
    """Now and then a copy of a call comes as well, whenever it likes, or an answer comes late."""

    def __init__(self, broker_id: BrokerId, view: ClusterView, transport: Transport) -> None:
        super().__init__(broker_id, view, transport)
        assert isinstance(transport, SimTransport)
        self._loop = transport.loop

    async def join(
        self, broker_id: BrokerId, entries: Sequence[tc.JoinRequested]
    ) -> list[PenstockError | None]:
        self._copy(super().join, broker_id, entries)
        results = await super().join(broker_id, entries)
        scheduler = self._loop.scheduler
        if scheduler.chance(_LATE_CALLS):
            # By then the transaction may have ended, and batches still wait for the answer.
            await sleep(scheduler.between(1, _LATE_ANSWER_MS) * RATE / 1000)
        return results

    async def end(
        self, broker_id: BrokerId, entries: Sequence[tc.End]
    ) -> list[PenstockError | None]:
        self._copy(super().end, broker_id, entries)
        return await super().end(broker_id, entries)

    def _copy(self, call: Callable[..., Awaitable[Any]], *args: Any) -> None:
        scheduler = self._loop.scheduler

        async def late() -> None:
            with suppress(PenstockError):
                await call(*args)

        def send() -> None:
            if not self._loop.dead:
                self._loop.start(late())

        if scheduler.chance(_LATE_CALLS):
            scheduler.after(scheduler.between(1, LATE_MS), send)


class TransactionDesk(Desk[WatchedCoordinator]):
    """Of one run of a broker: see the module."""

    def __init__(self, broker: SimBroker, hosts: WatchedTransactions) -> None:
        super().__init__(broker, hosts, WatchedCoordinator)
        assert broker.shell is not None
        self._view = broker.shell.view
        self.hosts = hosts

    async def answer(self, event: tc.Request) -> Any:
        request: Any = _on_its_clock(event)
        if isinstance(request, tc.InitRequested):
            self._view.check_awake()
        key = getattr(request, "transactional_id", getattr(request, "application_id", "whichever"))
        host = self.hosts.find(key)
        if not isinstance(request, _READING):
            self.hosts.writable(host, None)
        return await host.ask(
            lambda number: replace(request, request_id=number),
            patience_ms=getattr(request, "wait_visible_ms", 0),
        )


def _on_its_clock(event: Any) -> Any:
    """Clients of this world count in its milliseconds."""
    times = {name: getattr(event, name) * RATE for name in _TIMES if hasattr(event, name)}
    return replace(event, **times) if times else event


def ask_coordinator(
    world: World, source: int, make: Callable[[int], tc.Request], respond: Callable[[Any], None]
) -> None:
    """A call from `source` to whoever coordinates, by what some broker knows; perhaps twice.

    No answer comes when it gets lost, or the coordinator dies.
    """
    broker = world.find_leader(TRANSACTIONS_KEY)[0]

    def answered(answer: Any) -> None:
        world.net.call(int(broker.id), source, respond, answer)

    def arrive(answered: Callable[[Any], None]) -> None:
        if broker.transactions is not None:
            broker.transactions.ask(make(world.next_request()), answered)

    world.net.call(source, int(broker.id), arrive, answered)
    if world.scheduler.chance(0.06):
        late_ms = world.scheduler.between(1, LATE_MS)
        world.scheduler.after(late_ms, arrive, lambda _answer: None)
