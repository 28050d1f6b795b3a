"""Options of the Spark reader: what each accepts, and the one line it says otherwise."""

import json

import pytest

from penstock.core.types import TopicPartition
from penstock.errors import MisuseError
from penstock.spark.boundary import AtEdge, AtOffsets, AtTimestamp, AtTimestamps, Edge, Otherwise
from penstock.spark.given import SOURCE_OPTIONS
from penstock.spark.options import (
    CLIENT_SETTINGS,
    Assign,
    Subscribe,
    SubscribePattern,
    parse,
)
from penstock.spark.values import COLUMNS, duration_ms, size_bytes

BASE = {"penstock.bootstrap.servers": "a:9092, b:9093", "subscribe": "orders"}


def refused(**changes: str) -> str:
    """The message for BASE with `changes` (dots as __, values None not possible)."""
    with pytest.raises(MisuseError) as caught:
        parse(BASE | {key.replace("__", "."): value for key, value in changes.items()})
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_are_those_of_the_kafka_source() -> None:
    options = parse(BASE)
    assert options.client.bootstrap == ("a:9092", "b:9093")
    assert options.selection == Subscribe(("orders",))
    assert options.batch_starting == AtEdge(Edge.EARLIEST)
    assert options.batch_ending == AtEdge(Edge.LATEST)
    assert options.stream_starting == AtEdge(Edge.LATEST)
    assert options.fail_on_data_loss
    assert options.columns == COLUMNS
    assert options.max_trigger_delay_ms == 900_000
    assert options.poll_timeout_ms == 120_000
    assert (options.offset_retries, options.max_offsets_per_trigger) == (3, None)


def test_keys_in_any_case_mean_the_same() -> None:
    lowered = {key.lower(): value for key, value in {**BASE, "startingOffsets": "earliest"}.items()}
    assert parse(lowered) == parse({**BASE, "STARTINGOFFSETS": "Earliest"})


def test_every_documented_option_is_parsed() -> None:
    examples = {
        "startingOffsets": "earliest",
        "startingOffsetsByTimestamp": '{"orders": {"0": 5}}',
        "startingTimestamp": "7",
        "startingOffsetsByTimestampStrategy": "latest",
        "endingOffsets": "latest",
        "endingOffsetsByTimestamp": '{"orders": {"0": 5}}',
        "endingTimestamp": "9",
        "maxOffsetsPerTrigger": "100",
        "minOffsetsPerTrigger": "10",
        "maxTriggerDelay": "2m",
        "maxBytesPerTrigger": "64m",
        "minPartitions": "2",
        "maxRecordsPerPartition": "1000",
        "maxTasks": "4",
        "failOnDataLoss": "false",
        "includeHeaders": "true",
        "columns": "value,headers",
        "groupIdPrefix": "etl",
        "groupId": "etl-1",
        "pollTimeoutMs": "1000",
        "fetchOffset.numRetries": "0",
        "fetchOffset.retryIntervalMs": "10",
        "penstock.cluster.id": "c",
        "penstock.connect.timeout.ms": "11",
        "penstock.fetch.max.bytes": "1m",
        "penstock.fetch.max.wait.ms": "50",
        "penstock.request.timeout.ms": "2000",
        "penstock.ca.file": "/etc/ca.crt",
        "penstock.token.file": "/etc/token",
        "penstock.certificate.file": "/etc/tls.crt",
        "penstock.key.file": "/etc/tls.key",
    }
    selections = {"subscribe", "subscribePattern", "assign", "penstock.bootstrap.servers"}
    assert examples.keys() | selections == {*SOURCE_OPTIONS, *CLIENT_SETTINGS}
    options = parse(BASE | examples)
    assert options.starting == AtTimestamp(7, Otherwise.LATEST)
    assert options.ending == AtTimestamp(9, Otherwise.LATEST)
    assert options.max_offsets_per_trigger == 100
    assert options.min_offsets_per_trigger == 10
    assert options.max_trigger_delay_ms == 120_000
    assert options.max_bytes_per_trigger == 64 << 20
    assert (options.min_partitions, options.max_tasks) == (2, 4)
    assert options.max_records_per_partition == 1000
    assert not options.fail_on_data_loss
    assert options.columns == ("value", "headers")
    assert (options.group_id, options.group_id_prefix) == ("etl-1", "etl")
    assert (options.poll_timeout_ms, options.offset_retries) == (1000, 0)
    assert options.offset_retry_interval_ms == 10
    client = options.client
    assert (client.cluster_id, client.fetch_max_bytes) == ("c", 1 << 20)
    assert client.files == {
        "ca_file": "/etc/ca.crt",
        "token_file": "/etc/token",
        "certificate_file": "/etc/tls.crt",
        "key_file": "/etc/tls.key",
    }
    assert (client.fetch_max_wait_ms, client.request_timeout_ms) == (50, 2000)
    assert client.connect_timeout_ms == 11


def test_the_three_selections() -> None:
    base = {"penstock.bootstrap.servers": "a:1"}
    assert parse({**base, "subscribe": "b, a,b"}).selection == Subscribe(("a", "b"))
    assert parse({**base, "subscribePattern": "or.*"}).selection == SubscribePattern("or.*")
    assign = parse({**base, "assign": '{"b": [1, 0], "a": [2]}'}).selection
    assert assign == Assign(
        (TopicPartition("a", 2), TopicPartition("b", 0), TopicPartition("b", 1))
    )


def test_two_selections_are_refused_and_both_are_named() -> None:
    assert "subscribe and assign are set" in refused(assign='{"a": [0]}')
    assert "subscribe and subscribePattern are set" in refused(subscribePattern="a.*")


def test_no_selection_and_no_bootstrap_are_refused() -> None:
    with pytest.raises(MisuseError, match=r"exactly one of subscribe.*none is set"):
        parse({"penstock.bootstrap.servers": "a:1"})
    with pytest.raises(
        MisuseError, match=r"penstock\.bootstrap\.servers is missing: set it to host:port"
    ):
        parse({"subscribe": "a"})


def test_the_time_for_all_partitions_wins_over_times_over_offsets() -> None:
    times, offsets = '{"orders": {"0": 5}}', '{"orders": {"0": 3, "1": -1}}'
    by_offset = parse({**BASE, "startingOffsets": offsets})
    by_times = parse({**BASE, "startingOffsets": offsets, "startingOffsetsByTimestamp": times})
    by_time = parse(
        {
            **BASE,
            "startingOffsets": offsets,
            "startingOffsetsByTimestamp": times,
            "startingTimestamp": "8",
        }
    )
    p0, p1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
    assert by_offset.starting == AtOffsets({p0: 3, p1: -1})
    assert by_times.starting == AtTimestamps({p0: 5}, Otherwise.ERROR)
    assert by_time.starting == AtTimestamp(8, Otherwise.ERROR)


def test_a_loser_of_the_precedence_is_still_checked() -> None:
    assert "option startingOffsets is 'soon'" in refused(
        startingTimestamp="8", startingOffsets="soon"
    )


def test_a_misspelt_option_is_refused_with_the_name_meant() -> None:
    assert refused(startingOffset="earliest").endswith("did you mean startingOffsets?")
    assert refused(maxOffsetPerTrigger="1").endswith("did you mean maxOffsetsPerTrigger?")
    assert refused(penstock__fetch__max__byte="1").endswith(
        "did you mean penstock.fetch.max.bytes?"
    )
    assert refused(kafka__bootstrap__servers="a:1").endswith(
        "did you mean penstock.bootstrap.servers?"
    )
    assert "docs/spark.md lists all options" in refused(zzz="1")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("kafka.group.id", "use groupId"),
        ("kafka.auto.offset.reset", "use startingOffsets"),
        ("kafka.value.deserializer", "cast them in the query"),
        ("kafka.isolation.level", "only committed records are read"),
        ("kafka.security.protocol", "penstock.ca.file and penstock.token.file"),
        ("kafka.sasl.jaas.config", "penstock.ca.file and penstock.token.file"),
        ("kafka.ssl.truststore.location", "penstock.ca.file and penstock.token.file"),
        ("kafka.request.timeout.ms", "did you mean penstock.request.timeout.ms?"),
        ("kafka.max.poll.records", "docs/spark.md lists all options"),
        ("penstock.linger.ms", "docs/spark.md lists all options"),
        ("penstock.fetch.max.wait", "did you mean penstock.fetch.max.wait.ms?"),
        ("bootstrap.servers", "did you mean penstock.bootstrap.servers?"),
    ],
)
def test_a_setting_of_kafkas_is_told_what_does_its_work_here(setting: str, words: str) -> None:
    with pytest.raises(MisuseError) as caught:
        parse(BASE | {setting: "x"})
    assert f"option {setting}" in str(caught.value)
    assert words in str(caught.value)
    meant = str(caught.value).partition("did you mean ")[2]
    assert meant in words, "no guess that only resembles it"


def test_settings_that_would_contradict_the_checkpoint_are_refused() -> None:
    assert "use startingOffsets" in refused(penstock__auto__offset__reset="earliest")
    assert "use groupId" in refused(penstock__group__id="g")
    assert "load() takes no path" in refused(path="orders")
    assert "narrow the read with assign" in refused(filterPushdown="true")


def test_creating_a_table_is_refused_with_what_works_instead() -> None:
    message = refused(provider="penstock", owner="me", option__subscribe="orders")
    assert "CREATE TEMPORARY VIEW" in message


def test_an_option_of_the_sink_is_told_apart_from_a_misspelling() -> None:
    assert "option topic belongs to writing; a reader takes subscribe" in refused(topic="orders")


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("failOnDataLoss", "yes", "true or false"),
        ("maxOffsetsPerTrigger", "0", "a whole number of at least 1"),
        ("maxOffsetsPerTrigger", "1e6", "a whole number of at least 1"),
        ("fetchOffset.numRetries", "-1", "a whole number from 0"),
        ("fetchOffset.numRetries", "2147483648", "from 0 to 2147483647"),
        ("fetchOffset.retryIntervalMs", "9223372036854775807", "from 0 to 2147483647"),
        ("pollTimeoutMs", "2147483648", "from 1 to 2147483647"),
        ("pollTimeoutMs", "0", "from 1 to 2147483647"),
        ("penstock.fetch.max.wait.ms", "4294967296", "from 0 to 2147483647"),
        ("penstock.connect.timeout.ms", "2147483648", "from 1 to 2147483647"),
        ("penstock.request.timeout.ms", "30s", "from 1 to 2147483647"),
        ("startingTimestamp", "2024-01-01", "a whole number from 0"),
        ("startingOffsets", '{"orders": {"0": -3}}', "-2 = earliest"),
        ("startingOffsets", '{"orders": {"0": 1.0}}', "-2 = earliest"),
        ("startingOffsets", '{"orders": {"0": true}}', "-2 = earliest"),
        ("startingOffsets", '{"orders": {"x": 1}}', "-2 = earliest"),
        ("startingOffsets", '{"orders": 1}', "-2 = earliest"),
        ("startingOffsets", "{}", "-2 = earliest"),
        ("startingOffsets", "[1]", "-2 = earliest"),
        ("startingOffsetsByTimestamp", '{"orders": {"0": -1}}', "ms since 1970"),
        ("startingOffsetsByTimestampStrategy", "earliest", "error or latest"),
        ("columns", "key,key", "distinct names out of key"),
        ("columns", "body", "distinct names out of key"),
        ("columns", "", "distinct names out of key"),
        ("maxTriggerDelay", "15 years", "a time such as"),
        ("maxBytesPerTrigger", "0", "at least one byte"),
        ("maxBytesPerTrigger", "lots", "a size such as"),
        ("penstock.fetch.max.bytes", "1g", "1k to 64m"),
        ("groupId", " ", "printable text of 1 to 249 characters"),
        ("groupId", "a\nb", "printable text of 1 to 249 characters"),
        ("groupId", "g" * 250, "printable text of 1 to 249 characters"),
        ("groupIdPrefix", " ", "non-empty"),
        ("penstock.bootstrap.servers", "localhost", "host:port"),
        ("penstock.bootstrap.servers", " , ", "host:port"),
        ("penstock.bootstrap.servers", "a:70000", "host:port"),
        ("subscribe", " ,", "topic names"),
    ],
)
def test_a_bad_value_is_refused_with_name_value_and_what_was_expected(
    option: str, value: str, expected: str
) -> None:
    with pytest.raises(MisuseError) as caught:
        parse({**BASE, option: value})
    message = str(caught.value)
    assert message.startswith(f"option {option} is {value[:200]!r}: expected ")
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("assign", "orders", "JSON such as"),
        ("assign", '{"orders": []}', "JSON such as"),
        ("assign", '{"orders": ["0"]}', "JSON such as"),
        ("assign", '{"orders": [-1]}', "JSON such as"),
        ("subscribePattern", "or(", "regular expression"),
        ("subscribePattern", "", "regular expression"),
    ],
)
def test_a_bad_selection_is_refused(option: str, value: str, expected: str) -> None:
    with pytest.raises(MisuseError, match=f"option {option} is .*{expected}"):
        parse({"penstock.bootstrap.servers": "a:1", option: value})


def test_long_values_are_cut_in_messages() -> None:
    assert len(refused(startingOffsets=json.dumps({"x" * 10_000: 1}))) < 500


def test_options_that_contradict_each_other_are_refused() -> None:
    assert "which is more than maxOffsetsPerTrigger (5)" in refused(
        minOffsetsPerTrigger="6", maxOffsetsPerTrigger="5"
    )
    assert "which is more than maxTasks (2)" in refused(minPartitions="3", maxTasks="2")
    assert "leaves out headers" in refused(includeHeaders="true", columns="key")


def test_headers_come_by_either_option() -> None:
    assert parse({**BASE, "includeHeaders": "true"}).columns == (*COLUMNS, "headers")
    assert parse({**BASE, "columns": "HEADERS, timestamptype"}).columns == (
        "headers",
        "timestampType",
    )


@pytest.mark.parametrize("latest", ["latest", '{"orders": {"0": 1, "1": -1}}'])
def test_a_batch_cannot_start_at_the_end(latest: str) -> None:
    options = parse({**BASE, "startingOffsets": latest})
    with pytest.raises(MisuseError, match="startingOffsets is latest"):
        _ = options.batch_starting
    assert options.stream_starting == options.starting


@pytest.mark.parametrize("earliest", ["earliest", '{"orders": {"0": 1, "1": -2}}'])
def test_a_batch_cannot_end_at_the_start(earliest: str) -> None:
    with pytest.raises(MisuseError, match="endingOffsets is earliest"):
        _ = parse({**BASE, "endingOffsets": earliest}).batch_ending


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(option: str) -> None:
    value = {
        "endingOffsets": "latest",
        "endingTimestamp": "5",
        "endingOffsetsByTimestamp": '{"orders": {"0": 5}}',
    }[option]
    with pytest.raises(MisuseError, match="availableNow"):
        _ = parse({**BASE, option: value}).stream_starting


def test_times_and_sizes_are_read_as_spark_writes_them() -> None:
    assert [duration_ms(t) for t in ("500", "500ms", "30s", "15m", "15min", "1H", " 2d ")] == [
        500, 500, 30_000, 900_000, 900_000, 3_600_000, 172_800_000,
    ]  # fmt: skip
    assert [size_bytes(t) for t in ("1", "1b", "64k", "64kb", "2M", "1g", "1t")] == [
        1, 1, 65_536, 65_536, 2 << 20, 1 << 30, 1 << 40,
    ]  # fmt: skip
