"""The session with the active controller: liveness up, cluster images down.

    find controllers (discovery) ─▶ Register ─▶ Registered ─▶ images in order ─▶ apply
                                                    └────────▶ heartbeats, acknowledged

The controller is alive for this broker while heartbeats are acknowledged. When it is not, the
session is dropped and all controllers are asked again, with a growing delay; meanwhile the broker
keeps its roles: reads and writes continue (guarantees §4.1), only metadata changes wait. A
controller with an older epoch than the newest one seen, also by earlier runs, is refused (I21).
"""

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import grpc

from penstock import __version__
from penstock.core.control.documents import FORMATS
from penstock.core.features import BROKER_FEATURES
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import controller_pb2 as pb
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock.proto.v1.controller_pb2_grpc import ControllerServiceStub
from penstock.rpc.cancelling import being_cancelled
from penstock.rpc.channel import CONNECTION_AGE_S
from penstock.rpc.errors import error_from_rpc
from penstock.rpc.tls import generation_of
from penstock.rpc.transport import Transport
from penstock_broker.certificates.reports import report_of
from penstock_broker.clock import WallClock
from penstock_broker.config import BrokerConfig
from penstock_broker.metadata.condition import Condition
from penstock_broker.metadata.discovery import ask_all
from penstock_broker.metadata.line import Line, SessionCall, read, unanswered
from penstock_broker.observability import EventLog
from penstock_broker.serving.edge import waiting_for_others

if TYPE_CHECKING:
    # Classes that only the stubs' type files have.
    from penstock.proto.v1.admin_pb2_grpc import AdminServiceAsyncStub
    from penstock.proto.v1.controller_pb2_grpc import ControllerServiceAsyncStub

_BACKOFF_S: Final = (0.1, 0.2, 0.5)
"""The last one is well below the session timeout (1.8 s): a controller that comes back waits that
long for the brokers it knew, and then considers them dead."""
_FAILURES_PER_LINE: Final = 120
_FATAL: Final = frozenset(
    {
        ErrorCode.CLUSTER_ID_MISMATCH,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.STALE_DATA_DIRECTORY,
    }
)
"""Refusals that do not change when asked again, because they are about this run: it belongs to
another cluster, its registration is invalid, it lacks a feature that is in use, or its data
directory is older than the cluster knows."""
_REGISTER_TIMEOUT_S: Final = 5.0
_CALL_TIMEOUT_S: Final = 10.0
_NO_SESSION_S: Final = 1.0
"""How long a stopping broker looks for a controller: twice the time to find a live one."""
_RENEW_S: Final = CONNECTION_AGE_S * 0.8
"""A controller with TLS ends connections soon after: the stream is replaced before."""
_RENEW_AGAIN_S: Final = 10.0
_LAST_CALLS_S: Final = 1.0
"""How long calls on the former channel may take once a stream was replaced."""
_COPIES_PER_BEAT: Final = 100
"""Controllers of earlier releases take no heartbeat of more than 16 KiB."""
_A = TypeVar("_A")
_events = EventLog("session")


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """A broker's part of its registration; from its data directory and this run."""

    cluster_id: str
    incarnation: str
    directory_id: str
    data_intact: bool
    promised_controller_epoch: int = 0
    """The newest that the journal has promised to follow; 0: none."""
    generations: tuple[str, ...] = ()
    """Of the data directory, the last is the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where a broker listens on its host, as it registers; 0: it has no such port.

    `port`: for whoever uses none of the others. What each is for: `controller.proto`, `Register`.
    """

    port: int
    replication_port: int = 0
    stream_port: int = 0
    internal_port: int = 0
    secure_port: int = 0
    secure_internal_port: int = 0
    certificate_port: int = 0


class ImageSink(Protocol):
    """The broker: applies the controller's messages, and reports its state."""

    @property
    def controller_epoch(self) -> int: ...
    @property
    def metadata_version(self) -> int: ...
    @property
    def condition(self) -> Condition: ...
    @property
    def ports(self) -> Ports: ...
    async def registered(self, answer: pb.Registered) -> None: ...
    async def apply(self, image: pb.ClusterImage) -> None: ...


@dataclass(frozen=True, slots=True)
class ControllerConnection:
    """A live session. `broker_session` and `controller_epoch` go into every call."""

    address: str
    channel: grpc.aio.Channel
    broker_session: int
    controller_epoch: int

    @property
    def controller(self) -> "ControllerServiceAsyncStub":
        return ControllerServiceStub(self.channel)

    @property
    def admin(self) -> "AdminServiceAsyncStub":
        return AdminServiceStub(self.channel)


class ControllerSession:
    """Keeps a session with the active controller."""

    def __init__(
        self,
        config: BrokerConfig,
        identity: Callable[[], BrokerIdentity],
        sink: ImageSink,
        transport: Transport,
        chance: Random,
        wall: WallClock,
    ) -> None:
        """`wall` is told the controller's time."""
        self._config = config
        self._chance = chance
        self._wall = wall
        self._identity = identity
        self._sink = sink
        self._transport = transport
        self._connection: ControllerConnection | None = None
        self._failures = 0
        self._opening = True
        self._stopping = False
        self._may_stop = False
        self._outdated = False
        """This session's controller is no longer followed."""
        self._is_informed = False
        self._seen_version = 0
        self._reading: asyncio.Timeout | None = None
        self._news = asyncio.Event()
        """A session began or ended, or `may_stop` was received."""
        self._beat = asyncio.Event()

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def is_informed(self) -> bool:
        """This session's controller has said how things are. Until then, the image is one from
        before the session, or there is none: it does not show what the broker missed."""
        return self._connection is not None and self._is_informed

    def connection(self) -> ControllerConnection:
        """The live session; raises ClusterError(CONTROLLER_UNAVAILABLE) without one."""
        if self._connection is None:
            raise ClusterError(
                f"broker {self._config.broker_id} has no session with a controller "
                f"({', '.join(self._config.controllers)}): changes of topics, configs and leaders "
                "wait until it is back, reads and writes go on; try again",
                ErrorCode.CONTROLLER_UNAVAILABLE,
            )
        return self._connection

    async def call(self, what: str, answer: Awaitable[_A]) -> _A:
        """Awaits the answer to a unary call on the live session, with a deadline.

        Raises the controller's refusal, or CONTROLLER_UNAVAILABLE if it did not answer: then the
        outcome is unknown.
        """
        try:
            with waiting_for_others():
                async with asyncio.timeout(_CALL_TIMEOUT_S):
                    return await answer
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            raise unanswered(what, error) from error
        except asyncio.CancelledError as error:
            if being_cancelled():
                raise
            # The session ended and closed its channel during this call: gRPC then raises as if the
            # caller itself were cancelled, which would silently end its task.
            raise unanswered(what, error) from error

    async def hand_over(self, timeout_s: float) -> bool:
        """Asks the controller to move all leaderships off this broker; True once none is left.

        Gives up after `timeout_s`, or if there is no session for a second.
        """
        self._stopping = True
        self._beat.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._may_stop:
                    self._news.clear()
                    async with asyncio.timeout(None if self.connected else _NO_SESSION_S):
                        await self._news.wait()
        return self._may_stop

    def leave_older_than(self, controller_epoch: int) -> None:
        """Ends a session with a controller of an older epoch, to look for the new one."""
        if self._connection is None or self._connection.controller_epoch >= controller_epoch:
            return
        self._outdated = True
        if self._reading is not None and not self._reading.expired():
            self._reading.reschedule(asyncio.get_running_loop().time())

    def check_follows(self, connection: ControllerConnection) -> None:
        """Raises CONTROLLER_UNAVAILABLE if its session has ended: an answer no longer counts.

        A broker that has promised to follow a newer controller must not act on what the previous
        one has stored since: the newer one may have read already.
        """
        if self._connection is not connection or self._outdated:
            raise ClusterError(
                "the answer came after the end of the session, so the outcome is unknown",
                ErrorCode.CONTROLLER_UNAVAILABLE,
            )

    def saw(self, metadata_version: int) -> None:
        """An answer had this version, maybe before an image. Registration reports it."""
        self._seen_version = max(self._seen_version, metadata_version)

    @property
    def opening(self) -> bool:
        """It is not known yet, or not reported, which logs are damaged: so it is not elected."""
        return self._opening

    def opened(self) -> None:
        """A controller has heard of all damage that was found when the logs were opened."""
        self._opening = False
        self.beat()

    def beat(self) -> None:
        """Sends a heartbeat now, because its content changed."""
        self._beat.set()

    # ------------------------------------------------------------ one connection after another

    async def run(self) -> None:
        """Keeps a session until cancelled. Raises a ClusterError with a code in `_FATAL`."""
        failures = 0
        while True:
            controllers, chance = self._config.controllers, self._chance
            if await ask_all(self._transport, controllers, self._attempt, self._explain, chance):
                failures = 0
            delay_s = _BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)]
            failures += 1
            # Jitter, so that all brokers of a cluster do not come back in the same moment.
            await asyncio.sleep(delay_s * chance.uniform(0.5, 1.0))

    async def _attempt(self, address: str) -> bool:
        """Runs one session from start to end; True if it was established."""
        line, alive = self._dial(address), False
        self._is_informed = False
        try:
            timeout_s = await self._register(address, line)
            alive = True
            while True:
                await self._receive(line, timeout_s)
                line = await self._renewed(address, line)
        except (grpc.aio.AioRpcError, PenstockError, TimeoutError) as error:
            self._explain(address, error)
        finally:
            if self._connection is not None:
                self._connection = None
                self._news.set()
                _events.warning("controller session ended", controller=address)
            await line.hang_up()
        return alive

    def _dial(self, address: str) -> Line:
        channel = self._transport.open(address)
        ready: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        call: SessionCall = ControllerServiceStub(channel).Session(self._requests(ready))
        tls = self._transport.tls
        renew_s = math.inf if tls is None else asyncio.get_running_loop().time() + _RENEW_S
        return Line(channel, call, ready, generation_of(tls), renew_s)

    async def _register(self, address: str, line: Line) -> float:
        """Makes this the live session; returns its timeout in seconds."""
        registered = await self._registration(line.call)
        self._wall.told(registered.wall_ms)
        await self._sink.registered(registered)
        self._outdated = False
        self._connection = ControllerConnection(
            address, line.channel, registered.broker_session, registered.controller_epoch
        )
        self._news.set()
        self._failures = 0
        _events.info(
            "registered",
            controller=address,
            controller_epoch=registered.controller_epoch,
            broker_session=registered.broker_session,
        )
        line.ready.set_result(registered.heartbeat_interval_ms / 1000)
        return registered.session_timeout_ms / 1000

    async def _renewed(self, address: str, line: Line) -> Line:
        """Another stream to the same controller, before this one becomes too old.

        The controller puts the new one in place of the old, which ends once its calls have. If it
        cannot be opened, the old one goes on.
        """
        newer = self._dial(address)
        try:
            await self._register(address, newer)
        except (grpc.aio.AioRpcError, PenstockError, TimeoutError) as error:
            await newer.hang_up()
            line.renew_s = asyncio.get_running_loop().time() + _RENEW_AGAIN_S
            line.generation = newer.generation
            _events.warning("session not renewed", controller=address, reason=str(error))
            return line
        except BaseException:
            await newer.hang_up()
            raise
        await line.hang_up(_LAST_CALLS_S)
        return newer

    def _explain(self, address: str, error: Exception) -> None:
        """Logs why a session failed; raises if another attempt is pointless."""
        seen = error_from_rpc(error) if isinstance(error, grpc.aio.AioRpcError) else error
        if isinstance(seen, PenstockError) and seen.code in _FATAL:
            raise seen
        self._failures += 1
        # Log only some failures: a controller can be unavailable for an hour.
        if self._failures == 1 or self._failures % _FAILURES_PER_LINE == 0:
            _events.warning(
                "no controller session",
                controller=address,
                attempts=self._failures,
                reason=str(seen) or "no answer in time",
            )

    async def _registration(self, call: SessionCall) -> pb.Registered:
        async with asyncio.timeout(_REGISTER_TIMEOUT_S):
            response = await read(call)
        if response.WhichOneof("message") != "registered":
            raise ClusterError(
                f"the controller answered {response.WhichOneof('message')} to a registration",
                ErrorCode.INTERNAL,
            )
        return response.registered

    async def _receive(self, line: Line, timeout_s: float) -> None:
        """Applies images as they come; returns when a renewal is due, raises at the end."""
        tls, loop = self._transport.tls, asyncio.get_running_loop()
        while loop.time() < line.renew_s and line.generation == generation_of(tls):
            response = await self._next(line.call, timeout_s)
            match response.WhichOneof("message"):
                case "image":
                    await self._sink.apply(response.image)
                    self._is_informed = True
                    self._beat.set()
                case "heartbeat_ack":
                    self._wall.told(response.heartbeat_ack.wall_ms)
                    if response.heartbeat_ack.may_stop and self._stopping:
                        self._may_stop = True
                        self._news.set()
                case _:
                    pass

    async def _next(self, call: SessionCall, timeout_s: float) -> pb.SessionResponse:
        self._check_not_outdated()
        try:
            async with asyncio.timeout(timeout_s) as self._reading:
                response = await read(call)
        finally:
            self._reading = None
        self._check_not_outdated()
        return response

    def _check_not_outdated(self) -> None:
        if self._outdated:
            raise TimeoutError("this broker follows another controller now")

    async def _requests(self, ready: asyncio.Future[float]) -> AsyncIterator[pb.SessionRequest]:
        """Register, then heartbeats while the stream is open."""
        identity, ports = self._identity(), self._sink.ports
        yield pb.SessionRequest(
            register=pb.Register(
                cluster_id=identity.cluster_id,
                broker_id=self._config.broker_id,
                incarnation=identity.incarnation,
                host=self._config.advertise_host,
                port=ports.port,
                rack=self._config.rack,
                directory_id=identity.directory_id,
                data_intact=identity.data_intact,
                controller_epoch=self._sink.controller_epoch,
                metadata_version=max(self._sink.metadata_version, self._seen_version),
                external_host=self._config.external_host,
                external_port=self._config.external_port,
                replication_port=ports.replication_port,
                stream_port=ports.stream_port,
                internal_port=ports.internal_port,
                secure_port=ports.secure_port,
                secure_internal_port=ports.secure_internal_port,
                certificate_port=ports.certificate_port,
                external_certificate_port=self._config.external_certificate_port,
                features=BROKER_FEATURES,
                promised_controller_epoch=identity.promised_controller_epoch,
                software_version=__version__,
                formats=FORMATS,
                opening=self._opening,
                generations=identity.generations,
            )
        )
        interval_s = await ready
        for beat in itertools.count():
            condition = self._sink.condition
            yield pb.SessionRequest(
                heartbeat=pb.Heartbeat(
                    metadata_version=self._sink.metadata_version,
                    wants_stop=self._stopping,
                    opened=not self._opening,
                    disk_full=condition.disk_full,
                    no_space_for_copies=condition.no_space_for_copies,
                    copies=_in_turn(condition.copies, beat),
                    tls=_tls_report(self._transport),
                    generation=self._newest_generation() if self._stopping else "",
                )
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._beat.wait()
            self._beat.clear()

    def _newest_generation(self) -> str:
        known = self._identity().generations
        return known[-1] if known else ""


def _in_turn(copies: Sequence[pb.CopyProgress], beat: int) -> Sequence[pb.CopyProgress]:
    """Those that heartbeat number `beat` tells of; the next ones tell of the others."""
    parts = max(1, math.ceil(len(copies) / _COPIES_PER_BEAT))
    first = beat % parts * _COPIES_PER_BEAT
    return copies[first : first + _COPIES_PER_BEAT]


def _tls_report(transport: Transport) -> pb.TlsReport | None:
    if transport.tls is None:
        return None
    report = report_of(transport.tls)
    return pb.TlsReport(
        trusted_cas=sorted(report.trusted), own_ca=report.issuer, own_ends_s=report.ends_s
    )
