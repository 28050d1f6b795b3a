"""`spec.balance.throttle` becomes the cluster's copy rate, and nobody else's word counts then."""

from dataclasses import replace
from typing import Any

import pytest
from support.operator_world import World, advance, desired, settled

from penstock.core.manifest.upkeep import rate_text
from penstock_operator.model import Plan, Severity
from penstock_operator.move_model import SetThrottle
from penstock_operator.objects import DesiredCluster, Section
from penstock_operator.plan import plan_cluster

BY = "spec.balance.throttle of Cluster default/flights"
WISH = desired(spec_copy_rate=40 << 20)


def asked(wish: DesiredCluster, world: World) -> list[SetThrottle]:
    plan = plan_cluster(wish, world.observed())
    return [each for each in plan.actions if isinstance(each, SetThrottle)]


@pytest.mark.parametrize(
    ("spec", "rate", "by", "expected"),
    [
        (None, None, "", None),
        (None, 5, "", None),  # a person's
        (None, 5, BY, SetThrottle(None, BY)),
        (None, 5, None, None),  # the controller is too old to know
        (7, None, "", SetThrottle(7, BY)),
        (7, 5, BY, SetThrottle(7, BY)),
        (7, 7, "", SetThrottle(7, BY)),  # it becomes the spec's
        (7, 7, BY, None),
        (7, 7, None, None),
        (7, 5, None, SetThrottle(7, BY)),
        (0, 5, "", SetThrottle(0, BY)),
        (7, 7, "spec.balance.throttle of Cluster old/flights", SetThrottle(7, BY)),
    ],
)
def test_the_rate_is_set_when_it_is_another_or_somebody_elses(
    spec: int | None, rate: int | None, by: str | None, expected: SetThrottle | None
) -> None:
    wish = desired(spec_copy_rate=spec)
    world = settled(desired())
    world.copy_rate, world.copy_rate_by = rate, by
    assert asked(wish, world) == ([] if expected is None else [expected])
    advance(world, wish)
    assert plan_cluster(wish, world.observed()) == Plan(), "once is enough"


@pytest.mark.parametrize(
    "blind",
    [
        {"moves": None},
        {"recorded_cluster_id": "another"},
        {"brokers": None},
    ],
)
def test_nothing_is_set_while_it_is_not_known_what_is(blind: dict[str, Any]) -> None:
    observed = replace(settled(desired()).observed(), **blind)
    assert not [each for each in plan_cluster(WISH, observed).actions if type(each) is SetThrottle]


def test_a_policy_that_is_wrong_leaves_the_rate_as_it_is() -> None:
    unknown = replace(desired(), unknown=frozenset({Section.POLICY}))
    world = settled(desired())
    world.copy_rate, world.copy_rate_by = 5, BY
    assert asked(unknown, world) == []


def test_before_the_cluster_is_finalized_it_says_what_to_do() -> None:
    world = settled(desired())
    world.format = 1
    plan = plan_cluster(WISH, world.observed())
    assert plan.actions == ()
    (wait,) = plan.waits
    assert (wait.reason, wait.severity) == ("ThrottleWaits", Severity.BLOCKED)
    assert "penstock cluster finalize" in wait.message


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (0, "none"),
        (1, "1"),
        (40 << 20, "40Mi"),
        (1536, "1536"),
        (1 << 51, "2048Ti"),
        (None, "replica.copy.bytes.per.second"),
    ],
)
def test_a_rate_is_told_as_it_is_written(rate: int | None, text: str) -> None:
    assert rate_text(rate) == text
