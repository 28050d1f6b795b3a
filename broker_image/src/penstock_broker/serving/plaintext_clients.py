"""Who still calls in plaintext, of a broker that has TLS beside it: to know when nobody does.

    plaintext ports ─ a call or stream begins, ends ─▶ by host ─▶ DescribeCluster, metrics

gRPC does not tell Python of connections, so calls and streams count: a connection over which
nothing is called is not seen. A client in use asks for metadata every five minutes
(`metadata_max_age_ms`), so a host that has been quiet for longer has none in use. Brokers of the
cluster that have no TLS yet count as well; once all have it, they call no plaintext port.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.proto.v1 import admin_pb2 as pb
from penstock_broker.serving.callers import NOBODY, Caller
from penstock_broker.serving.listener import host_of_peer

HOSTS_MAX: Final = 1_000
"""Remembered by name; further ones count together, as host ""."""
_RECENT_S: Final = 600.0


@dataclass(slots=True)
class _Seen:
    open: int = 0
    last_s: float = 0.0


class PlaintextClients:
    """What was seen since the start."""

    def __init__(self, now_s: Callable[[], float] = monotonic) -> None:
        self._now_s = now_s
        self._since_s = now_s()
        self._hosts: dict[str, _Seen] = {}

    async def identify(self, context: Any) -> Caller:
        """Notes a call, and asks nobody: `Identify` of a plaintext port."""
        seen = self._began(host_of_peer(context.peer()))
        context.add_done_callback(lambda _context: self._ended(seen))
        return NOBODY

    @contextmanager
    def streaming(self, host: str) -> Iterator[None]:
        """Around a message stream."""
        seen = self._began(host)
        try:
            yield
        finally:
            self._ended(seen)

    def describe(self) -> pb.PlaintextCallers:
        """All that is known, the last to call first."""
        now_s = self._now_s()
        callers = [
            pb.PlaintextCaller(
                host=host,
                open=seen.open,
                idle_ms=0 if seen.open else int((now_s - seen.last_s) * 1000),
            )
            for host, seen in list(self._hosts.items())
        ]
        callers.sort(key=lambda one: (one.idle_ms, one.host))
        watched_ms = int((now_s - self._since_s) * 1000)
        return pb.PlaintextCallers(watched_ms=watched_ms, callers=callers)

    def _began(self, host: str) -> _Seen:
        if host not in self._hosts and len(self._hosts) >= HOSTS_MAX and not self._make_room():
            host = ""
        seen = self._hosts.setdefault(host, _Seen())
        seen.open += 1
        return seen

    def _make_room(self) -> bool:
        """Forgets the host that has been quiet the longest, if one has been quiet for long."""
        quiet = [
            (seen.last_s, host) for host, seen in self._hosts.items() if host and not seen.open
        ]
        oldest_s, host = min(quiet, default=(self._now_s(), ""))
        if self._now_s() - oldest_s < _RECENT_S:
            return False
        del self._hosts[host]
        return True

    def _ended(self, seen: _Seen) -> None:
        seen.open -= 1
        seen.last_s = self._now_s()


class PlaintextMetrics(Collector):
    """How many hosts call in plaintext."""

    def __init__(self, clients: PlaintextClients) -> None:
        self._clients = clients

    def describe(self) -> Iterable[Metric]:
        """Nothing is read before the first scrape."""
        return []

    def collect(self) -> Iterable[Metric]:
        """In the endpoint's thread."""
        callers = self._clients.describe().callers
        recent = sum(one.idle_ms < _RECENT_S * 1000 for one in callers)
        yield GaugeMetricFamily(
            "penstock_plaintext_clients",
            "With mode Migrate: hosts that called in plaintext within ten minutes. Strict waits "
            "until there is none.",
            value=recent,
        )
