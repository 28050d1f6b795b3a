"""Commits that do not wait for each other, on a real broker: few calls, every answer true."""

import asyncio
from collections.abc import AsyncIterator
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.cluster import Cluster
from support.names import own_name
from support.processes import HOST
from support.waiting import wait_until_async

from penstock.client import AsyncConsumer, AsyncProducer, OffsetAndMetadata, TopicPartition
from penstock.errors import ErrorCode, PenstockError

RECORDS = 200


@pytest.fixture
def name(shared_broker: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions for this test alone; also the name of its group."""
    made = own_name(request)
    shared_broker.create_topic(made, partitions=2)
    return made


@pytest.fixture
async def member(shared_broker: Cluster, name: str) -> AsyncIterator[AsyncConsumer]:
    """The group's only member, which has read all `RECORDS` of partition 0 and committed none."""
    async with AsyncProducer(shared_broker.bootstrap, linger_ms=0) as producer:
        for number in range(RECORDS):
            await producer.send(name, b"%d" % number, partition=0)
        await producer.flush()
    async with AsyncConsumer(
        shared_broker.bootstrap,
        group_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        await consumer.subscribe(name)
        seen = 0
        while seen < RECORDS:
            seen += sum(batch.record_count for batch in await consumer.poll(1.0))
        yield consumer


async def commit_calls(broker: Cluster) -> float:
    """How many CommitOffsets the broker has answered."""
    url = f"http://{HOST}:{broker.metrics_ports[0]}/metrics"
    page = await asyncio.to_thread(lambda: urlopen(url, timeout=120).read().decode())
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "penstock_request_seconds_count"
        and sample.labels["method"] == "CommitOffsets"
    )


async def stored(consumer: AsyncConsumer, where: TopicPartition) -> int:
    found = (await consumer.committed([where]))[where]
    return -1 if found is None else found.offset


async def test_a_commit_after_every_record_takes_few_calls(
    shared_broker: Cluster, name: str, member: AsyncConsumer
) -> None:
    here = TopicPartition(name, 0)
    before = await commit_calls(shared_broker)
    outcomes: list[PenstockError | None] = []
    for offset in range(1, RECORDS + 1):
        await member.commit_async({here: offset}, outcomes.append)
    await wait_until_async(lambda: len(outcomes) == RECORDS, what="all have answers")
    assert set(outcomes) == {None}
    assert await stored(member, here) == RECORDS
    assert 0 < await commit_calls(shared_broker) - before < RECORDS / 4


async def test_commits_of_several_tasks_share_calls_and_each_is_stored_when_it_returns(
    shared_broker: Cluster, name: str, member: AsyncConsumer
) -> None:
    places = [TopicPartition(name, 0), TopicPartition(name, 1)]
    before = await commit_calls(shared_broker)

    async def commit(offset: int) -> None:
        where = places[offset % 2]
        await member.commit({where: 0 if offset % 2 else offset})
        assert await stored(member, where) >= (0 if offset % 2 else offset)

    async with asyncio.TaskGroup() as tasks:
        for offset in range(40):
            tasks.create_task(commit(offset))
    assert 0 < await commit_calls(shared_broker) - before < 20


async def test_only_those_hear_of_a_refusal_whom_it_concerns(
    name: str, member: AsyncConsumer
) -> None:
    """The offset of one partition goes back; it is merged with one of another partition."""
    here, there = TopicPartition(name, 0), TopicPartition(name, 1)
    await member.commit({here: 100})
    outcomes: dict[str, PenstockError | None] = {}
    await member.commit_async({here: 101}, lambda error: outcomes.update(under_way=error))
    await member.commit_async({there: 0}, lambda error: outcomes.update(other=error))
    await member.commit_async({here: 7}, lambda error: outcomes.update(back=error))
    await member.commit_async({here: 102, there: 0}, lambda error: outcomes.update(last=error))
    await wait_until_async(lambda: len(outcomes) == 4, what="all have answers")
    back = outcomes.pop("back")
    assert outcomes == {"under_way": None, "other": None, "last": None}
    # Alone it is refused; with a later one of its partition in the same call it has come true.
    assert back is None or back.code is ErrorCode.OFFSET_WENT_BACK
    assert await stored(member, here) == 102


async def test_going_back_for_good_is_refused(name: str, member: AsyncConsumer) -> None:
    here = TopicPartition(name, 0)
    outcomes: list[PenstockError | None] = []
    for offset in (100, 101, 102, 7):
        await member.commit_async({here: offset}, outcomes.append)
    await wait_until_async(lambda: len(outcomes) == 4, what="all have answers")
    *good, back = outcomes
    assert good == [None, None, None]
    assert back is not None
    assert back.code is ErrorCode.OFFSET_WENT_BACK
    assert await stored(member, here) == 102


async def test_a_callback_that_raises_stops_nothing(name: str, member: AsyncConsumer) -> None:
    here = TopicPartition(name, 0)
    raised: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, seen: raised.append(seen))
    await member.commit_async({here: 1}, lambda _: 1 / 0)  # type: ignore[arg-type]  # it returns nothing, ever
    await member.commit_async({here: 2}, None)
    await member.commit({here: 3})
    assert await stored(member, here) == 3
    assert len(raised) == 1


async def test_an_automatic_commit_does_not_go_back_behind_one_that_is_on_its_way(
    shared_broker: Cluster, name: str, member: AsyncConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    """It covers what earlier polls handed out, which is less than what the user commits."""
    here = TopicPartition(name, 0)
    committer = member._session.committer
    await member.seek(here, RECORDS // 2)
    while not await member.poll(1.0, 10):
        pass
    await member.poll(1.0, 10)
    shared_broker.brokers[0].pause()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(member.commit())
        await wait_until_async(lambda: committer._under_way, what="the user's is on its way")
        tasks.create_task(committer.commit_done(20.0))
        tasks.create_task(member.commit({TopicPartition(name, 1): 0}))
        await wait_until_async(lambda: committer._queue, what="another one waits")
        shared_broker.brokers[0].resume()
    assert await stored(member, here) == RECORDS // 2 + 20
    assert "automatic commit failed" not in caplog.text


async def test_close_waits_for_commits_that_were_started(
    shared_broker: Cluster, name: str, member: AsyncConsumer
) -> None:
    here = TopicPartition(name, 0)
    outcomes: list[PenstockError | None] = []
    for offset in range(1, 51):
        await member.commit_async({here: offset}, outcomes.append)
    await member.close()
    assert outcomes == [None] * 50
    async with AsyncConsumer(shared_broker.bootstrap, group_id=name) as other:
        assert await stored(other, here) == 50


async def test_a_cancelled_commit_takes_nobody_with_it(
    shared_broker: Cluster, name: str, member: AsyncConsumer
) -> None:
    here = TopicPartition(name, 0)
    shared_broker.brokers[0].pause()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(member.commit({here: OffsetAndMetadata(1)}))
        tasks.create_task(member.commit({here: OffsetAndMetadata(2)}))
        await wait_until_async(
            lambda: member._session.committer._under_way, what="the first one is on its way"
        )
        first.cancel()
        shared_broker.brokers[0].resume()
    assert first.cancelled()
    assert await stored(member, here) == 2
