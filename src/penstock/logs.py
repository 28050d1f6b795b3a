"""Structured logs of the server processes and the operator: JSON lines on stderr.

A time, a level, an event phrase, and the numbers the decision used. Payloads and record keys are
never logged, and nothing is logged per request.

    events = EventLog("penstock_broker.replication")
    events.info("isr shrunk", topic="t", partition=3, isr=[0, 2])
"""

import json
import logging
import sys
import time
from typing import Any


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
            "part": record.name.partition(".")[2],
            **self._identity,
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class EventLog:
    """Logs event phrases with key=value fields; `name` is `<package>.<part>`."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

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


def configure_logging(package: str, level: str = "INFO", **identity: object) -> None:
    """Sends all logs of this process to stderr as JSON lines with `identity`.

    `level` is that of `package`; libraries log from WARNING on.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(identity))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(package).setLevel(level)
