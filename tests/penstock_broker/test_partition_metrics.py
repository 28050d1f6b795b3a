"""A broker with more topics and replicas than it exports, scraped as it is."""

from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from prometheus_client import CollectorRegistry
from support.led_partitions import LedPartitions, running

from penstock.core.types import ReplicaKey, TopicId
from penstock_broker.broker.gathering import Gathering
from penstock_broker.partition_metrics import PARTITIONS_MAX, TOPICS_MAX, PartitionMetrics

EACH: Final = 4
NAMES: Final = [f"topic-{number:03}" for number in range(TOPICS_MAX + 1)]
FOLLOWED, SILENT, *_ = NAMES
"""Broker 1 leads the first, which many read and nobody writes to; the second has no bytes."""
NOT_ASKED: Final[Any] = None
COUNTED: Final = (
    "penstock_topic_records_in_total",
    "penstock_topic_bytes_in_total",
    "penstock_topic_records_out_total",
    "penstock_topic_bytes_out_total",
)
MEASURED: Final = (
    "penstock_partition_log_bytes",
    "penstock_partition_log_start_offset",
    "penstock_partition_log_end_offset",
)


@pytest.fixture
async def world() -> AsyncIterator[LedPartitions]:
    made = LedPartitions({name: (f"id-{name}", EACH) for name in NAMES})
    async with running(made) as leading:
        leading.topics = {FOLLOWED: made.topics[FOLLOWED]}
        await leading.lead(1, 2)
        yield leading


def exported(world: LedPartitions) -> CollectorRegistry:
    registry = CollectorRegistry()
    gathering = Gathering(
        replicas=world.replicas,
        view=world.view,
        store=world.store,
        disk=NOT_ASKED,
        mending=NOT_ASKED,
        produce_budget=NOT_ASKED,
        fetching=NOT_ASKED,
    )
    registry.register(PartitionMetrics(gathering.partitions))
    return registry


def labels(registry: CollectorRegistry, name: str) -> list[dict[str, str]]:
    return [
        one.labels for family in registry.collect() for one in family.samples if one.name == name
    ]


async def test_the_topics_with_the_most_bytes_are_exported_and_the_rest_is_counted(
    world: LedPartitions,
) -> None:
    for number, name in enumerate(NAMES[2:]):
        flow_of(world, name).took(records=1, payload_bytes=number + 1)
    flow_of(world, FOLLOWED).gave(records=7, payload_bytes=1_000)
    registry = exported(world)
    assert registry.get_sample_value("penstock_topics_left_out") == 1
    for name in COUNTED:
        shown = [one["topic"] for one in labels(registry, name)]
        assert len(shown) == TOPICS_MAX
        assert set(shown) == set(NAMES) - {SILENT}
    of_last = {"topic": NAMES[-1]}
    assert registry.get_sample_value(COUNTED[1], of_last) == TOPICS_MAX - 1
    assert registry.get_sample_value(COUNTED[2], {"topic": FOLLOWED}) == 7


async def test_replicas_that_follow_are_left_out_first_and_counted(world: LedPartitions) -> None:
    assert len(world.replicas.by_key) == len(NAMES) * EACH > PARTITIONS_MAX
    registry = exported(world)
    left_out = len(NAMES) * EACH - PARTITIONS_MAX
    assert registry.get_sample_value("penstock_partitions_left_out") == left_out == EACH
    led = {(name, str(number)) for name in NAMES[1:] for number in range(EACH)}
    for name in MEASURED:
        shown = labels(registry, name)
        assert len(shown) == PARTITIONS_MAX
        assert {(one["topic"], one["partition"]) for one in shown} == led
        assert {one["role"] for one in shown} == {"leader"}


def flow_of(world: LedPartitions, name: str) -> Any:
    return world.replicas.by_key[ReplicaKey(TopicId(f"id-{name}"), 0)].flow
