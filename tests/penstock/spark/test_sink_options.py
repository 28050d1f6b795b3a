"""A writer's options and columns: taken, or refused in one line that says what to do."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from penstock.errors import MisuseError
from penstock.spark.sink_options import parse_sink
from penstock.spark.sink_schema import check_sink_schema

BINARY, TEXT, INT, LONG = BinaryType(), StringType(), IntegerType(), LongType()


def headers(name: str = "key") -> ArrayType:
    return ArrayType(StructType([StructField(name, TEXT), StructField("value", BINARY)]))


SERVERS = {"penstock.bootstrap.servers": "a:1"}


def refused(**options: str) -> str:
    named = {key.replace("__", ".").lower(): value for key, value in options.items()}
    with pytest.raises(MisuseError) as caught:
        parse_sink(SERVERS | named)
    return caught.value.message


def refused_columns(*columns: tuple[str, DataType], topic: str | None = "t") -> str:
    with pytest.raises(MisuseError) as caught:
        check_sink_schema(StructType([StructField(*column) for column in columns]), topic)
    return caught.value.message


def test_a_writer_needs_a_cluster_and_little_else() -> None:
    options = parse_sink(SERVERS | {"topic": "paid"})
    assert (options.topic, options.codec, options.delivery) == ("paid", "none", "at-least-once")
    assert parse_sink(SERVERS).topic is None
    assert parse_sink(SERVERS | {"penstock.compression.type": "ZSTD"}).codec == "zstd"
    with pytest.raises(MisuseError, match=r"option penstock\.bootstrap\.servers is missing"):
        parse_sink({"topic": "paid"})


def test_bad_options_are_refused_by_name() -> None:
    assert "option topic" in refused(topic="a b")
    assert "internal topics cannot be written" in refused(topic="__consumer_offsets")
    assert "option delivery is 'never': expected at-least-once or exactly-once" in refused(
        delivery="never"
    )
    assert "expected none, zstd or lz4" in refused(penstock__compression__type="gzip")
    assert "whole number from 1" in refused(penstock__delivery__timeout__ms="0")
    assert "to 2147483647" in refused(penstock__delivery__timeout__ms="2147483648")
    assert "did you mean delivery?" in refused(delivry="x")
    assert "option subscribe belongs to reading" in refused(subscribe="a")
    assert "take no path" in refused(path="/tmp")
    assert "a sink waits for all in-sync replicas" in refused(penstock__acks="1")
    assert "a sink waits for all in-sync replicas" in refused(kafka__acks="1")
    assert "use transactionTimeout" in refused(kafka__transaction__timeout__ms="1")
    assert "docs/spark.md lists all options" in refused(kafka__linger__ms="1")


def test_exactly_once_has_options_of_its_own() -> None:
    stream = parse_sink(SERVERS | {"delivery": "exactly-once"}, streaming=True)
    assert (stream.app_id, stream.version, stream.transaction_timeout_ms) == (None, None, 900_000)
    assert stream.on_replay_mismatch == "error"
    named = {"txnappid": "paid", "transactiontimeout": "2m", "onreplaymismatch": "skip"}
    stream = parse_sink(SERVERS | named, streaming=True)
    assert (stream.delivery, stream.app_id) == ("exactly-once", "paid")
    assert (stream.transaction_timeout_ms, stream.on_replay_mismatch) == (120_000, "skip")
    job = parse_sink(SERVERS | {"txnappid": "paid", "txnversion": "0"})
    assert (job.delivery, job.app_id, job.version) == ("exactly-once", "paid", 0)


def test_options_that_mean_nothing_or_something_else_are_refused() -> None:
    assert "go together" in refused(txnAppId="paid")
    assert "go together" in refused(txnVersion="1", delivery="exactly-once")
    assert "option txnAppId needs delivery=exactly-once" in refused(
        txnAppId="paid", txnVersion="1", delivery="at-least-once"
    )
    assert "option onReplayMismatch needs delivery=exactly-once" in refused(onReplayMismatch="skip")
    assert "option transactionTimeout needs delivery=exactly-once" in refused(
        transactionTimeout="1m"
    )
    exactly = {"delivery": "exactly-once"}
    assert "expected error or skip" in refused(onReplayMismatch="ignore", **exactly)
    assert "expected a time" in refused(transactionTimeout="0s", **exactly)
    assert "expected a time" in refused(transactionTimeout="40d", **exactly)
    assert "whole number" in refused(txnAppId="paid", txnVersion="-1")
    assert "1 to 249 bytes" in refused(txnAppId="x" * 250, txnVersion="1")
    assert "did you mean txnVersion?" in refused(txnVersio="1")
    with pytest.raises(MisuseError, match="a stream numbers its batches itself"):
        parse_sink(SERVERS | exactly | {"txnversion": "1"}, streaming=True)


@pytest.mark.parametrize(
    "columns",
    [
        [("value", BINARY)],
        [("value", TEXT), ("key", BINARY)],
        [("partition", INT), ("key", TEXT), ("value", BINARY)],
        [("value", TEXT), ("headers", headers())],
    ],
)
def test_columns_of_sparks_kafka_sink_are_taken(columns: list[tuple[str, DataType]]) -> None:
    fields = [StructField(*column) for column in columns]
    check_sink_schema(StructType(fields), "t")
    check_sink_schema(StructType([*fields, StructField("topic", TEXT)]), None)


def test_other_columns_are_refused_with_what_to_do() -> None:
    value = ("value", BINARY)
    assert "there is no column 'value' among key" in refused_columns(("key", BINARY))
    assert "column 'keys' is not written by" in refused_columns(("keys", BINARY), value)
    assert "column 'value' is bigint; it must be binary or string" in refused_columns(
        ("value", LONG)
    )
    assert "column 'partition' is bigint" in refused_columns(value, ("partition", LONG))
    assert "column 'headers' is map" in refused_columns(value, ("headers", MapType(TEXT, BINARY)))
    assert "column 'headers' is array" in refused_columns(value, ("headers", headers("name")))
    assert "column 'topic' is binary" in refused_columns(value, ("topic", BINARY))
    assert "column 'value' appears twice" in refused_columns(value, value)
    assert "no topic: set the option topic" in refused_columns(value, topic=None)
