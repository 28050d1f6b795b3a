"""Who may look: a token in a URL, once, for a cookie. Pure, but for what is random.

    penstock ui prints …/login?token=T ──▶ T is used up ──▶ cookie ──▶ pages

A token in a URL stays in histories and on screens; therefore it counts once, and only for minutes.
When one was used or is too old, the next is printed in the terminal, where only the person who
started the console sees it. Nothing is printed for tokens that were never issued, so others on the
machine cannot fill the terminal.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from enum import Enum
from typing import Final

TOKEN_S: Final = 600.0
SESSION_S: Final = 12 * 3600.0
SESSIONS_MAX: Final = 100
ISSUED_MAX: Final = 1_000


class Entry(Enum):
    """What a token was worth."""

    WELCOME = "welcome"
    USED = "used"
    EXPIRED = "expired"
    UNKNOWN = "unknown"


class Gate:
    """`clock`: monotonic seconds. `announce` is called with each token that is issued."""

    def __init__(
        self, clock: Callable[[], float], announce: Callable[[str], None], hosts: frozenset[str]
    ) -> None:
        """`hosts`: values of the Host header that are accepted."""
        self._clock = clock
        self._announce = announce
        self._hosts = hosts
        self._token = b""
        self._until_s = 0.0
        self._former: dict[bytes, Entry] = {}
        self._sessions: dict[bytes, float] = {}

    def issue(self) -> None:
        """Announces a token; the one before counts no longer."""
        if self._token:
            self._remember(self._token, Entry.EXPIRED)
        token = secrets.token_urlsafe(24)
        self._token, self._until_s = _digest(token), self._clock() + TOKEN_S
        self._announce(token)

    def enter(self, token: str) -> tuple[Entry, str]:
        """Uses a token up: WELCOME and the value of a cookie, or why not and ""."""
        seen = _digest(token)
        if not self._token or not hmac.compare_digest(seen, self._token):
            return self._former.get(seen, Entry.UNKNOWN), ""
        if self._clock() >= self._until_s:
            self.issue()
            return Entry.EXPIRED, ""
        self._remember(seen, Entry.USED)
        self._token = b""
        session = secrets.token_urlsafe(32)
        self._sessions[_digest(session)] = self._clock() + SESSION_S
        while len(self._sessions) > SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        self.issue()
        return Entry.WELCOME, session

    def knows(self, session: str) -> bool:
        """Whether a cookie's value lets its holder look."""
        until_s = self._sessions.get(_digest(session))
        return until_s is not None and self._clock() < until_s

    def accepts_host(self, host: str) -> bool:
        """False: a name that somebody else made point to this machine (DNS rebinding)."""
        return host.lower() in self._hosts

    def _remember(self, token: bytes, entry: Entry) -> None:
        self._former[token] = entry
        while len(self._former) > ISSUED_MAX:
            del self._former[next(iter(self._former))]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogateescape")).digest()
