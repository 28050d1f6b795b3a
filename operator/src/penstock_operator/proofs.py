"""Whether brokers that are to go hold nothing: asked of the controller, and of them.

    documents (moves, topics) name it nowhere ─┐
    it is alive, and lists no log, no orphan ──┼─▶ empty; again, 5 s later ─▶ proven (I34)
    nothing new can land there any more ───────┘

Whoever does not answer has proven nothing. What is remembered is only since when a broker is seen
empty: another operator sees it for itself, and is 5 s later.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from time import monotonic
from typing import Final, Protocol

from penstock.client import LogDescription, MovesDescription, TopicDescription
from penstock.client.admin.move_facts import ClusterFacts, cluster_facts
from penstock.core.control.documents import FORMAT_MOVES
from penstock.errors import PenstockError
from penstock_operator.move_model import MoveFacts

PROOF_S: Final = 5.0
"""Between the first and the last look that find a broker empty: longer than what was decided before
the first takes to reach the broker."""


class Proofs:
    """Since when each broker is seen empty. `now_s`: a clock that never goes back."""

    def __init__(self, now_s: Callable[[], float] = monotonic) -> None:
        self._now_s = now_s
        self._since: dict[tuple[int, str], float] = {}

    def proven(self, empty: Mapping[int, str]) -> frozenset[int]:
        """Those of them that are proven empty.

        `empty`: the brokers that are empty now, and their data directories: another directory
        begins from the start, as does a broker that was not empty in between.
        """
        now_s = self._now_s()
        self._since = {key: self._since.get(key, now_s) for key in empty.items()}
        return frozenset(
            broker_id
            for (broker_id, _), since_s in self._since.items()
            if now_s - since_s >= PROOF_S
        )


class DescribesPlacement(Protocol):
    """What is asked of an `AsyncAdmin` here."""

    async def describe_moves(self) -> MovesDescription: ...

    async def describe_topics(self) -> dict[str, TopicDescription]: ...

    async def describe_logs(self, *, broker_ids: Iterable[int]) -> list[LogDescription]: ...


async def read_placement(
    admin: DescribesPlacement, moving: MovesDescription | None = None
) -> tuple[ClusterFacts, list[LogDescription]]:
    """For the planner, and the logs that each live broker lists.

    `moving`: what the controller has just said; None: it is asked. Raises PenstockError.
    """
    moving = moving or await admin.describe_moves()
    topics = await admin.describe_topics()
    alive = [broker.broker_id for broker in moving.brokers if broker.alive]
    logs = await admin.describe_logs(broker_ids=alive)
    return cluster_facts(moving, topics, logs), logs


async def read_moves(
    admin: DescribesPlacement, leaving: Collection[int], proofs: Proofs
) -> MoveFacts:
    """Asks the controller first; every live broker for its logs, if any is to go, or has not got
    its share. Only who is to go has to be told of for sure.

    Raises PenstockError.
    """
    moving = await admin.describe_moves()
    if not leaving:
        proofs.proven({})
        return MoveFacts(moving, await _for_spread(admin, moving))
    seen, logs = await read_placement(admin, moving)
    facts = MoveFacts(
        moving,
        seen,
        {one.broker_id: len(one.logs) + len(one.orphans) for one in logs},
        orphans={one.broker_id: len(one.orphans) for one in logs},
    )
    empty = {
        one.broker_id: one.directory_id
        for one in moving.brokers
        if one.broker_id in leaving and is_empty(facts, one.broker_id)
    }
    return replace(facts, proven=proofs.proven(empty))


async def _for_spread(admin: DescribesPlacement, moving: MovesDescription) -> ClusterFacts | None:
    """None: nobody has to get a share, or a broker does not say what it stores."""
    if not any(one.fresh and one.alive for one in moving.brokers):
        return None
    try:
        seen, _ = await read_placement(admin, moving)
    except PenstockError:
        return None
    return seen


def is_empty(facts: MoveFacts, broker_id: int) -> bool:
    """By all answers of this moment. Cordons are unknown to format 1, and no move leads there."""
    broker = facts.broker(broker_id)
    if broker is None or not broker.alive or facts.moving.paused or facts.names(broker_id):
        return False
    closed = broker.cordon is not None and broker.cordon.placement
    return facts.logs.get(broker_id) == 0 and (closed or facts.moving.format < FORMAT_MOVES)
