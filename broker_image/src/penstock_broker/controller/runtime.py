"""The loop around `ControllerMachine`: one event at a time, one store call at a time.

    RPCs, streams ─▶ submit / feed ─▶ machine.handle ─▶ Ready ─▶ replies, outboxes, decisions
    ticker (50 ms) ─▶                                    │
    lease (every 1 s) ─▶ start / stop being active       └─▶ writes, reload ─▶ store task
    (beside the store task)                                    (one at a time) └─▶ WriteDone …

The loop awaits only the store, and never between reading and changing the machine. A Ready's
replies are sent at once: they belong to writes that are already durable. While this process does
not hold the lease, there is no machine, and every request is answered with NOT_CONTROLLER. The
store task is in `store_task`, the streams' outboxes are in `outbox`.

If the lease was not renewed for `_SUSPEND_S`, and a majority of the brokers does not stand in for
it (`hold`), another controller may be about to take over: this one is *suspended*. It ends all
sessions, so that brokers find the other controller before it considers them dead, and decides
nothing; it still answers questions from what it knows. When the store answers again, it takes over
again or stands by. Safety never depends on this: writes are compare-and-swaps.

A defect in the machine ends it (`core.defect`), and with it the process: waiting callers get an
error, `run` raises the reason, and the caller releases the lease with `release`.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from penstock.core.control import ControlConfig, ControllerMachine, Phase
from penstock.core.control import contract as c
from penstock.core.types import BrokerId
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_broker.certificates.rotation import Report
from penstock_broker.controller.counters import Counters
from penstock_broker.controller.loading import check_cluster_id, from_texts
from penstock_broker.controller.metadata_store.interface import StoreUnavailableError
from penstock_broker.controller.outbox import SessionOutbox, SessionOutboxes
from penstock_broker.controller.refusals import not_active, suspended
from penstock_broker.controller.seams import ControllerSeams
from penstock_broker.controller.store_task import StoreTask
from penstock_broker.controller.tls_reports import TlsReports
from penstock_broker.observability import EventLog
from penstock_broker.serving.operators import operator_epoch

_TICK_S: Final = 0.05
_STALL_S: Final = 0.5
_LEASE_MS: Final = 6_000
_LEASE_RENEW_S: Final = 1.0
_LEASE_RETRY_S: Final = 0.5
_FAILURES_PER_LINE: Final = 60
_HOLD_AFTER_S: Final = 2.5
"""An API server that restarts is back sooner: a restart is no reason to continue without it."""
_SUSPEND_S: Final = 5.0
"""Shorter than the lease, so that sessions end before another controller can get it. Long enough
for a call of 2 s and for asking the brokers twice."""
_HOLD_ATTEMPTS: Final = 2
_REQUEST_TIMEOUT_S: Final = 8.0
"""Less than the brokers' own deadline (10 s), so that they get the better message."""
_events = EventLog("controller")


class ControllerRuntime:
    """Runs one machine at a time; owned by the process or a test."""

    def __init__(self, config: ControlConfig, seams: ControllerSeams, cluster_id: str = "") -> None:
        """`cluster_id` is the id of a new cluster; if empty, a UUID."""
        self.counters = Counters()
        self.tls_reports = TlsReports()
        self._store = seams.store
        self._clock = seams.clock
        self._config = config
        self._seams = seams
        self._wanted_cluster_id = cluster_id
        self._holder = seams.holder
        self._renewed_at = 0.0
        self._suspended = False
        self._take_over_again = False
        """At the next renewal, because only whoever has the lease may: others would outbid it."""
        self._machine: ControllerMachine | None = None
        self._settled = False
        self._waiting: dict[int, asyncio.Future[c.Result]] = {}
        self._outboxes = SessionOutboxes(lambda: self.machine, seams.clock.wall_ms)
        self._ids = 0
        self._told_journaling = False
        self._store_task = StoreTask(
            seams,
            self.counters,
            load=self._load,
            feed=self.feed,
            tell_store_state=self._tell_store_state,
        )
        self._changed = asyncio.Event()
        self._defect: PenstockError | None = None

    # ------------------------------------------------------------ for the services

    @property
    def active(self) -> bool:
        """This controller has taken over and decides."""
        return self._has_view and not self._suspended

    @property
    def detached(self) -> bool:
        """The metadata store is unavailable, and brokers keep the decisions, if there are any."""
        return self.active and self._store.journaling

    @property
    def _has_view(self) -> bool:
        return self._machine is not None and self._machine.phase is Phase.ACTIVE

    @property
    def machine(self) -> ControllerMachine:
        """The machine, to read from, even suspended. Raises ClusterError(NOT_CONTROLLER)."""
        if self._machine is None or not self._has_view:
            raise not_active()
        return self._machine

    def writing_machine(self) -> ControllerMachine | None:
        """The machine while it decides, and what it decides goes to the metadata store itself."""
        return self._machine if self.active and not self._store.detached else None

    def check_active(self) -> None:
        """Raises the reason why no session and no change is accepted now."""
        if self._suspended:
            raise suspended()
        _ = self.machine

    @property
    def cluster_id(self) -> str:
        """Empty while there is nothing to show."""
        machine = self._machine if self._has_view else None
        return "" if machine is None else machine.stored.cluster.cluster_id

    def tls_of_brokers(self) -> Mapping[BrokerId, Report | None] | None:
        """What each registered broker says that its TLS uses; None of a broker: it has not said it
        in a session with this controller. None: this controller does not decide now."""
        if not self.active:
            return None
        known = self.tls_reports.newest()
        return {one: known.get(one) for one in self.machine.stored.cluster.brokers}

    @property
    def usable(self) -> bool:
        """It has been active, or has stood by: this process works. Once true, it stays true."""
        self._settled = self._settled or self.active
        return self._settled

    async def wait_active(self, timeout_s: float) -> None:
        """Returns once active. Raises TimeoutError."""
        async with self._clock.timeout(timeout_s):
            while not self.active:
                self._changed.clear()
                await self._changed.wait()

    async def submit(self, make: Callable[[int], c.Request]) -> c.Result:
        """Passes a request to the machine and waits until its result is durable.

        Raises the machine's refusal; NOT_CONTROLLER; CONTROLLER_UNAVAILABLE if the metadata store
        has not answered in time: then it is unknown whether the change was made.
        """
        if self._machine is None or self._suspended:
            raise suspended() if self._suspended else not_active()
        request_id = self._next_id()
        future: asyncio.Future[c.Result] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        try:
            request, epoch = make(request_id), operator_epoch()
            self.feed(c.OperatorRequest(epoch, request) if epoch else request)
            async with self._clock.timeout(_REQUEST_TIMEOUT_S):
                return await future
        except TimeoutError:
            raise ClusterError(
                f"the metadata store has not answered for {_REQUEST_TIMEOUT_S:.0f} s; whether the "
                "change was made is unknown; check before you try again",
                ErrorCode.CONTROLLER_UNAVAILABLE,
            ) from None
        finally:
            self._waiting.pop(request_id, None)

    def open_stream(self) -> tuple[int, SessionOutbox]:
        """A session stream began; its messages appear in the outbox.

        Raises OverloadedError if there are too many.
        """
        stream_id = self._next_id()
        return stream_id, self._outboxes.open(stream_id)

    def close_stream(self, stream_id: int) -> None:
        """The stream ended."""
        self.tls_reports.gone(stream_id)
        if self._outboxes.close(stream_id):
            self.feed(c.StreamClosed(stream_id))

    def feed(self, event: c.Event) -> None:
        """Passes one event to the machine and carries out the result; drops it if none is
        active."""
        if self._machine is None or self._suspended:
            return
        self.counters.events += 1
        ready = self._machine.handle(event, self._clock.now_ms())
        if ready.stopped is not None:
            self._stopped(event, ready.stopped)
        self._obey(ready)
        if ready.stopped is not None:
            self._stop_machine()

    # ------------------------------------------------------------ tasks

    async def run(self) -> None:
        """Ticks, renews the lease and calls the store, until cancelled.

        Raises the PenstockError that stopped the machine, or a permanent error of the store.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_lease(), name="lease")
            tasks.create_task(self._tick(), name="tick")
            tasks.create_task(self._store_task.run(), name="store")

    async def release(self) -> None:
        """For a clean stop: lets the next controller begin at once."""
        self._stop_machine()
        try:
            await self._store.release_lease(self._holder)
        except StoreUnavailableError as error:
            _events.warning("lease not released", reason=error.message)

    async def _tick(self) -> None:
        last = self._clock.now_s()
        while True:
            await self._clock.sleep(_TICK_S)
            now = self._clock.now_s()
            if now - last > _STALL_S:
                # This process was paused. The store will say at the next renewal which controller
                # is active.
                self._renewed_at += now - last
            last = now
            if self._defect is not None:
                raise self._defect
            if self.active and now - self._renewed_at > _SUSPEND_S:
                self._suspend()
            self._tell_store_state()
            self.feed(c.Tick())

    def _tell_store_state(self) -> None:
        """Whether a write would be journaled now; a new machine takes it that none would."""
        journaling = self._store.journaling
        if self._machine is not None and journaling != self._told_journaling:
            self._told_journaling = journaling
            self.feed(c.StoreState(journaling))

    async def _keep_lease(self) -> None:
        """Loss of the lease ends the machine; an unreachable store does not (guarantees §4.1)."""
        failures = 0
        while True:
            began, pause_s = self._clock.now_s(), _LEASE_RENEW_S
            try:
                held = await self._store.acquire_lease(self._holder, _LEASE_MS)
            except StoreUnavailableError as error:
                if failures % _FAILURES_PER_LINE == 0:
                    _events.warning("lease not renewed, continuing", reason=error.message)
                failures, pause_s = failures + 1, _LEASE_RETRY_S
                await self._hold_without_lease()
            else:
                failures = 0
                # If this process was paused meanwhile, this yes may be outdated: another may hold
                # the lease.
                if not held or self._clock.now_s() - began < _SUSPEND_S:
                    self._on_lease(held, began)
            await self._clock.sleep(pause_s)

    async def _hold_without_lease(self) -> None:
        """A majority of the brokers can stand in for the lease (core.control.journal).

        Not for a controller that may not have read yet what a broker already acts on: its own
        journal would then replace it (ADR 29).
        """
        if self._clock.now_s() - self._renewed_at < _HOLD_AFTER_S:
            return
        for attempt in range(_HOLD_ATTEMPTS):
            if attempt:
                await self._clock.sleep(_LEASE_RETRY_S)
            asked_at, machine = self._clock.now_s(), self._machine
            if not self.active or machine is None:
                return
            if not (machine.settled or self._store.detached):
                return
            if await self._store.hold():
                self._renewed_at = asked_at
                return
            _events.warning("brokers do not stand in for the lease", attempt=attempt + 1)

    def _on_lease(self, held: bool, asked_at: float) -> None:
        """The store answered. `asked_at`: the earliest time at which the lease began."""
        if held:
            self._renewed_at = asked_at
            if self._suspended or (self.active and self._store.detached):
                _events.info("the metadata store is available again")
                self._stop_machine()
            elif self._take_over_again:
                _events.warning("taking over again: a broker follows only the next epoch")
                self._stop_machine()
            if self._machine is None and self._defect is None:
                _events.info("lease acquired, taking over", holder=self._holder)
                self._start_machine()
        else:
            self._settled = True
            if self._machine is not None:
                _events.warning("lease lost, standing by", holder=self._holder)
                self._stop_machine()

    async def _load(self) -> c.Loaded | None:
        try:
            found = await self._store.read_all(take_over=not self._has_view)
        except StoreUnavailableError as error:
            _events.warning("metadata not readable, trying again", reason=error.message)
            return None
        memory = self.machine.stored if self.active else None
        loaded = from_texts(found, self._wanted_cluster_id or self._seams.new_id(), memory)
        check_cluster_id(self._wanted_cluster_id, loaded)
        return loaded

    # ------------------------------------------------------------ obeying

    def _obey(self, ready: c.Ready) -> None:
        for decision in ready.decisions:
            self._log(decision)
        for reply in ready.replies:
            self._reply(reply)
        for message in ready.session_messages:
            self._outboxes.put(message)
        if ready.metadata_version is not None:
            self._changed.set()
            self._outboxes.notify()
        self._store_task.take(ready)
        self._take_over_again |= ready.take_over_again
        if ready.deposed:
            self._stop_machine()

    def _reply(self, reply: c.Reply) -> None:
        future = self._waiting.get(reply.request_id)
        if future is None or future.done():
            return
        if isinstance(reply.outcome, PenstockError):
            future.set_exception(reply.outcome)
        else:
            future.set_result(reply.outcome)

    def _log(self, decision: c.Decision) -> None:
        elections = decision.fields.get("elections")
        if isinstance(elections, dict):
            self.counters.elections.update(elections)
        level = {
            c.Severity.INFO: _events.info,
            c.Severity.WARNING: _events.warning,
            c.Severity.ERROR: _events.error,
        }[decision.severity]
        level(decision.event, **decision.fields)

    def _start_machine(self) -> None:
        self._machine = ControllerMachine(self._config)
        self._told_journaling = False
        self._store_task.begin()

    def _stop_machine(self) -> None:
        """Stands by: waiting callers get an error, every stream ends."""
        if self._machine is None:
            return
        self._end_work(not_active())
        self._machine, self._suspended = None, False
        self._take_over_again = False

    def _stopped(self, event: c.Event, error: PenstockError) -> None:
        """A defect: ends `run` at the next tick, when waiting callers have got their errors."""
        self._defect = error
        _events.defect(
            "controller stopped",
            error.__cause__ or error,
            after=type(event).__name__,
            reason=error.message,
        )

    def _suspend(self) -> None:
        """See the module. The machine stays, to answer questions."""
        _events.warning("suspended: the lease could not be renewed", limit_s=_SUSPEND_S)
        self._end_work(suspended())
        self._suspended = True

    def _end_work(self, reason: ClusterError) -> None:
        self._store_task.drop()
        self._settled = True
        self._changed.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(reason)
        self._outboxes.refuse(reason)

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids
