"""The result of a check: figures, and the rules that were broken.

`check.py` finds it, `report.py` prints it. A rule that the workload's settings allow to be broken
(`acks=leader` may lose records) is counted in `allowed`, and does not fail the check.
"""

from dataclasses import dataclass
from typing import Final

from penstock.verify.breach import Breach
from penstock.verify.check_bank import BANK_RULES
from penstock.verify.check_groups import GROUP_RULES
from penstock.verify.check_pipe import PIPE_RULES
from penstock.verify.check_ring import RING_RULES
from penstock.verify.check_transactions import TRANSACTION_RULES

RULES: Final = {
    "lost": "acknowledged, but not in the log",
    "resurrected": "definitely failed, but in the log",
    "duplicated": "in the log more than once",
    "reordered": "behind a later record of the same key",
    "changed": "not the bytes that were sent",
    "vanished": "read by a consumer, then missing from its offset",
    "skipped": "skipped by a consumer without a reason",
    "unacknowledged": "none of all was acknowledged, so that nothing is proved",
    "unfinished": "the history has no final read-back to check",
    "ended": "a producer or reader of the workload could not continue",
    **GROUP_RULES,
    **TRANSACTION_RULES,
    **BANK_RULES,
    **PIPE_RULES,
    **RING_RULES,
}


@dataclass(slots=True)
class Verdict:
    """What the histories show. Gaps in ms: the longest time between two acknowledgements
    (of all, and of the worst partition) and between two reads of one reader."""

    breaches: dict[str, Breach]
    allowed: dict[str, Breach]
    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    unknown: int = 0
    final: int = 0
    read: int = 0
    delivered: int = 0
    redelivered: int = 0
    committed: int = 0
    aborted: int = 0
    undecided: int = 0
    transfers: int = 0
    balance: int = 0
    piped: int = 0
    passed_on: int = 0
    ring_committed: int = 0
    write_gap_ms: float = 0.0
    partition_write_gap_ms: float = 0.0
    read_gap_ms: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.breaches

    def to_dict(self) -> dict[str, object]:
        """For `-o json`."""
        return {
            "verdict": "PASS" if self.passed else "FAIL",
            "sent": self.sent,
            "acknowledged": self.acknowledged,
            "failed": self.failed,
            "unknown": self.unknown,
            "in_log": self.final,
            "read": self.read,
            "delivered": self.delivered,
            "redelivered": self.redelivered,
            "transactions_committed": self.committed,
            "transactions_aborted": self.aborted,
            "transactions_unknown": self.undecided,
            "transfers_in_log": self.transfers,
            "balance": self.balance,
            "piped": self.piped,
            "passed_on": self.passed_on,
            "ring_transactions_committed": self.ring_committed,
            "write_gap_ms": round(self.write_gap_ms, 1),
            "partition_write_gap_ms": round(self.partition_write_gap_ms, 1),
            "read_gap_ms": round(self.read_gap_ms, 1),
            "breaches": {
                rule: {"records": breach.records, "examples": breach.examples}
                for rule, breach in self.breaches.items()
            },
            "allowed": {rule: breach.records for rule, breach in self.allowed.items()},
        }
