"""Who calls: known once per call or stream, asked for wherever something depends on it.

    Edge, ClientStreams ── identify ─▶ Caller ── entered ─▶ caller(), in everything the call does

A listener that asks nobody has callers of `NOBODY`, who may do everything: a cluster without TLS.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias

from penstock.errors import ClusterError, ErrorCode

LEEWAY_S: Final = 60.0
"""How long credentials count after their end: clocks differ, and renewing them takes a moment."""
CountsUntil: TypeAlias = Callable[[float], float]
"""Until when credentials with this end count; both in seconds since 1970."""


def with_leeway(expires_s: float) -> float:
    """`CountsUntil` of credentials that their owner can renew."""
    return expires_s + LEEWAY_S


class Role(Enum):
    """Which side of the cluster a caller is on."""

    NOBODY = "nobody"
    """Nobody was asked who they are."""
    USER = "user"
    BROKER = "broker"
    CONTROLLER = "controller"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls.

    Attributes:
        principal: Of a user, as in rules: "serviceaccount:etl/spark"; of a server, the URI in its
            certificate.
        groups: Further principals whose rules hold for the user: "oidc-group:…".
        broker_id: Of a broker; -1 for others.
        expires_s: When the credentials end, in seconds since 1970; None: not at a known time.
        counts_until: Until when they count nevertheless, which may change.
    """

    role: Role
    principal: str = ""
    groups: tuple[str, ...] = ()
    broker_id: int = -1
    expires_s: float | None = None
    counts_until: CountsUntil = field(default=with_leeway, compare=False)


NOBODY: Final = Caller(Role.NOBODY)
_CALLER: Final[ContextVar[Caller]] = ContextVar("caller", default=NOBODY)

Identify: TypeAlias = Callable[[Any], Awaitable[Caller]]
"""Finds out who makes a call, from its gRPC context. Raises ClusterError: UNAUTHENTICATED,
CREDENTIALS_EXPIRED, AUTH_NOT_READY."""
IdentifyToken: TypeAlias = Callable[[str, str], Awaitable[Caller]]
"""The same by the token in a stream's hello ("": there is none), and the host it comes from."""


class Door(Protocol):
    """Who may call what (`access.Access`)."""

    def authorize(self, who: Caller, method: str, request: Any) -> None:
        """Raises ClusterError unless they may call a method ("Produce") with this request.

        What is decided per part of a request, its service decides.
        """

    def admit(self, who: Caller, method: str, request: Any) -> None:
        """Of a unary call, before it is handled. Raises ThrottledError above a quota."""

    def worked(self, who: Caller, seconds: float) -> None:
        """A unary call has kept the server at work for so long."""

    def streaming(self, who: Caller, /) -> AbstractContextManager[None]:
        """Around a stream. Raises ThrottledError above a quota."""

    def finished(self, who: Caller, method: str, request: Any, answer: Any) -> None:
        """A call that is not a stream is over: `answer` is its response, or the error."""


def caller() -> Caller:
    """Who makes the call that is being handled."""
    return _CALLER.get()


async def knows_no_users(*_: object) -> Caller:
    """`Identify` and `IdentifyToken` of a broker that was not told whose tokens to accept."""
    raise ClusterError(
        "this broker accepts no users: it was started without --token-issuers",
        ErrorCode.UNAUTHENTICATED,
    )


def entered(who: Caller) -> None:
    """Everything from here on, in this task and those it starts, is done for `who`."""
    _CALLER.set(who)
