"""What the planner has to know, asked of a running cluster: `client/admin/move_facts.py` says what.

A live broker that does not answer ends a command that plans: a plan that does not know its disk
could fill it. What only shows goes on without it, and without the controller (`look_at`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.at_once import at_once, describe_soon, logs_at_once
from penstock.core import balance as core
from penstock.errors import ErrorCode, MisuseError, PenstockError

if TYPE_CHECKING:
    from penstock.client import Admin, ClusterDescription, MovesDescription
    from penstock.client.admin.move_facts import ClusterFacts

NO_CONTROLLER: Final = "the brokers have no session with a controller"
NOT_ASKED: Final = "it has just come: the controller says that it is alive, brokers do not yet"


@dataclass(frozen=True, slots=True)
class Looked:
    """`silent`: why live brokers did not say what they store, by id. `controller`: why it did not
    answer, or "". Without its answer cordons, releases and moves are not known, and who is alive is
    what the brokers heard last."""

    seen: "ClusterFacts"
    silent: Mapping[int, str]
    controller: str


def read_facts(admin: "Admin") -> "ClusterFacts":
    """Asks the controller first, and then every live broker for its logs.

    Raises ClusterError, UnreachableError.
    """
    from penstock.client.admin.move_facts import (  # noqa: PLC0415 - grpc only when it is needed
        cluster_facts,
    )

    moving = admin.describe_moves()
    topics = admin.describe_topics()
    alive = [broker.broker_id for broker in moving.brokers if broker.alive]
    return cluster_facts(moving, topics, admin.describe_logs(broker_ids=alive))


def look_at(admin: "Admin") -> Looked:
    """To be shown, not to plan with. Raises ClusterError, UnreachableError if no broker answers."""
    from penstock.client.admin.move_facts import cluster_facts  # noqa: PLC0415 - as above

    cluster = describe_soon(admin)
    alive = [one.broker_id for one in cluster.brokers if one.alive]
    questions: list[Callable[[], Any]] = [
        lambda: _moving(admin, cluster),
        admin.describe_topics,
        lambda: logs_at_once(admin, alive),
    ]
    moving, topics, (logs, silent) = at_once(questions)
    controller = moving if isinstance(moving, str) else ""
    placed = _placed(cluster) if isinstance(moving, str) else moving
    came = [one.broker_id for one in placed.brokers if one.alive and one.broker_id not in alive]
    silent |= dict.fromkeys(came, NOT_ASKED)
    return Looked(cluster_facts(placed, topics, logs), silent, controller)


def _moving(admin: "Admin", cluster: "ClusterDescription") -> "MovesDescription | str":
    """Or why the controller did not answer. Raises its refusal."""
    if not cluster.controller_reachable:
        return NO_CONTROLLER
    try:
        return admin.describe_moves()
    except PenstockError as error:
        if not error.retriable:
            raise
        return error.message


def _placed(cluster: "ClusterDescription") -> "MovesDescription":
    """The brokers, by what they know of each other."""
    from penstock.client import BrokerPlacement, MovesDescription  # noqa: PLC0415 - as above

    return MovesDescription(
        brokers=tuple(
            BrokerPlacement(
                broker_id=one.broker_id,
                directory_id="",
                rack=one.rack,
                alive=one.alive,
                fresh=False,
                cordon=None,
                software_version="",
                formats=(),
            )
            for one in cluster.brokers
        ),
        moves=(),
        format=0,
        newest_format=0,
        paused=False,
    )


def make_plan(seen: "ClusterFacts", wish: core.Wish) -> core.Plan:
    """The plan. Raises MisuseError with the numbers if there can be none."""
    made = core.plan(seen.facts, wish)
    if isinstance(made, core.Infeasible):
        raise MisuseError(f"nothing can be moved: {made.reason}", ErrorCode.INVALID_REQUEST)
    return made
