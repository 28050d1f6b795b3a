"""The checker of transactions: all or nothing, and what readers saw in the meantime.

    send x=7, ack x=7, …  ─▶ the records of transaction 7
    ended-tx x=7 how      ─▶ committed, aborted, or unknown: then either, but as a whole

Records acknowledged inside a transaction are stored, but not visible: for the other rules they
count as acknowledged once the transaction has committed. Readers use read_committed. A reader of
two partitions may briefly see one half of a transaction, because markers are written one by one, so
only the final read-back is checked for completeness.

Both passes over the history (`check.py`) follow transactions from their first record to their end:
the first learns what committed and aborted ones sent, the second compares each with the final
read-back. Only those without a known outcome are kept until the verdict, so that memory does not
grow with their number.

Rules: torn, aborted read (I11), stuck (I14). A record that two transactions made visible is
"duplicated" for the other rules, and a "double commit" in a ring (`check_ring.py`).
"""

from collections import defaultdict
from typing import Final, NamedTuple

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


class _Sent(NamedTuple):
    """A batch of a transaction. `entry`: its number in a bank, or -1."""

    stream: int
    first: int
    records: int
    entry: int


class _Open:
    """Transactions without a known outcome so far, and what they sent."""

    def __init__(self) -> None:
        self.sent: dict[int, list[_Sent]] = {}

    def add(self, event: Event) -> None:
        batch = _Sent(event["s"], event["q"], event["n"], event.get("k", -1))
        self.sent.setdefault(event["x"], []).append(batch)

    def end(self, event: Event) -> list[_Sent] | None:
        """What it sent, once its outcome is known."""
        assert event["how"] in OUTCOMES
        unknown = event["how"] == "unknown"
        return None if unknown else self.sent.pop(event["x"], [])


class TransactionChecker:
    """Feed it the events that name a transaction, in order, in both passes; then ask for
    `finish`."""

    def __init__(self, breach: ReportBreach, acknowledged: Sequences, logged: Sequences) -> None:
        """`acknowledged`, per stream: gets what committed transactions sent. `logged`: what the
        final read-back saw, complete in the second pass."""
        self._breach = breach
        self._acknowledged = acknowledged
        self._logged = logged
        self._open = _Open()
        self._aborted: Sequences = defaultdict(IntervalSet)
        self.bank = BankChecker(breach)
        self.seen = False
        """There were transactions."""
        self.committed = 0
        self.aborted = 0
        self.unknown = 0

    def sent(self, event: Event) -> None:
        """A batch left inside transaction `event["x"]`; in either pass."""
        self.seen = True
        self._open.add(event)

    def ended(self, event: Event) -> None:
        """In the first pass: the outcome that the producer got for transaction `event["x"]`. After
        an unknown one, there may be another."""
        self.seen = True
        sent = self._open.end(event)
        if sent is None:
            return
        committed = event["how"] == "committed"
        self.committed += committed
        self.aborted += not committed
        to = self._acknowledged if committed else self._aborted
        for batch in sent:
            to[batch.stream].add(batch.first, batch.first + batch.records)

    def settle(self) -> None:
        """Between the passes."""
        self.unknown = len(self._open.sent)
        self._open = _Open()

    def ended_again(self, event: Event) -> None:
        """In the second pass: as `ended`."""
        sent = self._open.end(event)
        if sent is not None:
            self._compare(event["x"], event["how"], sent)

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

    def finish(self) -> None:
        """After both passes: those of unknown outcome, and the bank."""
        spare: dict[int, set[int]] = defaultdict(set)
        for number, sent in self._open.sent.items():
            self._compare(number, "unknown", sent)
            for batch in sent:
                spare[batch.stream].add(batch.entry)
        self.bank.finish(spare)

    def _compare(self, number: int, how: str, sent: list[_Sent]) -> None:
        """A transaction with what the final read-back saw of its streams."""
        whole = sum(batch.records for batch in sent)
        visible = sum(
            hi - lo
            for batch in sent
            for lo, hi in self._logged[batch.stream].overlap(
                batch.first, batch.first + batch.records
            )
        )
        text = f"transaction {number}, {how}: {visible} of {whole} there"
        if how == "aborted" and visible:
            self._breach("aborted read", visible, text)
        elif 0 < visible < whole:
            self._breach("torn", whole - visible, text)

    def stuck(self, event: Event) -> None:
        """The last stable offset and the high watermark of a log, at the end."""
        stable, high = event["hi"], event.get("hw", event["hi"])
        if stable < high:
            text = f"partition {event['p']}: last stable offset {stable}, high watermark {high}"
            self._breach("stuck", high - stable, text)
