"""What the stored metadata still names a broker for: how far a drain is, and whether it may go."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import typer

from penstock.errors import MisuseError

if TYPE_CHECKING:
    from penstock.client import Admin, MovesDescription, TopicDescription

WAIT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Left:
    """Counts of partitions.

    `held`: it has a replica. `moving`: of these, on their way to others. `coming`: move to it.
    `former`: its copy is to be deleted, and it has not said yet that it is.
    """

    held: int
    moving: int
    coming: int
    former: int


def read_left(admin: "Admin", broker: int) -> "tuple[Left, MovesDescription]":
    """What is left on it, and what is moving. Raises ClusterError, UnreachableError.

    Topics first: a move that ends between the two answers must show as a former copy at least.
    """
    topics = admin.describe_topics().values()
    seen = admin.describe_moves()
    return left_on(topics, seen, broker), seen


def left_on(topics: "Iterable[TopicDescription]", seen: "MovesDescription", broker: int) -> Left:
    """The counts."""
    moves = [one for one in seen.moves if one.target]
    return Left(
        held=sum(broker in one.replicas for topic in topics for one in topic.partitions),
        moving=sum(broker in one.replicas and broker not in one.target for one in moves),
        coming=sum(broker in one.target and broker not in one.replicas for one in moves),
        former=sum(broker in one.dropping for one in seen.moves),
    )


def wait_until_empty(admin: "Admin", broker: int, again: Callable[[], object]) -> None:
    """Prints a line whenever it changes. Moves that were refused are submitted again.

    A dead broker deletes nothing: its former copies go with it. Raises MisuseError if somebody
    lifts its cordon, which ends the drain.
    """
    said = ""
    while True:
        left, seen = read_left(admin, broker)
        alive = any(one.broker_id == broker and one.alive for one in seen.brokers)
        dropping = left.former if alive else 0
        line = (
            f"broker {broker} has {left.held} replicas left, {left.moving} of them moving, and "
            f"{dropping} former copies to delete"
        )
        if not left.held and not dropping:
            break
        if line != said:
            typer.echo(line)
            said = line
        cordons = [one.cordon for one in seen.brokers if one.broker_id == broker]
        if not any(cordon is not None and cordon.placement for cordon in cordons):
            raise MisuseError(
                f"the drain was cancelled: broker {broker} has no cordon for placement any more, "
                "and may get replicas again; nothing more is moved away from it"
            )
        if left.held > left.moving:
            again()
        time.sleep(WAIT_S)
    typer.echo(f"broker {broker} is empty")
