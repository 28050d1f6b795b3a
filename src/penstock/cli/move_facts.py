"""What the planner has to know, asked of a running cluster: `client/admin/move_facts.py` says what.

A live broker that does not answer ends a command that plans: a plan that does not know its disk
could fill it. What only shows goes on without (`look_at`).
"""

from typing import TYPE_CHECKING

from penstock.core import balance as core
from penstock.errors import ErrorCode, MisuseError

if TYPE_CHECKING:
    from penstock.client import Admin
    from penstock.client.admin.move_facts import ClusterFacts


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


def look_at(admin: "Admin") -> "tuple[ClusterFacts, dict[int, str]]":
    """To be shown, not to plan with: what is known, and why live brokers did not say what they
    store, by id. Raises ClusterError, UnreachableError if not even the controller answers."""
    from penstock.client.admin.disks import logs_of_each  # noqa: PLC0415 - as above
    from penstock.client.admin.move_facts import cluster_facts  # noqa: PLC0415 - as above

    moving, topics = admin.describe_moves(), admin.describe_topics()
    alive = [broker.broker_id for broker in moving.brokers if broker.alive]
    logs, problems = logs_of_each(admin, alive)
    return cluster_facts(moving, topics, logs), problems


def make_plan(seen: "ClusterFacts", wish: core.Wish) -> core.Plan:
    """The plan. Raises MisuseError with the numbers if there can be none."""
    made = core.plan(seen.facts, wish)
    if isinstance(made, core.Infeasible):
        raise MisuseError(f"nothing can be moved: {made.reason}", ErrorCode.INVALID_REQUEST)
    return made
