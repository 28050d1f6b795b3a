"""Settings refuse nonsense at once, and type checkers know every one of them."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from typing import Any

import pytest
from support.cluster import Cluster
from support.waiting import wait_until

from penstock.client import (
    Acks,
    AsyncProducer,
    ClientConfig,
    Codec,
    Consumer,
    ConsumerConfig,
    Producer,
    ProducerConfig,
    Sync,
    TopicPartition,
    TransformConfig,
    setting_checks,
)
from penstock.client.config import (
    ClientOptions,
    ConsumerOptions,
    ProducerOptions,
    parse_bootstrap,
)
from penstock.client.transformer.config import TransformOptions
from penstock.core.groups import config as group_config
from penstock.core.transactions import config as transaction_config
from penstock.errors import ClusterError, MisuseError


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (ClientConfig, ClientOptions),
        (ProducerConfig, ProducerOptions),
        (ConsumerConfig, ConsumerOptions),
        (TransformConfig, TransformOptions),
    ],
)
def test_keyword_options_are_exactly_the_config_fields(
    config: type[ClientConfig], options: type[ClientOptions]
) -> None:
    assert {field.name for field in fields(config)} == set(options.__annotations__)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"linger_ms": -1}, "linger_ms"),
        ({"batch_bytes": 0}, "batch_bytes"),
        ({"max_in_flight": 6}, "max_in_flight"),
        ({"request_timeout_ms": 0}, "request_timeout_ms"),
        ({"delivery_timeout_ms": 1.5}, "delivery_timeout_ms"),
        ({"linger_ms": "5"}, "linger_ms"),
        ({"max_block_ms": 0.5}, "max_block_ms"),
    ],
)
def test_a_producer_setting_that_makes_no_sense_is_named(
    settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(MisuseError, match=named):
        ProducerConfig(**settings)


def made(config: type[ClientConfig], name: str, value: int) -> ClientConfig:
    given: dict[str, Any] = {name: value}
    return config(**given)


def largest(config: type[ClientConfig]) -> dict[str, Any]:
    """Every number at the largest value that is accepted of these."""
    found = {}
    for each in fields(config):
        if type(each.default) is int:
            for value in (2**63 - 1, 2**32 - 1, 2**31 - 1):
                with suppress(MisuseError):
                    made(config, each.name, value)
                    found[each.name] = value
                    break
    return found


@pytest.mark.parametrize("config", [ProducerConfig, ConsumerConfig])
def test_numbers_that_nothing_carries_are_refused_by_name(config: type[ClientConfig]) -> None:
    for each in fields(config):
        if type(each.default) is int:
            with pytest.raises(MisuseError, match=each.name):
                made(config, each.name, 2**63)
    assert {name for name, value in largest(config).items() if value >= 2**31} <= {
        "batch_bytes",
        "buffer_bytes",
    }


def test_clients_work_with_the_largest_numbers(shared_broker: Cluster) -> None:
    shared_broker.create_topic("largest")
    where = TopicPartition("largest", 0)
    with Producer(shared_broker.bootstrap, **largest(ProducerConfig)) as producer:
        producer.send("largest", b"x")
        producer.flush(120)
    given = largest(ConsumerConfig)
    with Consumer(shared_broker.bootstrap, group_id="largest", **given) as consumer:
        consumer.assign([where])
        consumer.seek_to_beginning([where])
        assert given.pop("fetch_min_bytes") == given.pop("fetch_max_wait_ms") == 2**31 - 1
        assert consumer.lag() == {where: 1}
    with Consumer(shared_broker.bootstrap, group_id="largest", **given) as consumer:
        consumer.assign([where])
        consumer.seek_to_beginning([where])
        wait_until(lambda: consumer.poll(0.1), what="the record")
        consumer.commit()


@pytest.mark.parametrize(
    ("name", "choice", "member"),
    [
        ("acks", "all", Acks.ALL),
        ("acks", "-1", Acks.ALL),
        ("acks", -1, Acks.ALL),
        ("acks", "leader", Acks.LEADER),
        ("acks", "1", Acks.LEADER),
        ("acks", 1, Acks.LEADER),
        ("acks", "none", Acks.NONE),
        ("acks", "0", Acks.NONE),
        ("acks", 0, Acks.NONE),
        ("acks", Acks.NONE, Acks.NONE),
        ("sync", "os", Sync.OS),
        ("sync", "disk", Sync.DISK),
        ("codec", "none", Codec.NONE),
        ("codec", "zstd", Codec.ZSTD),
        ("codec", "lz4", Codec.LZ4),
        ("codec", Codec.LZ4, Codec.LZ4),
    ],
)
def test_a_choice_may_be_given_by_name_and_acks_by_kafkas_number(
    name: str, choice: object, member: object
) -> None:
    settings: dict[str, Any] = {name: choice}
    seen = getattr(AsyncProducer("127.0.0.1:1", **settings).config, name)
    assert (seen, type(seen)) == (member, type(member))


@pytest.mark.parametrize("choice", ["ALL", "2", 2, 3, True, 1.0, None, [], Sync.DISK])
@pytest.mark.parametrize("name", ["acks", "sync", "codec"])
def test_a_choice_that_does_not_exist_is_refused_by_the_constructor(
    name: str, choice: object
) -> None:
    if isinstance(choice, Sync) and name == "sync":
        return
    settings: dict[str, Any] = {name: choice}
    with pytest.raises(MisuseError, match=rf"^{name} is .*; use one of '"):
        Producer("127.0.0.1:1", **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"on_offset_out_of_range": "none"},
        {"fetch_max_bytes": -1},
        {"auto_offset_reset": "none"},
        {"partition_assignment_strategy": "sticky"},
        {"session_timeout_ms": 999},
        {"session_timeout_ms": "45000"},
        {"max_poll_interval_ms": 0},
        {"auto_commit_interval_ms": 0},
        {"group_id": "tab\there"},
        {"group_id": "g" * 250},
        {"group_id": None},
        {"group_instance_id": "seat-1"},
    ],
)
def test_a_consumer_setting_that_makes_no_sense_is_named(settings: dict[str, Any]) -> None:
    with pytest.raises(MisuseError, match=next(iter(settings))):
        ConsumerConfig(**settings)


@pytest.mark.parametrize(
    ("by_client", "by_coordinator"),
    [
        (setting_checks.check_group_id, group_config.check_group_id),
        (setting_checks.check_transactional_id, transaction_config.check_transactional_id),
    ],
)
def test_clients_refuse_the_ids_that_coordinators_refuse_and_no_others(
    by_client: Callable[[str], None], by_coordinator: Callable[[str], None]
) -> None:
    for allowed in ("x", "x" * 249):
        by_client(allowed)
        by_coordinator(allowed)
    for refused in ("", "x" * 250, "a\nb"):
        with pytest.raises(MisuseError):
            by_client(refused)
        with pytest.raises(ClusterError):
            by_coordinator(refused)


def test_bootstrap_takes_strings_and_sequences_and_drops_repetitions() -> None:
    assert parse_bootstrap("a:1, b:2,a:1") == ("a:1", "b:2")
    assert parse_bootstrap(["a:1", "b:2,[::1]:3"]) == ("a:1", "b:2", "[::1]:3")


@pytest.mark.parametrize(
    "bootstrap",
    [
        "", "host", "host:", "host:99999", ":9092", ["a:1", "b"], "http://a:1", "a:1/x", "a b:1",
        "a:²", "a:" + "9" * 5000,
    ],
    ids=lambda value: str(value)[:12],
)  # fmt: skip
def test_an_address_that_is_none_is_refused_and_named(bootstrap: str | list[str]) -> None:
    with pytest.raises(MisuseError, match=r"host:port"):
        parse_bootstrap(bootstrap)


def test_a_config_and_options_together_are_refused() -> None:
    with pytest.raises(MisuseError, match="not both"):
        Producer("127.0.0.1:1", ProducerConfig(), linger_ms=1)
