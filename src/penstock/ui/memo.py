"""Answers that are kept for a moment: a hundred tabs ask the cluster as often as one does.

For each key one question is in flight at a time; who asks meanwhile waits for that answer. An
answer is kept at least `ttl_s`, and ten times as long as it took: a large cluster is asked less. It
says when it was asked, so that nobody takes it for newer than it is.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from time import monotonic, time_ns
from typing import Final

from penstock.errors import ErrorCode, PenstockError
from penstock.views.answers import A, Answer

TTL_S: Final = 2.0
TTL_MAX_S: Final = 30.0
TIMEOUT_S: Final = 12.0
"""Of one question with everything it needs; longer than the client's own timeouts."""
AT_ONCE: Final = 8
KEPT_MAX: Final = 500
REFUSALS: Final = frozenset(
    {ErrorCode.UNAUTHENTICATED, ErrorCode.CREDENTIALS_EXPIRED, ErrorCode.PERMISSION_DENIED}
)


@dataclass(slots=True)
class _Kept:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    until_s: float = 0.0
    answer: Answer[object] = field(default_factory=Answer)


class Memo:
    """For one event loop."""

    def __init__(self, clock: Callable[[], float] = monotonic, at_once: int = AT_ONCE) -> None:
        self._clock = clock
        self._kept: dict[Hashable, _Kept] = {}
        self._at_once = asyncio.Semaphore(at_once)

    async def answer(self, key: Hashable, ask: Callable[[], Awaitable[A]]) -> Answer[A]:
        """The kept answer, or a new one; an error is an answer too, kept as long."""
        kept = self._kept.setdefault(key, _Kept())
        async with kept.lock:
            if self._clock() >= kept.until_s:
                async with self._at_once:
                    began_s = self._clock()
                    kept.answer = await _asked(ask, time_ns() // 1_000_000)
                took_s = self._clock() - began_s
                kept.until_s = self._clock() + min(max(TTL_S, 10 * took_s), TTL_MAX_S)
        self._forget()
        return kept.answer  # type: ignore[return-value]  # `key` names one question

    def _forget(self) -> None:
        """Too many keys: what is not in use and over goes."""
        if len(self._kept) <= KEPT_MAX:
            return
        now_s = self._clock()
        for key, kept in list(self._kept.items()):
            if now_s >= kept.until_s and not kept.lock.locked():
                del self._kept[key]


async def _asked(ask: Callable[[], Awaitable[A]], now_ms: int) -> Answer[A]:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return Answer(await ask(), asked_ms=now_ms)
    except TimeoutError:
        return Answer(problem=f"no answer within {TIMEOUT_S:.0f} s", asked_ms=now_ms)
    except PenstockError as error:
        return Answer(problem=error.message, refused=error.code in REFUSALS, asked_ms=now_ms)
