"""Connections of this process, by the port that they came to, asked of the kernel.

    /proc/self/net/tcp, tcp6 ─┬─ listening, and the socket is ours ──▶ our ports
                              └─ connected, at one of our ports, accepted ──▶ counted

gRPC does not tell Python of its connections, not even of those that have not finished a handshake,
and each takes a descriptor (`descriptors`). Linux alone says this; elsewhere nothing is counted.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock_broker.descriptors import connections_max, descriptors_max

_TABLES: Final = ("net/tcp", "net/tcp6")
_ROW: Final = re.compile(
    r"\s*\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} ([0-9A-F]{2})(?: +\S+){5} +(\d+)"
)
"""proc(5): local port, state, and (after queues, timer, retransmits, user, timeout) the inode."""
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_LISTEN: Final = "0A"
_CONNECTED: Final = frozenset({"01", "08"})
"""ESTABLISHED, and CLOSE_WAIT, which the other side has left; both hold a descriptor here."""
_NOT_ACCEPTED: Final = "0"


class Connections:
    """Counts when it is asked, in any one thread at a time."""

    def __init__(self, proc: Path = Path("/proc/self")) -> None:
        """`proc`: the folder of a process."""
        self._proc = proc
        self._ours: dict[str, bool] = {}
        """Inodes of listening sockets that were seen, ours or of others in the same network."""

    def by_port(self) -> Mapping[int, int]:
        """Accepted connections of each port at which this process listens; 0 if there are none."""
        listening: dict[str, int] = {}
        connected: Counter[int] = Counter()
        for port, state, inode in self._rows():
            if state == _LISTEN:
                listening[inode] = port
            elif state in _CONNECTED and inode != _NOT_ACCEPTED:
                connected[port] += 1
        if not listening.keys() <= self._ours.keys():
            sockets = self._sockets()
            self._ours = {inode: inode in sockets for inode in listening}
        ports = sorted({port for inode, port in listening.items() if self._ours[inode]})
        return {port: connected[port] for port in ports}

    def _rows(self) -> Iterator[tuple[int, str, str]]:
        for table in _TABLES:
            try:
                with (self._proc / table).open() as lines:
                    for line in lines:
                        if found := _ROW.match(line):
                            yield int(found[1], 16), found[2], found[3]
            except OSError:
                continue  # not Linux, or a network without IPv6

    def _sockets(self) -> set[str]:
        """Inodes of all sockets of the process."""
        found = set()
        for descriptor in (self._proc / "fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                if socket := _SOCKET.fullmatch(str(descriptor.readlink())):
                    found.add(socket[1])
        return found


class ConnectionMetrics(Collector):
    """Of the connections that this process has accepted."""

    def __init__(self, connections: Connections | None = None) -> None:
        self._connections = connections or Connections()

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "penstock_connections",
            "TCP connections that were made to a port of this process, handshakes included. Of "
            "brokers and controllers, on Linux.",
            labels=["port"],
        )
        for port, count in self._connections.by_port().items():
            family.add_metric([str(port)], count)
        yield family
        yield GaugeMetricFamily(
            "penstock_connections_max",
            "Connections that each port may have, further ones are closed; for message streams it "
            "is half of this. Follows from the limit of file descriptors. Of brokers and "
            "controllers.",
            value=connections_max(descriptors_max()),
        )
