"""The issuers' file of a broker: read again when it changes, kept while it is broken.

changed, and readable ─▶ `current`, generation + 1
   └──── unreadable ─▶ logged once; the former issuers stay, and if there are none yet, nobody
         can log in (AUTH_NOT_READY)
"""

import argparse
import os
from pathlib import Path
from time import monotonic
from typing import Final

from penstock.errors import ClusterError, ErrorCode, MisuseError
from penstock_broker.observability import EventLog
from penstock_broker.serving.tokens.issuers import FILE_BYTES_MAX, Issuers, parse_issuers

VARIABLE: Final = "PENSTOCK_TOKEN_ISSUERS"
LOOK_EVERY_S: Final = 1.0
_events = EventLog("tokens")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--token-issuers`. The operator sets the variable: an older image ignores it."""
    parser.add_argument(
        "--token-issuers",
        type=Path,
        default=_from_environment(),
        metavar="FILE",
        help="JSON: whose tokens let users in, with their keys; read again when it changes; "
        f"default: ${VARIABLE}",
    )


def _from_environment() -> Path | None:
    text = os.environ.get(VARIABLE, "")
    return Path(text) if text else None


class IssuersFile:
    """Looked at when it is used, but not more often than every second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._looked_s = -LOOK_EVERY_S
        self._seen: tuple[int, int, int] | None = None
        self._problem = ""
        self._current: Issuers | None = None
        self.generation = 0
        """Moves when `current` changes."""

    def current(self) -> Issuers:
        """Raises ClusterError(AUTH_NOT_READY) before the first file that can be read."""
        now_s = monotonic()
        if now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            self._look()
        if self._current is None:
            raise ClusterError(
                "this broker does not know yet whose tokens to believe; try again",
                ErrorCode.AUTH_NOT_READY,
            )
        return self._current

    def _look(self) -> None:
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen == self._seen:
                return
            with self._path.open("rb") as file:
                found = parse_issuers(file.read(FILE_BYTES_MAX + 1))
        except OSError as error:
            self._complain(error.strerror or str(error))
        except MisuseError as error:
            self._complain(error.message)
        else:
            self._seen, self._problem = seen, ""
            if found != self._current:
                self._current = found
                self.generation += 1
            keys = {name: len(issuer.keys) for name, issuer in found.items()}
            _events.info("issuers of tokens are read", file=str(self._path), keys=keys)

    def _complain(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            kept = "none are known" if self._current is None else "the former ones stay"
            _events.error(
                f"the issuers of tokens cannot be read; {kept}",
                file=str(self._path),
                reason=problem,
            )
