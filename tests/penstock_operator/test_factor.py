"""Another replication factor of a topic: what moves, when, and what is said of it."""

from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.operator_world import World, advance, desired, settled, where_of

from penstock.client import (
    CopyDescription,
    MoveDescription,
    MoveOutcome,
    MovesDescription,
    ReplicaMove,
)
from penstock.client.admin.move_facts import ClusterFacts
from penstock.client.model import LogDescription, PartitionDescription, TopicDescription
from penstock.core.manifest.topics import ChangeReplicas
from penstock.core.types import MoveReason, TopicPartition
from penstock.errors import ClusterError, ErrorCode
from penstock_operator.brokers import Brokers
from penstock_operator.events import Events
from penstock_operator.factors import BLOCKED_S, PLANS_MAX, Factors, Placement
from penstock_operator.model import PartitionState, Severity, TopicResource
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan.factor import FactorPlan, plan_factor
from penstock_operator.plan.topics import TopicPlan, plan_resources
from penstock_operator.plan.waves import WAVE

GIB = 1 << 30
T0 = TopicPartition("t", 0)


def world_of(brokers: int, *replicas: tuple[int, ...], seed: int = 0) -> World:
    world = settled(desired(brokers=brokers), seed, partitions=0)
    for at, each in enumerate(replicas):
        world.partitions.append(PartitionState("t", at, each[0], each, each, 1))
    return world


def seen_in(world: World, size: int | None = GIB) -> ClusterFacts:
    """What the planner is told, with partitions of `size` bytes."""
    seen = world.moves().seen
    assert seen is not None
    partitions = tuple(replace(one, size_bytes=size) for one in seen.facts.partitions)
    return replace(seen, facts=replace(seen.facts, partitions=partitions))


def step(world: World, replicas: int) -> FactorPlan:
    made = plan_factor(ChangeReplicas("t", replicas), seen_in(world))
    for move in made.moves:
        world.alter(move, MoveReason.FACTOR)
    world.go_on()
    return made


def run(world: World, replicas: int, steps: int = 300) -> None:
    """Until the topic has the factor, and nothing is said any more."""
    for _ in range(steps):
        if step(world, replicas) == FactorPlan():
            return
    raise AssertionError(world.partitions, world.targets)


def sizes(world: World) -> list[int]:
    return [len(each.replicas) for each in world.partitions]


def topic_plan(world: World, replicas: int | None, brokers: int = 4) -> TopicPlan:
    """What is planned for the Topic `t`."""
    body = {
        "metadata": {"name": "t"},
        "spec": {"cluster": "flights"} | ({} if replicas is None else {"replicas": replicas}),
    }
    cluster = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": "flights"},
        "spec": {"brokers": brokers},
    }
    resources = [TopicResource("t", body)]
    (plan,) = plan_resources(resources, cluster, world.facts(), moves=world.moves())
    return plan


def test_a_factor_grows_and_falls_again() -> None:
    world = world_of(4, (0, 1), (1, 2), (2, 3))
    run(world, 3)
    assert sizes(world) == [3, 3, 3]
    assert all(each.is_full for each in world.partitions)
    run(world, 1)
    assert sizes(world) == [1, 1, 1]


def test_it_says_how_far_it_is() -> None:
    world = world_of(4, (0, 1), (1, 2), (2, 3, 0), (3, 0, 1))
    first = plan_factor(ChangeReplicas("t", 3), seen_in(world))
    assert [move.where.partition for move in first.moves] == [0, 1]
    assert first.progress == "replicas: 2 → 3, 2 of 4 partitions, 2 GiB left"
    assert first.wait is not None
    assert (first.wait.reason, first.wait.severity) == ("ChangingFactor", Severity.PROGRESS)
    unknown = plan_factor(ChangeReplicas("t", 3), seen_in(world, size=None))
    assert unknown.progress == "replicas: 2 → 3, 2 of 4 partitions", "unknown is not nothing"
    falls = plan_factor(ChangeReplicas("t", 2), seen_in(world))
    assert falls.progress == "replicas: 3 → 2, 2 of 4 partitions", "nothing is copied"


def test_what_leaders_say_counts_more_than_sizes() -> None:
    world = world_of(4, (0, 1))
    world.targets = {T0: (0, 1, 2)}
    world.reasons = {T0: MoveReason.FACTOR}
    seen = seen_in(world)
    (move,) = seen.moving.moves
    copying: MoveDescription = replace(
        move,
        copies=(
            CopyDescription(
                broker_id=2, bytes_left=GIB // 2, bytes_per_second=0, limited_by="copy rate"
            ),
        ),
        waiting_for="broker 2 is not alive",
    )
    seen = replace(seen, moving=replace(seen.moving, moves=(copying,)))
    made = plan_factor(ChangeReplicas("t", 3), seen)
    assert made.moves == ()
    assert made.progress == "replicas: 2 → 3, 0 of 1 partitions, 512 MiB left"
    assert made.wait is not None
    assert made.wait.message == f"{made.progress}; t/0 waits: broker 2 is not alive"


def test_more_replicas_than_usable_brokers_are_refused_with_numbers() -> None:
    world = world_of(4, (0, 1), (1, 2))
    world.alive.discard(3)
    made = plan_factor(ChangeReplicas("t", 4), seen_in(world))
    assert made.moves == ()
    assert made.wait is not None
    assert (made.wait.reason, made.wait.severity) == ("FactorBlocked", Severity.BLOCKED)
    assert made.wait.message == (
        "spec.replicas is 4, but the topic has 2: 3 brokers may be used, and these topics need "
        "more: t (4 replicas); needs 1 more broker, or fewer replicas of these topics"
    )


def test_more_replicas_than_the_disks_hold_are_refused_with_numbers() -> None:
    world = world_of(3, (0, 1))
    seen = seen_in(world)
    brokers = tuple(replace(one, disk_bytes=2 * GIB, free_bytes=GIB) for one in seen.facts.brokers)
    seen = replace(seen, facts=replace(seen.facts, brokers=brokers))
    made = plan_factor(ChangeReplicas("t", 3), seen)
    assert made.wait is not None
    assert made.wait.reason == "FactorBlocked"
    assert "broker 2 would hold 2 GiB of 2 GiB, and 1.6 GiB is the limit" in made.wait.message


def test_more_replicas_than_the_cluster_has_brokers_are_an_invalid_spec() -> None:
    plan = topic_plan(world_of(4, (0, 1)), 5)
    assert plan.wait is not None
    assert plan.wait.reason == "InvalidSpec"
    assert "spec.replicas is 5, but Cluster/flights has 4 brokers" in plan.wait.message
    assert plan.factor is None


def test_the_first_format_is_finalized_before_a_factor_changes() -> None:
    world = world_of(4, (0, 1))
    world.format = 1
    made = plan_factor(ChangeReplicas("t", 3), seen_in(world))
    assert made.moves == ()
    assert made.wait is not None
    assert made.wait.severity is Severity.BLOCKED
    assert "run penstock cluster finalize" in made.wait.message


def test_nothing_begins_while_decisions_are_journaled() -> None:
    seen = seen_in(world_of(4, (0, 1)))
    paused = replace(seen, moving=replace(seen.moving, paused=True))
    made = plan_factor(ChangeReplicas("t", 3), paused)
    assert made.moves == ()
    assert made.wait is not None
    assert made.wait.reason == "MovesWait"


def test_a_factor_that_is_taken_back_ends_its_moves() -> None:
    world = world_of(4, (0, 1), (1, 2))
    made = plan_factor(ChangeReplicas("t", 3), seen_in(world))
    for move in made.moves:
        world.alter(move, MoveReason.FACTOR)
    assert topic_plan(world, 2).factor == ChangeReplicas("t", 2)
    back = plan_factor(ChangeReplicas("t", 2), seen_in(world))
    assert [(move.expected, move.target) for move in back.moves] == [((0, 1),) * 2, ((1, 2),) * 2]
    for move in back.moves:
        world.alter(move, MoveReason.FACTOR)
    assert world.targets == {}
    assert topic_plan(world, 2).factor is None


def test_what_already_moves_to_the_factor_is_not_planned_again() -> None:
    world = world_of(4, (0, 1), (1, 2))
    world.targets = {T0: (0, 1, 2)}
    made = plan_factor(ChangeReplicas("t", 3), seen_in(world))
    assert [move.where.partition for move in made.moves] == [1]


def test_a_drain_keeps_moving_and_the_topic_has_its_factor() -> None:
    world = world_of(4, (3, 0), (3, 1))
    world.targets = {T0: (1, 0)}
    world.reasons = {T0: MoveReason.DRAIN}
    assert topic_plan(world, 2).factor is None, "it moves, and its factor stays"
    run(world, 3)
    assert sizes(world) == [3, 3]


def test_a_factor_is_changed_in_waves() -> None:
    world = world_of(3, *[(0,)] * (WAVE + 100))
    first = plan_factor(ChangeReplicas("t", 2), seen_in(world))
    assert len(first.moves) == WAVE
    for move in first.moves:
        world.alter(move, MoveReason.FACTOR)
    assert plan_factor(ChangeReplicas("t", 2), seen_in(world)).moves == ()
    back = plan_factor(ChangeReplicas("t", 1), seen_in(world))
    assert len(back.moves) == WAVE, "what ends needs no room"


def test_nobody_is_asked_for_a_topic_that_has_its_factor_or_none() -> None:
    world = world_of(4, (0, 1), (1, 2))
    assert topic_plan(world, 2).factor is None
    assert topic_plan(world, None).factor is None
    world.partitions[1] = replace(world.partitions[1], replicas=(1, 2, 3), isr=(1, 2, 3))
    assert topic_plan(world, 2).factor == ChangeReplicas("t", 2), "somebody changed one of them"
    assert topic_plan(world, None).factor is None, "nobody says how many"


@st.composite
def changes(draw: st.DrawFn) -> tuple[World, list[int]]:
    """A world with a topic, and the factors it shall have, one soon after the other."""
    brokers = draw(st.integers(1, 5))
    factor = st.integers(1, min(3, brokers))
    orders = st.permutations(range(brokers))
    replicas = [tuple(draw(orders)[: draw(factor)]) for _ in range(draw(st.integers(1, 6)))]
    world = world_of(brokers, *replicas, seed=draw(st.integers(0, 2**16)))
    return world, draw(st.lists(st.integers(1, brokers), min_size=1, max_size=3))


@given(changes(), st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_the_last_factor_is_reached_whatever_was_before(
    change: tuple[World, list[int]], steps: int
) -> None:
    world, factors = change
    for replicas in factors[:-1]:
        for _ in range(steps):
            step(world, replicas)
    run(world, factors[-1])
    assert set(sizes(world)) == {factors[-1]}
    assert all(each.is_full for each in world.partitions)
    assert topic_plan(world, factors[-1], brokers=len(world.pods)).factor is None


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_factor_and_a_drain_at_once_end_both(steps: int) -> None:
    world = world_of(5, *[(at % 5, (at + 1) % 5) for at in range(8)], seed=steps)
    wish = desired(brokers=4)
    for _ in range(steps):
        advance(world, wish)
    for _ in range(300):
        plan = advance(world, wish)
        if step(world, 3) == FactorPlan() and plan.is_idle:
            break
    assert set(sizes(world)) == {3}
    assert sorted(world.pods) == [0, 1, 2, 3]
    assert world.lost == set()
    assert {where_of(one) for one in world.partitions} == {TopicPartition("t", n) for n in range(8)}


# ── Asking and submitting ─────────────────────────────────────────────────────────────────


class Asked:
    """Brokers and their admin in one: what `world` says, and how often it was asked."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.asked = 0
        self.refusal: ClusterError | None = None
        self.altered: list[ReplicaMove] = []

    async def admin(self, desired: DesiredCluster) -> "Asked":
        return self

    async def describe_moves(self) -> MovesDescription:
        self.asked += 1
        return self._world.moves().moving

    async def describe_topics(self) -> dict[str, TopicDescription]:
        partitions = tuple(
            PartitionDescription(one.partition, one.leader, 1, one.replicas, one.isr)
            for one in self._world.partitions
        )
        return {"t": TopicDescription("t", "id", partitions, {})}

    async def describe_logs(self, broker_ids: list[int]) -> list[LogDescription]:
        return [LogDescription(one, (), 0, 0) for one in broker_ids]

    async def alter_replicas(
        self, moves: tuple[ReplicaMove, ...], reason: MoveReason, *, change_factor: bool
    ) -> list[MoveOutcome]:
        assert reason is MoveReason.FACTOR
        assert change_factor
        self.altered += moves
        return [
            MoveOutcome(
                where=one.where, state=None, replicas=(), target=one.target, error=self.refusal
            )
            for one in moves
        ]

    async def tell(self, *_: object) -> None:
        """As Events."""


@pytest.fixture
def asked() -> Asked:
    return Asked(world_of(3, (0, 1), (1, 2)))


def factors_of(asked: Asked, now_s: list[float]) -> Factors:
    return Factors(cast("Brokers", asked), cast("Events", asked), lambda: now_s[0])


async def carry(made: Factors, replicas: int) -> FactorPlan:
    wish, change = desired(), ChangeReplicas("t", replicas)
    return await made.carry_out(wish, {}, change, await made.look(wish, [change]))


async def test_what_is_blocked_is_not_planned_again_at_once(asked: Asked) -> None:
    now_s = [0.0]
    made = factors_of(asked, now_s)
    blocked = await carry(made, 5)
    assert blocked.wait is not None
    assert blocked.wait.reason == "FactorBlocked"
    assert await carry(made, 5) == blocked
    assert asked.asked == 1
    assert (await carry(made, 3)).moves, "another number is another question"
    await carry(made, 5)
    now_s[0] = BLOCKED_S
    before = asked.asked
    await carry(made, 5)
    assert asked.asked == before + 1


async def test_refusals_of_all_moves_are_shown(asked: Asked) -> None:
    made = factors_of(asked, [0.0])
    assert (await carry(made, 3)).progress == "replicas: 2 → 3, 0 of 2 partitions"
    assert len(asked.altered) == 2
    asked.refusal = ClusterError("t/0 would have too few", ErrorCode.INVALID_REPLICATION_FACTOR)
    refused = await carry(made, 1)
    assert refused.moves == ()
    assert refused.wait is not None
    assert (refused.wait.reason, refused.wait.severity) == ("BrokersRefused", Severity.BLOCKED)
    assert refused.wait.message == "t/0 would have too few"


async def test_what_is_refused_leaves_the_turn_to_others(asked: Asked) -> None:
    now_s = [0.0]
    made = factors_of(asked, now_s)
    asked.refusal = ClusterError("t/0 would have too few", ErrorCode.INVALID_REPLICATION_FACTOR)
    refused = await carry(made, 1)
    assert await carry(made, 1) == refused
    assert (asked.asked, len(asked.altered)) == (1, 2)
    asked.refusal = None
    now_s[0] = BLOCKED_S
    assert (await carry(made, 1)).moves


async def test_topics_of_one_pass_do_not_fill_the_same_disk(asked: Asked) -> None:
    made = factors_of(asked, [0.0])
    wish = desired()
    steps = [ChangeReplicas("t", 3), ChangeReplicas("u", 2)]
    world = world_of(3, (0, 1))
    world.partitions.append(PartitionState("u", 0, 0, (0,), (0,), 1))
    seen = seen_in(world)
    brokers = tuple(
        replace(one, disk_bytes=2 * GIB, free_bytes=2 * GIB if one.id == 2 else 0)
        for one in seen.facts.brokers
    )
    seen = replace(seen, facts=replace(seen.facts, brokers=brokers))
    alone = await made.carry_out(wish, {}, steps[1], Placement(seen))
    assert [set(move.target) for move in alone.moves] == [{0, 2}]
    placement = Placement(seen)
    assert (await made.carry_out(wish, {}, steps[0], placement)).moves
    second = await made.carry_out(wish, {}, steps[1], placement)
    assert second.moves == ()
    assert second.wait is not None
    assert second.wait.reason == "FactorBlocked"
    assert "is the limit" in second.wait.message


async def test_topics_have_their_turn_one_pass_after_the_other(asked: Asked) -> None:
    made = factors_of(asked, [0.0])
    placement = await made.look(desired(), [ChangeReplicas("t", 3)])
    placement.planned = PLANS_MAX
    waits = await made.carry_out(desired(), {}, ChangeReplicas("t", 3), placement)
    assert waits.moves == ()
    assert waits.wait is not None
    assert waits.wait.reason == "ChangingFactor"
    placement.planned = PLANS_MAX - 1
    assert (await made.carry_out(desired(), {}, ChangeReplicas("t", 3), placement)).moves
    assert placement.planned == PLANS_MAX
