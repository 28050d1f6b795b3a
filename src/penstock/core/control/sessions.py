"""Which brokers are alive: sessions by heartbeat and stream, with time limits.

             BrokerRegistered                         heartbeat missed for session_timeout_ms,
    (none) ───────────────────▶ OPEN ─StreamClosed─▶ BROKEN ── session_grace_ms ──▶ expired
                                  ▲                    │
                                  └─ registers again ──┘

Sessions are only in memory. A controller that takes over assumes that every broker marked alive in
the documents is alive, gives each a session without a stream, and waits: brokers register again
within the session timeout or are declared dead.

Time in which the controller itself did not run (`ticked`) is not charged to the brokers. After a
long pause it waits for them as after a take-over: they may have left it, and look for it again with
pauses that are longer than the grace.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock.core.control.config import ControlConfig
from penstock.core.types import BrokerId, ControllerEpoch

_SESSIONS_PER_EPOCH = 2**24
"""Session numbers are unique across controllers: the epoch is part of them."""


@dataclass(slots=True)
class Session:
    """One broker's presence.

    `stream_id` None: assumed after a take-over, or the stream broke at `broken_at_ms`.
    `held_until_ms`: no leadership returns before this (all were moved off the broker).
    `told_may_stop`: the answer was already sent. `software_version`, `formats`: as it registered;
    empty while it is only assumed. `opening`: what is wrong with its logs is not known yet.
    `generation`: of its data directory, which it said when it began to stop; "": none.
    """

    broker_id: BrokerId
    number: int
    stream_id: int | None
    started_at_ms: int
    heard_at_ms: int
    broken_at_ms: int | None = None
    wants_stop: bool = False
    told_may_stop: bool = False
    disk_full: bool = False
    no_space_for_copies: bool = False
    held_until_ms: int = 0
    software_version: str = ""
    formats: tuple[int, ...] = ()
    opening: bool = False
    generation: str = ""


class Sessions:
    """All sessions of this controller; at most one per broker."""

    def __init__(self, config: ControlConfig) -> None:
        self._config = config
        self._by_broker: dict[BrokerId, Session] = {}
        self._count = 0
        self._ticked_ms: int | None = None
        self._patient_until_ms = 0
        """Until then, brokers may still be looking for a controller that was paused."""

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_broker.values())

    def get(self, broker_id: BrokerId) -> Session | None:
        """The broker's session, open, broken or assumed."""
        return self._by_broker.get(broker_id)

    def by_stream(self, stream_id: int) -> Session | None:
        """The session that runs over this stream."""
        for session in self._by_broker.values():
            if session.stream_id == stream_id:
                return session
        return None

    def open(
        self, broker_id: BrokerId, stream_id: int | None, epoch: ControllerEpoch, now_ms: int
    ) -> Session:
        """A new session, in place of any the broker had. `stream_id` None: only assumed."""
        self._count += 1
        number = epoch * _SESSIONS_PER_EPOCH + self._count % _SESSIONS_PER_EPOCH
        session = Session(broker_id, number, stream_id, now_ms, now_ms)
        self._by_broker[broker_id] = session
        return session

    def assume(self, brokers: Iterable[BrokerId], epoch: ControllerEpoch, now_ms: int) -> None:
        """After a take-over: these were alive in the documents.

        They are opening their logs, for all that is known: the controller before may have ended
        while it waited for that.
        """
        for broker_id in brokers:
            self.open(broker_id, None, epoch, now_ms).opening = True

    def stream_closed(self, stream_id: int, now_ms: int) -> None:
        """Starts the grace period; ignores a stream that was replaced."""
        session = self.by_stream(stream_id)
        if session is not None:
            session.stream_id = None
            session.broken_at_ms = now_ms

    def remove(self, broker_id: BrokerId) -> None:
        """Forgets the session, if there is one."""
        self._by_broker.pop(broker_id, None)

    def ticked(self, now_ms: int) -> None:
        """The controller runs; if it was paused since the last tick, all limits move by as much.

        Not beyond now: what arrived or broke after the pause needs no credit.
        """
        gap_ms = 0 if self._ticked_ms is None else now_ms - self._ticked_ms
        self._ticked_ms = now_ms
        if gap_ms <= self._config.tick_gap_ms:
            return
        if 2 * gap_ms > self._config.session_timeout_ms:
            self._patient_until_ms = now_ms + self._config.session_timeout_ms
        for session in self._by_broker.values():
            session.heard_at_ms = min(session.heard_at_ms + gap_ms, now_ms)
            if session.broken_at_ms is not None:
                session.broken_at_ms = min(session.broken_at_ms + gap_ms, now_ms)

    def expired(self, now_ms: int) -> list[tuple[Session, str]]:
        """Sessions that have ended, each with the reason and the numbers for the log."""
        config, found = self._config, []
        for session in self._by_broker.values():
            silent_ms = now_ms - session.heard_at_ms
            if session.broken_at_ms is not None:
                broken_ms = now_ms - session.broken_at_ms
                grace_ms = self._grace_ms(session, now_ms)
                if broken_ms >= grace_ms:
                    limit = f"grace is {grace_ms} ms"
                    found.append((session, f"stream broken for {broken_ms} ms, {limit}"))
                    continue
            if silent_ms >= config.session_timeout_ms:
                limit = f"limit is {config.session_timeout_ms} ms"
                found.append((session, f"no heartbeat for {silent_ms} ms, {limit}"))
        return found

    def _grace_ms(self, session: Session, now_ms: int) -> int:
        """How long this broker may take to come back after its stream broke."""
        if session.wants_stop:
            return 0
        if now_ms < self._patient_until_ms:
            return self._config.session_timeout_ms
        return self._config.session_grace_ms

    @property
    def without_space_for_copies(self) -> frozenset[BrokerId]:
        """Brokers to whose disks nothing is copied."""
        return frozenset(
            session.broker_id for session in self._by_broker.values() if session.no_space_for_copies
        )

    @property
    def leaving(self) -> frozenset[BrokerId]:
        """Brokers that want to stop."""
        return frozenset(
            session.broker_id for session in self._by_broker.values() if session.wants_stop
        )

    @property
    def opening(self) -> frozenset[BrokerId]:
        """Brokers that have not said yet what is wrong with their logs: nothing is given to them
        that somebody has to be elected for."""
        return frozenset(
            session.broker_id for session in self._by_broker.values() if session.opening
        )
