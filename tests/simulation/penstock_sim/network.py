"""Streams between nodes: ordered within, independent of each other, breakable.

A blocked direction holds messages back, as TCP does, until it is open again or the keepalive time
is over; then the stream breaks, and each end is told in its own time. Datagram-like calls (`call`)
are for requests that a client repeats on another connection: they may overtake each other, arrive
late, or never.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock_sim.scheduler import Scheduler

if TYPE_CHECKING:
    from penstock_sim.wire.connection import Connection
    from penstock_sim.wire.server import Place

KEEPALIVE_MS: Final = 150
POLL_MS: Final = 10


class End(Protocol):
    """How a node handles a stream of which it holds an end."""

    def receive(self, stream: Stream, message: Any) -> None: ...
    def stream_broken(self, stream: Stream) -> None: ...


@dataclass(slots=True)
class _Direction:
    """One direction of a stream."""

    source: int
    target: int
    messages: deque[tuple[float, Any]] = field(default_factory=deque)
    last_due_ms: float = 0.0
    blocked_since_ms: float | None = None
    pumping: bool = False


class Stream:
    """A connection from `opener` to `acceptor`; `send` from either end."""

    def __init__(self, net: Network, opener: int, acceptor: int, ends: Mapping[int, End]) -> None:
        self.net = net
        self.number = net.next_number()
        self.opener = opener
        self.acceptor = acceptor
        self.open = True
        self.incarnation = ""
        """The opener's run, from its hello."""
        self._ends = ends
        self._ways = {
            opener: _Direction(opener, acceptor),
            acceptor: _Direction(acceptor, opener),
        }

    def send(self, source: int, message: Any) -> None:
        """Queues a message; lost if the stream is, or gets, broken."""
        if not self.open:
            return
        way, scheduler = self._ways[source], self.net.scheduler
        now = scheduler.now_us / 1000
        way.last_due_ms = max(way.last_due_ms, now + self.net.delay_ms())
        way.messages.append((way.last_due_ms, message))
        if not way.pumping:
            way.pumping = True
            scheduler.after(way.last_due_ms - now, self._pump, way)

    def _pump(self, way: _Direction) -> None:
        """Delivers what is due."""
        way.pumping = False
        scheduler = self.net.scheduler
        now = scheduler.now_us / 1000
        while self.open and way.messages:
            due_ms, message = way.messages[0]
            if due_ms > now + 0.0005:
                way.pumping = True
                scheduler.after(due_ms - now, self._pump, way)
                return
            if self.net.is_blocked(way.source, way.target):
                self._hold(way, now)
                return
            way.blocked_since_ms = None
            way.messages.popleft()
            self._ends[way.target].receive(self, message)

    def _hold(self, way: _Direction, now: float) -> None:
        if way.blocked_since_ms is None:
            way.blocked_since_ms = now
        if now - way.blocked_since_ms >= KEEPALIVE_MS:
            self.break_off()
            return
        way.pumping = True
        self.net.scheduler.after(POLL_MS, self._pump, way)

    def break_off(self, *, silent_for: int | None = None) -> None:
        """Breaks the stream; each end is told after a while, except the (dead) `silent_for`."""
        if not self.open:
            return
        self.open = False
        for node, end in self._ends.items():
            if node != silent_for:
                delay_ms = self.net.scheduler.between(0.1, 30)
                self.net.scheduler.after(delay_ms, end.stream_broken, self)


class Network:
    """Which nodes reach each other, and how long it takes."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.blocked: set[tuple[int, int]] = set()
        self.slow = False
        self.streams: list[Stream] = []
        self.names: dict[str, list[str]] = {}
        """Addresses of names, without ports; a name without addresses cannot be resolved."""
        self.places: dict[str, Place] = {}
        self.connections: dict[int, Connection] = {}
        """Open connections of shells, by number; `wire` implements them."""
        self._numbers = 0

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def delay_ms(self) -> float:
        """Mostly short, sometimes long."""
        if self.scheduler.chance(0.03 if not self.slow else 0.3):
            return self.scheduler.between(5, 60)
        return self.scheduler.between(0.1, 2)

    def is_blocked(self, source: int, target: int) -> bool:
        return (source, target) in self.blocked

    def connect(self, opener: int, acceptor: int, ends: Mapping[int, End]) -> Stream | None:
        """A new stream, None if either direction is blocked."""
        if self.is_blocked(opener, acceptor) or self.is_blocked(acceptor, opener):
            return None
        self.streams = [stream for stream in self.streams if stream.open]
        stream = Stream(self, opener, acceptor, ends)
        self.streams.append(stream)
        return stream

    def call(self, source: int, target: int, deliver: Callable[..., None], *args: Any) -> None:
        """Sends a message on a connection of its own."""
        self.scheduler.after(self.delay_ms(), self._arrive, source, target, deliver, args)

    def _arrive(
        self, source: int, target: int, deliver: Callable[..., None], args: tuple[Any, ...]
    ) -> None:
        if not self.is_blocked(source, target):
            deliver(*args)
