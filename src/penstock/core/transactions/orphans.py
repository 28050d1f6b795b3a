"""Orphaned transactions, open in a participant: which ones its leader may end.

    open here, now and then ─▶ Orphans.due ─▶ all coordinators are asked ─▶ endings ─▶ ended here

A participant is a partition led here, or a group coordinated here. A coordinator aborts at the
timeout, so none is open for much longer than the longest timeout. One that is open longer was lost
by its coordinator, as after an unclean election of `__transactions`, or its marker was lost here,
as after a power loss of all brokers. It would block the partition's readers, or the group's
offsets, for ever (KAFKA-12671, KIP-664). Aborting a transaction that a coordinator still knows
could contradict a commit (I11). So an incomplete answer has no effect: every partition of
`__transactions` must have a leader, and the coordinator there must have answered.

Age is what this leader has seen itself, on its own clock: times in records are the producers', and
a new leader starts counting again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.core.transactions.records import Participant
from penstock.core.types import ProducerId

Transaction = tuple[ProducerId, int]
"""(producer id, epoch): one transaction for ever."""


@dataclass(frozen=True, slots=True)
class OpenHere:
    """A transaction that a participant here has open."""

    participant: Participant
    transaction: Transaction


@dataclass(frozen=True, slots=True)
class Answer:
    """One broker's answer: the partitions whose coordinators answered, and what they know.

    ended: what of it has ended, True = committed; a broker of a former release does not say.
    """

    partitions: frozenset[int]
    known: frozenset[Transaction]
    ended: Mapping[Transaction, bool] = field(default_factory=dict)


class Orphans:
    """How long each transaction has been seen open here."""

    def __init__(self, age_ms: int) -> None:
        """`age_ms`: a transaction open for this long is asked about."""
        self._age_ms = age_ms
        self._since_ms: dict[OpenHere, int] = {}

    def due(self, now_open: Iterable[OpenHere], now_ms: int) -> list[OpenHere]:
        """Transactions to ask about, in the given order. `now_open`: all open ones; missing ones
        are forgotten."""
        before = self._since_ms
        self._since_ms = {one: before.get(one, now_ms) for one in now_open}
        oldest_ms = now_ms - self._age_ms
        return [one for one, since_ms in self._since_ms.items() if since_ms <= oldest_ms]


def endings(
    asked: Iterable[OpenHere],
    leaders: Mapping[int, int],
    answers: Mapping[int, Answer],
) -> dict[OpenHere, bool]:
    """Those to end, and whether they commit: as their coordinator remembers; those that nobody
    knows abort. {} unless all have answered.

    Args:
        asked: What the coordinators were asked about.
        leaders: Of every partition of `__transactions`: a broker id, negative = it has none.
        answers: By broker id. A coordinator answers for the partitions that its broker leads.
    """
    if not leaders:
        return {}
    for partition, leader in leaders.items():
        answer = answers.get(leader)
        if leader < 0 or answer is None or partition not in answer.partitions:
            return {}
    known = frozenset[Transaction]().union(*(answer.known for answer in answers.values()))
    ended = {one: commit for answer in answers.values() for one, commit in answer.ended.items()}
    return {
        one: ended.get(one.transaction, False)
        for one in asked
        if one.transaction in ended or one.transaction not in known
    }
