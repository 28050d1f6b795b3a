"""Whether the brokers of a Cluster are at rest: asked of all of them, and believed the second time.

    all quiet ─▶ again, with the same log ends ─▶ proven

Each fsyncs what it stores before it answers. A follower may have received more after its answer
than before its leader's; if no log grew between two answers of everybody, it has not. What is
remembered is only the last answer: another operator asks twice for itself.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final

from penstock.client import BrokerQuiescence
from penstock_operator.hibernation_model import Record, Rest

_NAMED_MAX: Final = 3


class Quiet:
    """Remembers what the brokers of one Cluster said in the pass before."""

    def __init__(self) -> None:
        self._log_ends: Mapping[int, int] = {}

    def proven(self, told: Collection[BrokerQuiescence], registered: Collection[int]) -> bool:
        """Whether everybody was quiet in this pass and in the one before, and wrote nothing."""
        quiet = all(one.quiet for one in told) and {one.broker_id for one in told} == {*registered}
        before, self._log_ends = self._log_ends, {}
        if not quiet:
            return False
        self._log_ends = {one.broker_id: one.log_ends for one in told}
        return bool(before) and before == self._log_ends

    def forget(self) -> None:
        """Not everybody could be asked."""
        self._log_ends = {}


def rest_of(
    record: Record,
    now: str,
    *,
    proven: bool = False,
    told: Collection[BrokerQuiescence] = (),
    problem: str = "",
) -> Rest:
    """`now`: RFC 3339. `problem`: why they could not be asked."""
    since = datetime.fromisoformat(record.since) if record.since else None
    waited_s = 0.0 if since is None else (datetime.fromisoformat(now) - since).total_seconds()
    words = [text for one in told for text in one.waiting_for]
    named = "; ".join(dict.fromkeys(words[:_NAMED_MAX]))
    return Rest(record, waited_s, proven=proven, waiting_for=problem or named)
