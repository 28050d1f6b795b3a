"""Damaged replicas in the status of a Cluster: a condition, and who has to act."""

from dataclasses import replace
from typing import Any

import pytest
from support.operator_world import desired, settled

from penstock.client.admin.move_model import MoveDescription, MoveState
from penstock.core.types import TopicPartition
from penstock_operator.model import Object, Observed, Severity
from penstock_operator.plan import plan_cluster
from penstock_operator.plan.damage import PARTITION_DAMAGED, REPLICA_DAMAGED
from penstock_operator.status import cluster_status

WISH = desired()
NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"


def damaged(
    partition: int = 0, *, leader: int = 1, isr: tuple[int, ...] = (1, 2)
) -> MoveDescription:
    return MoveDescription(
        where=TopicPartition("t", partition), topic_id="id", state=MoveState.SETTLED, reason=None,
        leader=leader, replicas=(0, 1, 2), isr=isr, target=(), adding=(), dropping=(), damaged=(0,),
        waiting_for="", copies=(),
    )  # fmt: skip


def with_damage(seen: Observed, *found: MoveDescription) -> Observed:
    assert seen.moves is not None
    moves = replace(seen.moves, moving=replace(seen.moves.moving, moves=found))
    return replace(seen, moves=moves)


def condition(seen: Observed, before: Object, now: str = NOW) -> Any:
    status = cluster_status(WISH, seen, plan_cluster(WISH, seen), before, now)
    return next((one for one in status["conditions"] if one["type"] == PARTITION_DAMAGED), None)


@pytest.mark.parametrize(
    ("found", "reason", "severity", "says"),
    [
        (damaged(), REPLICA_DAMAGED, Severity.PROGRESS, "mended from the others"),
        (
            damaged(leader=-1, isr=(0, 1, 2)),
            PARTITION_DAMAGED,
            Severity.PROGRESS,
            "start brokers 1, 2",
        ),
        (damaged(leader=0, isr=(0,)), PARTITION_DAMAGED, Severity.BLOCKED, "accept-loss"),
    ],
)
def test_damage_is_a_condition_and_only_what_nobody_has_needs_a_person(
    found: MoveDescription, reason: str, severity: Severity, says: str
) -> None:
    seen = with_damage(settled(WISH).observed(), found)
    plan = plan_cluster(WISH, seen)
    (wait,) = [one for one in plan.waits if one.reason in {REPLICA_DAMAGED, PARTITION_DAMAGED}]
    assert (wait.reason, wait.severity) == (reason, severity)
    assert says in wait.message
    shown = condition(seen, {})
    assert (shown["status"], shown["reason"], shown["message"]) == ("True", reason, wait.message)


def test_the_worst_comes_first_and_the_rest_is_counted() -> None:
    many = [damaged(at) for at in range(8)]
    seen = with_damage(settled(WISH).observed(), *many, damaged(9, leader=0, isr=(0,)))
    shown = condition(seen, {})
    assert shown["reason"] == PARTITION_DAMAGED
    assert shown["message"].endswith("4 more partitions have damaged replicas")


def test_the_condition_comes_with_the_first_damage_and_stays_with_its_time() -> None:
    seen = settled(WISH).observed()
    assert condition(with_damage(seen), {}) is None
    first = condition(with_damage(seen, damaged()), {})
    before = {"conditions": [first]}
    assert condition(with_damage(seen, damaged()), before, LATER)["lastTransitionTime"] == NOW
    assert condition(replace(seen, moves=None), before, LATER) == first, "nobody says"
    over = condition(with_damage(seen), before, LATER)
    assert (over["status"], over["reason"]) == ("False", "NothingDamaged")
    assert over["lastTransitionTime"] == LATER
