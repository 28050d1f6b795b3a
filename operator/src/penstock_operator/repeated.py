"""Kopf's log of a request that it tries again and again: once, and when its error is another one.

Without this, an operator that may not watch a namespace logs ten lines every ten seconds for ever.
"""

import logging
import re
from typing import Final

_FAILED: Final = re.compile(
    r"Request attempt #(?P<attempt>\d+)\S* failed; will retry: (?P<what>.*?) -> (?P<error>.*)",
    re.DOTALL,
)
_REMEMBERED: Final = 1_000


class Repeated(logging.Filter):
    """Of a handler. A request that succeeded begins again with its first attempt."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, str] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged. What raises here would be raised by who logs."""
        if not record.name.startswith("kopf"):
            return True
        try:
            found = _FAILED.fullmatch(record.getMessage())
        except Exception:  # noqa: BLE001 - the handler says that it cannot be formatted
            return True
        if found is None:
            return True
        known = self._last.get(found["what"]) if found["attempt"] != "1" else None
        if len(self._last) >= _REMEMBERED:
            self._last.clear()
        self._last[found["what"]] = found["error"]
        return known != found["error"]
