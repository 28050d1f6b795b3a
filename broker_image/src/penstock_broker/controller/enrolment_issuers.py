"""Whose tokens are believed: the document of issuers that brokers and the controller use.

    API server ─ every minute, or sooner if asked ─▶ issuer, keys ─▶ document ─▶ brokers' disks

Brokers never call the API server. However often somebody shows a key id that is not known, it is
asked at most once in 30 s. While it does not answer, the last keys stay, and brokers are told: they
let known users go on whose tokens nobody can renew (`serving.tokens.grace`).
"""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Final, Protocol

from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_broker.observability import EventLog

EVERY_S: Final = 300.0
APART_S: Final = 30.0
"""Between two requests, whoever wants them."""
_APART_AT_FIRST_S: Final = 2.0
"""While nothing is known yet."""
_events = EventLog("issuers")


class IssuersSource(Protocol):
    """The document of issuers, JSON, as `--token-issuers` describes it."""

    async def document(self) -> bytes:
        """The newest one known. Raises ClusterError(AUTH_NOT_READY): there is none yet."""
        ...

    async def look_again(self) -> bytes:
        """The same, after a look at the source unless the last one is too recent."""
        ...

    async def run(self) -> None:
        """Keeps it up to date, until cancelled."""
        ...

    @property
    def unavailable_s(self) -> float:
        """How long ago the API server last answered, if it did not when it was asked last; 0: it
        did, or nobody asks it."""
        ...


class IssuersInFile:
    """A file that somebody else keeps up to date."""

    unavailable_s = 0.0

    def __init__(self, path: Path) -> None:
        self._path = path

    async def document(self) -> bytes:
        """See the seam."""
        try:
            return self._path.read_bytes()
        except OSError as error:
            raise ClusterError(
                f"the controller cannot read its issuers of tokens: {error.strerror or error}",
                ErrorCode.AUTH_NOT_READY,
            ) from error

    async def look_again(self) -> bytes:
        """See the seam."""
        return await self.document()

    async def run(self) -> None:
        """Nothing to do: the file is read when it is asked for."""


class PublishedIssuers:
    """What a function fetches, such as the keys of the API server. Of one event loop."""

    def __init__(
        self,
        fetch: Callable[[], bytes],
        executor: Executor,
        now_s: Callable[[], float] = monotonic,
        *,
        whose: str = "the API server",
        apart_at_first_s: float = _APART_AT_FIRST_S,
        every_s: float = EVERY_S,
    ) -> None:
        """`fetch` blocks, and raises PenstockError: UNREACHABLE if the source is unavailable.
        `apart_at_first_s`: between requests while nothing is known; `every_s`: later."""
        self._every_s = every_s
        self._whose = whose
        self._apart_at_first_s = apart_at_first_s
        self._fetch = fetch
        self._executor = executor
        self._now_s = now_s
        self._found = b""
        self._looked_s: float | None = None
        self._answered_s = now_s()
        self._is_unavailable = False
        self._looking = asyncio.Lock()

    @property
    def known(self) -> bytes:
        """The newest document; empty: none yet."""
        return self._found

    @property
    def unavailable_s(self) -> float:
        """See the seam."""
        return self._now_s() - self._answered_s if self._is_unavailable else 0.0

    async def document(self) -> bytes:
        """See the seam."""
        if not self._found:
            await self.look()
        if not self._found:
            raise ClusterError(
                f"the controller does not know the keys of {self._whose} yet; try again",
                ErrorCode.AUTH_NOT_READY,
            )
        return self._found

    async def look_again(self) -> bytes:
        """See the seam."""
        await self.look()
        return await self.document()

    async def run(self) -> None:
        """See the seam."""
        while True:
            await self.look()
            await asyncio.sleep(self._every_s if self._found else self._apart_at_first_s)

    async def look(self) -> None:
        """Asks the source, unless the last time is too recent. Does not raise."""
        async with self._looking:  # who waited here sees that the last look is recent
            apart_s = APART_S if self._found else self._apart_at_first_s
            if self._looked_s is not None and self._now_s() - self._looked_s < apart_s:
                return
            self._looked_s = self._now_s()
            loop = asyncio.get_running_loop()
            asked = loop.run_in_executor(self._executor, self._fetch)
            # Also if who asked has gone by then: a caller must not be able to lose the answer.
            asked.add_done_callback(self._answered)
            with suppress(PenstockError):
                await asyncio.shield(asked)

    def _answered(self, asked: "asyncio.Future[bytes]") -> None:
        if asked.cancelled():
            return
        error = asked.exception()
        if isinstance(error, PenstockError):
            # A refusal is an answer: the API server is there, and renews tokens.
            self._is_unavailable = error.code is ErrorCode.UNREACHABLE
            if not self._is_unavailable:
                self._answered_s = self._now_s()
            _events.warning(f"the keys of {self._whose} stay as they are", reason=error.message)
        if error is not None:
            return
        found = asked.result()
        if found != self._found:
            _events.info("the issuers of tokens changed", bytes=len(found))
        self._found = found
        self._is_unavailable, self._answered_s = False, self._now_s()


def document_of(issuer: str, jwks: object, audience: str) -> bytes:
    """The document for the API server's ServiceAccounts."""
    entry = {"issuer": issuer, "audience": audience, "kind": "kubernetes", "jwks": jwks}
    return json.dumps({"issuers": [entry]}, sort_keys=True).encode()
