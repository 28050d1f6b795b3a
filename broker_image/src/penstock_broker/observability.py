"""Logs and metrics of the broker's and the controller's process.

Logs are `penstock.logs`' JSON lines under this package's name. Metrics are in a registry of the
process (no global state), served by a thread per scrape. Nobody is asked there who they are, so
there are at most `SCRAPES_MAX` at one time, and one that sends no request ends after `SCRAPE_S`.
"""

import logging
import socket
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from penstock import logs

_ROOT: Final = "penstock_broker"
AUDIT: Final = "penstock.audit"
"""The logger of who changed what, and who was denied; on at every log level."""
SCRAPES_MAX: Final = 32
SCRAPE_S: Final = 5.0
"""How long a scrape's connection may be silent."""


class EventLog(logs.EventLog):
    """Logs events of one part of this package."""

    def __init__(self, part: str) -> None:
        super().__init__(f"{_ROOT}.{part}")


def configure_logging(level: str = "INFO", **identity: object) -> None:
    """Sends all logs of this process to stderr as JSON lines with `identity`."""
    logs.configure_logging(_ROOT, level, **identity)
    logging.getLogger(AUDIT).setLevel(logging.INFO)


class _Scrape(WSGIRequestHandler):
    timeout = SCRAPE_S

    def log_message(self, *_: object) -> None:
        """Scrapes are not logged."""


class _Scrapes(ThreadingMixIn, WSGIServer):
    """Connections beyond `SCRAPES_MAX` are cut."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, (bound, *_rest) = found[0]
        self._free = BoundedSemaphore(SCRAPES_MAX)
        super().__init__((str(bound), port), _Scrape)

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread, if there is one for it."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # there is no thread for it
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Gives its place back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, _request: Any, _client_address: Any) -> None:
        """Whoever hangs up, or says nothing, is no error of this process."""


def serve_metrics(address: str, registry: CollectorRegistry) -> WSGIServer:
    """Serves `registry` at `host:port` for Prometheus; `shutdown()` the result to stop.

    Port 0: any free port, which is logged. Raises OSError if the port is in use.
    """
    host, _, port = address.rpartition(":")
    server = _Scrapes(host or "127.0.0.1", int(port))
    server.set_app(make_wsgi_app(registry))
    Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    bound = bound_address(address, server.server_port)
    EventLog("metrics").info("serving metrics", address=bound)
    return server


def bound_address(listen: str, port: int) -> str:
    """The address of a server that was told to listen on `listen`, possibly port 0."""
    return f"{listen.rpartition(':')[0]}:{port}"
