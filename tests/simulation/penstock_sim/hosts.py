"""Hosts of machines that live on a log (`logged.host`), while a world looks over their shoulder.

A host survives what its machine or its shell does wrong: it logs a defect and starts over. Here a
defect ends the history, and so does a check that fails in the middle of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.core.batch import Batch
from penstock.core.records import decode_batch
from penstock.errors import ErrorCode, PenstockError
from penstock_broker.logged.host import APPEND_BYTES_MAX, MachineHost
from penstock_broker.logged.hosts import Hosts
from penstock_broker.logged.log import ReplicaLog
from penstock_broker.metrics import Metrics
from penstock_broker.transactions.metrics import TransactionMetrics

if TYPE_CHECKING:
    from penstock_sim.broker import SimBroker
    from penstock_sim.world import World

_Host = TypeVar("_Host")


class WatchedHost(MachineHost[Any, Any, Any]):
    """Comes before the kind of host in the order of bases."""

    broker: SimBroker
    trace_word: str
    _event: Any = None

    @property
    def world(self) -> World:
        return self.broker.world

    @property
    def quiet(self) -> bool:
        """All that was decided is committed."""
        return self._handed == self._durable

    def watch(self, broker: SimBroker) -> None:
        """Comes before it loads. Sizes that are met: a few batches, in some leaderships, until
        faults are over: with an append for each decision, it does not keep up with what all repeat
        that were not answered in time."""
        self.broker = broker
        chance = self.world.scheduler.generator(f"host {broker.run} {self.leader_epoch}")
        self.append_bytes = chance.choice((100, self.append_bytes))
        assert isinstance(self.log, ReplicaLog)
        self.log.read_bytes = chance.choice((100, self.log.read_bytes))

    def _flush(self) -> None:
        if not self.world.chaotic:
            self.append_bytes = APPEND_BYTES_MAX
        super()._flush()

    def shadow_record(self, key: bytes | None, value: bytes | None) -> None:
        """The next record of the log."""

    def _feed(self, batch: Batch) -> int:
        columns = decode_batch(batch)
        for key, value in zip(columns.keys(), columns.values(), strict=True):
            self.shadow_record(key, value)
        return super()._feed(batch)

    async def load(self) -> None:
        try:
            await super().load()
        except PenstockError as error:
            corrupt = error.code in {ErrorCode.DATA_CORRUPTED, ErrorCode.CORRUPT_BATCH}
            if corrupt and not self._may_be_damaged():
                self.world.scheduler.fail(error)
            raise
        if self.serving:
            self.world.scheduler.note(self.broker.name, "coordinates", self)

    def _may_be_damaged(self) -> bool:
        """Where bits flip: it ends until somebody sound leads."""
        damage = self.world.damage
        assert isinstance(self.log, ReplicaLog)
        return damage is not None and damage.may_stop(self.broker, self.log.replica.key)

    def handle(self, event: Any) -> None:
        outer, self._event = self._event, event
        try:
            super().handle(event)
        finally:
            self._event = outer

    def note(self, ready: Any) -> None:
        """A line of the trace."""
        scheduler = self.world.scheduler
        if scheduler.traced:
            shown = [decision.event for decision in ready.decisions]
            said = (*ready.records, *ready.outputs)
            scheduler.note(self.broker.name, self.trace_word, self._event, shown, *said)

    def judge(self, check: Callable[..., None], *args: Any) -> None:
        """Whoever called may swallow what a check raises."""
        try:
            check(*args)
        except Exception as error:  # noqa: BLE001 - it ends the history
            self.world.scheduler.fail(error)

    def _stop(self, what: str, error: BaseException) -> None:
        self.world.scheduler.fail(error)
        super()._stop(what, error)

    def close(self, error: PenstockError) -> None:
        if self.closed is None:
            self.world.scheduler.note(self.broker.name, "coordinates no more", error)
        super().close(error)


class Desk(Generic[_Host]):
    """Stands for the service of a run of a broker: turns what the network brings into what the
    service would do, on the node's loop."""

    def __init__(self, broker: SimBroker, hosts: Hosts[Any], kind: type[_Host]) -> None:
        assert broker.shell is not None
        self._broker = broker
        self._hosts = hosts
        self._kind = kind
        self._loop = broker.shell.loop

    @property
    def current(self) -> _Host | None:
        """The coordinator of the one partition, if it is led here."""
        for host in [] if self._loop.dead else self._hosts.led:
            assert isinstance(host, self._kind)
            return host
        return None

    def ask(self, event: Any, respond: Callable[[Any], None]) -> None:
        """A unary call. No answer if the process is dead."""
        if not self._loop.dead:
            self._broker.start_task(self._ask(event, respond))

    async def _ask(self, event: Any, respond: Callable[[Any], None]) -> None:
        answer: Any
        try:
            answer = await self.answer(event)
        except PenstockError as error:
            answer = error
        respond(answer)

    async def answer(self, event: Any) -> Any:
        """As the service would; raises PenstockError."""
        raise NotImplementedError


@cache
def group_metrics() -> Metrics:
    """Nobody looks at them: one for all nodes."""
    return Metrics()


@cache
def transaction_metrics() -> TransactionMetrics:
    """As `group_metrics`."""
    return TransactionMetrics(group_metrics().registry, lambda: 0)
