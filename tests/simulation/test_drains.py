"""Drains, simulated, and what their checks tell apart. Planted bugs: `test_simulation`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from unittest import mock

import pytest

from penstock.client import (
    BrokerPlacement,
    Cordon,
    MoveDescription,
    MovesDescription,
    MoveState,
    ReplicaMove,
)
from penstock.core.balance import BrokerFacts, Facts, PartitionFacts
from penstock.core.control import documents
from penstock.core.control.documents import ClusterDocument
from penstock.core.control.partition import PartitionDocument
from penstock.core.types import (
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    MoveReason,
    PartitionState,
    ReplicaKey,
    TopicPartition,
)
from penstock_sim.drain_checks import DrainChecks
from penstock_sim.scheduler import RuleError
from penstock_sim.world import TOPIC, TOPIC_ID, World, simulate

KEY = ReplicaKey(TOPIC_ID, 0)
WHERE = TopicPartition(TOPIC, 0)
LEAVING = BrokerId(3)


def members(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, brokers))


def test_drains_end_or_are_taken_back_while_everything_breaks() -> None:
    histories = [simulate(seed, drains=True) for seed in range(20)]
    for history in histories:
        assert history.violation is None, (
            f"{history.violation}\n"
            f"replay: python tests/simulation/run.py --seed {history.seed} --drains --trace"
        )
    assert sum(history.drains for history in histories) > 20
    assert sum(history.drained for history in histories) > 8
    assert sum(history.drains_back for history in histories) > 8
    assert sum(history.moves for history in histories) > 20


def test_a_history_with_drains_is_the_same_again_traced_or_not() -> None:
    plain, traced = simulate(1, drains=True), simulate(1, drains=True, traced=True)
    assert traced.fingerprint == plain.fingerprint
    assert plain.fingerprint != simulate(1, moves=True).fingerprint


# ---------------------------------------------------------------- plans


def a_world() -> World:
    """Of four brokers."""
    world = World(1, brokers=4, drains=True, groups=False, transactions=False, pipe=False)
    world.keys = [KEY]
    return world


@pytest.fixture
def checks() -> DrainChecks:
    drainer = a_world().drainer
    assert drainer is not None
    return drainer.checks


def facts(*, racks: str = "aabb", dead: int = 0, cordoned: int = 0) -> Facts:
    """A partition on the brokers 1, 2 and 3 of four."""
    brokers = tuple(
        BrokerFacts(
            id=BrokerId(number),
            rack=rack,
            alive=number != dead,
            cordoned=number in {cordoned, LEAVING},
        )
        for number, rack in enumerate(racks, start=1)
    )
    partition = PartitionFacts(
        partition=WHERE, replicas=members(1, 2, 3), isr=members(1, 2, 3), leader=BrokerId(1)
    )
    return Facts(brokers=brokers, partitions=(partition,))


def move(*target: int, expected: Sequence[int] = (1, 2, 3)) -> ReplicaMove:
    return ReplicaMove(WHERE, target, tuple(expected), TOPIC_ID)


def test_a_plan_within_the_hard_goals_is_submitted(checks: DrainChecks) -> None:
    checks.planned([move(1, 2, 4)], facts(), (LEAVING,))


@pytest.mark.parametrize(
    ("planned", "known", "told"),
    [
        (move(1, 3, 4), facts(), "keeps a replica where none may be"),
        (move(1, 4, 4), facts(), "names a broker twice"),
        (move(1, 2, 4), facts(dead=4), r"places a replica on \[4\], dead or cordoned"),
        (move(1, 2, 4), facts(cordoned=4), r"places a replica on \[4\], dead or cordoned"),
        (move(1, 2, 5), facts(), r"places a replica on \[5\], dead or cordoned"),
        (move(1, 4), facts(), "changes how many there are"),
        (move(1, 2, 4, expected=(1, 2)), facts(), "expects other replicas"),
        (move(1, 2, 4), facts(racks="aabac"), r"crowds \['a'\]"),
    ],
    ids=["keeps", "twice", "dead", "cordoned", "unknown", "fewer", "stale", "racks"],
)
def test_a_plan_that_breaks_a_hard_goal_is_noticed(
    checks: DrainChecks, planned: ReplicaMove, known: Facts, told: str
) -> None:
    with pytest.raises(RuleError, match=rf"I38: .*{told}"):
        checks.planned([planned], known, (LEAVING,))


# ---------------------------------------------------------------- the end of a drain


def settled(*replicas: int) -> PartitionDocument:
    return PartitionDocument(
        PartitionState(
            leader=BrokerId(replicas[0]),
            leader_epoch=LeaderEpoch(1),
            isr=members(*replicas),
            replicas=members(*replicas),
            version=1,
        )
    )


MOVED = settled(1, 2, 4)


def with_state(**changes: tuple[BrokerId, ...]) -> PartitionDocument:
    return replace(MOVED, state=replace(MOVED.state, **changes))  # type: ignore[arg-type]  # fields


def test_a_broker_that_nothing_names_is_empty(checks: DrainChecks) -> None:
    checks._world.checks.stored[KEY] = MOVED
    checks.proven(LEAVING)
    assert checks.empty == LEAVING


@pytest.mark.parametrize(
    "document",
    [
        settled(1, 2, 3),
        replace(MOVED, target=members(1, 2, 3)),
        with_state(adding=members(3)),
        with_state(dropping=members(3)),
    ],
    ids=["a replica", "a target", "a copy", "to be dropped"],
)
def test_a_broker_that_is_named_is_not_empty(
    checks: DrainChecks, document: PartitionDocument
) -> None:
    checks._world.checks.stored[KEY] = document
    with pytest.raises(RuleError, match="I34: broker 3 is proven empty, and is named by"):
        checks.proven(LEAVING)


def test_a_broker_that_has_data_is_not_empty(checks: DrainChecks) -> None:
    checks._world.checks.stored[KEY] = MOVED
    checks._world.brokers[LEAVING].disk.open_slot(KEY)
    with pytest.raises(RuleError, match="I34: broker 3 is proven empty, and has data of"):
        checks.proven(LEAVING)


def cordoned(*brokers: int, by: str = "operator") -> Callable[[DrainChecks], None]:
    """Stores the cordons."""

    def store(checks: DrainChecks) -> None:
        cordon = documents.Cordon(directory_id="", placement=True, leadership=True, why="", by=by)
        cluster = ClusterDocument(
            cluster_id="",
            controller_epoch=ControllerEpoch(1),
            metadata_version=1,
            format=documents.FORMAT_MOVES,
            cordons=dict.fromkeys(members(*brokers), cordon),
        )
        text = documents.encode_cluster(cluster)
        checks._world.meta.documents[documents.CLUSTER_KEY] = mock.Mock(text=text)

    return store


def test_at_the_end_a_drained_broker_is_empty_and_cordoned(checks: DrainChecks) -> None:
    checks._world.checks.stored[KEY] = MOVED
    checks.empty = LEAVING
    cordoned(3)(checks)
    checks.check_end()
    checks._world.checks.stored[KEY] = settled(1, 2, 3)
    with pytest.raises(RuleError, match="I34: broker 3 was drained, and is named by"):
        checks.check_end()


def test_at_the_end_only_a_person_has_cordoned_others(checks: DrainChecks) -> None:
    checks._world.checks.stored[KEY] = MOVED
    cordoned(2, by="a person")(checks)
    checks.check_end()
    cordoned(2)(checks)
    with pytest.raises(RuleError, match=r"I31: \{2\} are cordoned"):
        checks.check_end()


# ---------------------------------------------------------------- taken back


def read(
    *, target: Sequence[int] = (), reason: MoveReason = MoveReason.DRAIN, by: str | None = None
) -> MovesDescription:
    """A partition on 1, 2 and 3 that moves to `target`; broker 3 is cordoned by somebody."""
    moving = MoveDescription(
        where=WHERE,
        topic_id=TOPIC_ID,
        state=MoveState.QUEUED,
        reason=reason,
        leader=1,
        replicas=(1, 2, 3),
        isr=(1, 2, 3),
        target=tuple(target),
        adding=(),
        dropping=(),
        damaged=(),
        waiting_for="",
        copies=(),
    )
    broker = BrokerPlacement(
        broker_id=3,
        directory_id="",
        rack="",
        alive=True,
        fresh=False,
        cordon=None if by is None else Cordon(placement=True, leadership=True, by=by),
        software_version="",
        formats=(),
    )
    return MovesDescription(
        moves=(moving,), brokers=(broker,), format=2, newest_format=2, paused=False
    )


@pytest.mark.parametrize(
    "moving",
    [read(), read(target=(3, 2, 4)), read(target=(1, 2, 4), reason=MoveReason.MANUAL)],
    ids=["settled", "stays", "not of a drain"],
)
def test_a_cordon_is_lifted_once_no_move_of_the_drain_is_left(
    checks: DrainChecks, moving: MovesDescription
) -> None:
    checks.lifting(LEAVING, moving)


def test_a_cordon_that_is_lifted_too_early_is_noticed(checks: DrainChecks) -> None:
    with pytest.raises(RuleError, match="I31: the drain of 3 is taken back, and left Move"):
        checks.lifting(LEAVING, read(target=(1, 2, 4)))


def test_a_drain_that_was_taken_back_leaves_no_cordon_but_a_persons(checks: DrainChecks) -> None:
    checks.back(LEAVING, read())
    checks.back(LEAVING, read(by="a person"))
    with pytest.raises(RuleError, match="I31: the drain of 3 is taken back, and left Broker"):
        checks.back(LEAVING, read(by="operator"))
