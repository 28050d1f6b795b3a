"""Reserves the ports of a local cluster, while its processes come and go.

Fixed: broker i on base + i, the controller on base - 1, metrics 100 above each; with --secure,
users who show a certificate 200 above each broker. Without a base, the kernel chooses. Finding a
free port and listening on it later is a race: another process may take it meanwhile, and again in
every pause between a kill and a restart. So ports are reserved, by two sockets each, which the
kernel closes when this process ends, in any way:

    bound, never listening, SO_REUSEADDR   The kernel gives the port to no `bind(0)` and to no
                                           outgoing connection. A server that sets SO_REUSEADDR, as
                                           gRPC, Go, Java and Python's HTTP server do, listens on
                                           it nevertheless: that fails only if one listens.
    abstract AF_UNIX name of the number    One reservation at a time: two sockets with
                                           SO_REUSEADDR would not refuse each other. Names are per
                                           network namespace, as ports are.

What remains possible: another program listens on this very port with SO_REUSEADDR while our server
is down; our server then reports that and exits.
"""

import contextlib
import errno
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from penstock.errors import ErrorCode, MisuseError

HOST = "127.0.0.1"
PORT_MIN = 1025
"""Of brokers: the controller listens on the port below, and lower ones are not for everybody."""
METRICS_OFFSET = 100
CERTIFICATE_OFFSET = 200
_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one process. `health` 0: asked where it serves. `certificate`: for users who
    show one; 0: none."""

    serve: int
    metrics: int
    health: int = 0
    certificate: int = 0


class ReservedPort:
    """A loopback port that is reserved for servers started by this process, until `close`.

    The server must listen on `HOST`, or on all addresses, with SO_REUSEADDR. While none does,
    connections are refused.
    """

    def __init__(self, port: int = 0) -> None:
        """`port` 0: any. Raises OSError (EADDRINUSE) if it is reserved or in use."""
        if port:
            self._name, self._socket = _reserve(port)
        else:
            self._name, self._socket = _reserve_any()
        self.port: int = self._socket.getsockname()[1]

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def close(self) -> None:
        """Releases the port. Idempotent; a server that listens on it is not affected."""
        self._socket.close()
        self._name.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def fixed_ports(base_port: int, brokers: int, offset: int = METRICS_OFFSET) -> dict[str, Ports]:
    """Ports by process name; the highest is `offset` above the last broker's. Raises MisuseError if
    they do not fit below 65536."""
    highest = base_port + max(brokers - 1, 0) + offset
    if base_port < PORT_MIN or highest > 65_535 or brokers > METRICS_OFFSET - 1:
        raise MisuseError(
            f"--port {base_port} with {brokers} brokers would need ports {base_port - 1} to "
            f"{highest}; choose a base from {PORT_MIN} to {65_535 - offset - brokers}, "
            f"with at most {METRICS_OFFSET - 1} brokers, or 0 for any free ports",
            ErrorCode.INVALID_CONFIG,
        )
    names = {"controller": base_port - 1} | {f"broker-{i}": base_port + i for i in range(brokers)}
    return {name: Ports(port, port + METRICS_OFFSET) for name, port in names.items()}


@contextlib.contextmanager
def reserved_ports(
    names: list[str], base_port: int, *, secure: bool = False
) -> Iterator[dict[str, Ports]]:
    """Reserves two ports for each process name while the block runs; with `secure`, one more, and
    another one for each broker.

    Args:
        names: `controller` and `broker-0` to `broker-<n-1>`.
        base_port: see `fixed_ports`; 0 = any ports.

    Raises:
        MisuseError: names the first port that something else listens on or has reserved.
    """
    highest = CERTIFICATE_OFFSET if secure else METRICS_OFFSET
    wanted = fixed_ports(base_port, len(names) - 1, highest) if base_port else {}
    with contextlib.ExitStack() as held:

        def reserve(name: str, port: int) -> int:
            try:
                return held.enter_context(ReservedPort(port)).port
            except OSError as error:
                raise _refusal(name, port, error) from error

        ports = {}
        for name in names:
            fixed = wanted.get(name, Ports(0, 0))
            serve, metrics = reserve(name, fixed.serve), reserve(name, fixed.metrics)
            ports[name] = Ports(serve, metrics)
            if secure:
                shown = 0
                if name != "controller":
                    shown = reserve(name, fixed.serve + CERTIFICATE_OFFSET if fixed.serve else 0)
                ports[name] = Ports(serve, metrics, reserve(name, 0), shown)
        yield ports


def _reserve(port: int) -> tuple[socket.socket, socket.socket]:
    """Takes the name first: only its owner may bind. Returns both sockets, or raises OSError."""
    with contextlib.ExitStack() as made:
        name = made.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        name.bind(_abstract_name(port))
        bound = made.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        # Closing connections (TIME_WAIT) do not prevent this, a listener does.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((HOST, port))
        made.pop_all()
        return name, bound


def _reserve_any() -> tuple[socket.socket, socket.socket]:
    """Reserves a port of the kernel's choice, to which nothing at all is bound."""
    for _ in range(_ATTEMPTS):
        with contextlib.ExitStack() as made:
            bound = made.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            bound.bind((HOST, 0))
            name = made.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            try:
                name.bind(_abstract_name(bound.getsockname()[1]))
            except OSError:
                continue  # another process is reserving this very number
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.pop_all()
            return name, bound
    raise OSError(errno.EADDRINUSE, "the kernel offered only reserved ports")


def _abstract_name(port: int) -> str:
    return f"\0penstock-port-{port}"


def _refusal(name: str, port: int, error: OSError) -> MisuseError:
    if error.errno == errno.EADDRINUSE and port:
        return MisuseError(
            f"port {port}, wanted by {name}, is in use; stop the process that listens there (`ss "
            f"-ltnp 'sport = :{port}'` shows it; if it shows nothing, a local cluster has "
            "reserved the port), or choose other ports with --port BASE (0: any free ports)",
            ErrorCode.INVALID_CONFIG,
        )
    return MisuseError(
        f"no port for {name} ({port or 'any'}): {error.strerror or error}; "
        "choose other ports with --port BASE (0: any free ports)",
        ErrorCode.INVALID_CONFIG,
    )
