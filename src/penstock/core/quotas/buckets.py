"""Token buckets that go into debt: what is taken counts, and the debt is waited for.

    take(n) ─▶ tokens fall, below zero if need be; they rise at the limit's rate up to the burst

The burst is what the rate gives in one period (a second, or a minute of mutations). So whoever
takes only while not in debt gets, in any window, at most rate * window + burst + one request.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

from penstock.core.authorization.checks import EVERYBODY
from penstock.core.quotas.rules import Limit, QuotaRule

REMEMBERED_MAX: Final = 10_000
"""Buckets. Beyond, the one that was asked for longest ago is forgotten, and is full again."""
_PERIOD_MS: Final = {
    Limit.PRODUCE: 1_000,
    Limit.FETCH: 1_000,
    Limit.REQUEST: 1_000,
    Limit.MUTATIONS: 60_000,
}


class _Bucket:
    __slots__ = ("at_ms", "tokens")

    def __init__(self, tokens: float, at_ms: float) -> None:
        self.tokens = tokens
        self.at_ms = at_ms


class Buckets:
    """The buckets of one server. Times are in ms of a clock that does not go back."""

    def __init__(self, remembered_max: int = REMEMBERED_MAX) -> None:
        self._remembered_max = remembered_max
        self._limits: dict[str, Mapping[Limit, int]] = {}
        self._buckets: OrderedDict[tuple[str, Limit], _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def put(self, rules: Iterable[QuotaRule]) -> None:
        """Replaces the rules. Debts stay, and are paid off at the new rate."""
        self._limits = {name: rule.limits for rule in rules for name in rule.principals}

    @property
    def has_rules(self) -> bool:
        return bool(self._limits)

    def limit(self, principal: str, limit: Limit) -> int | None:
        """Of the rule that names them, else of everybody's; None: not limited."""
        limits = self._limits.get(principal)
        if limits is None:
            limits = self._limits.get(EVERYBODY, {})
        return limits.get(limit)

    def debt_ms(self, principal: str, limit: Limit, now_ms: float) -> float:
        """How long until what was taken is paid off; 0: they may take."""
        rate = self.limit(principal, limit)
        if rate is None:
            return 0.0
        bucket = self._filled(principal, limit, rate, now_ms)
        return max(-bucket.tokens, 0.0) * _PERIOD_MS[limit] / rate

    def take(self, principal: str, limit: Limit, amount: float, now_ms: float) -> float:
        """Takes, always; returns the ms to wait before what is taken is used.

        That is the debt of what was taken before: so that of many who take at once, each waits for
        those before it. Who does not use it after all takes the negative amount.
        """
        rate = self.limit(principal, limit)
        if rate is None:
            return 0.0
        bucket = self._filled(principal, limit, rate, now_ms)
        wait_ms = max(-bucket.tokens, 0.0) * _PERIOD_MS[limit] / rate
        bucket.tokens = min(bucket.tokens - amount, rate)
        return wait_ms

    def _filled(self, principal: str, limit: Limit, rate: int, now_ms: float) -> _Bucket:
        key = (principal, limit)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(rate, now_ms)
            while len(self._buckets) > self._remembered_max:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
            gained = max(now_ms - bucket.at_ms, 0.0) * rate / _PERIOD_MS[limit]
            bucket.tokens = min(bucket.tokens + gained, rate)
            bucket.at_ms = max(now_ms, bucket.at_ms)
        return bucket
