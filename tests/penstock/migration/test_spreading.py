"""How keys lie on partitions, of topics that have too few of them when their copy begins."""

from dataclasses import replace

import pytest
from support.copied import MemoryEnd, row

from penstock.core.partitioner import KeyHash, partition_for_key
from penstock.core.types import TopicPartition
from penstock.migration.model import Topic
from penstock.migration.plan import Spread
from penstock.migration.run import Done, Migration, settings_here

TOPIC = Topic(name="t", partitions=6, replicas=1)


def followed(source: MemoryEnd, into: MemoryEnd, spread: Spread) -> Done:
    """Keys come once the copy has begun."""

    def write() -> bool:
        for index in range(100):
            key = b"key %d" % index
            place = index % 6
            if spread is not Spread.OTHERWISE:
                place = partition_for_key(key, 6, KeyHash(spread.value))
            source.logs[TopicPartition("t", place)].entries.append(row("v", key))
        return True

    migration = Migration(
        source, into, lambda _: "", lambda topic: settings_here(source, topic), spreads=True
    )
    plans = migration.prepare(["t"])
    assert plans[0].settings.dropped["partitioner"][0] == "unknown"
    return migration.execute(plans, follow=True, stop=write, report=lambda _: None)


@pytest.mark.parametrize("spread", [Spread.MURMUR2, Spread.CRC32C, Spread.OTHERWISE])
def test_a_topic_that_was_empty_gets_the_partitioner_of_its_keys(spread: Spread) -> None:
    source, into = MemoryEnd(limit=1_000), MemoryEnd()
    source.create(TOPIC)
    done = followed(source, into, spread)
    assert (done.complete, done.elsewhere) == (True, "")
    settings = done.plans[0].settings
    is_set = {"partitioner": "murmur2"} if spread is Spread.MURMUR2 else {}
    assert {k: v for k, v in into.known["t"].configs.items() if k == "partitioner"} == is_set
    assert {k: v for k, v in settings.kept.items() if k == "partitioner"} == is_set
    assert ("partitioner" in settings.dropped) is (spread is Spread.OTHERWISE)


def test_a_partitioner_that_somebody_set_is_not_changed() -> None:
    source, into = MemoryEnd(limit=1_000), MemoryEnd()
    source.create(TOPIC)
    into.create(replace(TOPIC, configs={"partitioner": "crc32c"}))
    done = followed(source, into, Spread.MURMUR2)
    assert "`penstock topic alter t --set partitioner=murmur2` makes them equal" in done.elsewhere
    assert into.known["t"].configs["partitioner"] == "crc32c"
