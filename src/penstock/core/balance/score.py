"""How far from even a layout is: six numbers, compared in order, smaller is better.

Each sums, over the brokers that may be used, the square of what lies outside a band: 0 = within
tolerance. Squares, because racks may forbid the mean: then brokers that all lie below it should
still differ little from each other. A band always holds the mean rounded down and up, so that
whole numbers can meet it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

BYTES_PERCENT = 10
INFLOW_PERCENT = 20


class Band(NamedTuple):
    """The values from `low` to `high`, both included."""

    low: int
    high: int

    def excess(self, value: int) -> int:
        """The square of how far outside `value` is; 0 inside."""
        if value > self.high:
            return (value - self.high) ** 2
        return (self.low - value) ** 2 if value < self.low else 0

    def total(self, values: Iterable[int]) -> int:
        """The excess of all of them."""
        return sum(self.excess(value) for value in values)

    def change(self, source: int, target: int, amount: int) -> int:
        """What the excess gains if `amount` goes from one that has `source` to one with `target`;
        negative = better."""
        low, high = self
        gained = 0
        if source > high:
            gained -= (source - high) * (source - high)
        elif source < low:
            gained -= (low - source) * (low - source)
        if target > high:
            gained -= (target - high) * (target - high)
        elif target < low:
            gained -= (low - target) * (low - target)
        source -= amount
        target += amount
        if source > high:
            gained += (source - high) * (source - high)
        elif source < low:
            gained += (low - source) * (low - source)
        if target > high:
            gained += (target - high) * (target - high)
        elif target < low:
            gained += (low - target) * (low - target)
        return gained

    def changes(self, source: int, target: int) -> Callable[[int], int]:
        """`change` of one pair, for many amounts."""
        low, high = self
        before = self.excess(source) + self.excess(target)

        def change(amount: int) -> int:
            left, joined = source - amount, target + amount
            gained = -before
            if left > high:
                gained += (left - high) * (left - high)
            elif left < low:
                gained += (low - left) * (low - left)
            if joined > high:
                gained += (joined - high) * (joined - high)
            elif joined < low:
                gained += (low - joined) * (low - joined)
            return gained

        return change


def even(total: int, parts: int) -> Band:
    """Values that differ by one at most."""
    return within(total, parts, 0)


def within(total: int, parts: int, percent: int) -> Band:
    """Values that differ from the mean by `percent` of it at most."""
    if not parts:
        return Band(0, 0)
    mean = total // parts
    mean_up = -(-total // parts)
    low = -(-total * (100 - percent) // (100 * parts))
    high = total * (100 + percent) // (100 * parts)
    return Band(min(low, mean), max(high, mean_up))


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Score:
    """What lies outside the tolerances, as squares, most important first.

    `racks`: replicas beyond what a rack should have of a partition. `replicas` per broker, within
    1 of each other; `held_bytes` within 10 % of the mean; `topics`: replicas of a topic per
    broker, within 1; `leaders` within 1; `inflow`: bytes/s of leaders, within 20 % of the mean.
    """

    racks: int
    replicas: int
    held_bytes: int
    topics: int
    leaders: int
    inflow: int
