"""The sync clients in threads, at Ctrl-C, at exit and after a fork; what importing them costs."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.cluster import Cluster
from support.control_c import control_c
from support.names import own_name
from support.waiting import wait_until

from penstock.client import Admin, ConsumedBatch, Consumer, Producer, TopicPartition
from penstock.client.config import ConsumerConfig
from penstock.client.consumer.assignment import Assignment, Returned
from penstock.client.consumer.fetch_state import FetchState
from penstock.client.loop_thread import LoopThread, errand, shared_loop
from penstock.client.transaction.handle import AsyncTransaction
from penstock.errors import ClusterError, ErrorCode, MisuseError

PATIENCE_S = 120.0


def run(code: str, *arguments: str, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
    """Runs a program with the arguments in sys.argv."""
    # Without gRPC's own fork handlers, which crash children at random (penstock.client.process).
    environment = {**os.environ, "GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=environment,
        check=False,
    )


def count(cluster: Cluster, topic: str) -> int:
    with Admin(cluster.bootstrap) as admin:
        return sum(log.high_watermark for log in admin.describe_logs([topic])[0].logs)


def test_threads_share_a_producer_and_one_reads_along(shared_broker: Cluster) -> None:
    shared_broker.create_topic("threads", partitions=2)
    names = range(4)
    with (
        Producer(shared_broker.bootstrap) as producer,
        Consumer(shared_broker.bootstrap) as consumer,
    ):
        consumer.assign([TopicPartition("threads", 0), TopicPartition("threads", 1)])

        def send(name: int) -> None:
            for index in range(2_000):
                producer.send("threads", b"%d" % index, b"%d" % name)
            producer.flush(120)

        seen: list[tuple[int, bytes | None, int]] = []

        def read() -> None:
            deadline = time.monotonic() + 300
            while len(seen) < 8_000 and time.monotonic() < deadline:
                for batch in consumer.poll(0.2):
                    seen.extend((r.offset, r.key, int(r.value or b"")) for r in batch.records())

        threads = [threading.Thread(target=send, args=(name,)) for name in names]
        threads += [threading.Thread(target=read)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600)
    for name in names:
        mine = sorted((offset, value) for offset, key, value in seen if key == b"%d" % name)
        assert [value for _, value in mine] == list(range(2_000))


def test_a_thread_that_polls_while_another_one_does_is_refused(
    shared_broker: Cluster, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its poll would say that the other one's records are done. It may close the consumer."""
    topic = own_name(request)
    shared_broker.create_topic(topic)
    polling = threading.Event()
    with (
        Consumer(shared_broker.bootstrap) as consumer,
        Producer(shared_broker.bootstrap) as producer,
        ThreadPoolExecutor(1) as other,
    ):
        consumer.assign([TopicPartition(topic, 0)])
        assignment = consumer.core._assignment
        collect = assignment.collect

        def seen(max_records: int) -> list[ConsumedBatch]:
            polling.set()
            return collect(max_records)

        monkeypatch.setattr(assignment, "collect", seen)
        first = other.submit(consumer.poll, None)
        assert polling.wait(PATIENCE_S)
        calls: list[Callable[[], object]] = [consumer.poll, consumer.poll_arrow]
        calls.append(lambda: next(iter(consumer)))
        for call in calls:
            with pytest.raises(MisuseError, match="one consumer for each thread"):
                call()
        producer.send(topic, b"it goes on")
        producer.flush(PATIENCE_S)
        assert sum(batch.record_count for batch in first.result(PATIENCE_S)) == 1
        assert consumer.poll(0) == [], "one after the other is allowed, whoever polls"
        polling.clear()
        second = other.submit(consumer.poll, None)
        assert polling.wait(PATIENCE_S)
        consumer.close()
        with pytest.raises(ClusterError, match="closed"):
            second.result(PATIENCE_S)


def test_control_c_interrupts_a_waiting_poll_and_leaves_the_client_usable(
    shared_broker: Cluster,
) -> None:
    shared_broker.create_topic("interrupted")
    with Consumer(shared_broker.bootstrap) as consumer:
        consumer.assign([TopicPartition("interrupted", 0)])
        begun = time.monotonic()
        alarm = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))

        def poll() -> None:
            alarm.start()  # in here: it may ring before the poll has begun
            consumer.poll(600)

        with pytest.raises(KeyboardInterrupt):
            poll()
        assert time.monotonic() - begun < 300
        assert consumer.poll(0.1) == []


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "handed over"])
def test_control_c_ends_a_poll_also_before_its_thread_waits_for_it(
    shared_broker: Cluster,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    begun: bool,
) -> None:
    topic = own_name(request)
    shared_broker.create_topic(topic)
    polls = threading.Event()
    hand_over = asyncio.run_coroutine_threadsafe
    with Consumer(shared_broker.bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assignment = consumer.core._assignment
        collect = assignment.collect

        def seen(max_records: int) -> list[ConsumedBatch]:
            polls.set()
            return collect(max_records)

        def strike(work: Coroutine[Any, Any, object], loop: asyncio.AbstractEventLoop) -> None:
            hand_over(work, loop)
            assert not begun or polls.wait(PATIENCE_S)
            raise KeyboardInterrupt

        monkeypatch.setattr(assignment, "collect", seen)
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "run_coroutine_threadsafe", strike)
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(None)
        assert consumer.poll(0) == [], "and the next one is not refused"


Next = Callable[[Consumer], object]


@pytest.mark.parametrize(
    "call",
    [
        lambda consumer: consumer.poll(PATIENCE_S),
        lambda consumer: consumer.poll_arrow(PATIENCE_S),
        lambda consumer: next(iter(consumer)),
    ],
    ids=["poll", "poll_arrow", "iterate"],
)
def test_records_that_control_c_kept_from_the_user_are_returned_by_the_next_poll(
    shared_broker: Cluster,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    call: Next,
) -> None:
    topic = own_name(request)
    shared_broker.create_topic(topic)
    with Producer(shared_broker.bootstrap) as producer:
        for number in range(30):
            producer.send(topic, b"%d" % number)
    here = TopicPartition(topic, 0)
    options = ConsumerConfig(group_id=topic, enable_auto_commit=False, auto_offset_reset="earliest")
    with Consumer(shared_broker.bootstrap, options) as consumer:
        consumer.assign([here])
        wait_until(lambda: consumer.poll(1.0, 10), what="the first ten records")
        assignment = consumer.core._assignment
        collect = assignment.collect
        with control_c() as interrupt:

            def collect_and_strike(max_records: int) -> list[ConsumedBatch]:
                batches = collect(max_records)
                if batches:
                    interrupt.strike()
                return batches

            monkeypatch.setattr(assignment, "collect", collect_and_strike)
            call(consumer)
        assert consumer.position(here) == 10
        consumer.commit()
        kept = consumer.committed([here])[here]
        assert kept is not None
        assert kept.offset == 10, "what was not returned is not committed"
        batches = wait_until(lambda: consumer.poll(1.0), what="the records once more")
        assert batches[0].first_offset == 10


def test_a_close_that_control_c_interrupted_can_be_called_again(
    shared_broker: Cluster, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = own_name(request)
    shared_broker.create_topic(topic)
    consumer = Consumer(shared_broker.bootstrap)
    consumer.assign([TopicPartition(topic, 0)])
    cluster = consumer.core._cluster
    aclose = cluster.aclose
    closed: list[bool] = []

    with control_c() as interrupt:

        async def close_and_strike() -> None:
            if not interrupt.struck:
                interrupt.strike()
                await asyncio.get_running_loop().create_future()
            await aclose()
            closed.append(True)

        monkeypatch.setattr(cluster, "aclose", close_and_strike)
        consumer.close()
    assert not closed
    consumer.close()
    assert closed
    assert consumer not in shared_loop()._clients
    consumer.close()
    assert len(closed) == 1


def test_a_transaction_that_had_begun_when_control_c_came_is_aborted(
    shared_broker: Cluster, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = own_name(request)
    shared_broker.create_topic(topic)
    begin = AsyncTransaction.begin
    with Producer(shared_broker.bootstrap, transactional_id=topic) as producer:
        with control_c() as interrupt:

            async def begin_and_strike(core: AsyncTransaction) -> None:
                await begin(core)
                interrupt.strike()  # no await after it: the call has a result, and nobody gets it

            monkeypatch.setattr(AsyncTransaction, "begin", begin_and_strike)
            with producer.transaction():
                raise AssertionError("the block began")
        monkeypatch.undo()
        with producer.transaction() as tx:  # refused if the other one is still open
            tx.send(topic, b"after")
    assert count(shared_broker, topic) == 2, "a record and its marker"


def test_control_c_does_not_undo_a_seek_that_came_after_the_records() -> None:
    states = Assignment()
    here = TopicPartition("seeked", 0)
    states.add(FetchState(here, "id"))
    states.seek(here, 7)
    returned = [Returned(states.states[here], 0, 7)]
    states.seek(here, 8)
    states.take_back(returned)
    assert states.progress(here).position == 8
    states.remove(here)
    states.take_back(returned)  # nothing happens: it is revoked


def test_a_program_that_forgets_to_close_loses_nothing_and_is_told(
    shared_broker: Cluster,
) -> None:
    shared_broker.create_topic("forgotten")
    ended = run(
        "import sys\n"
        "from penstock.client import Producer\n"
        "producer = Producer(sys.argv[1], linger_ms=60_000)\n"
        "for _ in range(500): producer.send('forgotten', b'v')\n"
        "del producer\n",
        shared_broker.bootstrap,
    )
    assert ended.returncode == 0, ended.stderr
    assert "not closed: flushing 500 records" in ended.stderr
    assert count(shared_broker, "forgotten") == 500


def test_a_client_that_fails_to_close_at_exit_keeps_no_other_from_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    closed: list[str] = []

    class Client:
        def __init__(self, name: str) -> None:
            self.name = name

        def close_at_exit(self) -> None:
            closed.append(self.name)
            raise RuntimeError(f"{self.name}: a user's listener")

    thread = LoopThread("a test's")
    for name in ("one", "two"):
        thread.adopt(Client(name))
    thread.close()
    thread.loop.close()
    assert sorted(closed) == ["one", "two"]
    assert [record.exc_info is not None for record in caplog.records] == [True, True]


def test_closing_while_the_process_ends_harms_nothing(shared_broker: Cluster) -> None:
    shared_broker.create_topic("ending")
    ended = run(
        "import atexit, sys\n"
        "from penstock.client import Producer\n"
        "def close():\n"
        "    print(producer.close())\n"
        "    try: producer.send('ending', b'v')\n"
        "    except Exception as error: print(error)\n"
        "atexit.register(close)\n"
        "producer = Producer(sys.argv[1])\n"
        "producer.send('ending', b'v').result(120)\n",
        shared_broker.bootstrap,
    )
    assert (ended.returncode, ended.stdout) == (0, "0\nthe producer is closed\n"), ended.stderr


def test_after_its_end_a_producer_refuses_columns_too(shared_broker: Cluster) -> None:
    shared_broker.create_topic("ended")
    producer = Producer(shared_broker.bootstrap)
    producer.send("ended", b"v").result(120)
    assert producer.close() == 0
    with pytest.raises(ClusterError, match="closed") as refused:
        producer.send_columns("ended", [b"1", b"2"])
    assert refused.value.code is ErrorCode.CLOSED


def test_a_record_still_being_serialized_when_the_producer_ends_is_refused(
    shared_broker: Cluster,
) -> None:
    shared_broker.create_topic("serialized")
    begun, closed = threading.Event(), threading.Event()

    def serialize(topic: str, value: str) -> bytes:
        if value == "slow":
            begun.set()
            closed.wait(300)
        return value.encode()

    producer = Producer(shared_broker.bootstrap, value_serializer=serialize)
    producer.send("serialized", "fast").result(120)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(producer.send, "serialized", "slow")
        assert begun.wait(300)
        assert producer.close() == 0
        closed.set()
        with pytest.raises(ClusterError, match="closed") as refused:
            sending.result(300)
    assert refused.value.code is ErrorCode.CLOSED
    assert count(shared_broker, "serialized") == 1


def test_a_program_that_closes_ends_silently_and_at_once(shared_broker: Cluster) -> None:
    shared_broker.create_topic("closing")
    ended = run(
        "import sys\n"
        "from penstock.client import Consumer, Producer, TopicPartition\n"
        "with Producer(sys.argv[1]) as producer, Consumer(sys.argv[1]) as consumer:\n"
        "    producer.send('closing', b'v').result(120)\n"
        "    consumer.assign([TopicPartition('closing', 0)])\n"
        "    print(len(consumer.poll(120)))\n",
        shared_broker.bootstrap,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1\n", "")


def test_a_child_process_is_told_to_make_its_own_client(shared_broker: Cluster) -> None:
    shared_broker.create_topic("forked")
    ended = run(
        "import os, sys\n"
        "from penstock.client import Producer\n"
        "from penstock.errors import MisuseError\n"
        "with Producer(sys.argv[1]) as producer:\n"
        "    producer.send('forked', b'parent').result(120)\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        try:\n"
        "            producer.send('forked', b'child')\n"
        "        except MisuseError as error:\n"
        "            os._exit(7 if 'create it in the child' in str(error) else 1)\n"
        "        os._exit(2)\n"
        "    _, status = os.waitpid(child, 0)\n"
        "    producer.send('forked', b'parent').result(120)\n"
        "    print(os.waitstatus_to_exitcode(status))\n",
        shared_broker.bootstrap,
    )
    assert ended.stdout == "7\n", ended.stderr
    assert count(shared_broker, "forked") == 2


def test_no_call_hangs_in_a_child_process(shared_broker: Cluster) -> None:
    shared_broker.create_topic("forked.calls")
    ended = run(
        "import os, signal, sys\n"
        "from penstock.client import Consumer, Producer, TopicPartition\n"
        "from penstock.errors import MisuseError\n"
        "consumer = Consumer(sys.argv[1])\n"
        "consumer.assign([TopicPartition('forked.calls', 0)])\n"
        "producer = Producer(sys.argv[1], linger_ms=3_600_000)\n"
        "pending = producer.send('forked.calls', b'v')\n"
        "calls = [lambda: consumer.poll(1), consumer.close, lambda: producer.flush(1),\n"
        "    producer.close, pending.result, lambda: producer.send('forked.calls', b'v'),\n"
        "    lambda: producer.send_columns('forked.calls', [b'v'])]\n"
        "codes = []\n"
        "for call in calls:\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        signal.alarm(10)\n"
        "        try:\n"
        "            call()\n"
        "        except MisuseError as error:\n"
        "            os._exit(7 if 'create it in the child' in str(error) else 1)\n"
        "        os._exit(2)\n"
        "    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "print(codes)\n"
        "consumer.close()\n"
        "producer.close()\n",
        shared_broker.bootstrap,
    )
    assert ended.stdout == "[7, 7, 7, 7, 7, 7, 7]\n", ended.stderr


def test_a_child_of_a_process_that_only_imported_the_client_makes_its_own(
    shared_broker: Cluster,
) -> None:
    shared_broker.create_topic("children")
    ended = run(
        "import os, sys\n"
        "from penstock.client import Producer\n"
        "children = []\n"
        "for _ in range(2):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        with Producer(sys.argv[1]) as producer:\n"
        "            producer.send('children', b'v').result(120)\n"
        "        os._exit(0)\n"
        "    children.append(child)\n"
        "print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])\n",
        shared_broker.bootstrap,
    )
    assert ended.stdout == "[0, 0]\n", ended.stderr
    assert count(shared_broker, "children") == 2


def test_a_sync_call_inside_the_clients_own_loop_is_refused_not_a_deadlock(
    shared_broker: Cluster,
) -> None:
    loop = shared_loop()

    async def call() -> None:
        with Admin(shared_broker.bootstrap) as admin:
            admin.list_topics()

    with pytest.raises(MisuseError, match="event loop"):
        loop.run(call())


def test_a_callback_that_raises_stop_iteration_ends_the_call_that_waits_for_it() -> None:
    def on_assigned() -> None:
        next(iter(()))

    async def poll() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await errand(on_assigned)

    with pytest.raises(RuntimeError, match="the callback raised StopIteration") as ended:
        shared_loop().run_with_errands(poll())
    assert isinstance(ended.value.__cause__, StopIteration)


def test_a_task_that_exits_ends_its_own_call_and_no_other() -> None:
    async def child() -> None:
        sys.exit(3)

    async def exits() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(child())

    async def goes_on() -> int:
        return 7

    for run in (shared_loop().run, shared_loop().run_with_errands):
        with pytest.raises(SystemExit) as ended:
            run(exits())
        assert ended.value.code == 3
        assert run(goes_on()) == 7


def test_an_answer_for_an_event_loop_that_is_closed_is_not_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As gRPC passes it on, in whichever event loop of the process turns first."""
    thread = LoopThread("a test's")
    closed = asyncio.new_event_loop()
    closed.close()

    def _handle_events() -> None:
        closed.call_soon_threadsafe(print)

    def fail() -> None:
        raise RuntimeError("another")

    async def turn() -> None:
        """All that was called before has run."""

    thread.loop.call_soon_threadsafe(_handle_events)
    thread.loop.call_soon_threadsafe(fail)
    thread.run(turn())
    thread.close()
    thread.loop.close()
    reported = [line for line in caplog.records if line.name == "asyncio" and line.exc_info]
    assert [str(line.exc_info[1]) for line in reported if line.exc_info] == ["another"]


def test_importing_the_client_brings_in_nothing_heavy() -> None:
    ended = run(
        "import sys\n"
        "import penstock.client.exported\n"
        "heavy = {'numpy', 'pyarrow', 'pandas', 'zstandard', 'lz4', 'rocksdict', 'pyspark'}\n"
        "heavy |= {'penstock.core.groups.machine', 'penstock.core.replication.machine'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    assert ended.stdout == "[]\n"
