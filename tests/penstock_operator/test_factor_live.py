"""Another replication factor by a Topic: a real API server, real brokers, records that are there.

What is planned is in `test_factor`; here it is carried out, said, and taken back.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.apiserver import ApiServer
from support.cluster import PATIENT, Cluster
from support.operator_process import condition, install_crds
from support.topic_bench import TopicBench
from support.waiting import wait_until_async

from penstock.client import AsyncConsumer, AsyncProducer, ReplicaMove
from penstock.core.types import MoveReason, TopicPartition

RECORDS = 300
TIMEOUT_S = 90.0


@pytest.fixture
async def bench(api_server: ApiServer, tmp_path: Path) -> AsyncIterator[TopicBench]:
    await asyncio.to_thread(install_crds, api_server)
    with Cluster(tmp_path, brokers=3, controller_config=PATIENT) as servers:
        made = TopicBench(api_server, servers, brokers=3)
        yield made
        await made.close()


async def write(bench: TopicBench, topic: str, partitions: int) -> None:
    async with AsyncProducer(bench.bootstrap) as producer:
        for at in range(RECORDS):
            await producer.send(topic, f"record {at}".encode(), partition=at % partitions)


async def read(bench: TopicBench, topic: str, partitions: int) -> int:
    async with AsyncConsumer(bench.bootstrap, auto_offset_reset="earliest") as consumer:
        await consumer.assign([TopicPartition(topic, at) for at in range(partitions)])
        found = 0
        while found < RECORDS:
            found += sum(batch.record_count for batch in await consumer.poll(timeout_s=10.0))
    return found


async def factors(bench: TopicBench, topic: str) -> set[int]:
    stored = await bench.stored(topic)
    assert stored is not None
    return {len(one.replicas) for one in stored.partitions}


async def wait_factor(bench: TopicBench, topic: str, count: int) -> None:
    """Each answer may be of a broker that has not heard of the change."""

    async def has() -> bool:
        return await factors(bench, topic) == {count}

    await wait_until_async(has, what=f"{topic} has {count} replicas", timeout_s=TIMEOUT_S)


async def test_a_topic_gets_more_replicas_and_fewer_again(bench: TopicBench) -> None:
    bench.create("grows", partitions=3, replicas=2)
    await bench.settle()
    await write(bench, "grows", 3)
    bench.patch("grows", replicas=3)
    assert not await bench.look()
    body = bench.seen("grows")
    ready = condition(body, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ChangingFactor")
    assert body["status"]["moving"].startswith("replicas: 2 → 3, 0 of 3 partitions")
    assert body["status"]["replicas"] == 2
    await wait_until_async(bench.look, what="three replicas", timeout_s=TIMEOUT_S)
    await wait_factor(bench, "grows", 3)
    body = bench.seen("grows")
    assert condition(body, "Ready")["status"] == "True"
    assert (body["status"]["replicas"], body["status"]["moving"]) == (3, "")
    bench.patch("grows", replicas=1)
    await wait_until_async(bench.look, what="one replica", timeout_s=TIMEOUT_S)
    await wait_factor(bench, "grows", 1)
    assert await read(bench, "grows", 3) == RECORDS
    told = [note for reason, note in bench.events() if reason == "ChangingFactor"]
    # Kubernetes knows the seconds of Events, and no order within one.
    assert sorted(told) == [
        "topic grows: 1 replica of every partition",
        "topic grows: 3 replicas of every partition",
    ]


async def test_what_cannot_be_is_refused_in_words_and_changes_nothing(bench: TopicBench) -> None:
    bench.create("refused", partitions=1, replicas=2, config={"min.insync.replicas": "2"})
    await bench.settle()
    bench.patch("refused", replicas=5)
    assert not await bench.look()
    message = condition(bench.seen("refused"), "Stalled")["message"]
    assert "spec.replicas is 5, but Cluster/flights has 3 brokers" in message
    bench.patch("refused", replicas=3, config={"min.insync.replicas": "3"})
    await wait_until_async(bench.look, what="min.insync.replicas follows", timeout_s=TIMEOUT_S)
    await wait_factor(bench, "refused", 3)
    stored = await bench.stored("refused")
    assert stored is not None
    assert stored.configs["min.insync.replicas"] == "3"


async def test_a_factor_that_somebody_else_changed_comes_back(bench: TopicBench) -> None:
    bench.create("drifts", partitions=2, replicas=2)
    await bench.settle()
    admin = await bench.brokers.admin(bench.wish)
    stored = await bench.stored("drifts")
    assert stored is not None
    moves = [
        ReplicaMove(TopicPartition("drifts", one.partition), (0, 1, 2), one.replicas)
        for one in stored.partitions
    ]
    outcomes = await admin.alter_replicas(moves, reason=MoveReason.MANUAL, change_factor=True)
    assert [one.error for one in outcomes] == [None, None]
    await wait_factor(bench, "drifts", 3)

    async def is_back() -> bool:
        return await bench.look() and await factors(bench, "drifts") == {2}

    await wait_until_async(is_back, what="it has two again", timeout_s=TIMEOUT_S)
    assert not [one for one in (await admin.describe_moves()).moves if one.target]
