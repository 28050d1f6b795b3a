"""Whether the brokers of a Cluster are at rest: asked of all of them, and believed the second time.

    all quiet, with one image ─▶ again, with the same one and the same log ends ─▶ proven

Each fsyncs what it stores before it answers. A follower may have received more after its answer
than before its leader's; if no log grew between two answers of everybody, it has not. A leader may
answer before it hears that a follower lost its seat, which says nothing against it itself; but then
the two speak of different images. What is remembered is only the last answer: another operator asks
twice for itself.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Final

from penstock.client import BrokerQuiescence
from penstock_operator.hibernation_model import Record, Rest

_NAMED_MAX: Final = 3


class Quiet:
    """Remembers what the brokers of one Cluster said in the pass before."""

    def __init__(self) -> None:
        self._answers: frozenset[BrokerQuiescence] = frozenset()

    def proven(self, told: Collection[BrokerQuiescence], registered: Collection[int]) -> bool:
        """Whether everybody was quiet in this pass and in the one before, and nothing changed."""
        quiet = all(one.quiet for one in told) and {one.broker_id for one in told} == {*registered}
        one_image = len({one.metadata_version for one in told}) == 1
        before, self._answers = self._answers, frozenset()
        if not quiet or not one_image:
            return False
        self._answers = frozenset(told)
        return before == self._answers

    def forget(self) -> None:
        """Not everybody could be asked."""
        self._answers = frozenset()


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
