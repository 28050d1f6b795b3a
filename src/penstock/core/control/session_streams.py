"""What brokers are told on the streams of their sessions, and who was heard since the take-over.

    registered, durably ─▶ accept ─▶ Accepted      to the stream that it replaces: Refused
    heartbeat           ─▶ answer ─▶ HeartbeatAnswered, with "you may stop"
    a time limit passed ─▶ expire ─▶ Refused, and a death to be decided

A stream may end, or a broker open a newer one, while its registration waits for the store: the
session then begins without a stream, or replaces the other one. Who is alive: `sessions`.
"""

from collections.abc import Iterable

from penstock.core.control import contract as c
from penstock.core.control.config import ControlConfig
from penstock.core.control.documents import ClusterDocument
from penstock.core.control.outbox import Outbox
from penstock.core.control.sessions import Session, Sessions
from penstock.core.types import BrokerId
from penstock.errors import ClusterError, ErrorCode, PenstockError


class SessionStreams:
    """All streams of this controller, with or without a session yet."""

    def __init__(self, config: ControlConfig, sessions: Sessions) -> None:
        self._config = config
        self._sessions = sessions
        self._open: set[int] = set()
        self._unheard: set[BrokerId] = set()

    @property
    def everybody_heard(self) -> bool:
        """Whoever was alive at the take-over has registered since, or its death is stored."""
        return not self._unheard

    def opened(self, stream_id: int) -> None:
        """A broker asked for a session; nothing is decided yet."""
        self._open.add(stream_id)

    def closed(self, stream_id: int, now_ms: int) -> None:
        """The stream ended; the grace of its session begins."""
        self._open.discard(stream_id)
        self._sessions.stream_closed(stream_id, now_ms)

    def assume(self, cluster: ClusterDocument, now_ms: int) -> None:
        """The take-over is durable: waits for those that the documents say are alive."""
        alive = [broker.broker_id for broker in cluster.brokers.values() if broker.alive]
        self._sessions.assume(alive, cluster.controller_epoch, now_ms)
        self._unheard = set(alive)

    def buried(self, dead: Iterable[BrokerId]) -> None:
        """Their deaths are stored."""
        self._unheard.difference_update(dead)

    def accept(
        self, event: c.BrokerRegistered, cluster: ClusterDocument, out: Outbox, now_ms: int
    ) -> None:
        """Begins the session of a broker whose registration is durable."""
        before = self._sessions.get(event.broker_id)
        if before is not None and before.stream_id not in {None, event.stream_id}:
            assert before.stream_id is not None
            self.refuse(before.stream_id, "a newer connection of this broker replaced it", out)
        self._unheard.discard(event.broker_id)
        epoch = cluster.controller_epoch
        session = self._sessions.open(event.broker_id, event.stream_id, epoch, now_ms)
        session.software_version, session.formats = event.software_version, event.formats
        session.opening = event.opening
        if event.stream_id not in self._open:
            self._sessions.stream_closed(event.stream_id, now_ms)
            return
        out.messages.append(
            c.SessionAccepted(
                stream_id=event.stream_id,
                cluster_id=cluster.cluster_id,
                controller_epoch=epoch,
                broker_session=session.number,
                heartbeat_interval_ms=self._config.heartbeat_interval_ms,
                session_timeout_ms=self._config.session_timeout_ms,
            )
        )

    def answer(self, session: Session, out: Outbox, *, may_stop: bool) -> None:
        """The answer to a heartbeat, or what has changed since the last one."""
        session.told_may_stop = may_stop
        if session.stream_id is not None:
            out.messages.append(c.HeartbeatAnswered(session.stream_id, may_stop))

    def expire(self, out: Outbox, now_ms: int) -> dict[BrokerId, str]:
        """Ends the sessions whose time is over; by broker why, which is the reason of its death."""
        deaths = {}
        for session, why in self._sessions.expired(now_ms):
            self._sessions.remove(session.broker_id)
            deaths[session.broker_id] = why
            if session.stream_id is not None:
                told = f"the session has ended: {why}; register again"
                self.refuse(session.stream_id, told, out)
        return deaths

    def refuse(self, stream_id: int, message: str, out: Outbox) -> None:
        """Ends a stream whose session does not count, or never did."""
        error = ClusterError(message, ErrorCode.STALE_BROKER_SESSION)
        out.messages.append(c.SessionRefused(stream_id, error))

    def end_all(self, error: PenstockError) -> tuple[c.SessionRefused, ...]:
        """The machine stopped: tells every stream, oldest first."""
        return tuple(c.SessionRefused(one, error) for one in sorted(self._open))
