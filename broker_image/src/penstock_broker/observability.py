"""Logs and metrics of the broker's and the controller's process.

Logs are `penstock.logs`' JSON lines under this package's name. Metrics live in a registry of the
process (no global state), served by a small HTTP thread.
"""

from typing import Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from penstock import logs

_ROOT: Final = "penstock_broker"


class EventLog(logs.EventLog):
    """Event phrases under one part of this package."""

    def __init__(self, part: str) -> None:
        super().__init__(f"{_ROOT}.{part}")


def configure_logging(level: str = "INFO", **identity: object) -> None:
    """Sends all logs of this process to stderr as JSON lines with `identity`."""
    logs.configure_logging(_ROOT, level, **identity)


def serve_metrics(address: str, registry: CollectorRegistry) -> WSGIServer:
    """Serves `registry` at `host:port` for Prometheus; `shutdown()` the result to stop.

    Port 0: any free one, which the log tells. Raises OSError when the port is taken.
    """
    host, _, port = address.rpartition(":")
    server, _thread = start_http_server(int(port), host or "127.0.0.1", registry)
    bound = bound_address(address, server.server_port)
    EventLog("metrics").info("serving metrics", address=bound)
    return server


def bound_address(listen: str, port: int) -> str:
    """Where a server that was told to listen on `listen`, maybe port 0, is to be found."""
    return f"{listen.rpartition(':')[0]}:{port}"
