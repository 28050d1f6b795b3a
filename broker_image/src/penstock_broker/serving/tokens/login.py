"""Lets users in by their tokens: each token is checked once, and known from then on.

    token ─ sha256 ─▶ known? ─▶ Caller                         2 µs, on the event loop
               │      └─ ended ─▶ CREDENTIALS_EXPIRED, unless it has `grace`
               ├─ refused lately? ─▶ the same error
               ├─ too many failures from this host? ─▶ THROTTLED
               └─ new ─▶ `verified`, in one thread ─▶ known, or refused

What a flood of bad tokens can use up is bounded: per host, the failures in a second; of all hosts,
the checks that wait. Whoever is refused again and again waits some seconds for each answer, so that
a connection asks no more often than it may have calls open. A token that is known passes at once.
A connection that has shown a good one may show others, whatever its host does, until one is bad:
so that nobody behind a load balancer keeps those out who are in and renew their tokens.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from hashlib import sha256
from time import monotonic
from typing import Any, Final, TypeAlias

from penstock.errors import ClusterError, ErrorCode
from penstock.logs import EventLog
from penstock_broker.observability import AUDIT
from penstock_broker.serving.callers import Caller, Role, with_leeway
from penstock_broker.serving.edge import note_wait
from penstock_broker.serving.expiry import wall_s
from penstock_broker.serving.listener import host_of_peer
from penstock_broker.serving.tokens.checking import UnknownKeyError, Verified, expired, verified
from penstock_broker.serving.tokens.file import IssuersFile
from penstock_broker.serving.tokens.grace import GRACE_S, Grace

HEADER: Final = "authorization"
SCHEME: Final = "bearer "
KNOWN_MAX: Final = 50_000
REFUSED_MAX: Final = 1_000
REFUSED_S: Final = 30.0
"""How long the answer to a bad token stands. Other issuers end it sooner."""
WAITING_MAX: Final = 256
"""Tokens that wait for their check: 50 ms of the thread's time."""
WAITING_PER_HOST_MAX: Final = 64
FAILURES_BURST: Final = 20
FAILURES_PER_S: Final = 2.0
HOSTS_MAX: Final = 10_000
PROVEN_MAX: Final = 10_000
"""Connections whose last token was good; the oldest is forgotten."""
ANSWER_AFTER_S: Final = (2.0, 6.0)
"""How long a refusal is held back from a host that has had more of them than FailureLimit allows;
at random, so that answers, and what is asked next, do not come all at once."""
HELD_BACK_MAX: Final = 10_000
"""Refusals that are held back at once; further ones are told at once: memory is worth more. Also at
most a quarter of the calls that the server takes: others are to be answered meanwhile."""
_audit = EventLog(AUDIT)


LookAgain: TypeAlias = Callable[[], bool]
"""Asks where keys come from for newer ones, unless that was a moment ago, and does not wait. True:
an answer may be here soon. Called as often as anybody shows a key id that is not known."""


def no_look_again() -> bool:
    """Of a file that somebody else keeps up to date."""
    return False


class FailureLimit:
    """How often each host may fail: a bucket that fills with time. Pure."""

    def __init__(self) -> None:
        self._by_host: dict[str, tuple[float, float]] = {}
        """Failures left, and when that was counted."""

    def allows(self, host: str, now_s: float) -> bool:
        """Whether another token of this host is looked at."""
        return self._left(host, now_s) >= 1.0

    def failed(self, host: str, now_s: float) -> None:
        """Counts one. The oldest of too many hosts is forgotten."""
        left = max(0.0, self._left(host, now_s) - 1.0)
        self._by_host.pop(host, None)
        if len(self._by_host) >= HOSTS_MAX:
            del self._by_host[next(iter(self._by_host))]
        self._by_host[host] = (left, now_s)

    def _left(self, host: str, now_s: float) -> float:
        left, at_s = self._by_host.get(host, (float(FAILURES_BURST), now_s))
        return min(float(FAILURES_BURST), left + (now_s - at_s) * FAILURES_PER_S)


@dataclass(frozen=True, slots=True)
class _Known:
    caller: Caller
    by: Verified

    @property
    def counts_until_s(self) -> float:
        return self.caller.counts_until(self.by.expires_s)


@dataclass(frozen=True, slots=True)
class _Waiting:
    host: str
    answer: "asyncio.Future[Caller]"


class TokenLogin:
    """Of one broker; owned by its event loop."""

    def __init__(
        self,
        issuers: IssuersFile,
        executor: Executor,
        *,
        now_s: Callable[[], float] = wall_s,
        look_again: LookAgain = no_look_again,
        grace: Grace | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        calls_max: int = 4 * HELD_BACK_MAX,
    ) -> None:
        """`executor` checks tokens. `now_s`: seconds since 1970. `grace` None: nobody has any.
        `pause` holds a refusal back; its argument is in seconds. `calls_max`: that the server takes
        at one time."""
        self._look_again = look_again
        self._file = issuers
        self._executor = executor
        self._now_s = now_s
        self._grace = Grace(now_s) if grace is None else grace
        self._generation = 0
        self._known: dict[bytes, _Known] = {}
        self._refused: dict[bytes, tuple[ClusterError, float]] = {}
        self._waiting: dict[bytes, _Waiting] = {}
        self._proven: dict[str, None] = {}
        self._failures = FailureLimit()
        self._refusals = FailureLimit()
        self._held_back = 0
        self._held_back_max = min(HELD_BACK_MAX, calls_max // 4)
        self._pause = pause

    async def of_call(self, context: Any) -> Caller:
        """Who makes a call, by its metadata `authorization: Bearer …`. See `Identify`."""
        peer = context.peer()
        host = host_of_peer(peer)
        for key, value in context.invocation_metadata():
            if key == HEADER:
                if not isinstance(value, str) or value[: len(SCHEME)].lower() != SCHEME:
                    await self._hold_back(host)
                    raise ClusterError(
                        f"the metadata {HEADER} must be 'Bearer ' and a token",
                        ErrorCode.UNAUTHENTICATED,
                    )
                return await self.of_token(value[len(SCHEME) :].strip(), host, peer)
        return await self.of_token("", host)

    async def of_token(self, token: str, host: str, connection: str = "") -> Caller:
        """Who holds this token; "": nobody. `host`: where the caller is. See `IdentifyToken`.

        `connection`: one that can show several tokens, by host and port.

        Raises ClusterError: UNAUTHENTICATED, CREDENTIALS_EXPIRED, AUTH_NOT_READY, THROTTLED.
        """
        try:
            found = await self._of_token(token, host, connection)
            if connection and connection not in self._proven:
                _bounded(self._proven, PROVEN_MAX)
                self._proven[connection] = None
        except ClusterError as error:
            if error.code is ErrorCode.UNAUTHENTICATED:
                self._proven.pop(connection, None)
            await self._hold_back(host)
            raise
        return found

    async def _hold_back(self, host: str) -> None:
        """Before a refusal is told."""
        now_s = monotonic()
        if self._refusals.allows(host, now_s):
            self._refusals.failed(host, now_s)
        elif self._held_back < self._held_back_max:
            self._held_back += 1
            try:
                await self._pause(random.uniform(*ANSWER_AFTER_S))  # noqa: S311 - no secret
            finally:
                self._held_back -= 1
                note_wait(monotonic() - now_s)  # or strangers would make the broker seem slow

    async def _of_token(self, token: str, host: str, connection: str) -> Caller:
        if not token:
            raise no_token()
        digest = sha256(token.encode()).digest()
        self._file.current()
        if self._generation != self._file.generation:
            self._forget_outdated()
        known = self._known.get(digest)
        if known is not None and self._now_s() < known.counts_until_s:
            return known.caller
        refused = self._refused.get(digest)
        if refused is not None:
            error, until_s = refused
            if monotonic() < until_s:
                raise ClusterError(error.message, error.code)
            del self._refused[digest]
        if known is not None:
            # It stays known: word of an outage may come after the token's end.
            error = expired(known.by.expires_s, self._now_s())
            self._refuse(digest, self._generation, host, error)
            raise error
        waiting = self._waiting.get(digest)
        if waiting is None:
            waiting = self._begin(token, digest, host, connection in self._proven)
        return await asyncio.shield(waiting.answer)

    def _begin(self, token: str, digest: bytes, host: str, is_proven: bool) -> _Waiting:
        """Raises ClusterError(THROTTLED)."""
        if not is_proven and not self._failures.allows(host, monotonic()):
            raise ClusterError(
                f"too many tokens from {host} were refused; try again in a second",
                ErrorCode.THROTTLED,
            )
        of_host = sum(1 for each in self._waiting.values() if each.host == host)
        if len(self._waiting) >= WAITING_MAX or of_host >= WAITING_PER_HOST_MAX:
            raise ClusterError(
                f"{len(self._waiting)} new tokens wait to be checked, {of_host} of them from "
                f"{host}; try again in a second",
                ErrorCode.THROTTLED,
            )
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Caller] = loop.create_future()
        # If every caller has gone by then, nobody looks at an error.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        waiting = self._waiting[digest] = _Waiting(host, answer)
        generation = self._generation
        checking = loop.run_in_executor(
            self._executor, verified, token, self._file.current(), self._now_s()
        )
        checking.add_done_callback(lambda done: self._checked(digest, generation, done))
        return waiting

    def _checked(
        self, digest: bytes, generation: int, checking: "asyncio.Future[Verified]"
    ) -> None:
        waiting = self._waiting.pop(digest)
        if checking.cancelled():
            waiting.answer.cancel()
            return
        error = checking.exception()
        if isinstance(error, UnknownKeyError) and self._look_again():
            self._failures.failed(waiting.host, monotonic())
            error = ClusterError(
                "this broker does not know the key of this token, and has asked for newer ones; "
                "try again",
                ErrorCode.AUTH_NOT_READY,
            )
        if isinstance(error, ClusterError):
            self._refuse(digest, generation, waiting.host, error)
            waiting.answer.set_exception(error)
        elif error is not None:
            waiting.answer.set_exception(error)
        else:
            found = checking.result()
            caller = Caller(
                Role.USER,
                found.principal,
                found.groups,
                expires_s=found.expires_s,
                counts_until=self._grace.counts_until if found.is_of_account else with_leeway,
            )
            if generation == self._generation:
                self._forget_ended()
                _bounded(self._known, KNOWN_MAX)
                self._known[digest] = _Known(caller, found)
            waiting.answer.set_result(caller)

    def _refuse(self, digest: bytes, generation: int, host: str, error: ClusterError) -> None:
        if error.code is ErrorCode.AUTH_NOT_READY:
            return
        self._failures.failed(host, monotonic())
        if generation == self._generation:
            _bounded(self._refused, REFUSED_MAX)
            self._refused[digest] = (error, monotonic() + REFUSED_S)
        _audit.warning("a login failed", host=host, reason=error.message)

    def _forget_ended(self) -> None:
        """The oldest, once nothing can make them count again."""
        while self._known:
            digest, known = next(iter(self._known.items()))
            if self._now_s() < known.by.expires_s + GRACE_S:
                return
            del self._known[digest]

    def _forget_outdated(self) -> None:
        """Other issuers: those whose key is gone are out, those that were refused may come in."""
        self._generation = self._file.generation
        issuers = self._file.current()
        self._refused.clear()
        before, self._known = self._known, {}
        for digest, known in before.items():
            issuer = issuers.get(known.by.issuer)
            if issuer is not None and known.by.basis == issuer.basis(known.by.key_id):
                self._known[digest] = known


def no_token() -> ClusterError:
    """The error for a caller who shows none."""
    return ClusterError(
        f"a token is needed here: metadata '{HEADER}: Bearer …' (the Python client and the command "
        "line: token_file, --token-file, PENSTOCK_TOKEN_FILE)",
        ErrorCode.UNAUTHENTICATED,
    )


def _bounded(kept: dict[Any, Any], most: int) -> None:
    """Makes room for one more; the oldest goes."""
    if len(kept) >= most:
        del kept[next(iter(kept))]
