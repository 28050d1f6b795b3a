"""New brokers get their share of the replicas, once, and never against somebody's word."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.operator_world import World, advance, copying, desired, settled, where_of

from penstock.client import AsyncAdmin, Cordon, MovesDescription, ReplicaMove
from penstock.client.model import LogDescription, TopicDescription
from penstock.core.manifest.upkeep import BalanceMode
from penstock.core.types import MoveReason, TopicPartition
from penstock.errors import ClusterError, ErrorCode
from penstock_operator.model import MoveReplicas, PartitionState, Plan
from penstock_operator.move_model import MarkSpread, MoveFacts
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan import plan_cluster
from penstock_operator.plan.waves import WAVE
from penstock_operator.proofs import Proofs, read_moves

MANUAL = {"spec_balance_mode": BalanceMode.MANUAL}


def grown(brokers: int, *, before: int = 3, partitions: int = 12, seed: int = 0) -> World:
    """A world whose new brokers have just begun to serve."""
    world = settled(desired(brokers=before), seed, partitions)
    wish = desired(brokers=brokers, **MANUAL)
    for _ in range(100):
        advance(world, wish)
        if len(world.alive) == brokers and all(pod.ready for pod in world.pods.values()):
            return world
    raise AssertionError(world.pods)


def run(world: World, wish: DesiredCluster, steps: int = 300) -> None:
    for _ in range(steps):
        if advance(world, wish).is_idle:
            return
    raise AssertionError(plan_cluster(wish, world.observed()))


def counts(world: World) -> Counter[int]:
    return Counter(broker_id for each in world.partitions for broker_id in each.replicas)


def asked(plan: Plan) -> list[MoveReplicas | MarkSpread]:
    return [each for each in plan.actions if isinstance(each, MoveReplicas | MarkSpread)]


def spreads(plan: Plan) -> bool:
    moves = [each for each in plan.actions if isinstance(each, MoveReplicas)]
    return any(each.reason is MoveReason.SPREAD for each in moves)


def test_a_new_broker_gets_its_share_and_then_nothing_moves() -> None:
    world = grown(4)
    assert counts(world)[3] == 0
    assert world.fresh == {3}
    run(world, desired(brokers=4))
    assert counts(world) == {0: 9, 1: 9, 2: 9, 3: 9}
    assert all(each.is_full for each in world.partitions)
    assert world.fresh == set()
    before = list(world.partitions)
    for _ in range(20):
        advance(world, desired(brokers=4))
    assert world.partitions == before


def test_replicas_move_onto_new_brokers_only() -> None:
    world = grown(5)
    (move,) = asked(plan_cluster(desired(brokers=5), world.observed()))
    assert isinstance(move, MoveReplicas)
    assert move.reason is MoveReason.SPREAD
    for each in move.moves:
        assert set(each.target) - set(each.expected) <= {3, 4}


def test_a_cluster_that_is_new_has_nothing_to_spread() -> None:
    world = settled(desired(brokers=3), partitions=0)
    assert world.fresh == set(), "they were marked, so that the first topics stay where they are"
    assert plan_cluster(desired(brokers=3), world.observed()).is_idle


def test_brokers_that_still_start_are_waited_for_but_not_those_that_fail() -> None:
    world = grown(5)
    world.pods[4] = replace(world.pods[4], ready=False)
    world.alive.discard(4)
    assert not asked(plan_cluster(desired(brokers=5), world.observed()))
    world.pods[4] = replace(world.pods[4], trouble="no image")
    (move,) = asked(plan_cluster(desired(brokers=5), world.observed()))
    assert isinstance(move, MoveReplicas)
    assert all(4 not in each.target for each in move.moves)


def test_with_mode_manual_nothing_moves_before_its_plan_is_approved() -> None:
    world = grown(4)
    wish = desired(brokers=4, **MANUAL)
    plan = plan_cluster(wish, world.observed())
    assert plan.is_idle, "it is offered, and nothing waits for it"
    assert plan.offer is not None
    assert plan.offer.moves == 9
    assert plan.offer.text == "9 partitions move to broker 3"
    other = plan_cluster(replace(wish, approved="another"), world.observed())
    assert not other.actions
    world.partitions = world.partitions[:-3]
    again = plan_cluster(wish, world.observed()).offer
    assert again is not None
    assert again.plan == plan.offer.plan, "who approves it approves the brokers, not each move"
    run(world, replace(wish, approved=plan.offer.plan))
    assert counts(world)[3] == sum(counts(world).values()) // 4
    assert plan_cluster(replace(wish, approved=plan.offer.plan), world.observed()).offer is None


def test_another_broker_needs_another_approval() -> None:
    wish = desired(brokers=4, **MANUAL)
    first = plan_cluster(wish, grown(4).observed()).offer
    more = plan_cluster(desired(brokers=5, **MANUAL), grown(5).observed()).offer
    assert first is not None
    assert more is not None
    assert first.plan != more.plan


def test_what_is_cancelled_is_not_submitted_again() -> None:
    world = grown(4)
    wish = desired(brokers=4)
    (move,) = asked(plan_cluster(wish, world.observed()))
    world.carry_out(move)
    for where in [*world.targets]:
        world.alter(ReplicaMove(where), MoveReason.MANUAL)
    assert world.targets == {}
    run(world, wish)
    assert counts(world)[3] == 0
    assert world.fresh == set()


def test_a_spread_of_many_partitions_comes_in_waves_and_ends_when_cancelled() -> None:
    world = grown(4, partitions=0)
    for at in range(WAVE * 8):
        world.partitions.append(PartitionState("t", at, at % 3, (at % 3,), (at % 3,), 1))
    wish = desired(brokers=4)
    (first,) = asked(plan_cluster(wish, world.observed()))
    assert isinstance(first, MoveReplicas)
    assert len(first.moves) == WAVE
    world.carry_out(first)

    def end(moves: int) -> None:
        for where in [*world.targets][:moves]:
            del world.targets[where]
            world.partitions[where.partition] = PartitionState(
                "t", where.partition, 3, (3,), (3,), 1
            )

    end(100)
    assert not asked(plan_cluster(wish, world.observed())), "half a wave is planned at once"
    end(WAVE // 2 - 100)
    (more,) = asked(plan_cluster(wish, world.observed()))
    assert isinstance(more, MoveReplicas)
    assert len(more.moves) == WAVE // 2
    world.alter(ReplicaMove(next(iter(world.targets))), MoveReason.MANUAL)
    assert not asked(plan_cluster(wish, world.observed())), "one cancel ends all of it"


def test_a_drain_goes_first() -> None:
    world = grown(5)
    assert world.fresh == {3, 4}
    wish = desired(brokers=4)
    for _ in range(300):
        plan = advance(world, wish)
        if 4 in world.pods:
            assert not spreads(plan), plan
        elif plan.is_idle:
            break
    assert sorted(world.pods) == [0, 1, 2, 3]
    assert counts(world)[3] == 9


def test_a_cordoned_broker_waits_until_it_may_take_replicas() -> None:
    world = grown(4)
    wish = desired(brokers=4)
    world.cordons = {3: Cordon(placement=True, leadership=False, why="checks", by="ana")}
    assert not asked(plan_cluster(wish, world.observed()))
    assert world.fresh == {3}
    world.cordons = {}
    assert asked(plan_cluster(wish, world.observed()))


def test_a_cordoned_broker_holds_up_no_other() -> None:
    world = grown(5)
    world.cordons = {4: Cordon(placement=True, leadership=False, why="checks", by="ana")}
    (move,) = asked(plan_cluster(desired(brokers=5), world.observed()))
    assert isinstance(move, MoveReplicas)
    assert {each for one in move.moves for each in one.target} == {0, 1, 2, 3}


def test_the_first_format_and_a_store_that_is_away_move_nothing() -> None:
    world = grown(4)
    wish = desired(brokers=4)
    world.format = 1
    assert not asked(plan_cluster(wish, world.observed()))
    world.format = 2
    seen = world.observed()
    assert seen.moves is not None
    moving = replace(seen.moves.moving, paused=True)
    paused = replace(seen, moves=replace(seen.moves, moving=moving))
    assert not asked(plan_cluster(wish, paused))
    unsaid = replace(seen, moves=replace(seen.moves, seen=None))
    assert not asked(plan_cluster(wish, unsaid)), "a broker did not say what it stores"


def test_it_says_what_still_moves() -> None:
    world = grown(4)
    wish = desired(brokers=4)
    where = where_of(world.partitions[0])
    world.targets = {where: (0, 1, 3)}
    world.reasons = {where: MoveReason.SPREAD}
    told = plan_cluster(wish, world.observed()).waits
    assert [each.reason for each in told] == ["Spreading"]
    assert told[0].message == (
        "spreading: 1 partition moves to broker 3, 1 of them now; penstock partitions cancel "
        "--all ends that"
    )
    world.copies = {where: (copying(3, left=3 << 30, rate=40 << 20),)}
    (told_more,) = plan_cluster(wish, world.observed()).waits
    assert ", 1 of them now, 3 GiB left at 40 MiB/s, about 2 min; " in told_more.message


@st.composite
def scalings(draw: st.DrawFn) -> tuple[World, list[int], set[TopicPartition]]:
    """A world, how many brokers it shall have, one after the other, and what is cancelled."""
    brokers = draw(st.integers(1, 4))
    world = settled(desired(brokers=brokers), draw(st.integers(0, 2**16)), 0)
    for at in range(draw(st.integers(0, 12))):
        factor = draw(st.integers(1, min(3, brokers)))
        replicas = tuple(draw(st.permutations(range(brokers)))[:factor])
        world.partitions.append(PartitionState("t", at, replicas[0], replicas, replicas, 1))
    more = draw(st.lists(st.integers(max(3, brokers), 6), min_size=1, max_size=3))
    cancelled = draw(st.sets(st.builds(TopicPartition, st.just("t"), st.integers(0, 11))))
    return world, more, cancelled


@given(scalings(), st.integers(0, 15))
@settings(max_examples=60, deadline=None)
def test_scaling_ends_and_keeps_every_replica(
    scaling: tuple[World, list[int], set[TopicPartition]], steps: int
) -> None:
    world, brokers, cancelled = scaling
    factors = [len(each.replicas) for each in world.partitions]
    for each in brokers[:-1]:
        for _ in range(steps):
            advance(world, desired(brokers=each))
    for where in cancelled & world.targets.keys():
        world.alter(ReplicaMove(where), MoveReason.MANUAL)
    wish = desired(brokers=brokers[-1])
    run(world, wish)
    assert sorted(world.pods) == list(range(brokers[-1]))
    assert [len(each.replicas) for each in world.partitions] == factors
    assert world.lost == set()
    assert world.fresh == set()
    assert world.cordons == {}


@pytest.mark.parametrize("kind", ["Pod", "StatefulSet"])
def test_nothing_is_spread_while_it_is_not_known_what_there_is(kind: str) -> None:
    world = grown(4)
    world.unknown = {kind: "no answer"}
    assert not asked(plan_cluster(desired(brokers=4), world.observed()))


class SilentBrokers:
    """An admin whose controller answers, and whose brokers do not."""

    def __init__(self, moving: MovesDescription) -> None:
        self._moving = moving

    async def describe_moves(self) -> MovesDescription:
        return self._moving

    async def describe_topics(self) -> dict[str, TopicDescription]:
        return {}

    async def describe_logs(self, broker_ids: Sequence[int]) -> list[LogDescription]:
        raise ClusterError(f"brokers {broker_ids} do not answer", ErrorCode.REQUEST_TIMED_OUT)


async def test_a_broker_that_does_not_say_what_it_stores_holds_up_spreads_only() -> None:
    moves = grown(4).moves()
    admin = cast("AsyncAdmin", SilentBrokers(moves.moving))
    assert await read_moves(admin, (), Proofs()) == MoveFacts(moves.moving)
    with pytest.raises(ClusterError):
        await read_moves(admin, (3,), Proofs())
