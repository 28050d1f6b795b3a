"""Rows of a DataFrame, grouped for a producer."""

import pyarrow as pa
import pytest

from penstock.errors import MisuseError
from penstock.spark.rows import digest_of, rows_of

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_one_topic_by_key_is_one_group_and_nothing_is_copied() -> None:
    values = pa.array([b"a", None, b"c"], pa.binary())
    keys = pa.array(["x", None, "z"], pa.string())
    (rows,) = rows_of(batch(key=keys, value=values), "t")
    assert (rows.topic, rows.partition, rows.headers) == ("t", None, None)
    assert rows.values.buffers()[2].address == values.buffers()[2].address
    assert rows.keys is not None
    assert rows.keys.to_pylist() == ["x", None, "z"]


def test_rows_go_to_their_topic_and_partition_in_their_order() -> None:
    made = batch(
        value=pa.array([b"0", b"1", b"2", b"3", b"4"]),
        topic=pa.array(["a", "b", "a", "a", "b"]),
        partition=pa.array([0, None, 1, 0, None], pa.int32()),
    )
    found = {(r.topic, r.partition): r.values.to_pylist() for r in rows_of(made, None)}
    assert found == {("a", 0): [b"0", b"3"], ("b", None): [b"1", b"4"], ("a", 1): [b"2"]}


def test_the_option_wins_over_the_column_topic() -> None:
    made = batch(value=pa.array([b"0", b"1"]), topic=pa.array(["a", None]))
    (rows,) = rows_of(made, "t")
    assert (rows.topic, rows.values.to_pylist()) == ("t", [b"0", b"1"])


def test_headers_keep_names_that_repeat_and_nulls() -> None:
    headers = pa.array([[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None], HEADERS)
    (rows,) = rows_of(batch(value=pa.array([b"0", b"1"]), headers=headers), "t")
    assert rows.headers == [[("h", b"1"), ("h", None)], []]
    none = pa.array([[], None], HEADERS)
    (rows,) = rows_of(batch(value=pa.array([b"0", b"1"]), headers=none), "t")
    assert rows.headers is None


def digest(topic: str | None = "t", **columns: pa.Array) -> int:
    return sum(digest_of(rows) for rows in rows_of(batch(**columns), topic))


def test_a_digest_is_of_all_that_is_written_and_not_of_its_order() -> None:
    values, keys = pa.array([b"a", None, b"", b"a"]), pa.array(["x", "y", None, "z"])
    headers = pa.array([[], [{"key": "h", "value": b"1"}], None, []], HEADERS)
    given = {"value": values, "key": keys, "headers": headers}
    whole = digest(**given)
    turned = {name: column.take([3, 0, 2, 1]) for name, column in given.items()}
    assert digest(**turned) == whole
    parts = [{name: c.slice(at, 1) for name, c in given.items()} for at in range(4)]
    assert sum(digest(**part) for part in parts) == whole, "one of them has no key at all"
    large = {"value": values.cast(pa.large_binary()), "key": keys.cast(pa.large_string())}
    assert digest(**large, headers=headers) == whole
    assert digest(**given | {"value": values.cast(pa.string())}) == whole
    others: list[dict[str, pa.Array]] = [
        {"value": pa.array([b"a", b"", None, b"a"])},
        {"value": pa.array([b"b", None, b"", b"a"])},
        {"key": pa.array(["y", "x", None, "z"])},
        {"key": pa.array([None] * 4, pa.string())},
        {"headers": pa.array([[], [{"key": "h", "value": b"2"}], None, []], HEADERS)},
        {"partition": pa.array([0, None, None, None], pa.int32())},
    ]
    seen = {digest(**given | changed) for changed in others}
    assert len(seen | {whole, digest("other", **given)}) == len(others) + 2


def test_fields_of_a_digest_do_not_run_together() -> None:
    def of(key: str | None, value: bytes | None) -> int:
        return digest(value=pa.array([value], pa.binary()), key=pa.array([key], pa.string()))

    assert of("ab", b"c") != of("a", b"bc")
    assert len({of(None, None), of("", b""), of(None, b""), of("", None)}) == 4


def test_headers_without_an_entry_or_a_key_are_refused_and_counted() -> None:
    entry = {"key": "h", "value": b"1"}
    given = [[entry], [None, None], None, [entry, {"key": None, "value": b"2"}], []]
    made = batch(value=pa.array([b"v"] * 5), headers=pa.array(given, HEADERS))
    with pytest.raises(MisuseError, match=r"null entry, or one without key, in 2 rows: .*filter"):
        next(rows_of(made, "t"))
    (rows,) = rows_of(made.slice(2, 1), "t")
    assert rows.headers is None, "what is outside of a slice does not count"


def test_an_empty_batch_has_no_rows() -> None:
    assert not list(rows_of(batch(value=pa.array([], pa.binary())), "t"))


def test_rows_without_a_place_are_refused() -> None:
    with pytest.raises(MisuseError, match="column 'topic' is null in 1 rows"):
        list(rows_of(batch(value=pa.array([b"0", b"1"]), topic=pa.array(["a", None])), None))
    made = batch(value=pa.array([b"0"]), partition=pa.array([-1], pa.int32()))
    with pytest.raises(MisuseError, match="column 'partition' is -1"):
        list(rows_of(made, "t"))
