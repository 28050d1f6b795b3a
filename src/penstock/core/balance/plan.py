"""What the planner returns: moves in order and what they cost, or why there can be none."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from penstock.core.balance.score import Score
from penstock.core.types import BrokerId, MoveReason, TopicPartition

ID_BYTES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A partition gets other replicas, or the same ones in another order.

    `expected`: the replicas it has now; who submits the move names them, and is refused if they
    have changed since. `target[0]` will be the preferred leader. `copied_bytes`: of all new
    replicas together.
    """

    partition: TopicPartition
    expected: tuple[BrokerId, ...]
    target: tuple[BrokerId, ...]
    copied_bytes: int

    @property
    def adding(self) -> tuple[BrokerId, ...]:
        """The brokers that will copy the partition."""
        return tuple(one for one in self.target if one not in self.expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerChange:
    """A broker before and after the plan. Running moves count as if they were done, in both.

    `in_bytes` and `out_bytes`: what it copies, as a new replica and as the leader of others'
    copies. `leaders` are preferred leaderships.
    """

    broker: BrokerId
    in_bytes: int
    out_bytes: int
    replicas: tuple[int, int]
    held_bytes: tuple[int, int]
    leaders: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to submit, in this order; without moves if nothing is left to gain.

    `id` is the same for the same moves and reason. `minutes`: how long the copies take at the
    present rate, rounded up; None if the rate has no limit. `leaders_moved`: partitions whose
    preferred leader changes. A smaller score is a better one.
    """

    id: str
    reason: MoveReason
    moves: tuple[Move, ...]
    brokers: tuple[BrokerChange, ...]
    leaders_moved: int
    minutes: int | None
    before: Score
    after: Score

    @property
    def copied_bytes(self) -> int:
        """What all moves copy together."""
        return sum(move.copied_bytes for move in self.moves)


@dataclass(frozen=True, slots=True)
class Infeasible:
    """No move is planned: a hard goal cannot be met. `reason` has the numbers, and what to do."""

    reason: str


def plan_id(reason: MoveReason, moves: Sequence[Move]) -> str:
    """Names a plan by its contents: 12 hexadecimal digits."""
    text = [reason.value]
    text += [f"{move.partition} {list(move.expected)} {list(move.target)}" for move in moves]
    return blake2b("\n".join(text).encode(), digest_size=ID_BYTES).hexdigest()
