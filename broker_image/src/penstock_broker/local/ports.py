"""Which ports a local cluster listens on: fixed ones from a base, or any free ones.

Fixed: broker i on base + i, the controller on base - 1, metrics 100 above each. Free ports are
taken outside the kernel's ephemeral range: while a killed broker is down, an outgoing connection
of another process must not be given its port.
"""

import random
import socket
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ErrorCode, MisuseError

HOST = "127.0.0.1"
DEFAULT_BASE_PORT = 9092
METRICS_OFFSET = 100
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_FREE = 15_000
_ATTEMPTS_PER_PORT = 200


@dataclass(frozen=True, slots=True)
class Ports:
    """Where one process listens."""

    serve: int
    metrics: int


def fixed_ports(base_port: int, brokers: int) -> dict[str, Ports]:
    """Ports by process name. Raises MisuseError if they do not fit below 65536."""
    highest = base_port + max(brokers - 1, 0) + METRICS_OFFSET
    if base_port < 1025 or highest > 65_535 or brokers > METRICS_OFFSET - 1:
        raise MisuseError(
            f"--port {base_port} with {brokers} brokers would need ports {base_port - 1} to "
            f"{highest}; choose a base from 1025 to {65_535 - METRICS_OFFSET - brokers}, "
            f"with at most {METRICS_OFFSET - 1} brokers, or 0 for any free ports",
            ErrorCode.INVALID_CONFIG,
        )
    names = {"controller": base_port - 1} | {f"broker-{i}": base_port + i for i in range(brokers)}
    return {name: Ports(port, port + METRICS_OFFSET) for name, port in names.items()}


def free_ports(names: list[str]) -> dict[str, Ports]:
    """Two ports for each name that nothing listens on at this moment."""
    chosen: list[int] = []
    picker = random.SystemRandom()
    low = int(_EPHEMERAL_RANGE.read_text().split()[0]) if _EPHEMERAL_RANGE.exists() else 32_768
    for _ in range(_ATTEMPTS_PER_PORT * len(names)):
        port = picker.randrange(min(_LOWEST_FREE, low - 5_000), low)
        if port not in chosen and not is_taken(port):
            chosen.append(port)
        if len(chosen) == 2 * len(names):
            return {name: Ports(chosen[2 * i], chosen[2 * i + 1]) for i, name in enumerate(names)}
    raise MisuseError(f"found no {2 * len(names)} free ports below {low}; stop some servers")


def check_ports(ports: dict[str, Ports]) -> None:
    """Raises MisuseError that names the first port something else listens on."""
    for name, wanted in ports.items():
        for port in (wanted.serve, wanted.metrics):
            if is_taken(port):
                raise MisuseError(
                    f"port {port}, wanted by {name}, is in use; stop what listens there "
                    f"(`ss -ltnp 'sport = :{port}'` shows it), or choose other ports with "
                    "--port BASE (0: any free ports)",
                    ErrorCode.INVALID_CONFIG,
                )


def is_taken(port: int) -> bool:
    """Whether a listener could not have this port. Connections winding down are no hindrance."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False
