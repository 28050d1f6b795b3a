"""Whole columns become batches that fit, in order, with nothing lost, whatever they came in."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.client.config import ProducerConfig
from penstock.client.model import PartitionDescription, TopicDescription
from penstock.client.producer import shards
from penstock.client.producer.accumulator import Accumulator
from penstock.client.producer.shards import Shard, shard_columns
from penstock.client.producer.topic_buffer import TopicBuffer
from penstock.core.partitioner import KeyHash, partition_for_key
from penstock.errors import ErrorCode, MisuseError

Rows = list[tuple[Any, ...]]


def buffer(
    partitions: int = 3, limit: int = 1_048_576, *, hashed_by: str = "crc32c", **settings: Any
) -> TopicBuffer:
    entries = tuple(PartitionDescription(index, 0, 1, (0,), (0,)) for index in range(partitions))
    configs = {"max.message.bytes": str(limit), "partitioner": hashed_by}
    topic = TopicDescription("t", "id", entries, configs)
    return TopicBuffer(topic, Accumulator(ProducerConfig(**settings), lambda _: None))


def cut(
    values: Any,
    keys: Any = None,
    *,
    timestamps_ms: Any = 1_000,
    partition: int | None = None,
    headers: Any = None,
    into: TopicBuffer | None = None,
) -> list[Shard]:
    return list(
        shard_columns(
            into or buffer(),
            values,
            keys,
            timestamps_ms=timestamps_ms,
            partition=partition,
            headers=headers,
        )
    )


def rows(pieces: list[Shard]) -> Rows:
    """(partition, key, value, time, headers) of every record."""
    return [
        (piece.partition, *row)
        for piece in pieces
        for row in zip(
            piece.columns.keys(),
            piece.columns.values(),
            piece.columns.timestamps(),
            piece.columns.headers(),
            strict=True,
        )
    ]


VALUES = [b"one", None, b"", b"four"]


@pytest.mark.parametrize(
    "column",
    [
        VALUES,
        tuple(VALUES),
        pa.array(VALUES, pa.binary()),
        pa.array(VALUES, pa.large_binary()),
        pa.array([None if v is None else v.decode() for v in VALUES]),
        pa.array([b"skipped", *VALUES, b"skipped"], pa.binary())[1:5],
        pa.chunked_array([VALUES[:1], VALUES[1:]], pa.binary()),
        pa.array(VALUES, pa.binary()).dictionary_encode(),
        np.array(VALUES, dtype=object),
    ],
    ids=lambda column: f"{type(column).__name__}-{getattr(column, 'type', '')}",
)
def test_lists_numpy_and_arrow_come_out_the_same(column: Any) -> None:
    expected = [(2, None, value, 1_000, ()) for value in VALUES]
    assert rows(cut(column, partition=2)) == expected


def test_bytes_hidden_behind_an_arrow_null_do_not_come_to_light() -> None:
    whole = pa.array([b"aa", b"secret", b"cc"], pa.binary())
    validity = pa.py_buffer(bytes([0b101]))
    hidden = pa.Array.from_buffers(pa.binary(), 3, [validity, *whole.buffers()[1:]])
    (piece,) = cut(hidden, partition=0)
    assert piece.columns.values() == [b"aa", None, b"cc"]
    assert bytes(piece.columns.value_data) == b"aacc"


@pytest.mark.parametrize(
    "column",
    [
        np.array([b"ab", b"c"]),
        np.array([[97, 98], [99, 100]], np.uint8)[:, :],
        np.asfortranarray(np.array([[97, 98], [99, 100]], np.uint8)),
    ],
)
def test_numpy_bytes_are_taken_by_row(column: Any) -> None:
    values = [value for _, _, value, _, _ in rows(cut(column, partition=0))]
    assert values in ([b"ab", b"c"], [b"ab", b"cd"])


@pytest.mark.parametrize(
    "times",
    [
        [10, 20, 15, 30],
        np.array([10, 20, 15, 30]),
        np.array([10, 20, 15, 30], "datetime64[ms]"),
        pa.array([10, 20, 15, 30], pa.int64()),
        pa.array([10_000, 20_000, 15_000, 30_000], pa.timestamp("us", tz="UTC")),
    ],
    ids=str,
)
def test_timestamps_may_come_as_lists_numpy_or_arrow(times: Any) -> None:
    for column in (VALUES, pa.array(VALUES, pa.binary())):
        for keys in (None, [b"k"] * 4):
            seen = [row[3] for row in rows(cut(column, keys, timestamps_ms=times))]
            assert seen == [10, 20, 15, 30]


@pytest.mark.parametrize("arrow", [False, True])
def test_keys_decide_the_partition_and_keep_the_order_within_it(
    rng: random.Random, arrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "CHUNK_RECORDS", 1_000)
    keys = [b"key%d" % rng.randrange(20) for _ in range(5_000)]
    values = [b"%d" % index for index in range(5_000)]
    times = list(range(5_000))
    headers = [[("n", b"%d" % index)] if index % 3 == 0 else None for index in range(5_000)]
    given = (
        (pa.array(values, pa.binary()), pa.array(keys, pa.binary())) if arrow else (values, keys)
    )
    seen = rows(cut(*given, timestamps_ms=times, headers=headers))
    assert len(seen) == 5_000
    for partition in range(3):
        mine = [row[1:] for row in seen if row[0] == partition]
        expected = [
            (key, value, time, tuple(header or ()))
            for key, value, time, header in zip(keys, values, times, headers, strict=True)
            if partition_for_key(key, 3) == partition
        ]
        assert mine == expected


def test_the_topic_says_how_many_keys_are_hashed() -> None:
    keys = [b"key%d" % index for index in range(100)]
    seen = {row[1]: row[0] for row in rows(cut(keys, keys, into=buffer(hashed_by="murmur2")))}
    assert seen == {key: partition_for_key(key, 3, KeyHash.MURMUR2) for key in keys}
    assert seen != {key: partition_for_key(key, 3) for key in keys}


def test_null_keys_go_anywhere_and_own_partitioners_are_asked() -> None:
    seen = rows(cut([b"a", b"b", b"c"], [None, b"k", None]))
    assert [row[0] for row in seen if row[1] is None] == [None, None]
    own = buffer(partitioner=lambda topic, key, count: len(key or b""))
    chosen = {row[1]: row[0] for row in rows(cut([b"a", b"b"], [b"12", b""], into=own))}
    assert chosen == {b"12": 2, b"": 0}


def test_values_may_all_be_null_when_keys_are_given() -> None:
    assert rows(cut(None, [b"k", b"l"], partition=1)) == [
        (1, b"k", None, 1_000, ()), (1, b"l", None, 1_000, ()),
    ]  # fmt: skip
    assert rows(cut(pa.nulls(2, pa.binary()), partition=1)) == [(1, None, None, 1_000, ())] * 2


def test_pieces_fit_into_batches_and_are_filled() -> None:
    small = buffer(batch_bytes=10_000)
    pieces = cut([b"x" * 100] * 5_000, into=small)
    assert sum(piece.columns.record_count for piece in pieces) == 5_000
    sizes = [piece.columns.value_data.nbytes for piece in pieces[:-1]]
    assert min(sizes) > 8_000
    assert max(sizes) <= 10_000


@pytest.mark.parametrize("make", [list, lambda v: pa.array(v, pa.binary())])
def test_a_record_that_may_be_over_the_limit_is_a_piece_with_its_size(make: Any) -> None:
    """Whoever sends it looks whether the limit was raised."""
    into = buffer(limit=5_000, batch_bytes=1_000)
    pieces = cut(make([b"ok", b"ok", b"x" * 6_000, b"x" * 4_000]), into=into)
    assert [piece.columns.record_count for piece in pieces] == [2, 1, 1]
    assert [into.fits(piece.record_bytes) for piece in pieces] == [True, False, True]
    size = pieces[1].record_bytes
    assert size is not None
    assert 6_000 < size < 6_100
    with pytest.raises(MisuseError, match=r"limit is 5000") as refused:
        into.check_record_size(size)
    assert refused.value.code is ErrorCode.RECORD_TOO_LARGE


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"values": None}, "needs values or keys"),
        ({"values": [b"a"], "keys": [b"a", b"b"]}, "differ in length"),
        ({"values": [b"a"], "timestamps_ms": [1, 2]}, "differ in length"),
        ({"values": [b"a"], "timestamps_ms": 1.5}, "whole number"),
        ({"values": [b"a"], "timestamps_ms": [1.5]}, "timestamp"),
        ({"values": [b"a"], "timestamps_ms": 2**70}, "whole number"),
        ({"values": [b"a"], "headers": [[], []]}, "differ in length"),
        ({"values": ["text"]}, "values"),
        ({"values": np.array([1, 2])}, "int64"),
        ({"values": pa.array([1, 2])}, "int64"),
        ({"values": [b"a"], "partition": 3}, "0 to 2"),
    ],
)
def test_columns_that_make_no_sense_are_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(MisuseError, match=told):
        cut(**arguments)


def test_no_records_are_no_pieces() -> None:
    assert cut([]) == []
    assert cut(pa.array([], pa.binary())) == []
