"""Plans for clusters small enough to see what should come out."""

from dataclasses import replace

import pytest
from support.balance_world import (
    GIB,
    brokers,
    check_hard_goals,
    ended,
    holding,
    ids,
    part,
    submitted,
)

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
from penstock.core.types import NO_LEADER, BrokerId, MoveReason, TopicPartition


def planned(facts: Facts, wish: Wish) -> Plan:
    made = plan(facts, wish)
    assert isinstance(made, Plan), made
    check_hard_goals(facts, made, wish)
    return made


def refused(facts: Facts, wish: Wish) -> str:
    made = plan(facts, wish)
    assert isinstance(made, Infeasible)
    return made.reason


def targets(made: Plan) -> dict[str, tuple[BrokerId, ...]]:
    return {str(move.partition): move.target for move in made.moves}


def counts(facts: Facts, made: Plan) -> list[int]:
    """Replicas of every broker once all has been done."""
    after = ended(submitted(facts, made.moves))
    placed = [broker for one in after.partitions for broker in one.replicas]
    return [placed.count(broker.id) for broker in facts.brokers]


# ---------------------------------------------------------------- left alone


def test_a_topic_of_one_partition_on_five_brokers_is_left_alone() -> None:
    assert planned(holding(brokers(5), [part("t/0", [3])]), Balance()).moves == ()
    assert planned(holding(brokers(5), [part("t/0", [3, 1, 0])]), Balance()).moves == ()


def test_an_empty_cluster_needs_no_plan() -> None:
    nothing = Facts(brokers=(), partitions=())
    for wish in (Balance(), Leaders(), Spread()):
        made = planned(nothing, wish)
        assert made.moves == ()
        assert made.brokers == ()


def test_a_broker_that_is_not_registered_any_more_counts_as_dead() -> None:
    facts = holding(brokers(2), [part("t/0", [7, 0]), part("t/1", [1])])
    assert planned(facts, Balance()).moves == ()


# ---------------------------------------------------------------- drain


def test_a_drain_moves_what_the_broker_has_largest_first() -> None:
    parts = [part("t/0", [0], GIB), part("t/1", [0], 3 * GIB), part("t/2", [1], GIB)]
    made = planned(holding(brokers(3), parts), Drain(ids(0)))
    assert [str(move.partition) for move in made.moves] == ["t/1", "t/0"]
    assert targets(made) == {"t/1": ids(2), "t/0": ids(1)}, "each to the emptiest of the moment"
    assert made.reason is MoveReason.DRAIN


def test_a_drain_prefers_racks_that_have_nothing_of_the_partition() -> None:
    members = brokers(6, racks=3)  # racks in turns: 0 and 3, 1 and 4, 2 and 5
    parts = [part("t/0", [0, 1, 2]), part("u/0", [3]), part("u/1", [3])]
    made = planned(holding(members, parts), Drain(ids(0)))
    assert set(targets(made)["t/0"]) == set(ids(3, 1, 2)), "fuller than 4, but in a free rack"


def test_a_drain_takes_another_rack_if_it_must() -> None:
    members = brokers(5, racks=3)
    made = planned(holding(members, [part("t/0", [2, 0, 1])]), Drain(ids(2)))
    assert set(targets(made)["t/0"]) < set(ids(0, 1, 3, 4))


def test_a_drain_changes_a_running_move_that_leads_to_the_broker() -> None:
    running = replace(part("t/0", [1, 2]), target=ids(1, 0))
    made = planned(holding(brokers(4), [running]), Drain(ids(0)))
    (move,) = made.moves
    assert move.expected == ids(1, 2), "what it has now, which the controller compares"
    assert set(move.target) in (set(ids(1, 2)), set(ids(1, 3)))


def test_a_running_move_away_from_the_broker_counts_as_done() -> None:
    running = replace(part("t/0", [0, 1]), target=ids(2, 1))
    assert planned(holding(brokers(3), [running]), Drain(ids(0))).moves == ()


def test_a_dead_broker_can_be_drained() -> None:
    members = brokers(4)
    members = (replace(members[0], alive=False), *members[1:])
    made = planned(holding(members, [part("t/0", [0, 1])]), Drain(ids(0)))
    assert len(made.moves) == 1


def test_a_nearly_full_broker_is_taken_last() -> None:
    members = list(brokers(3))
    members[1] = replace(members[1], disk_bytes=20 * GIB)
    parts = [part("t/0", [0], 14 * GIB), part("u/0", [2], GIB)]
    made = planned(holding(members, parts), Drain(ids(0)))
    assert targets(made) == {"t/0": ids(2)}, "1 has nothing, but would be nearly full"


def test_figures_of_a_plan_tell_what_it_costs() -> None:
    made = planned(holding(brokers(3), [part("t/0", [0, 1], 10 * GIB)]), Drain(ids(0)))
    assert made.copied_bytes == 10 * GIB
    by_id = {one.broker: one for one in made.brokers}
    assert by_id[BrokerId(2)].in_bytes == 10 * GIB
    assert by_id[BrokerId(0)].out_bytes == 10 * GIB, "the leader copies it out"
    assert by_id[BrokerId(0)].replicas == (1, 0)
    assert by_id[BrokerId(2)].held_bytes == (0, 10 * GIB)
    assert made.minutes == 5, "10 GiB at 40 MiB/s: 256 s"


def test_without_a_limit_the_time_is_not_known() -> None:
    facts = replace(holding(brokers(3), [part("t/0", [0])]), copy_rate=0)
    assert planned(facts, Drain(ids(0))).minutes is None


def test_bytes_of_a_partition_without_leader_go_out_at_the_preferred_one() -> None:
    lone = replace(part("t/0", [1, 0]), leader=NO_LEADER)
    made = planned(holding(brokers(3), [lone]), Drain(ids(0)))
    assert {one.broker: one.out_bytes for one in made.brokers}[BrokerId(1)] == GIB


def test_a_size_that_is_not_known_weighs_one_and_copies_nothing_known() -> None:
    made = planned(holding(brokers(2), [part("t/0", [0], None)]), Drain(ids(0)))
    assert made.copied_bytes == 0
    assert {one.held_bytes for one in made.brokers} == {(1, 0), (0, 1)}


def test_the_same_moves_have_the_same_id_and_others_another() -> None:
    facts = holding(brokers(3), [part("t/0", [0]), part("t/1", [0])])
    first, again = planned(facts, Drain(ids(0))), planned(facts, Drain(ids(0)))
    assert first.id == again.id
    assert len(first.id) == 12
    assert planned(facts, Drain(ids(0, 1))).id != first.id


# ---------------------------------------------------------------- what cannot be done


def test_a_drain_that_leaves_too_few_brokers_names_the_topics() -> None:
    facts = holding(brokers(3), [part("a/0", [0, 1, 2]), part("b/0", [0, 1])])
    assert refused(facts, Drain(ids(2))) == (
        "2 brokers may be used, and these topics need more: a (3 replicas); "
        "needs 1 more broker, or fewer replicas of these topics"
    )


def test_a_long_list_of_topics_is_cut() -> None:
    facts = holding(brokers(2), [part(f"t{number}/0", [0, 1]) for number in range(5)])
    assert "t0 (2 replicas), t1 (2 replicas), t2 (2 replicas) and 2 more" in refused(
        facts, Drain(ids(1))
    )


def test_a_drain_that_does_not_fit_says_what_would() -> None:
    parts = [part(f"t/{at}", [at % 3], 27 * GIB) for at in range(6)]
    assert refused(holding(brokers(3), parts), Drain(ids(2))) == (
        "broker 0 would hold 81 GiB of 100 GiB, and 80 GiB is the limit, and 1 more would hold "
        "too much; needs 1 more broker, or volumes of 102Gi"
    )
    parts = [part(f"t/{at}", [at % 2], 47 * GIB) for at in range(2)]
    assert refused(holding(brokers(2), parts), Drain(ids(0))) == (
        "broker 1 would hold 94 GiB of 100 GiB, and 80 GiB is the limit; "
        "needs 1 more broker, or volumes of 118Gi"
    )


def test_small_disks_are_told_in_mebibytes() -> None:
    mib = 1 << 20
    parts = [part(f"t/{at}", [at], 47 * mib) for at in range(2)]
    assert "would hold 94 MiB of 100 MiB" in refused(
        holding(brokers(2, disk=100 * mib), parts), Drain(ids(0))
    )


def test_the_reserve_of_a_broker_stays_free_twice() -> None:
    members = tuple(replace(one, reserve_bytes=20 * GIB) for one in brokers(2))
    facts = holding(members, [part("t/0", [0], 50 * GIB), part("u/0", [1], 30 * GIB)])
    assert refused(facts, Drain(ids(0))) == (
        "broker 1 would hold 80 GiB of 100 GiB, and 60 GiB is the limit; "
        "needs 1 more broker, or volumes of 120Gi"
    )


def test_an_empty_partition_fits_on_a_full_disk() -> None:
    facts = holding(brokers(2), [part("t/0", [1], 90 * GIB), part("u/0", [0], 0)])
    assert targets(planned(facts, Drain(ids(0)))) == {"u/0": ids(1)}
    unknown = holding(brokers(2), [part("t/0", [1], 90 * GIB), part("u/0", [0], None)])
    assert "broker 1 would hold 90 GiB of 100 GiB" in refused(unknown, Drain(ids(0)))


def test_copies_that_run_already_take_room() -> None:
    running = replace(part("u/0", [3], 60 * GIB), target=ids(1))
    small = [part(f"s/{at}", [0], 0) for at in range(3)]
    members = (*brokers(3), replace(brokers(4)[3], cordoned=True))
    facts = holding(members, [running, part("t/0", [2], 25 * GIB), *small])
    made = planned(facts, Drain(ids(2)))
    assert targets(made) == {"t/0": ids(0)}, "1 has fewer replicas, but 60 GiB are on their way"


def test_racks_that_leave_no_broker_are_named() -> None:
    members = [replace(one, rack=rack) for one, rack in zip(brokers(5), "aaabb", strict=True)]
    members[1] = replace(members[1], cordoned=True)
    members[2] = replace(members[2], alive=False)
    assert refused(holding(members, [part("t/0", [1, 2, 3, 4])]), Drain(ids(4))) == (
        "no broker may take a replica of t/0: each of the 2 that may be used has one, or is in a "
        "rack with its share of them; needs brokers in other racks"
    )


def test_what_does_not_exist_is_refused_by_name() -> None:
    facts = holding(brokers(2), [part("t/0", [0])])
    assert refused(facts, Drain(ids(5, 6))) == "there is no broker 5, 6; there are 0, 1"
    assert refused(facts, Replace(BrokerId(9))) == "there is no broker 9; there are 0, 1"
    assert refused(facts, Spread(ids(4))) == "there is no broker 4; there are 0, 1"
    assert refused(Facts(brokers=(), partitions=()), Drain(ids(0))).endswith("there are none")
    assert refused(facts, Factor("nope", 2)) == "there is no topic nope"
    assert refused(facts, Factor("t", 0)) == "a topic needs 1 replica or more, not 0"


def test_a_spread_onto_brokers_that_take_nothing_is_refused() -> None:
    members = (replace(brokers(1)[0], cordoned=True), replace(brokers(2)[1], alive=False))
    assert refused(holding(members, []), Spread(ids(0, 1))) == (
        "brokers that are cordoned or not alive cannot take replicas: 0, 1; "
        "uncordon or start them first"
    )


# ---------------------------------------------------------------- spread


def test_a_new_broker_gets_its_share_from_the_fullest() -> None:
    members = (*brokers(3)[:2], replace(brokers(3)[2], fresh=True))
    parts = [part(f"t/{at}", [0]) for at in range(6)] + [part(f"u/{at}", [1]) for at in range(3)]
    facts = holding(members, parts)
    made = planned(facts, Spread())
    assert counts(facts, made) == [3, 3, 3]
    assert made.reason is MoveReason.SPREAD


def test_a_spread_does_not_even_out_old_brokers() -> None:
    parts = [part(f"t/{at}", [0]) for at in range(9)] + [part("u/0", [1])]
    facts = holding(brokers(3), parts)
    assert counts(facts, planned(facts, Spread(ids(2)))) == [6, 1, 3]


def test_a_spread_takes_replicas_that_close_the_gap_in_bytes() -> None:
    sizes = [GIB, GIB, GIB, 3 * GIB, 3 * GIB, 9 * GIB]
    facts = holding(brokers(2), [part(f"t/{at}", [0], size) for at, size in enumerate(sizes)])
    made = planned(facts, Spread(ids(1)))
    assert counts(facts, made) == [3, 3]
    assert made.copied_bytes in range(7 * GIB, 12 * GIB), "about half of the 18 GiB"


def test_a_spread_mixes_topics() -> None:
    names = [f"{topic}/{at}" for topic in "abc" for at in range(3)]
    facts = holding(brokers(3), [part(name, [0, 1]) for name in names])
    made = planned(facts, Spread(ids(2)))
    assert sorted(move.partition.topic for move in made.moves) == ["a", "a", "b", "b", "c", "c"]


def test_new_brokers_take_nothing_from_each_other() -> None:
    parts = [part(f"t/{at}", [1]) for at in range(4)] + [part(f"u/{at}", [0]) for at in range(5)]
    facts = holding(brokers(3), parts)
    made = planned(facts, Spread(ids(1, 2)))
    assert counts(facts, made) == [3, 4, 2], "0 has given what it may, and 1 does not give"


def test_the_right_size_goes_before_the_rarest_topic() -> None:
    parts = [part("u/0", [0], 1000), part("u/1", [0], 1000), part("u/2", [1], 10)]
    parts += [part("v/0", [0], 1), part("v/1", [0], 1)]
    made = planned(holding(brokers(2, disk=1 << 50), parts), Spread(ids(1)))
    assert [move.partition.topic for move in made.moves] == ["u"]


def test_without_fresh_brokers_a_spread_moves_nothing() -> None:
    facts = holding(brokers(3), [part(f"t/{at}", [0]) for at in range(6)])
    assert planned(facts, Spread()).moves == ()


def test_a_spread_into_a_rack_takes_from_that_rack_what_others_may_not_give() -> None:
    members = [replace(one, rack=rack) for one, rack in zip(brokers(4), "abca", strict=True)]
    facts = holding(members, [part(f"t/{at}", [0, 1, 2]) for at in range(8)])
    assert counts(facts, planned(facts, Spread(ids(3)))) == [4, 8, 8, 4]


# ---------------------------------------------------------------- factor


def test_a_factor_that_grows_adds_replicas_on_other_racks() -> None:
    members = brokers(4, racks=2)
    facts = holding(members, [part("t/0", [0]), part("t/1", [2]), part("u/0", [0])])
    made = planned(facts, Factor("t", 2))
    assert made.reason is MoveReason.FACTOR
    assert {str(move.partition) for move in made.moves} == {"t/0", "t/1"}
    assert counts(facts, made) == [2, 1, 1, 1]


def test_a_factor_beyond_the_brokers_is_refused() -> None:
    facts = holding(brokers(2), [part("t/0", [0]), part("u/0", [0, 1])])
    assert refused(facts, Factor("t", 4)) == (
        "2 brokers may be used, and these topics need more: t (4 replicas); "
        "needs 2 more brokers, or fewer replicas of these topics"
    )


@pytest.mark.parametrize(
    ("isr", "leader", "racks", "dropped"),
    [
        ((0, 1, 2), 0, "abc", 2),  # all alike: the last of the fullest
        ((0, 2), 0, "abc", 1),  # out of sync
        ((0, 1, 2), 0, "aab", 1),  # the crowded rack; its other replica leads
        ((0, 1, 2), 2, "aab", 1),
        ((2,), 1, "abc", 0),  # the leader last, even out of sync
        ((0, 1, 2), 1, "abc", 2),
    ],
)
def test_a_factor_that_falls_drops_what_matters_least(
    isr: tuple[int, ...], leader: int, racks: str, dropped: int
) -> None:
    members = [replace(one, rack=rack) for one, rack in zip(brokers(3), racks, strict=True)]
    one = replace(part("t/0", [0, 1, 2]), isr=ids(*isr), leader=BrokerId(leader))
    made = planned(holding(members, [one]), Factor("t", 2))
    assert set(made.moves[0].target) == set(ids(0, 1, 2)) - set(ids(dropped))
    assert made.copied_bytes == 0


def test_a_factor_that_falls_drops_from_the_fullest_broker() -> None:
    facts = holding(brokers(3), [part("t/0", [0, 1, 2]), part("u/0", [1])])
    made = planned(facts, Factor("t", 2))
    assert set(made.moves[0].target) == set(ids(0, 2))


def test_a_replica_on_a_dead_broker_counts_as_out_of_sync() -> None:
    members = brokers(3)
    members = (members[0], replace(members[1], alive=False), members[2])
    made = planned(holding(members, [part("t/0", [0, 1, 2])]), Factor("t", 2))
    assert set(made.moves[0].target) == set(ids(0, 2))


def test_a_factor_that_is_taken_back_ends_the_moves_to_the_other() -> None:
    moving = replace(part("t/0", [0, 2]), target=ids(0, 2, 1))
    settled = part("t/1", [1, 2])
    dead = brokers(3)
    dead = (*dead[:2], replace(dead[2], alive=False))
    for members in (brokers(3), dead):
        made = planned(holding(members, [moving, settled]), Factor("t", 2))
        assert [(move.expected, move.target) for move in made.moves] == [(ids(0, 2), ids(0, 2))]
        assert made.copied_bytes == 0


def test_a_factor_that_changes_again_redirects_what_moves() -> None:
    moving = replace(part("t/0", [0, 1]), target=ids(0, 1, 2))
    (move,) = planned(holding(brokers(4), [moving]), Factor("t", 4)).moves
    assert (move.expected, set(move.target)) == (ids(0, 1), set(ids(0, 1, 2, 3)))
    (move,) = planned(holding(brokers(4), [moving]), Factor("t", 1)).moves
    assert move.target == ids(0)


# ---------------------------------------------------------------- replace


def test_only_lone_copies_leave_a_volume_that_is_replaced() -> None:
    parts = [
        part("t/0", [0]),
        part("t/1", [0, 1]),
        replace(part("t/2", [0, 1]), isr=ids(0)),
    ]
    made = planned(holding(brokers(3), parts), Replace(BrokerId(0)))
    assert {str(move.partition) for move in made.moves} == {"t/0", "t/2"}
    assert made.reason is MoveReason.REPLACE


def test_a_copy_on_a_dead_broker_does_not_count() -> None:
    members = (brokers(1)[0], replace(brokers(2)[1], alive=False), brokers(3)[2])
    made = planned(holding(members, [part("t/0", [0, 1])]), Replace(BrokerId(0)))
    assert targets(made) == {"t/0": ids(2, 1)}


@pytest.mark.parametrize("alive", [True, False])
def test_a_volume_whose_only_copy_cannot_be_read_is_not_replaced(alive: bool) -> None:
    members = (replace(brokers(1)[0], alive=alive), brokers(2)[1])
    one = part("t/0", [0])
    lone = replace(one, isr=ids() if alive else one.isr)
    assert refused(holding(members, [lone]), Replace(BrokerId(0))) == (
        "t/0: no live replica is in sync, and broker 0 cannot supply one; "
        "start it, or accept the loss of these partitions"
    )


def test_a_lone_copy_that_finds_no_other_broker_is_refused() -> None:
    assert refused(holding(brokers(1), [part("t/0", [0])]), Replace(BrokerId(0))) == (
        "0 brokers may be used, and these topics need more: t (1 replicas); "
        "needs 1 more broker, or fewer replicas of these topics"
    )


# ---------------------------------------------------------------- balance


def test_a_balance_evens_replicas_first_and_then_bytes() -> None:
    parts = [part(f"t/{at}", [0], 8 * GIB) for at in range(4)]
    parts += [part(f"u/{at}", [1], GIB) for at in range(4)]
    facts = holding(brokers(2, disk=1 << 50), parts)
    made = planned(facts, Balance())
    assert counts(facts, made) == [4, 4]
    assert {one.held_bytes[1] for one in made.brokers} == {18 * GIB}
    assert made.before.held_bytes > 0
    assert made.after.held_bytes == 0


def test_a_balance_moves_single_replicas_if_counts_allow_it() -> None:
    parts = [part("t/0", [0], 4 * GIB), part("t/1", [0], 4 * GIB), part("u/0", [1], GIB)]
    facts = holding(brokers(2, disk=1 << 50), parts)
    made = planned(facts, Balance())
    assert counts(facts, made) == [1, 2]


def test_replicas_of_one_topic_may_change_places() -> None:
    sizes = [8 * GIB, 8 * GIB, GIB, GIB]
    parts = [part(f"t/{at}", [at // 2], size) for at, size in enumerate(sizes)]
    made = planned(holding(brokers(2, disk=1 << 50), parts), Balance())
    assert len(made.moves) == 2
    assert made.after.held_bytes == 0


def test_bytes_go_before_topics() -> None:
    parts = [part("t/0", [0], 10 * GIB), part("t/1", [0], 10 * GIB)]
    parts += [part("u/0", [1], 5 * GIB), part("v/0", [1], 15 * GIB)]
    assert planned(holding(brokers(2, disk=1 << 50), parts), Balance()).moves == ()


def test_running_moves_are_left_to_end() -> None:
    running = [replace(part(f"t/{at}", [1]), target=ids(0)) for at in range(4)]
    facts = holding(brokers(2), [*running, part("u/0", [0]), part("u/1", [0])])
    made = planned(facts, Balance())
    assert {move.partition.topic for move in made.moves} == {"u"}


def test_a_disk_of_unknown_size_is_never_full() -> None:
    parts = [part(f"t/{at}", [0], 1 << 55) for at in range(2)]
    facts = holding(brokers(2, disk=0), parts)
    assert counts(facts, planned(facts, Balance())) == [1, 1]


def test_many_replicas_are_balanced_in_count_and_bytes() -> None:
    parts = [part(f"t/{at}", [at % 2], (1 + at % 7) * GIB) for at in range(200)]
    facts = holding(brokers(4, disk=1 << 50), parts)
    made = planned(facts, Balance())
    assert counts(facts, made) == [50, 50, 50, 50]
    assert made.after.held_bytes == made.after.topics == 0
    assert len(made.moves) < 110, "100 must move; pairs that change places are few"


def test_a_balance_spreads_each_topic() -> None:
    parts = [part(f"t/{at}", [0]) for at in range(4)] + [part(f"u/{at}", [1]) for at in range(4)]
    facts = holding(brokers(2), parts)
    made = planned(facts, Balance())
    assert counts(facts, made) == [4, 4]
    assert made.after.topics == 0
    assert len(made.moves) == 4


def test_a_balance_gives_a_topic_s_replica_alone_if_counts_allow_it() -> None:
    parts = [part("t/0", [0], 0), part("t/1", [0], 0), part("u/0", [1], 0)]
    facts = holding(brokers(2), parts)
    made = planned(facts, Balance())
    assert (len(made.moves), made.after.topics) == (1, 0)


def test_replicas_per_broker_go_before_topics() -> None:
    parts = [part("t/0", [0], 0), part("t/1", [0], 0), part("u/0", [1], 0), part("v/0", [1], 0)]
    facts = holding(brokers(2), parts)
    made = planned(facts, Balance())
    assert (counts(facts, made), made.after.topics) == ([2, 2], 0)


def test_a_balance_takes_replicas_out_of_crowded_racks() -> None:
    members = [replace(one, rack=rack) for one, rack in zip(brokers(4), "aabb", strict=True)]
    facts = holding(members, [part("t/0", [0, 1]), part("t/1", [2, 3])])
    made = planned(facts, Balance())
    assert made.before.racks == 2
    assert made.after.racks == 0
    assert made.after.replicas == 0


def test_a_crowded_rack_stays_if_the_others_have_no_room() -> None:
    members = [replace(one, rack=rack) for one, rack in zip(brokers(3), "aab", strict=True)]
    facts = holding(members, [part("t/0", [0, 1], 10 * GIB), part("u/0", [2], 75 * GIB)])
    made = planned(facts, Balance())
    assert (made.moves, made.after.racks) == ((), 1)


def test_a_crowded_rack_stays_if_its_brokers_may_not_give() -> None:
    members = [
        replace(one, rack=rack, cordoned=rack == "a")
        for one, rack in zip(brokers(4), "aabb", strict=True)
    ]
    assert planned(holding(members, [part("t/0", [0, 1])]), Balance()).moves == ()


def test_within_a_rack_that_must_hold_more_brokers_are_even() -> None:
    members = [replace(one, rack=rack) for one, rack in zip(brokers(4), "abcc", strict=True)]
    facts = holding(members, [part(f"t/{at}", [0, 1, 2]) for at in range(8)])
    assert counts(facts, planned(facts, Balance())) == [8, 8, 4, 4]


def test_cordoned_and_dead_brokers_keep_what_they_have_and_get_nothing() -> None:
    members = list(brokers(4))
    members[2] = replace(members[2], cordoned=True)
    members[3] = replace(members[3], alive=False)
    parts = [part(f"t/{at}", [0]) for at in range(4)]
    parts += [part("u/0", [2]), part("u/1", [3])]
    facts = holding(members, parts)
    assert counts(facts, planned(facts, Balance())) == [2, 2, 1, 1]


# ---------------------------------------------------------------- leaders


def test_leaders_are_spread_along_chains() -> None:
    # 0 leads all, shares replicas with 1 only, and 1 shares some with 2.
    parts = [part("t/0", [0, 1]), part("t/1", [0, 1]), part("t/2", [0, 1]), part("u/0", [1, 2])]
    facts = holding(brokers(3), [*parts, part("u/1", [1, 2]), part("u/2", [2, 1])])
    made = planned(facts, Leaders())
    assert {one.leaders[1] for one in made.brokers} == {2}
    assert made.leaders_moved == len(made.moves) == 2
    assert made.copied_bytes == 0


def test_a_leadership_goes_over_a_broker_that_has_enough() -> None:
    parts = [part("t/0", [0, 1]), part("t/1", [0, 1]), part("t/2", [0, 1])]
    parts += [part("u/0", [1, 2]), part("u/1", [1, 2])]
    facts = holding(brokers(3), [*parts, part("v/0", [2]), part("t/3", [0, 1])])
    made = planned(facts, Leaders())
    assert sorted(one.leaders[1] for one in made.brokers) == [2, 2, 3]


def test_brokers_that_should_not_lead_get_no_leadership() -> None:
    members = (brokers(1)[0], replace(brokers(2)[1], leads=False))
    facts = holding(members, [part("t/0", [0, 1]), part("t/1", [0, 1])])
    assert planned(facts, Leaders()).moves == ()


def test_a_leadership_passes_brokers_that_have_enough() -> None:
    """0 has 3, 1 and 2 have 2, 3 has none: over 1 or 2, whichever leads what 3 has."""
    parts = [part(f"t/{at}", [0, 1, 2]) for at in range(3)]
    parts += [part(f"u/{at}", [1, 0]) for at in range(2)]
    parts += [part(f"v/{at}", [2, 3]) for at in range(2)]
    made = planned(holding(brokers(4), parts), Leaders())
    assert [one.leaders[1] for one in made.brokers] == [2, 2, 2, 1]


def test_leaders_share_the_inflow() -> None:
    heavy = [replace(part(f"t/{at}", [0, 1]), bytes_per_second=100) for at in range(2)]
    light = [replace(part(f"u/{at}", [1, 0]), bytes_per_second=10) for at in range(2)]
    made = planned(holding(brokers(2), [*heavy, *light]), Leaders())
    assert made.before.inflow > 0
    assert made.after.inflow == 0
    assert made.leaders_moved == 2


def test_an_inflow_that_no_exchange_makes_more_even_stays() -> None:
    heavy = replace(part("t/0", [0, 1]), bytes_per_second=100)
    made = planned(holding(brokers(2), [heavy, part("u/0", [1, 0])]), Leaders())
    assert made.moves == ()


def test_an_inflow_moves_without_exchange_if_counts_allow_it() -> None:
    parts = [replace(part(f"t/{at}", [0, 1]), bytes_per_second=30) for at in range(2)]
    parts.append(replace(part("u/0", [1, 0]), bytes_per_second=0))
    made = planned(holding(brokers(2), parts), Leaders())
    assert made.leaders_moved == 1
    assert made.after.inflow == 0


def test_leaders_of_moved_partitions_are_spread_with_the_move() -> None:
    facts = holding(brokers(3), [part(f"t/{at}", [0, 1]) for at in range(4)])
    made = planned(facts, Drain(ids(0)))
    leaders = {one.broker: one.leaders[1] for one in made.brokers}
    assert leaders == {0: 0, 1: 2, 2: 2}


def test_partitions_are_named_as_they_came() -> None:
    made = planned(holding(brokers(2), [part("t/12", [0])]), Drain(ids(0)))
    assert made.moves[0].partition == TopicPartition("t", 12)
    assert made.moves[0].adding == ids(1)
