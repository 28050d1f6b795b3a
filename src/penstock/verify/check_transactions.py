"""The checker of transactions: all or nothing, and what readers saw in the meantime.

    send x=7, ack x=7, …  ─▶ the records of transaction 7
    ended-tx x=7 how      ─▶ committed, aborted, or unknown: then either, but as a whole

Records acknowledged inside a transaction are stored, but not visible: for the other rules they
count as acknowledged once the transaction has committed. Readers use read_committed. A reader of
two partitions may briefly see one half of a transaction, because markers are written one by one, so
only the final read-back is checked for completeness.

Rules: torn, aborted read (I11), stuck (I14). A record that two transactions made visible is
"duplicated" for the other rules, and a "double commit" in a ring (`check_ring.py`).
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from penstock.verify.breach import ReportBreach
from penstock.verify.check_bank import BankChecker
from penstock.verify.history import Event
from penstock.verify.intervals import IntervalSet

TRANSACTION_RULES: Final = {
    "torn": "missing, but other records of the same transaction are visible",
    "aborted read": "of an aborted transaction, but visible",
    "stuck": "blocked by a transaction that should have ended long ago",
}
OUTCOMES: Final = frozenset({"committed", "aborted", "unknown"})

Sequences = dict[int, IntervalSet]


@dataclass(slots=True)
class _Transaction:
    """What it sent, (stream, first sequence, count) each, and how it ended."""

    sent: list[tuple[int, int, int]] = field(default_factory=list)
    outcome: str = "unknown"


class TransactionChecker:
    """Feed it the events that name a transaction, in order, then ask for `finish`."""

    def __init__(self, breach: ReportBreach) -> None:
        self._breach = breach
        self._transactions: dict[int, _Transaction] = defaultdict(_Transaction)
        self._aborted: Sequences = defaultdict(IntervalSet)
        self.bank = BankChecker(breach)
        self.committed = 0
        self.aborted = 0
        self.unknown = 0

    @property
    def seen(self) -> bool:
        """There were transactions."""
        return bool(self._transactions)

    def sent(self, event: Event) -> None:
        """A batch left inside transaction `event["x"]`."""
        sent = (event["s"], event["q"], event["n"])
        self._transactions[event["x"]].sent.append(sent)
        if "a" in event:
            self.bank.sent(event)

    def ended(self, event: Event) -> None:
        """The outcome that the producer got for transaction `event["x"]`; the last one counts."""
        assert event["how"] in OUTCOMES
        self._transactions[event["x"]].outcome = event["how"]

    def settle(self, acknowledged: Sequences) -> None:
        """After all events: adds what committed transactions sent to `acknowledged`."""
        for transaction in self._transactions.values():
            match transaction.outcome:
                case "committed":
                    self.committed += 1
                    for stream, first, count in transaction.sent:
                        acknowledged[stream].add(first, first + count)
                case "aborted":
                    self.aborted += 1
                    for stream, first, count in transaction.sent:
                        self._aborted[stream].add(first, first + count)
                case _:
                    self.unknown += 1

    def aborted_of(self, event: Event) -> int:
        """How many records of a run that was read belong to aborted transactions."""
        if event["s"] not in self._aborted:
            return 0
        found = self._aborted[event["s"]].overlap(event["q"], event["q"] + event["n"])
        return sum(hi - lo for lo, hi in found)

    def read_back(self, event: Event) -> None:
        """The final reader got this run."""
        if "a" in event:
            self.bank.read_back(event)

    def read(self, event: Event) -> int:
        """A reader saw this run; returns how many of its records should not have been visible."""
        count = self.aborted_of(event)
        if count:
            text = (
                f"partition {event['p']} offset {event['o']}: key {event['s']} sequences "
                f"{event['q']} to {event['q'] + event['n'] - 1}, seen by {event['r']}"
            )
            self._breach("aborted read", count, text)
        return count

    def finish(self, logged: Sequences) -> None:
        """Compares transactions with what the final read-back saw of each stream."""
        undecided = {x for x, one in self._transactions.items() if one.outcome == "unknown"}
        self.bank.finish(undecided)
        for number, transaction in self._transactions.items():
            whole = sum(count for _, _, count in transaction.sent)
            visible = sum(
                hi - lo
                for stream, first, count in transaction.sent
                for lo, hi in logged[stream].overlap(first, first + count)
            )
            text = f"transaction {number}, {transaction.outcome}: {visible} of {whole} there"
            if transaction.outcome == "aborted" and visible:
                self._breach("aborted read", visible, text)
            elif 0 < visible < whole:
                self._breach("torn", whole - visible, text)

    def stuck(self, event: Event) -> None:
        """The last stable offset and the high watermark of a log, at the end."""
        stable, high = event["hi"], event.get("hw", event["hi"])
        if stable < high:
            text = f"partition {event['p']}: last stable offset {stable}, high watermark {high}"
            self._breach("stuck", high - stable, text)
