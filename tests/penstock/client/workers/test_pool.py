"""A worker pool handles every record at least once, each key in order, and says what failed."""

import asyncio
import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cluster import Cluster
from support.names import own_name
from support.refused_threads import refuse_threads
from support.waiting import wait_until, wait_until_async

from penstock.client import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    AsyncWorkerPool,
    Consumer,
    HandlerFailedError,
    Producer,
    Record,
    TopicPartition,
    WorkerConfig,
    WorkerPool,
)
from penstock.client.workers import pool as module
from penstock.client.workers.unfinished import Unfinished
from penstock.errors import ClusterError, ErrorCode, MisuseError, PenstockError

QUICK = WorkerConfig(workers=4, backoff_ms=1, commit_interval_ms=50, drain_ms=120_000)


@given(st.permutations(range(12)), st.integers(0, 12))
def test_a_commit_stands_at_the_lowest_record_that_is_not_done(
    order: list[int], finished: int
) -> None:
    made = Unfinished(0)
    assert made.commit == 0
    for offset in range(12):
        made.begin(offset * 2, 24)
    for number in order[:finished]:
        made.finish(number * 2)
    left = [number * 2 for number in range(12) if number not in order[:finished]]
    assert made.commit == min(left, default=24)


@pytest.fixture
def name(shared_broker: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions; also the group's name. Its dead letters go to name.dlt."""
    made = own_name(request)
    shared_broker.create_topic(made, partitions=2)
    shared_broker.create_topic(made + ".dlt", partitions=1)
    return made


def fill(cluster: Cluster, topic: str, count: int, keys: int = 5) -> None:
    with Producer(cluster.bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, b"key-%d" % (number % keys))
        producer.flush(120)


async def run_until(pool: AsyncWorkerPool, done: Callable[[], bool]) -> None:
    """Runs the pool until then, and lets it end in good order."""
    async with asyncio.TaskGroup() as group:
        running = group.create_task(pool.run())
        await wait_until_async(lambda: done() or running.done(), what="the pool has done its work")
        pool.stop()


async def committed(cluster: Cluster, group: str, topic: str) -> int:
    """Over both partitions."""
    async with AsyncConsumer(cluster.bootstrap, group_id=group) as consumer:
        places = [TopicPartition(topic, number) for number in (0, 1)]
        found = await consumer.committed(places)
        return sum(0 if offset is None else offset.offset for offset in found.values())


async def test_every_record_is_handled_and_keys_keep_their_order(
    shared_broker: Cluster, name: str
) -> None:
    fill(shared_broker, name, 200)
    seen: dict[bytes | None, list[int]] = defaultdict(list)
    at_once, most = 0, 0

    async def handle(record: Record) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        for _ in range(int(record.value or b"") % 4):
            await asyncio.sleep(0)  # polls nothing: lets other workers run
        seen[record.key].append(int(record.value or b""))
        at_once -= 1

    pool = AsyncWorkerPool(shared_broker.bootstrap, name, name, handle, QUICK)
    await run_until(pool, lambda: pool.handled == 200)
    assert sum(map(len, seen.values())) == 200
    for key, numbers in seen.items():
        assert numbers == sorted(numbers), f"{key!r} out of order"
    assert most > 1, "several at once"
    assert await committed(shared_broker, name, name) == 200


async def test_a_record_that_fails_for_good_goes_to_the_dead_letters_with_its_cause(
    shared_broker: Cluster, name: str
) -> None:
    fill(shared_broker, name, 20)
    calls: dict[int, int] = defaultdict(int)

    async def handle(record: Record) -> None:
        number = int(record.value or b"")
        calls[number] += 1
        if number == 7 or (number == 9 and calls[9] < 3):
            raise ValueError(f"cannot do {number}")

    config = WorkerConfig(
        workers=4, retries=2, backoff_ms=1, commit_interval_ms=50, dead_letter_topic=name + ".dlt"
    )
    pool = AsyncWorkerPool(shared_broker.bootstrap, name, name, handle, config)
    await run_until(pool, lambda: pool.handled + pool.dead_lettered == 20)
    assert (pool.handled, pool.dead_lettered, pool.retried) == (19, 1, 4)
    assert (calls[7], calls[9]) == (3, 3)
    assert await committed(shared_broker, name, name) == 20
    async with AsyncConsumer(shared_broker.bootstrap) as consumer:
        await consumer.assign([TopicPartition(name + ".dlt", 0)])
        (batch,) = await consumer.poll(120)
        (record,) = batch.records()
    headers = dict(record.headers)
    assert (record.key, record.value) == (b"key-2", b"7")
    assert headers["penstock-dlt-topic"] == name.encode()
    assert headers["penstock-dlt-error"] == b"ValueError: cannot do 7"
    assert headers["penstock-dlt-attempts"] == b"3"
    assert {"penstock-dlt-partition", "penstock-dlt-offset"} <= headers.keys()


async def waits_for_what_is_cancelled(_: Record) -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


def asks_for_what_is_cancelled(_: Record) -> None:
    future: Future[None] = Future()
    future.cancel()
    future.result()


def finds_nothing(record: Record) -> None:
    next(number for number in range(7) if b"%d" % number == record.value)


@pytest.mark.parametrize(
    ("fails", "cause"),
    [
        (waits_for_what_is_cancelled, b"RuntimeError: the handler was cancelled"),
        (asks_for_what_is_cancelled, b"RuntimeError: the handler was cancelled"),
        (finds_nothing, b"RuntimeError: the handler raised StopIteration"),
    ],
    ids=["async", "plain", "next"],
)
async def test_a_handler_that_is_cancelled_or_raises_stop_iteration_has_failed(
    shared_broker: Cluster,
    name: str,
    fails: Callable[[Record], Awaitable[None] | None],
    cause: bytes,
) -> None:
    fill(shared_broker, name, 20, keys=1)

    def handle(record: Record) -> Awaitable[None] | None:
        return fails(record) if record.value == b"7" else None

    async def handle_in_loop(record: Record) -> None:
        answer = handle(record)
        if answer is not None:
            await answer

    handler = handle_in_loop if asyncio.iscoroutinefunction(fails) else handle
    config = WorkerConfig(
        workers=2, retries=0, commit_interval_ms=50, dead_letter_topic=name + ".dlt"
    )
    pool = AsyncWorkerPool(shared_broker.bootstrap, name, name, handler, config)
    await run_until(pool, lambda: pool.handled + pool.dead_lettered == 20)
    assert (pool.handled, pool.dead_lettered) == (19, 1)
    assert await committed(shared_broker, name, name) == 20
    async with AsyncConsumer(shared_broker.bootstrap) as consumer:
        read = await consumer.read_to_end(name + ".dlt")
    (letter,) = (record for batch in read.batches for record in batch.records())
    assert letter.value == b"7"
    assert dict(letter.headers)["penstock-dlt-error"] == cause


async def test_without_dead_letters_a_failure_stops_the_pool_and_is_not_committed(
    shared_broker: Cluster, name: str
) -> None:
    fill(shared_broker, name, 10, keys=1)

    def handle(record: Record) -> None:
        if record.value == b"6":
            raise ValueError("no")

    config = WorkerConfig(workers=2, retries=1, backoff_ms=1, commit_interval_ms=10)
    pool = AsyncWorkerPool(shared_broker.bootstrap, name, name, handle, config)
    with pytest.raises(HandlerFailedError, match=r"offset 6.*failed 2 times.*ValueError: no"):
        await pool.run()
    assert await committed(shared_broker, name, name) == 6
    again: list[bytes | None] = []
    second = AsyncWorkerPool(
        shared_broker.bootstrap, name, name, lambda record: again.append(record.value), QUICK
    )
    await run_until(second, lambda: second.handled == 4)
    assert again == [b"6", b"7", b"8", b"9"]


async def test_pools_of_one_group_share_the_work_and_a_new_one_takes_over(
    shared_broker: Cluster, name: str
) -> None:
    fill(shared_broker, name, 100, keys=20)
    seen: list[int] = []

    async def handle(record: Record) -> None:
        await asyncio.sleep(0)  # polls nothing: lets other workers run
        seen.append(int(record.value or b""))

    one = AsyncWorkerPool(shared_broker.bootstrap, name, name, handle, QUICK)
    two = AsyncWorkerPool(shared_broker.bootstrap, name, name, handle, QUICK)
    async with asyncio.TaskGroup() as group:
        group.create_task(one.run())
        await wait_until_async(lambda: one.handled >= 50, what="one is at work")
        group.create_task(two.run())
        await wait_until_async(lambda: len(two._owned) == 1, what="two has its share")
        fill(shared_broker, name, 100, keys=20)
        await wait_until_async(lambda: len(set(seen)) == 100 and two.handled > 0, what="both work")
        one.stop()
        await wait_until_async(lambda: len(two._owned) == 2, what="two has everything")
        await wait_until_async(lambda: len(seen) >= 200, what="all is handled")
        two.stop()
    assert sorted(seen) == sorted([*range(100)] * 2), "given up in good order: nothing twice"


async def test_a_full_pool_loses_nothing_of_partitions_that_it_is_assigned(
    shared_broker: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FULL_S", 0.05)
    fill(shared_broker, name, 40)
    room = asyncio.Event()
    seen: list[int] = []

    async def handle(record: Record) -> None:
        await room.wait()
        seen.append(int(record.value or b""))

    config = WorkerConfig(workers=4, queued_max=8, commit_interval_ms=50, drain_ms=120_000)
    pool = AsyncWorkerPool(shared_broker.bootstrap, name, name, handle, config)
    consumer = pool._consumer
    position = consumer.position

    async def position_when_prefetched(where: TopicPartition) -> int:
        """While the pool looks up where a new partition begins, its first records arrive."""
        if where.partition == 2:
            consumer._fetcher.poke()
            state = consumer._assignment.states[where]
            await wait_until_async(lambda: state.buffered_bytes > 0, what="records arrive")
        return await position(where)

    monkeypatch.setattr(consumer, "position", position_when_prefetched)

    async def grow() -> None:
        await wait_until_async(lambda: pool._queued >= 8, what="the pool is full")
        async with AsyncAdmin(shared_broker.bootstrap) as admin:
            await admin.create_partitions(name, 3)
        async with AsyncProducer(shared_broker.bootstrap) as producer:
            for number in range(40, 50):
                await producer.send(name, b"%d" % number, partition=2)
        new = TopicPartition(name, 2)
        await wait_until_async(lambda: new in pool._owned, what="the new partition is there")
        room.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(grow())
        await run_until(pool, lambda: len(seen) >= 50)
    assert sorted(seen) == list(range(50))


async def test_a_handler_that_hangs_holds_up_its_partition_and_no_other(
    shared_broker: Cluster, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    most, count = 10 * 20 + 20, 2_000
    with Producer(shared_broker.bootstrap) as producer:
        for number in range(2 * count):
            key = b"free" if number else b"stuck"  # of other workers
            producer.send(name, b"%d" % number, key, partition=number % 2)
        producer.flush(120)
    goes_on = asyncio.Event()
    lengths: list[int] = []
    stuck, free = TopicPartition(name, 0), TopicPartition(name, 1)
    handled = {stuck: 0, free: 0}

    async def handle(record: Record) -> None:
        if record.value == b"0":
            await goes_on.wait()
        handled[TopicPartition(name, record.partition)] += 1
        lengths.append(max(len(entry.unfinished) for entry in pool._owned.values()))

    config = WorkerConfig(workers=4, queued_max=20, commit_interval_ms=50)
    pool = AsyncWorkerPool(shared_broker.bootstrap, name, name, handle, config)
    async with asyncio.TaskGroup() as group:
        group.create_task(pool.run())
        await wait_until_async(
            lambda: handled[free] == count and pool._held == {stuck}, what="all of the other"
        )
        assert handled[stuck] < max(lengths) <= most
        assert caplog.text.count("until the one at offset 0 is finished") == 1
        goes_on.set()
        await wait_until_async(lambda: handled[stuck] == count, what="the rest")
        pool.stop()
    assert max(lengths) <= most
    assert await committed(shared_broker, name, name) == 2 * count


def test_plain_functions_run_in_threads_beside_each_other(
    shared_broker: Cluster, name: str
) -> None:
    fill(shared_broker, name, 4, keys=4)
    both = threading.Barrier(2, timeout=120)

    def handle(record: Record) -> None:
        if record.key in (b"key-0", b"key-1"):
            both.wait()  # ends only if two run at once
        threads.add(threading.current_thread().name)

    threads: set[str] = set()
    config = WorkerConfig(workers=16, commit_interval_ms=50)
    pool = WorkerPool(shared_broker.bootstrap, name, name, handle, config)

    def stop_when_done() -> None:
        try:
            wait_until(lambda: pool.core.handled == 4, what="all are handled")
        finally:
            pool.stop()

    stopping = threading.Thread(target=stop_when_done)
    stopping.start()
    pool.run()
    stopping.join()
    assert pool.core.handled == 4
    assert all(thread.startswith("penstock-worker") for thread in threads)
    with Consumer(shared_broker.bootstrap, group_id=name) as consumer:
        places = [TopicPartition(name, number) for number in (0, 1)]
        kept = consumer.committed(places).values()
        assert sum(offset.offset for offset in kept if offset is not None) == 4


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_handler_that_exits_ends_the_run_and_its_record_is_read_again(
    shared_broker: Cluster, name: str, kind: str
) -> None:
    fill(shared_broker, name, 4, keys=1)

    def handle(record: Record) -> None:
        if record.value == b"2":
            sys.exit(3)

    async def handle_in_loop(record: Record) -> None:
        handle(record)

    config = WorkerConfig(workers=2, dead_letter_topic=name + ".dlt")
    handler: Any = handle if kind == "plain" else handle_in_loop
    pool = WorkerPool(shared_broker.bootstrap, name, name, handler, config)
    with pytest.raises(SystemExit) as ended:
        pool.run()
    assert ended.value.code == 3
    assert pool.core.dead_lettered == 0
    with Consumer(shared_broker.bootstrap, group_id=name) as consumer:  # which still works
        places = [TopicPartition(name, number) for number in (0, 1)]
        kept = consumer.committed(places).values()
        assert sum(offset.offset for offset in kept if offset is not None) == 2


INTERRUPTED = """
import os, signal, sys
from penstock.client import WorkerConfig, WorkerPool

def handle(record):
    if pool.core.handled == 5:
        os.kill(os.getpid(), signal.SIGINT)

config = WorkerConfig(workers=1, commit_interval_ms=3_600_000)
pool = WorkerPool(sys.argv[1], sys.argv[2], sys.argv[2], handle, config)
pool.run()
"""


def test_control_c_commits_what_is_done_and_leaves_the_group_before_the_program_ends(
    shared_broker: Cluster, name: str
) -> None:
    fill(shared_broker, name, 20)
    program = [sys.executable, "-c", INTERRUPTED, shared_broker.bootstrap, name]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=300, check=False)
    assert ended.stderr.rstrip().endswith("KeyboardInterrupt"), ended.stderr
    with Admin(shared_broker.bootstrap) as admin:
        left = admin.describe_group(name)
    assert left.members == ()
    assert sum(offset.offset for offset in left.offsets.values()) >= 5


AT_EXIT = """
import sys, threading
from concurrent.futures import thread as threads
from penstock.client import WorkerConfig, WorkerPool

begun, pause = threading.Event(), threading.Event()

def until(condition):
    while not condition():
        pause.wait(0.01)

def handle(record):
    begun.set()
    until(lambda: threads._shutdown)  # from here on, Python starts nothing in pools' threads
    if record.value == b"0":
        until(lambda: pool.core.dead_lettered or pool.core._ended.is_set())

config = WorkerConfig(workers=4, retries=0, dead_letter_topic=sys.argv[2] + ".dlt")
pool = WorkerPool(sys.argv[1], sys.argv[2], sys.argv[2], handle, config)
threading.Thread(target=pool.run, daemon=sys.argv[3] == "daemon").start()
begun.wait()
"""
NOTICED_AT_EXIT = """
import sys, threading
from concurrent.futures import thread as threads
from penstock.client import WorkerConfig, WorkerPool

begun, pause = threading.Event(), threading.Event()

def handle(record):
    begun.set()
    while not threads._shutdown:
        pause.wait(0.01)
    pool.core._calls._threads._shutdown = True  # as the first of its threads does that notices

config = WorkerConfig(workers=1, retries=0, dead_letter_topic=sys.argv[2] + ".dlt")
pool = WorkerPool(sys.argv[1], sys.argv[2], sys.argv[2], handle, config)
threading.Thread(target=pool.run, daemon=sys.argv[3] == "daemon").start()
begun.wait()
"""
ASYNC_AT_EXIT = """
import asyncio, sys, threading
from concurrent.futures import thread as threads
from penstock.client import WorkerConfig, WorkerPool

begun, pause = threading.Event(), threading.Event()

async def handle(record):
    begun.set()
    while not threads._shutdown:
        pause.wait(0.01)
    try:
        await asyncio.to_thread(int)
    except RuntimeError as error:
        raise OSError("no file") from error

config = WorkerConfig(workers=4, retries=1, backoff_ms=1, dead_letter_topic=sys.argv[2] + ".dlt")
pool = WorkerPool(sys.argv[1], sys.argv[2], sys.argv[2], handle, config)
threading.Thread(target=pool.run, daemon=sys.argv[3] == "daemon").start()
begun.wait()
"""
IDLE_AT_EXIT = """
import sys, threading
from penstock.client import WorkerPool

handled = threading.Event()
pool = WorkerPool(sys.argv[1], sys.argv[2], sys.argv[2], lambda record: handled.set())
threading.Thread(target=pool.run, daemon=True).start()
handled.wait()
"""


@pytest.mark.parametrize(
    "code", [AT_EXIT, NOTICED_AT_EXIT, ASYNC_AT_EXIT], ids=["plain", "noticed", "async"]
)
@pytest.mark.parametrize("daemon", ["daemon", "other"])
def test_a_program_that_ends_makes_no_dead_letters_of_what_it_does_not_handle(
    shared_broker: Cluster, name: str, daemon: str, code: str
) -> None:
    fill(shared_broker, name, 50)
    program = [sys.executable, "-c", code, shared_broker.bootstrap, name, daemon]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=300, check=False)
    said = "the program's main thread has ended"
    assert (ended.returncode, said in ended.stderr) == (0, daemon != "daemon"), ended.stderr
    with Admin(shared_broker.bootstrap) as admin:
        assert admin.describe_group(name).members == ()
        letters = admin.describe_logs([name + ".dlt"])[0].logs
    assert sum(log.high_watermark for log in letters) == 0


def test_a_pool_that_gets_no_thread_ends_with_an_error_and_makes_no_dead_letters(
    shared_broker: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a daemon thread: the program goes on."""
    fill(shared_broker, name, 5)
    config = WorkerConfig(retries=1, backoff_ms=1, dead_letter_topic=name + ".dlt")
    pool = WorkerPool(shared_broker.bootstrap, name, name, lambda _: None, config)
    refuse_threads(monkeypatch, "penstock-worker")
    raised: list[BaseException] = []

    def run() -> None:
        try:
            pool.run()
        except PenstockError as error:
            raised.append(error)

    running = threading.Thread(target=run, daemon=True)
    running.start()
    running.join()
    (error,) = raised
    assert "no thread for the handler (can't start new thread); the pool uses up to 8" in str(error)
    assert pool.core.dead_lettered == pool.core.retried == 0


@pytest.mark.parametrize("way", ["async", "plain"])
async def test_a_handler_that_gets_no_thread_ends_the_pool_and_makes_no_dead_letters(
    shared_broker: Cluster, name: str, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Also if it says so in other words, from what Python said."""
    fill(shared_broker, name, 5, keys=1)
    refuse_threads(monkeypatch, "of-handler")
    threads = ThreadPoolExecutor(1, "of-handler")
    tries = 0

    def needs_thread(record: Record) -> bool:
        nonlocal tries
        tries += record.value != b"0"
        if tries > 1:
            pytest.fail("it is tried again")
        return tries == 1

    async def in_loop(record: Record) -> None:
        if needs_thread(record):
            try:
                await asyncio.get_running_loop().run_in_executor(threads, int)
            except RuntimeError as error:
                raise OSError("no file") from error

    def in_thread(record: Record) -> None:
        if needs_thread(record):
            threads.submit(int)

    config = WorkerConfig(workers=4, retries=1, backoff_ms=1, dead_letter_topic=name + ".dlt")
    handler = in_loop if way == "async" else in_thread
    pool = AsyncWorkerPool(shared_broker.bootstrap, name, name, handler, config)
    with pytest.raises(PenstockError, match="no thread for what the handler begins") as ended:
        await pool.run()
    assert "worker pool has stopped" in ended.value.message
    assert "can't start new thread" in ended.value.message
    assert (pool.handled, pool.dead_lettered, pool.retried) == (1, 0, 0)
    assert await committed(shared_broker, name, name) == 1


@pytest.mark.parametrize("whose", ["interpreter ", ""])
async def test_an_error_of_another_process_or_executor_that_ended_is_one_of_the_handler(
    shared_broker: Cluster, name: str, whose: str
) -> None:
    async def handle(record: Record) -> None:
        raise RuntimeError(f"cannot schedule new futures after {whose}shutdown")

    fill(shared_broker, name, 3)
    config = WorkerConfig(retries=0, dead_letter_topic=name + ".dlt", commit_interval_ms=50)
    pool = AsyncWorkerPool(shared_broker.bootstrap, name, name, handle, config)
    await run_until(pool, lambda: pool.dead_lettered == 3)
    assert pool.dead_lettered == 3


def test_a_pool_in_a_daemon_thread_commits_and_leaves_at_exit(
    shared_broker: Cluster, name: str
) -> None:
    fill(shared_broker, name, 1)
    program = [sys.executable, "-c", IDLE_AT_EXIT, shared_broker.bootstrap, name]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=300, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    with Admin(shared_broker.bootstrap) as admin:
        left = admin.describe_group(name)
    assert left.members == ()
    assert sum(offset.offset for offset in left.offsets.values()) == 1


async def test_a_letter_that_its_topic_has_no_room_for_says_less_or_is_a_clear_error(
    shared_broker: Cluster, name: str
) -> None:
    letters = name + ".small"
    shared_broker.create_topic(letters, configs={"max.message.bytes": "4096"})

    def handle(_: Record) -> None:
        raise ValueError("too long " * 200)

    async def run(value: bytes) -> None:
        async with AsyncProducer(shared_broker.bootstrap) as producer:
            await producer.send(name, value, partition=0)
        config = WorkerConfig(retries=0, commit_interval_ms=50, dead_letter_topic=letters)
        pool = AsyncWorkerPool(shared_broker.bootstrap, name, name, handle, config)
        await run_until(pool, lambda: pool.dead_lettered >= 1)

    await run(b"v" * 3_500)
    with pytest.raises(ExceptionGroup) as ended:
        await run(b"v" * 4_000)
    (error,) = ended.value.exceptions
    assert isinstance(error, HandlerFailedError)
    assert error.code is ErrorCode.RECORD_TOO_LARGE
    for said in (
        f"{name}/0 offset 1",
        "ValueError: too long",
        "4096",
        f"max.message.bytes of {letters}",
    ):
        assert said in str(error)
    assert await committed(shared_broker, name, name) == 1
    async with AsyncAdmin(shared_broker.bootstrap) as admin:
        await admin.alter_configs(letters, {"max.message.bytes": "8192"})
    await run(b"v")
    async with AsyncConsumer(shared_broker.bootstrap) as consumer:
        read = await consumer.read_to_end(letters)
    causes = [
        dict(record.headers)["penstock-dlt-error"]
        for batch in read.batches
        for record in batch.records()
    ]
    assert causes[0] == b"ValueError"
    assert len(causes) >= 2


@pytest.mark.parametrize(
    "trouble",
    [
        ClusterError("no leader", ErrorCode.LEADER_NOT_AVAILABLE),
        MisuseError("not assigned any more"),
        None,
    ],
)
async def test_a_partition_whose_position_is_not_known_yet_does_not_stop_the_pool(
    shared_broker: Cluster,
    name: str,
    trouble: PenstockError | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(shared_broker, name, 20)
    monkeypatch.setattr(module, "POSITION_S", 0.0)
    asked: list[TopicPartition] = []

    async def unknown(_: AsyncConsumer, where: TopicPartition) -> int:
        asked.append(where)
        if trouble is not None:
            raise trouble
        await asyncio.get_running_loop().create_future()
        raise AssertionError("it waits for ever")

    monkeypatch.setattr(AsyncConsumer, "position", unknown)
    pool = AsyncWorkerPool(shared_broker.bootstrap, name, name, lambda _: None, QUICK)
    await run_until(pool, lambda: pool.handled == 20)
    assert len(asked) == 2
    assert await committed(shared_broker, name, name) == 20


async def test_a_handler_that_only_returns_an_awaitable_is_waited_for(
    shared_broker: Cluster, name: str
) -> None:
    fill(shared_broker, name, 10)
    done: list[int] = []

    class Handler:
        async def __call__(self, record: Record) -> None:
            await asyncio.sleep(0)  # polls nothing: it is not done at once
            done.append(int(record.value or b""))
            if len(done) == 3:
                raise ValueError("the third one is called again")

    pool = AsyncWorkerPool(shared_broker.bootstrap, name, name, Handler(), QUICK)
    await run_until(pool, lambda: pool.handled == 10)
    assert sorted(set(done)) == list(range(10))
    assert (len(done), pool.retried) == (11, 1)
    assert await committed(shared_broker, name, name) == 10


async def test_a_cause_that_is_no_text_does_not_keep_a_record_from_the_dead_letters(
    shared_broker: Cluster, name: str
) -> None:
    fill(shared_broker, name, 3)

    class UnspeakableError(Exception):
        def __str__(self) -> str:
            raise TypeError("no text")

    def handle(record: Record) -> None:
        if record.value == b"0":
            raise OSError(os.fsdecode(b"/data/\xff: no such file"))
        if record.value == b"1":
            raise UnspeakableError

    config = WorkerConfig(retries=0, commit_interval_ms=50, dead_letter_topic=name + ".dlt")
    pool = AsyncWorkerPool(shared_broker.bootstrap, name, name, handle, config)
    await run_until(pool, lambda: pool.handled + pool.dead_lettered == 3)
    assert (pool.handled, pool.dead_lettered) == (1, 2)
    async with AsyncConsumer(shared_broker.bootstrap) as consumer:
        read = await consumer.read_to_end(name + ".dlt")
    causes = {
        record.value: dict(record.headers)["penstock-dlt-error"]
        for batch in read.batches
        for record in batch.records()
    }
    assert causes[b"0"] == b"OSError: /data/\\udcff: no such file"
    assert causes[b"1"] == b"UnspeakableError: (its text is not available)"


async def test_what_makes_no_sense_is_one_clear_error(shared_broker: Cluster, name: str) -> None:
    for settings in (
        {"workers": 0},
        {"order": "none"},
        {"queued_max": 1},
        {"retries": -1},
        {"commit_interval_ms": 0},
    ):
        with pytest.raises(MisuseError, match=next(iter(settings))):
            WorkerConfig(**settings)
    config = WorkerConfig(dead_letter_topic=name + ".nowhere")
    pool = AsyncWorkerPool(shared_broker.bootstrap, name, name, lambda _: None, config)
    with pytest.raises(ClusterError) as caught:
        await pool.run()
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC
