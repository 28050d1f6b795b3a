"""Holds users to their quotas, in one server.

    unary call     more than a second in debt: THROTTLED, before anything is done
    produce stream nothing is read while its next request waits for the debt
    fetch, push    wait for the debt

Only users have quotas: never the cluster's servers, nor callers whom nobody asked who they are.
Without rules, a call costs one look at `active`; of a principal without a rule nothing is kept.
Brokers count everything but mutations, which the controller counts: it decides them, whichever
broker forwards them.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from math import ceil
from time import monotonic
from typing import Final

from penstock.core.quotas import Buckets, Limit, QuotaRule
from penstock.errors import ThrottledError
from penstock_broker.serving.callers import Caller, Role

DEBT_MAX_MS: Final = 1_000
"""Above, unary calls are refused."""
COUNTED_MAX: Final = 100
"""Principals that are counted by name."""
OTHERS: Final = "others"
_STREAMS_RETRY_MS: Final = 1_000
_TOLD_MS_MAX: Final = (1 << 31) - 1
"""Of a delay that is told: what fits the protocol's field, and gRPC's."""


def _monotonic_ms() -> float:
    return monotonic() * 1_000


class Quotas:
    """See the module. `put` before there are rules is not needed."""

    def __init__(self, now_ms: Callable[[], float] = _monotonic_ms) -> None:
        self._buckets = Buckets()
        self._now_ms = now_ms
        self._streams: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self.active = False
        """There are rules."""
        self.refused: Counter[str] = Counter()
        """Calls and streams answered with THROTTLED, by principal; of many, some as OTHERS."""

    def put(self, rules: Iterable[QuotaRule]) -> None:
        """Replaces the rules."""
        self._buckets.put(rules)
        self.active = self._buckets.has_rules
        self._changed.set()
        self._changed = asyncio.Event()

    def debt_ms(self, who: Caller, *limits: Limit) -> float:
        """The longest of these debts; 0 for whom has no quota."""
        if not self.active or who.role is not Role.USER:
            return 0.0
        now_ms = self._now_ms()
        return max(self._buckets.debt_ms(who.principal, limit, now_ms) for limit in limits)

    def check(self, who: Caller, *limits: Limit) -> None:
        """Raises ThrottledError for whom is more than a second in debt."""
        if not self.active or who.role is not Role.USER:
            return
        now_ms = self._now_ms()
        for limit in limits:
            debt_ms = self._buckets.debt_ms(who.principal, limit, now_ms)
            if debt_ms > DEBT_MAX_MS:
                allowed = self._buckets.limit(who.principal, limit)
                told_ms = min(ceil(debt_ms), _TOLD_MS_MAX)
                raise ThrottledError(
                    f"{who.principal} is above its quota {limit.value} of {allowed}; try again in "
                    f"{told_ms} ms, or ask an administrator for a higher quota",
                    told_ms,
                )

    def take(self, who: Caller, limit: Limit, amount: float) -> float:
        """Counts it; returns the seconds to wait before it is used (`Buckets.take`)."""
        if not self.active or who.role is not Role.USER:
            return 0.0
        return self._buckets.take(who.principal, limit, amount, self._now_ms()) / 1_000

    async def paid(self, who: Caller, *limits: Limit) -> None:
        """Waits until there is no debt."""
        while debt_ms := self.debt_ms(who, *limits):
            await self._pause(debt_ms / 1_000)

    async def admitted(self, who: Caller, limit: Limit, amount: float) -> None:
        """Counts it, and waits until it may be used; given up, it is not counted."""
        left_s = self.take(who, limit, amount)
        try:
            while left_s > 0:
                rate, began_ms = self._buckets.limit(who.principal, limit), self._now_ms()
                await self._pause(left_s)
                now = self._buckets.limit(who.principal, limit)
                if rate is None or now is None:
                    return
                left_s = (left_s - (self._now_ms() - began_ms) / 1_000) * rate / now
        except asyncio.CancelledError:
            self.take(who, limit, -amount)
            raise

    async def _pause(self, seconds: float) -> None:
        """Ends early when there are other rules."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    @contextmanager
    def streaming(self, who: Caller) -> Iterator[None]:
        """Around a stream. Raises ThrottledError if the caller has too many open."""
        if who.role is not Role.USER:
            yield
            return
        principal = who.principal
        # Also without rules: streams that are open when rules come count.
        if self.active:
            self._check_streams(principal)
        self._streams[principal] += 1
        try:
            yield
        finally:
            self._streams[principal] -= 1
            if not self._streams[principal]:
                del self._streams[principal]

    def note_refused(self, principal: str) -> None:
        """Counts a call or a stream that was answered with THROTTLED."""
        known = principal in self.refused or len(self.refused) < COUNTED_MAX
        self.refused[principal if known else OTHERS] += 1

    def _check_streams(self, principal: str) -> None:
        allowed = self._buckets.limit(principal, Limit.STREAMS)
        if allowed is not None and self._streams[principal] >= allowed:
            self.note_refused(principal)
            raise ThrottledError(
                f"{principal} has {self._streams[principal]} streams open at this broker, its "
                f"quota {Limit.STREAMS.value} is {allowed}; close some, or ask an administrator "
                "for a higher quota",
                _STREAMS_RETRY_MS,
            )
