"""Assignors: everything once, as equal as can be, and no partition moves without need."""

from time import thread_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.groups.assignors import (
    AssignedMember,
    AssignedTopic,
    Part,
    Parts,
    assign,
)
from penstock.core.types import TopicId

T, U, V = TopicId("t"), TopicId("u"), TopicId("v")


def members(*names: str, topics: tuple[TopicId, ...] = (T,)) -> dict[str, AssignedMember]:
    return {name: AssignedMember(name, frozenset(topics)) for name in names}


def remember(
    known: dict[str, AssignedMember], assigned: dict[str, Parts]
) -> dict[str, AssignedMember]:
    return {
        name: AssignedMember(member.key, member.topics, member.rack, assigned.get(name, Parts()))
        for name, member in known.items()
    }


def parts(topic: TopicId, *partitions: int) -> Parts:
    return frozenset((topic, partition) for partition in partitions)


def sizes(assigned: dict[str, Parts]) -> list[int]:
    return sorted(len(found) for found in assigned.values())


names = st.text("abcdef", min_size=1, max_size=3)
topic_sets = st.frozensets(st.sampled_from([T, U, V]), min_size=1)
topics = st.dictionaries(
    st.sampled_from([T, U, V]),
    st.integers(0, 12).flatmap(
        lambda count: st.builds(
            AssignedTopic,
            st.just(count),
            st.one_of(
                st.just(()),
                st.lists(st.frozensets(st.sampled_from("xyz")), min_size=count, max_size=count).map(
                    tuple
                ),
            ),
        )
    ),
    min_size=1,
)
any_part = st.tuples(st.sampled_from([T, U, V]), st.integers(0, 14))
groups = st.dictionaries(
    names,
    st.builds(
        AssignedMember,
        names,
        topic_sets,
        st.sampled_from(["", "x", "y", "z"]),
        st.frozensets(any_part, max_size=10),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("assignor", ["uniform", "range"])
@settings(deadline=None)
@given(group=groups, known=topics)
def test_every_partition_of_a_subscribed_topic_goes_to_one_subscriber(
    assignor: str, group: dict[str, AssignedMember], known: dict[TopicId, AssignedTopic]
) -> None:
    assigned = assign(assignor, group, known)
    wanted = {t for member in group.values() for t in member.topics if t in known}
    every = [(t, i) for t in wanted for i in range(known[t].partitions)]
    given_out = [part for found in assigned.values() for part in found]
    assert sorted(given_out) == sorted(every)
    assert assigned.keys() == group.keys()
    for name, found in assigned.items():
        assert {t for t, _ in found} <= group[name].topics


@settings(deadline=None)
@given(group=groups, known=topics)
def test_uniform_is_balanced_among_equal_subscriptions(
    group: dict[str, AssignedMember], known: dict[TopicId, AssignedTopic]
) -> None:
    assigned = assign("uniform", group, known)
    counts: dict[frozenset[TopicId], list[int]] = {}
    for name, member in group.items():
        counts.setdefault(frozenset(member.topics & known.keys()), []).append(len(assigned[name]))
    assert all(max(found) - min(found) <= 1 for found in counts.values())


@settings(deadline=None)
@given(count=st.integers(0, 60), size=st.integers(1, 9))
def test_uniform_moves_only_what_a_newcomer_gets_and_what_a_leaver_had(
    count: int, size: int
) -> None:
    known = {T: AssignedTopic(count)}
    group = members(*(f"m{i}" for i in range(size)))
    before = assign("uniform", group, known)
    more = remember(members(*group, "n"), before)
    after = assign("uniform", more, known)
    moved = {part for name in group for part in before[name] - after[name]}
    assert moved == after["n"]
    assert len(after["n"]) in {count // (size + 1), -(-count // (size + 1))}
    # The newcomer leaves again: only what it had moves.
    back = assign("uniform", {n: m for n, m in remember(more, after).items() if n != "n"}, known)
    assert all(after[name] <= back[name] for name in group)


@settings(deadline=None)
@given(group=groups, known=topics)
def test_uniform_changes_nothing_when_nothing_changed(
    group: dict[str, AssignedMember], known: dict[TopicId, AssignedTopic]
) -> None:
    assigned = assign("uniform", group, known)
    assert assign("uniform", remember(group, assigned), known) == assigned


def test_range_gives_the_same_numbers_of_topics_read_together() -> None:
    known = {T: AssignedTopic(5), U: AssignedTopic(5), V: AssignedTopic(1)}
    assigned = assign("range", members("a", "b", topics=(T, U, V)), known)
    assert assigned["a"] == parts(T, 0, 1, 2) | parts(U, 0, 1, 2) | parts(V, 0)
    assert assigned["b"] == parts(T, 3, 4) | parts(U, 3, 4)


RACKS = tuple(frozenset(rack) for rack in "xyxyxyxy")


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_get_partitions_in_their_rack_where_balance_allows(assignor: str) -> None:
    group = {
        "a": AssignedMember("a", frozenset({T}), "y"),
        "b": AssignedMember("b", frozenset({T}), "x"),
    }
    assigned = assign(assignor, group, {T: AssignedTopic(8, RACKS)})
    assert assigned["a"] == parts(T, 1, 3, 5, 7)
    assert assigned["b"] == parts(T, 0, 2, 4, 6)


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_balance_comes_before_racks(assignor: str) -> None:
    group = {name: AssignedMember(name, frozenset({T}), "x") for name in "ab"}
    group["c"] = AssignedMember("c", frozenset({T}), "q")
    assert sizes(assign(assignor, group, {T: AssignedTopic(8, RACKS)})) == [2, 3, 3]


def test_where_racks_share_partitions_the_member_with_most_room_is_given_the_next() -> None:
    """Else the shared ones would fill the member whose rack has others that only it is near to."""
    both, own = frozenset("xy"), frozenset("y")
    group = {
        "a": AssignedMember("a", frozenset({T}), "x"),
        "b": AssignedMember("b", frozenset({T}), "y"),
    }
    assigned = assign("uniform", group, {T: AssignedTopic(4, (both, both, own, own))})
    assert assigned == {"a": parts(T, 0, 3), "b": parts(T, 1, 2)}


def test_a_surplus_far_from_the_members_rack_goes_first() -> None:
    had = parts(T, *range(8))
    group = {
        "a": AssignedMember("a", frozenset({T}), "x", had),
        "b": AssignedMember("b", frozenset({T})),
    }
    assert assign("uniform", group, {T: AssignedTopic(8, RACKS)})["a"] == parts(T, 0, 2, 4, 6)


def test_a_static_members_range_does_not_depend_on_its_member_id() -> None:
    known = {T: AssignedTopic(4)}
    one = {"z": AssignedMember("i1", frozenset({T})), "b": AssignedMember("i2", frozenset({T}))}
    other = {"a": AssignedMember("i2", frozenset({T})), "c": AssignedMember("i1", frozenset({T}))}
    assert assign("range", one, known)["z"] == assign("range", other, known)["c"]


@pytest.mark.parametrize("assignor", ["uniform", "range"])
@pytest.mark.parametrize("mixed", [False, True])
def test_nine_hundred_partitions_and_thirty_members_take_well_under_200_ms(
    assignor: str, mixed: bool
) -> None:
    known = {T: AssignedTopic(600), U: AssignedTopic(300)}
    group = members(*(f"m{i}" for i in range(30)), topics=(T, U))
    if mixed:
        group["m0"] = AssignedMember("m0", frozenset({T}))
    group = remember(group, assign(assignor, group, known))
    group["new"] = AssignedMember("new", frozenset({T, U}))
    started = thread_time()
    assigned = assign(assignor, group, known)
    took = thread_time() - started
    assert took < 0.2, f"{took * 1000:.0f} ms"
    assert max(sizes(assigned)) - min(sizes(assigned)) <= (1 if assignor == "uniform" else 11)


def test_the_part_of_a_topic_that_is_gone_is_nobodys() -> None:
    had: frozenset[Part] = parts(T, 0, 7) | parts(U, 0)
    group = {"a": AssignedMember("a", frozenset({T, U}), "", had)}
    assert assign("uniform", group, {T: AssignedTopic(2)})["a"] == parts(T, 0, 1)
