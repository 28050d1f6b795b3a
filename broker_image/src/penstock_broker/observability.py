"""Logs and metrics of the broker's and the controller's process.

Logs are `penstock.logs`' JSON lines under this package's name. Metrics are in a registry of the
process (no global state), served by a small HTTP thread.
"""

import logging
from typing import Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from penstock import logs

_ROOT: Final = "penstock_broker"
AUDIT: Final = "penstock.audit"
"""The logger of who changed what, and who was denied; on at every log level."""


class EventLog(logs.EventLog):
    """Logs events of one part of this package."""

    def __init__(self, part: str) -> None:
        super().__init__(f"{_ROOT}.{part}")


def configure_logging(level: str = "INFO", **identity: object) -> None:
    """Sends all logs of this process to stderr as JSON lines with `identity`."""
    logs.configure_logging(_ROOT, level, **identity)
    logging.getLogger(AUDIT).setLevel(logging.INFO)


def serve_metrics(address: str, registry: CollectorRegistry) -> WSGIServer:
    """Serves `registry` at `host:port` for Prometheus; `shutdown()` the result to stop.

    Port 0: any free port, which is logged. Raises OSError if the port is in use.
    """
    host, _, port = address.rpartition(":")
    server, _thread = start_http_server(int(port), host or "127.0.0.1", registry)
    bound = bound_address(address, server.server_port)
    EventLog("metrics").info("serving metrics", address=bound)
    return server


def bound_address(listen: str, port: int) -> str:
    """The address of a server that was told to listen on `listen`, possibly port 0."""
    return f"{listen.rpartition(':')[0]}:{port}"
