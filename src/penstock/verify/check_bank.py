"""The checker of a bank: what is visible at the end adds up to 0, and no account has a gap.

    final x=7 a=-30 k=4, final x=7 a=+30 k=9, …  ─▶ per transfer: a sum; per stream: numbers

It sums up the final read-back, and needs only one thing from the rest of the history: the numbers
of entries with unknown outcome, which may be there or not. It keeps 16 bytes per transfer.

Rules: unbalanced (I11: half a transfer is there), gap (one is missing, or there twice).
"""

from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from penstock.verify.breach import ReportBreach
from penstock.verify.history import Event
from penstock.verify.intervals import IntervalSet

BANK_RULES: Final = {
    "unbalanced": "of transfers whose debit and credit do not cancel out",
    "gap": "of an account with missing or duplicate entries",
}


_PAGE: Final = 1 << 10


class _Transfers:
    """Sum and number of entries by transfer; the numbers of one producer's transfers are dense."""

    def __init__(self) -> None:
        self._pages: dict[int, tuple[array[int], array[int]]] = {}

    def add(self, transfer: int, amount: int) -> None:
        page, at = divmod(transfer, _PAGE)
        if page not in self._pages:
            self._pages[page] = (array("q", bytes(8 * _PAGE)), array("q", bytes(8 * _PAGE)))
        sums, entries = self._pages[page]
        sums[at] += amount
        entries[at] += 1

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Transfer, sum, number of entries."""
        for page, (sums, entries) in self._pages.items():
            for at, count in enumerate(entries):
                if count:
                    yield page * _PAGE + at, sums[at], count


class BankChecker:
    """Feed it the final read-back, in order, then ask for `finish`."""

    def __init__(self, breach: ReportBreach) -> None:
        self._breach = breach
        self._transfers = _Transfers()
        self._numbers: dict[int, IntervalSet] = defaultdict(IntervalSet)
        self.balance = 0
        """The sum over all accounts at the end."""

    @property
    def transfers(self) -> int:
        """Visible at the end, as a whole or not."""
        return sum(1 for _ in self._transfers)

    def read_back(self, event: Event) -> None:
        """The final reader got an entry."""
        stream, number = event["s"], event["k"]
        self.balance += event["a"]
        self._transfers.add(event["x"], event["a"])
        there = self._numbers[stream]
        if there.overlap(number, number + 1):
            self._breach("gap", 1, f"key {stream}: entry {number} twice")
        there.add(number, number + 1)

    def finish(self, unknown: Mapping[int, set[int]]) -> None:
        """`unknown`: numbers of entries with unknown outcome, per stream."""
        for transfer, total, entries in self._transfers:
            if total:
                text = f"transfer {transfer}: {entries} entries, sum {total:+}"
                self._breach("unbalanced", entries, text)
        for stream, there in self._numbers.items():
            self._check_numbers(stream, there, unknown.get(stream, set()))

    def _check_numbers(self, stream: int, there: IntervalSet, spare: set[int]) -> None:
        whole = IntervalSet()
        whole.add(0, max(hi for _, hi in there))
        for lo, hi in whole.minus(there):
            missing = [number for number in range(lo, hi) if number not in spare]
            if missing:
                text = f"key {stream}: entries {missing[0]} to {missing[-1]} are missing"
                self._breach("gap", len(missing), text)
