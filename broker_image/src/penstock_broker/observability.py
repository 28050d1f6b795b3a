"""Structured logs and metrics of the server processes.

Logs are JSON lines on stderr: a time, a level, an event phrase, and the numbers the decision
used. Payloads and record keys are never logged, and nothing is logged per request.

    events = EventLog("replication")
    events.info("isr shrunk", topic="t", partition=3, isr=[0, 2])

Metrics live in a registry of the process (no global state), served by a small HTTP thread.
"""

import json
import logging
import sys
import time
from typing import Any, Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

_ROOT: Final = "penstock_broker"


class JsonLines(logging.Formatter):
    """One JSON object per line; fields of `extra={"fields": …}` come after the phrase."""

    def __init__(self, identity: dict[str, Any]) -> None:
        super().__init__()
        self._identity = identity

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "part": record.name.removeprefix(_ROOT + "."),
            **self._identity,
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class EventLog:
    """Logs event phrases with key=value fields under one part name."""

    def __init__(self, part: str) -> None:
        self._logger = logging.getLogger(f"{_ROOT}.{part}")

    def debug(self, event: str, **fields: object) -> None:
        self._logger.debug(event, extra={"fields": fields})

    def info(self, event: str, **fields: object) -> None:
        self._logger.info(event, extra={"fields": fields})

    def warning(self, event: str, **fields: object) -> None:
        self._logger.warning(event, extra={"fields": fields})

    def error(self, event: str, **fields: object) -> None:
        self._logger.error(event, extra={"fields": fields})

    def defect(self, event: str, error: BaseException, **fields: object) -> None:
        """An error that no code path expects: the one place where a trace is logged."""
        self._logger.error(event, exc_info=error, extra={"fields": fields})


def configure_logging(level: str = "INFO", **identity: object) -> None:
    """Sends all logs of this process to stderr as JSON lines that start with `identity`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(identity))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(_ROOT).setLevel(level)


def serve_metrics(address: str, registry: CollectorRegistry) -> WSGIServer:
    """Serves `registry` at `host:port` for Prometheus; `shutdown()` the result to stop.

    Raises OSError when the port is taken.
    """
    host, _, port = address.rpartition(":")
    server, _thread = start_http_server(int(port), host or "127.0.0.1", registry)
    return server
