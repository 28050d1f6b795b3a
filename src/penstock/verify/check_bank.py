"""The checker of a bank: what is visible at the end adds up to 0, and no account has a gap.

    final x=7 a=-30 k=4, final x=7 a=+30 k=9, …  ─▶ per transfer: a sum; per stream: numbers

It sums up the final read-back, and needs only one thing from the rest of the history: the numbers
of transfers with unknown outcome, which may be there or not. It keeps a number and a reference per
entry.

Rules: unbalanced (I11: half a transfer is there), gap (one is missing, or there twice).
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Final

from penstock.verify.breach import ReportBreach
from penstock.verify.history import Event
from penstock.verify.intervals import IntervalSet

BANK_RULES: Final = {
    "unbalanced": "of transfers whose debit and credit do not cancel out",
    "gap": "of an account with missing or duplicate entries",
}


class BankChecker:
    """Feed it the sends and the final read-back, in order, then ask for `finish`."""

    def __init__(self, breach: ReportBreach) -> None:
        self._breach = breach
        self._sums: Counter[int] = Counter()
        self._entries: Counter[int] = Counter()
        self._numbers: dict[int, array[int]] = defaultdict(lambda: array("q"))
        self._sent: dict[int, list[tuple[int, int]]] = defaultdict(list)

    @property
    def transfers(self) -> int:
        """Visible at the end, as a whole or not."""
        return len(self._entries)

    @property
    def balance(self) -> int:
        """The sum over all accounts at the end."""
        return sum(self._sums.values())

    def sent(self, event: Event) -> None:
        """An entry was sent; its fields are in the event besides those of every send."""
        self._sent[event["x"]].append((event["s"], event["k"]))

    def read_back(self, event: Event) -> None:
        """The final reader got an entry."""
        self._sums[event["x"]] += event["a"]
        self._entries[event["x"]] += 1
        self._numbers[event["s"]].append(event["k"])

    def finish(self, unknown: Collection[int]) -> None:
        """`unknown`: transfers with unknown outcome."""
        for transfer, total in self._sums.items():
            if total:
                text = f"transfer {transfer}: {self._entries[transfer]} entries, sum {total:+}"
                self._breach("unbalanced", self._entries[transfer], text)
        spare: dict[int, set[int]] = defaultdict(set)
        for transfer in unknown:
            for stream, number in self._sent[transfer]:
                spare[stream].add(number)
        for stream, numbers in self._numbers.items():
            self._check_numbers(stream, numbers, spare[stream])

    def _check_numbers(self, stream: int, numbers: "array[int]", spare: set[int]) -> None:
        there = IntervalSet()
        for number in numbers:
            if there.overlap(number, number + 1):
                self._breach("gap", 1, f"key {stream}: entry {number} twice")
            there.add(number, number + 1)
        whole = IntervalSet()
        whole.add(0, max(numbers) + 1)
        for lo, hi in whole.minus(there):
            missing = [number for number in range(lo, hi) if number not in spare]
            if missing:
                text = f"key {stream}: entries {missing[0]} to {missing[-1]} are missing"
                self._breach("gap", len(missing), text)
