"""What holds for every plan (I38): deterministic, a fixed point, within the hard goals."""

import random
from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.balance_world import check_hard_goals, clusters, ended, submitted

from penstock.core.balance import (
    Balance,
    Drain,
    Factor,
    Facts,
    Infeasible,
    Leaders,
    Plan,
    Replace,
    Spread,
    Wish,
    plan,
)
from penstock.core.types import BrokerId

BROKERS = st.integers(0, 5).map(BrokerId)
WISHES: st.SearchStrategy[Wish] = st.one_of(
    st.lists(BROKERS, min_size=1, max_size=2, unique=True).map(lambda ids: Drain(tuple(ids))),
    BROKERS.map(Replace),
    st.lists(BROKERS, max_size=2, unique=True).map(lambda ids: Spread(tuple(ids))),
    st.builds(Factor, st.sampled_from(["t0", "t1"]), st.integers(1, 4)),
    st.just(Balance()),
    st.just(Leaders()),
)
ANY = st.booleans().flatmap(lambda tight: clusters(tight=tight))


def planned(facts: Facts, wish: Wish) -> Plan:
    made = plan(facts, wish)
    assume(isinstance(made, Plan))
    assert isinstance(made, Plan)
    return made


@given(ANY, WISHES, st.randoms(use_true_random=False))
def test_the_same_facts_in_any_order_give_the_same_plan(
    facts: Facts, wish: Wish, order: random.Random
) -> None:
    brokers, partitions = list(facts.brokers), list(facts.partitions)
    order.shuffle(brokers)
    order.shuffle(partitions)
    shuffled = replace(facts, brokers=tuple(brokers), partitions=tuple(partitions))
    assert plan(facts, wish) == plan(shuffled, wish)


@given(ANY, WISHES)
def test_hard_goals_hold_after_every_prefix(facts: Facts, wish: Wish) -> None:
    check_hard_goals(facts, planned(facts, wish), wish)


@given(ANY, WISHES)
def test_after_a_plan_was_submitted_nothing_is_left_to_plan(facts: Facts, wish: Wish) -> None:
    made = planned(facts, wish)
    again = plan(submitted(facts, made.moves), wish)
    assert isinstance(again, Plan)
    assert again.moves == ()


@given(clusters(), WISHES)
def test_after_a_plan_was_carried_out_nothing_is_left_to_plan(facts: Facts, wish: Wish) -> None:
    facts = ended(facts)
    made = planned(facts, wish)
    again = plan(ended(submitted(facts, made.moves)), wish)
    assert isinstance(again, Plan)
    assert again.moves == ()


@given(clusters(tight=True))
def test_balancing_full_disks_again_and_again_ends(facts: Facts) -> None:
    """What a plan frees may allow the next one more; each makes the score smaller."""
    facts = ended(facts)
    for _ in range(10):
        made = planned(facts, Balance())
        if not made.moves:
            return
        assert made.after < made.before
        facts = ended(submitted(facts, made.moves))
    raise AssertionError("still moving after 10 plans")


@given(ANY, st.sampled_from([Balance(), Leaders()]))
def test_what_is_not_forced_makes_the_score_smaller(facts: Facts, wish: Wish) -> None:
    made = planned(facts, wish)
    assert made.after < made.before if made.moves else made.after == made.before


@given(ANY, st.lists(BROKERS, min_size=1, max_size=2, unique=True))
def test_a_drained_broker_is_empty(facts: Facts, brokers: list[BrokerId]) -> None:
    made = planned(facts, Drain(tuple(brokers)))
    after = ended(submitted(facts, made.moves))
    assert all(broker not in one.replicas for one in after.partitions for broker in brokers)
    held = {move.partition for move in made.moves}
    for one in facts.partitions:
        on_them = any(broker in (one.target or one.replicas) for broker in brokers)
        assert (one.partition in held) == on_them, "only what is on them moves"


@given(ANY, BROKERS)
def test_a_volume_that_is_replaced_holds_no_only_copy(facts: Facts, broker: BrokerId) -> None:
    made = planned(facts, Replace(broker))
    alive = {one.id for one in facts.brokers if one.alive}
    for one in ended(submitted(facts, made.moves)).partitions:
        if broker in one.replicas:
            assert (set(one.isr) & alive) - {broker}


@given(ANY, st.lists(BROKERS, max_size=2, unique=True))
def test_a_spread_moves_only_onto_the_new_brokers_and_not_beyond_their_share(
    facts: Facts, onto: list[BrokerId]
) -> None:
    made = planned(facts, Spread(tuple(onto)))
    usable = {one.id for one in facts.brokers if one.alive and not one.cordoned}
    new = set(onto) or {one.id for one in facts.brokers if one.fresh and one.id in usable}
    placed = [broker for one in facts.partitions for broker in one.target or one.replicas]
    share = sum(broker in usable for broker in placed) // max(1, len(usable))
    gained = [b for move in made.moves for b in move.target if b not in move.expected]
    assert set(gained) <= new
    for broker in new:
        assert gained.count(broker) <= max(0, share - placed.count(broker))


@given(ANY, WISHES)
def test_nothing_moves_twice(facts: Facts, wish: Wish) -> None:
    moved = [move.partition for move in planned(facts, wish).moves]
    assert len(set(moved)) == len(moved)


@given(ANY, st.integers(1, 4))
def test_a_factor_changes_its_topic_only_and_all_of_it(facts: Facts, factor: int) -> None:
    made = planned(facts, Factor("t0", factor))
    assert {move.partition.topic for move in made.moves} <= {"t0"}
    for one in submitted(facts, made.moves).partitions:
        if one.partition.topic == "t0":
            assert len(one.target or one.replicas) == factor
    for move in made.moves:
        small, large = sorted((set(move.target), set(move.expected)), key=len)
        running = any(one.partition == move.partition and one.target for one in facts.partitions)
        assert small <= large or running, "it only gains replicas, or only loses some"


@given(ANY)
def test_leaders_move_without_replicas(facts: Facts) -> None:
    for move in planned(facts, Leaders()).moves:
        assert set(move.target) == set(move.expected)
        assert move.copied_bytes == 0


@given(ANY, WISHES)
def test_running_moves_are_changed_only_if_they_must(facts: Facts, wish: Wish) -> None:
    if isinstance(wish, Drain | Replace | Factor):
        return
    running = {one.partition for one in facts.partitions if one.target}
    assert not running & {move.partition for move in planned(facts, wish).moves}


@given(ANY, WISHES)
def test_figures_add_up(facts: Facts, wish: Wish) -> None:
    made = planned(facts, wish)
    assert sum(one.in_bytes for one in made.brokers) == made.copied_bytes
    assert sum(one.out_bytes for one in made.brokers) == made.copied_bytes
    busiest = max((max(one.in_bytes, one.out_bytes) for one in made.brokers), default=0)
    assert made.minutes == -(-busiest // (60 * facts.copy_rate))
    after = submitted(facts, made.moves).partitions
    for one in made.brokers:
        placed = [part for part in after if one.broker in (part.target or part.replicas)]
        assert one.replicas[1] == len(placed)
        leads = [part for part in after if (part.target or part.replicas)[0] == one.broker]
        assert one.leaders[1] == len(leads)


@settings(max_examples=30)
@given(ANY, WISHES)
def test_an_infeasible_wish_says_why(facts: Facts, wish: Wish) -> None:
    made = plan(facts, wish)
    assume(isinstance(made, Infeasible))
    assert isinstance(made, Infeasible)
    assert any(letter.isdigit() for letter in made.reason)
