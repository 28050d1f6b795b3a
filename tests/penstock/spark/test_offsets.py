"""Offsets in a checkpoint: one position, one text, readable for ever, never guessed at."""

import json
from collections.abc import Mapping
from random import Random
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.types import TopicPartition
from penstock.errors import MisuseError
from penstock.spark.boundary import (
    AtEdge,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Boundary,
    ByTime,
    Edge,
    Otherwise,
    queries,
)
from penstock.spark.offsets import Concrete, Symbolic, decode, encode
from penstock.spark.progress import offsets_behind_latest

topics = st.text("abc.-_019", min_size=1, max_size=8)
partitions = st.builds(TopicPartition, topics, st.integers(0, 1200))
positions = st.dictionaries(partitions, st.integers(0, 2**63 - 1), max_size=12)
concretes = st.builds(
    Concrete, positions, positions, st.dictionaries(topics, st.uuids().map(str), max_size=4)
)
_K = TypeVar("_K")
_V = TypeVar("_V")
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
BOUNDARIES: list[Boundary] = [
    AtEdge(Edge.EARLIEST),
    AtEdge(Edge.LATEST),
    AtOffsets({P1: 5, P0: -2}),
    AtTimestamps({P0: 1_700_000_000_000}, Otherwise.LATEST),
    AtTimestamp(0, Otherwise.ERROR),
]


def through_spark(offset: dict[str, object]) -> object:
    return json.loads(json.dumps(offset))


@given(concretes)
def test_what_is_written_is_read_back(offset: Concrete) -> None:
    assert decode(through_spark(encode(offset))) == offset


@given(concretes, st.randoms())
def test_one_position_has_one_text_however_it_was_put_together(
    offset: Concrete, random: Random
) -> None:
    def shuffled(mapping: Mapping[_K, _V]) -> dict[_K, _V]:
        items = list(mapping.items())
        random.shuffle(items)
        return dict(items)

    other = Concrete(
        shuffled(offset.positions), shuffled(offset.begins), shuffled(offset.topic_ids)
    )
    text = json.dumps(encode(offset))
    assert json.dumps(encode(other)) == text
    assert json.dumps(json.loads(text), sort_keys=True) == text


def test_the_text_in_checkpoints_is_this() -> None:
    offset = Concrete({P1: 2**63 - 1, P0: 3, TopicPartition("orders", 10): 4}, {P1: 7}, {"o": "id"})
    assert json.dumps(encode(offset)) == (
        '{"from": {"orders/1": 7}, "ids": {"o": "id"}, '
        '"t": {"orders/0": 3, "orders/1": 9223372036854775807, "orders/10": 4}, "v": 1}'
    )
    assert json.dumps(encode(Symbolic(AtOffsets({P1: 5, P0: -2})))) == (
        '{"start": {"offsets": {"orders/0": -2, "orders/1": 5}}, "v": 1}'
    )


@pytest.mark.parametrize("boundary", BOUNDARIES, ids=lambda b: type(b).__name__)
def test_where_the_user_starts_is_written_and_read_back(boundary: Boundary) -> None:
    assert decode(through_spark(encode(Symbolic(boundary)))) == Symbolic(boundary)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"v": 2, "t": {}, "from": {}, "ids": {}}, "version 2, but this release reads version 1"),
        ({"v": True, "t": {}, "from": {}, "ids": {}}, "version True"),
        ({"v": "1", "t": {}, "from": {}, "ids": {}}, "version '1'"),
        ({"orders": {"0": 5}}, "not Penstock's"),
        ([1], "not Penstock's"),
        (None, "not Penstock's"),
        ({"v": 1}, "damaged offset"),
        ({"v": 1, "t": {}}, "damaged offset"),
        ({"v": 1, "t": {}, "from": {}, "ids": {}, "more": 1}, "damaged offset"),
        ({"v": 1, "t": {"orders": 1}, "from": {}, "ids": {}}, "topic/partition"),
        ({"v": 1, "t": {"orders/x": 1}, "from": {}, "ids": {}}, "topic/partition"),
        ({"v": 1, "t": {"orders/0": 1.0}, "from": {}, "ids": {}}, "integer"),
        ({"v": 1, "t": {"orders/0": True}, "from": {}, "ids": {}}, "integer"),
        ({"v": 1, "t": {"orders/0": 2**63}, "from": {}, "ids": {}}, "integer"),
        ({"v": 1, "t": [], "from": {}, "ids": {}}, "expected an object"),
        ({"v": 1, "t": {}, "from": {}, "ids": {"a": 1}}, "damaged topic ids"),
        ({"v": 1, "start": "earliest"}, "not a starting point"),
        ({"v": 1, "start": {"edge": "middle"}}, "not a starting point"),
        ({"v": 1, "start": {"timestamp": 1, "otherwise": "maybe"}}, "not a starting point"),
    ],
)
def test_what_this_release_did_not_write_is_refused(value: object, message: str) -> None:
    with pytest.raises(MisuseError, match=message):
        decode(value)


def test_a_boundary_says_what_to_ask_for_each_partition() -> None:
    assert queries(AtEdge(Edge.LATEST), [P1, P0], "o") == {P0: Edge.LATEST, P1: Edge.LATEST}
    assert queries(AtOffsets({P0: -1, P1: 8}), [P0, P1], "o") == {P0: Edge.LATEST, P1: 8}
    assert queries(AtOffsets({P0: -2}), [P0], "o") == {P0: Edge.EARLIEST}
    by_time = ByTime(9, Otherwise.ERROR)
    assert queries(AtTimestamp(9, Otherwise.ERROR), [P0, P1], "o") == {P0: by_time, P1: by_time}
    assert queries(AtTimestamps({P0: 9}, Otherwise.ERROR), [P0], "o") == {P0: by_time}


@pytest.mark.parametrize("boundary", [AtOffsets({P0: 3}), AtTimestamps({P0: 3}, Otherwise.ERROR)])
def test_a_boundary_must_name_exactly_the_partitions_read(boundary: Boundary) -> None:
    with pytest.raises(MisuseError, match="option startingOffsets leaves out orders/1"):
        queries(boundary, [P0, P1], "startingOffsets")
    with pytest.raises(MisuseError, match="option startingOffsets names orders/0, which is not"):
        queries(boundary, [], "startingOffsets")


def test_many_missing_partitions_make_a_short_message() -> None:
    many = [TopicPartition("t", i) for i in range(1000)]
    with pytest.raises(MisuseError, match="t/0, t/1, t/2, t/3, t/4 and 995 more"):
        queries(AtOffsets({}), many, "startingOffsets")


def test_a_listener_learns_how_far_a_query_is_behind() -> None:
    end = json.dumps(encode(Concrete({P0: 5, P1: 10})))
    latest = json.dumps(encode(Concrete({P0: 9, P1: 10, TopicPartition("orders", 2): 2})))
    behind = offsets_behind_latest(end, latest)
    assert behind is not None
    assert (behind.minimum, behind.average, behind.maximum, behind.total) == (0, 2.0, 4, 6)


@pytest.mark.parametrize("missing", [None, "null", encode(Symbolic(AtEdge(Edge.LATEST)))])
def test_before_the_first_batch_nothing_is_known_of_being_behind(missing: str | None) -> None:
    assert offsets_behind_latest(missing, encode(Concrete({P0: 1}))) is None
    assert offsets_behind_latest(encode(Concrete({})), encode(Concrete({}))) is None
