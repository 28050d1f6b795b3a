"""What a topic refuses for good of a transformer's output: it ends, or it is one record's fault.

To make the same records again would be to fail again. Kafka Streams ends by default, too.
"""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.cluster import Cluster
from support.names import own_name
from support.refused_threads import refuse_threads
from support.topic_limits import wait_for_limit
from support.transforming import PARTITIONS, Output, Running, fill, make_source
from support.waiting import wait_until_async

from penstock.client import (
    AsyncAdmin,
    AsyncConsumer,
    AsyncOut,
    AsyncProducer,
    AsyncTransformer,
    Consumer,
    HandlerFailedError,
    Out,
    Record,
    TopicPartition,
    async_transform,
    transform,
)
from penstock.errors import ClusterError, ErrorCode, MisuseError, PenstockError

COUNT = 200
FAR_MS = 4_102_444_800_000
"""In the year 2100; topics take an hour ahead of the broker's clock."""


@pytest.fixture
def source(shared_cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A filled topic; also the group's name. Its output goes to `.out`."""
    return make_source(shared_cluster, own_name(request), COUNT)


@pytest.mark.parametrize("way", ["run", "by hand"])
async def test_output_that_its_topic_refuses_for_good_ends_it_and_commits_nothing_of_it(
    shared_cluster: Cluster, source: str, way: str
) -> None:
    calls = 0

    async def ahead(record: Record, out: AsyncOut) -> None:
        nonlocal calls
        calls += 1
        if calls > COUNT:
            pytest.fail("it is tried again")
        await out.send(f"{source}.out", record.value, timestamp_ms=FAR_MS, partition=0)

    async def by_hand(loop: AsyncTransformer) -> None:
        async for batches, out in loop:
            for batch in batches:
                for record in batch.records():
                    await ahead(record, out)

    given: dict[str, Any] = {"group_id": source, "source": source, "backoff_ms": 0}
    async with AsyncTransformer(shared_cluster.bootstrap, **given) as loop:
        with pytest.raises(ClusterError) as ended:
            await (loop.run(ahead) if way == "run" else by_hand(loop))
    assert ended.value.code is ErrorCode.INVALID_TIMESTAMP
    assert f"{source}.out/0" in ended.value.message
    assert "message.timestamp.after.max.ms" in ended.value.message
    assert "dead_letter_topic" in ended.value.message
    assert "\n" not in str(ended.value)
    with Consumer(shared_cluster.bootstrap, group_id=source) as onlooker:
        places = [TopicPartition(source, number) for number in range(PARTITIONS)]
        found = onlooker.committed(places).values()
        assert sum(each.offset for each in found if each is not None) == 0


async def test_output_that_is_refused_for_good_is_its_records_failure_if_the_handler_waits_for_it(
    shared_cluster: Cluster, source: str
) -> None:
    shared_cluster.create_topic(f"{source}.dlt")
    letters = Output(shared_cluster, f"{source}.dlt", 1)

    def ahead(record: Record, out: Out) -> None:
        bad = record.value == b"7"
        stamp = FAR_MS if bad else None
        delivery = out.send(f"{source}.out", record.value, record.key, timestamp_ms=stamp)
        if bad:
            delivery.result(60)

    one = Running(
        shared_cluster, source, ahead, retries=1, backoff_ms=1, dead_letter_topic=f"{source}.dlt"
    )
    output = Output(shared_cluster, f"{source}.out")
    try:
        assert await asyncio.to_thread(letters.all, 1) == [7]
        good = [number for number in range(COUNT) if number != 7]
        assert sorted(await asyncio.to_thread(output.all, COUNT - 1)) == good
    finally:
        await asyncio.to_thread(one.stop)
        output.close()
        letters.close()
    assert not one.errors
    headers = dict(letters.seen[0].headers)
    assert b"DeliveryError" in (headers["penstock-dlt-error"] or b"")


async def test_a_limit_that_was_raised_is_known_to_the_next_larger_record_of_a_handler(
    shared_cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    """Also with headers that can be read only once."""
    source = make_source(shared_cluster, own_name(request), 1)
    topic = f"{source}.narrow"
    shared_cluster.create_topic(topic, configs={"max.message.bytes": "2000"})
    known, raised = threading.Event(), threading.Event()
    refusals: list[str] = []
    once: Any = iter([("seen", b"1")])

    def widen(_: Record, out: Out) -> None:
        try:
            out.send(topic, b"x" * 5_000)
        except MisuseError as refused:
            refusals.append(refused.message)
        known.set()
        raised.wait(300)
        out.send(topic, b"7" * 4_000, headers=once)

    one = Running(shared_cluster, source, widen, retries=0)
    output = Output(shared_cluster, topic, 1)
    try:
        await asyncio.to_thread(known.wait, 300)
        async with AsyncAdmin(shared_cluster.bootstrap) as admin:
            await admin.alter_configs(topic, {"max.message.bytes": "9000"})
        await asyncio.to_thread(wait_for_limit, shared_cluster, topic, "9000")
        raised.set()
        await wait_until_async(lambda: one.errors or output.has(1), what="it is sent or refused")
    finally:
        raised.set()
        await asyncio.to_thread(one.stop)
        output.close()
    assert (one.errors, len(refusals)) == ([], 1)
    assert "the limit is 2000" in refusals[0]
    assert output.seen[0].headers == (("seen", b"1"),)


@pytest.mark.parametrize("size", [3_500, 4_000])
async def test_a_letter_that_its_topic_has_no_room_for_says_less_or_ends_it(
    shared_cluster: Cluster, request: pytest.FixtureRequest, size: int
) -> None:
    source = make_source(shared_cluster, own_name(request))
    topic = f"{source}.dlt"
    shared_cluster.create_topic(topic, configs={"max.message.bytes": "4096"})
    async with AsyncProducer(shared_cluster.bootstrap) as producer:
        await producer.send(source, b"v" * size, partition=0)

    async def handle(_: Record, __: AsyncOut) -> None:
        raise ValueError("too long " * 200)

    given: dict[str, Any] = {"group_id": source, "source": source, "backoff_ms": 0, "retries": 0}
    async with AsyncTransformer(shared_cluster.bootstrap, dead_letter_topic=topic, **given) as loop:
        if size == 4_000:
            with pytest.raises(HandlerFailedError, match=f"max.message.bytes of {topic}") as ended:
                await loop.run(handle)
            assert ended.value.code is ErrorCode.RECORD_TOO_LARGE
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(loop.run(handle))
            await wait_until_async(lambda: loop.model.committed_letters == 1, what="a letter")
            loop.stop()
    async with AsyncConsumer(shared_cluster.bootstrap) as consumer:
        read = await consumer.read_to_end(topic)
    (letter,) = (record for batch in read.batches for record in batch.records())
    assert dict(letter.headers)["penstock-dlt-error"] == b"ValueError"


@pytest.mark.parametrize("way", ["async", "sync"])
async def test_a_handler_that_gets_no_thread_ends_it_and_makes_no_dead_letters(
    shared_cluster: Cluster, source: str, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    shared_cluster.create_topic(f"{source}.dlt")
    refuse_threads(monkeypatch, "of-handler")
    threads = ThreadPoolExecutor(1, "of-handler")
    given: dict[str, Any] = {"group_id": source, "source": source, "retries": 0}
    given["dead_letter_topic"] = f"{source}.dlt"

    calls: list[Record] = []

    def called(record: Record) -> None:
        if calls:
            pytest.fail("it goes on")
        calls.append(record)

    async def in_loop(record: Record, out: AsyncOut) -> None:
        called(record)
        await out.send(f"{source}.out", record.value)
        await asyncio.get_running_loop().run_in_executor(threads, int)

    def in_thread(record: Record, out: Out) -> None:
        called(record)
        out.send(f"{source}.out", record.value)
        threads.submit(int)

    address = shared_cluster.bootstrap
    running: Awaitable[None] = (
        async_transform(address, handle=in_loop, **given)
        if way == "async"
        else asyncio.to_thread(transform, address, handle=in_thread, **given)
    )
    with pytest.raises(PenstockError, match="no thread for what the handler begins") as ended:
        await running
    assert "transformer has stopped" in ended.value.message
    async with AsyncConsumer(shared_cluster.bootstrap) as reader:
        assert not (await reader.read_to_end(f"{source}.out")).batches
        assert not (await reader.read_to_end(f"{source}.dlt")).batches


AT_EXIT = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor, thread as threads
from penstock.client import transform

begun, pause, pool = threading.Event(), threading.Event(), ThreadPoolExecutor(1)

def handle(record, out):
    begun.set()
    while not threads._shutdown:  # from then on, Python starts nothing in pools' threads
        pause.wait(0.01)
    pool.submit(int)

def run():
    transform(
        sys.argv[1],
        handle=handle,
        group_id=sys.argv[2],
        source=sys.argv[2],
        retries=0,
        dead_letter_topic=sys.argv[2] + ".dlt",
    )

threading.Thread(target=run).start()
begun.wait()
"""


def test_a_program_that_ends_makes_no_dead_letters_of_what_it_does_not_handle(
    shared_cluster: Cluster, source: str
) -> None:
    shared_cluster.create_topic(f"{source}.dlt")
    program = [sys.executable, "-c", AT_EXIT, shared_cluster.bootstrap, source]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=300, check=False)
    assert "the transformer has stopped at" in ended.stderr
    assert "the program's main thread has ended" in ended.stderr
    with Consumer(shared_cluster.bootstrap) as reader:
        assert not reader.read_to_end(f"{source}.dlt").batches


async def test_a_topic_that_is_deleted_under_it_ends_it_by_its_name(
    shared_cluster: Cluster, source: str
) -> None:
    handled = asyncio.Event()

    async def copy(record: Record, out: AsyncOut) -> None:
        await out.send(f"{source}.gone", record.value)
        handled.set()

    async def run() -> ClusterError:
        with pytest.raises(ClusterError) as ended:
            await async_transform(
                shared_cluster.bootstrap,
                handle=copy,
                group_id=source,
                source=source,
                transaction_timeout_ms=3_000,
                unknown_topic_timeout_ms=500,
            )
        return ended.value

    shared_cluster.create_topic(f"{source}.gone")
    async with AsyncAdmin(shared_cluster.bootstrap) as admin, asyncio.TaskGroup() as group:
        running = group.create_task(run())
        await handled.wait()
        await admin.delete_topic(f"{source}.gone")
        await asyncio.to_thread(fill, shared_cluster, source, range(COUNT))
        error = await running
    assert error.code is ErrorCode.UNKNOWN_TOPIC
    assert f"{source}.gone" in error.message
