"""A transformer's awaited steps, held at a gate while the world changes; and how it ends."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from support.cluster import Cluster
from support.control_c import control_c
from support.names import own_name
from support.transforming import PARTITIONS, Output, Running, copy_to, make_source
from support.waiting import wait_until, wait_until_async

from penstock.client import (
    LATEST,
    Admin,
    AsyncAdmin,
    AsyncOut,
    AsyncTransformer,
    Consumer,
    HandlerFailedError,
    Out,
    Producer,
    Record,
    TopicPartition,
    Transformer,
    async_transform,
    transform,
)
from penstock.client.group.contract import Tick
from penstock.client.group.membership import Phase
from penstock.errors import ClusterError, ErrorCode, MisuseError

PATIENT = {"commit_interval_ms": 500_000, "transaction_timeout_ms": 600_000}
COUNT = 200


@pytest.fixture
def source(shared_cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A filled topic; also the group's name. Its output goes to `.out`."""
    return make_source(shared_cluster, own_name(request), COUNT)


@pytest.fixture
def output(shared_cluster: Cluster, source: str) -> Iterator[Output]:
    made = Output(shared_cluster, f"{source}.out")
    yield made
    made.close()


Make = Callable[..., Awaitable[AsyncTransformer]]


@pytest.fixture
async def make(shared_cluster: Cluster, source: str) -> AsyncIterator[Make]:
    """Makes members of the test's group."""
    async with AsyncExitStack() as ends:

        async def member(**options: Any) -> AsyncTransformer:
            made = AsyncTransformer(
                shared_cluster.bootstrap, group_id=source, source=source, **options
            )
            return await ends.enter_async_context(made)

        yield member


def async_copy(source: str) -> Callable[[Record, AsyncOut], Awaitable[None]]:
    async def copy(record: Record, out: AsyncOut) -> None:
        await out.send(f"{source}.out", record.value, record.key)

    return copy


class Gate:
    """Holds the next call of a method until it is opened; later ones pass."""

    def __init__(self, owner: object, method: str) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        passes = getattr(owner, method)

        async def held(*args: Any, **more: Any) -> Any:
            self.reached.set()
            await self.opened.wait()
            return await passes(*args, **more)

        setattr(owner, method, held)

    async def holds(self) -> None:
        """Waits until somebody stands before it."""
        await wait_until_async(self.reached.is_set, what="the gate is reached")


async def leaves(member: AsyncTransformer) -> None:
    """What it does when it has not polled for `max_poll_interval_ms`: the next poll joins again."""
    there = member._consumer._session._link._begun
    link = there.link

    async def leave() -> Phase:
        timing = link.membership._timing
        link.membership._timing = replace(timing, max_poll_interval_ms=0)
        link.handle(Tick(link.yielded()))
        link.membership._timing = timing
        return link.membership.phase

    phase = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(leave(), there.loop))
    assert phase is Phase.LEAVING


async def has_all_in_hand(member: AsyncTransformer, source: str) -> None:
    """Everything is sent in one transaction, which nothing has committed yet."""
    while member.model.open_records < COUNT:
        found = await member.take()
        assert found is not None
        batches, out = found
        for batch in batches:
            for record in batch.records():
                await out.send(f"{source}.out", record.value, record.key)
        member._finish_pass()
    assert member._output.producer is not None
    await member._output.producer.flush(120)


async def written(output: Output) -> None:
    await asyncio.to_thread(output.check, range(COUNT))


async def test_a_partition_that_is_wanted_during_a_commit_leaves_after_it(
    source: str, output: Output, make: Make
) -> None:
    one, two = await make(**PATIENT), await make()
    await has_all_in_hand(one, source)
    gate = Gate(one._consumer, "store_offsets")
    async with asyncio.TaskGroup() as group:
        committing = group.create_task(one.commit())
        await gate.holds()
        second = group.create_task(two.run(async_copy(source)))
        session = one._consumer._session
        await wait_until_async(lambda: session._leaving, what="one is to give some up")
        assert not committing.done()
        gate.opened.set()
        await committing
        first = group.create_task(one.run(async_copy(source)))
        await wait_until_async(two._consumer.assignment, what="two has its share")
        await written(output)
        one.stop()
        two.stop()
        await asyncio.wait([first, second])
    assert one.model.aborts == 0
    assert one.model.committed_records >= COUNT
    await written(output)


@pytest.mark.parametrize("held", ["the call", "the flush", "the end"])
async def test_a_member_that_is_put_out_during_a_commit_does_not_commit(
    source: str, output: Output, make: Make, held: str
) -> None:
    one, two = await make(**PATIENT), await make()
    await has_all_in_hand(one, source)
    assert one._output.producer is not None
    manager = await one._output.producer.transactions()
    gate = {
        "the call": lambda: Gate(one._consumer._session.coordinator, "commit_within"),
        "the flush": lambda: Gate(manager, "_flush"),
        "the end": lambda: Gate(manager.coordinator, "end"),
    }[held]()
    async with asyncio.TaskGroup() as group:
        committing = group.create_task(one.commit())
        await gate.holds()
        await leaves(one)
        second = group.create_task(two.run(async_copy(source)))
        await written(output)
        gate.opened.set()
        await committing
        assert (one.model.committed_records, one.model.aborts) == (0, 1)
        first = group.create_task(one.run(async_copy(source)))
        await wait_until_async(one._consumer.assignment, what="one is a member again")
        one.stop()
        two.stop()
        await asyncio.wait([first, second])
    await written(output)


async def test_partitions_lost_between_two_passes_doom_what_is_open(
    source: str, output: Output, make: Make
) -> None:
    one, two = await make(**PATIENT), await make()
    await has_all_in_hand(one, source)
    await leaves(one)
    async with asyncio.TaskGroup() as group:
        second = group.create_task(two.run(async_copy(source)))
        await written(output)
        first = group.create_task(one.run(async_copy(source)))
        await wait_until_async(one._consumer.assignment, what="one is a member again")
        assert (one.model.committed_records, one.model.aborts) == (0, 1)
        one.stop()
        two.stop()
        await asyncio.wait([first, second])
    await written(output)


async def test_what_an_operator_aborted_is_not_committed_when_a_partition_leaves(
    shared_cluster: Cluster, source: str, output: Output, make: Make
) -> None:
    one = await make(**PATIENT)
    await has_all_in_hand(one, source)
    assert one._output.producer is not None
    await one._output.producer.flush(60)
    async with AsyncAdmin(shared_cluster.bootstrap) as admin:
        assert await admin.abort_transaction(one.transactional_id) == 1
    two = await make(commit_interval_ms=20)
    async with asyncio.TaskGroup() as group:
        second = group.create_task(two.run(async_copy(source)))
        first = group.create_task(one.run(async_copy(source)))
        await wait_until_async(two._consumer.assignment, what="two has its share")
        assert one.model.aborts == 1, "what one commits when partitions leave was aborted"
        one.stop()
        await first
        await one.close()
        await written(output)
        two.stop()
        await second
    await written(output)


@pytest.mark.parametrize("held", ["offsets", "the end"])
async def test_a_call_that_is_cancelled_in_a_commit_leaves_nothing_half_done(
    source: str, output: Output, make: Make, held: str
) -> None:
    one = await make(**PATIENT)
    await has_all_in_hand(one, source)
    assert one._output.producer is not None
    manager = await one._output.producer.transactions()
    coordinator = one._consumer._session.coordinator
    gate = (
        Gate(coordinator, "commit_within")
        if held == "offsets"
        else Gate(manager.coordinator, "end")
    )
    committing = asyncio.get_running_loop().create_task(one.commit())
    await gate.holds()
    committing.cancel()
    await asyncio.wait([committing])
    assert committing.cancelled()
    gate.opened.set()
    running = asyncio.get_running_loop().create_task(one.run(async_copy(source)))
    await wait_until_async(lambda: one.model.open_records == COUNT, what="it comes again")
    one.stop()
    await running
    await written(output)


async def test_a_record_that_could_not_be_sent_dooms_its_transaction_and_is_sent_again(
    source: str, output: Output, make: Make
) -> None:
    one = await make()
    refused: list[str] = []

    async def handle(record: Record, out: AsyncOut) -> None:
        producer = one._output.producer
        assert producer is not None
        takes = producer.try_append
        if record.offset == 5 and not refused:

            def full(topic: str, *_record: Any, **_more: Any) -> None:
                refused.append(topic)
                raise ClusterError("no room", ErrorCode.BUFFER_FULL)

            producer.try_append = full  # type: ignore[method-assign]
        delivery = await out.send(f"{source}.out", record.value, record.key)
        producer.try_append = takes  # type: ignore[method-assign]
        if record.offset == 5 and one.model.aborts == 0:
            with pytest.raises(ClusterError, match="no room"):
                await delivery

    async with asyncio.TaskGroup() as group:
        running = group.create_task(one.run(handle))
        await written(output)
        one.stop()
        await running
    assert (len(refused), one.model.aborts) == (1, 1)


async def test_closing_ends_a_loop_that_waits_for_records(
    source: str, output: Output, make: Make
) -> None:
    one = await make(commit_interval_ms=20)
    running = asyncio.get_running_loop().create_task(one.run(async_copy(source)))
    await wait_until_async(lambda: one.model.committed_records == COUNT, what="it is idle")
    async with asyncio.timeout(600):
        await one.close()
        await running


async def test_leaving_the_loop_commits_only_what_was_said_to_be_done(
    shared_cluster: Cluster, source: str, output: Output
) -> None:
    options: dict[str, Any] = {"group_id": source, "source": source, "max_records": 10}
    for said in (False, True):
        async with AsyncTransformer(shared_cluster.bootstrap, **options) as loop:
            async for batches, out in loop:
                for record in batches[0].records():
                    await out.send(f"{source}.out", record.value, record.key)
                for batch in batches[1:]:
                    await out.send_columns(f"{source}.out", batch.values(), batch.keys())
                if said:
                    await loop.commit()
                break
        assert bool(loop.model.committed_records) == said
    done = sum(batch.record_count for batch in batches)
    assert len(await asyncio.to_thread(output.all, done)) == done

    async def crash() -> None:
        async with AsyncTransformer(shared_cluster.bootstrap, **options) as loop:
            async for _, out in loop:
                await out.send(f"{source}.out", b"-1")
                raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        await crash()
    assert len(await asyncio.to_thread(output.all, done)) == done


def test_positions_behind_the_markers_of_the_source_are_committed(
    shared_cluster: Cluster, source: str, output: Output
) -> None:
    with Producer(shared_cluster.bootstrap, transactional_id=f"{source}.before") as producer:
        for number in range(COUNT, COUNT + 10):
            with producer.transaction() as tx:
                tx.send(source, b"%d" % number, b"key-0")
    one = Running(shared_cluster, source, copy_to(source))
    try:
        output.all(COUNT + 10)
        wait_until(lambda: one.model.committed_records == COUNT + 10, what="all is committed")
        with Producer(shared_cluster.bootstrap, transactional_id=f"{source}.after") as producer:
            tx = producer.transaction()
            tx.begin()
            for partition in range(PARTITIONS):  # nothing of it will ever be handed out
                tx.send(source, b"-1", partition=partition).result(60)
            tx.abort()
        with Admin(shared_cluster.bootstrap) as admin:

            def has_no_lag() -> bool:
                lags = admin.group_lag(source).values()
                return len(lags) == PARTITIONS and all(each.records == 0 for each in lags)

            wait_until(has_no_lag, what="no lag is left")
            places = [TopicPartition(source, number) for number in range(PARTITIONS)]
            ends = admin.list_offsets(dict.fromkeys(places, LATEST))

            def is_at_the_ends() -> bool:
                found = {at: one.offset for at, one in admin.describe_group(source).offsets.items()}
                return found == {at: end.offset for at, end in ends.items()}

            wait_until(is_at_the_ends, what="what was aborted is passed for good")
    finally:
        one.stop()


# -- what ends it ---------------------------------------------------------------------------------


def committed(cluster: Cluster, group: str, topic: str, partition: int) -> int | None:
    where = TopicPartition(topic, partition)
    with Consumer(cluster.bootstrap, group_id=group) as onlooker:
        found = onlooker.committed([where])[where]
        return None if found is None else found.offset


def test_closing_while_a_handler_runs_does_not_commit_its_record(
    shared_cluster: Cluster, source: str, output: Output
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def handle(record: Record, out: Out) -> None:
        begun.set()
        assert go_on.wait(60)
        out.send(f"{source}.out", record.value, record.key)

    with Transformer(shared_cluster.bootstrap, group_id=source, source=source) as loop:
        running = threading.Thread(target=loop.run, args=(handle,), daemon=True)
        running.start()
        assert begun.wait(60)
    go_on.set()
    running.join(60)
    assert not running.is_alive()
    assert loop.core.model.committed_records == 0
    one = Running(shared_cluster, source, copy_to(source))
    try:
        output.check(range(COUNT))
    finally:
        one.stop()


def test_a_pass_that_control_c_kept_from_the_user_comes_again(
    shared_cluster: Cluster, source: str, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Transformer(shared_cluster.bootstrap, group_id=source, source=source) as loop:
        opened = loop.core._opened
        with control_c() as interrupt:

            async def opened_and_strike() -> AsyncOut | None:
                out = await opened()
                interrupt.strike()
                return out

            monkeypatch.setattr(loop.core, "_opened", opened_and_strike)
            next(iter(loop))
        loop.commit()
        assert loop.core.model.committed_records == 0
        copied = 0
        for batches, out in loop:
            for batch in batches:
                out.send_columns(f"{source}.out", batch.values(), batch.keys())
                copied += batch.record_count
            if copied == COUNT:
                loop.stop()
    output.check(range(COUNT))


def test_a_record_whose_handler_control_c_interrupted_is_handled_by_the_next_run(
    shared_cluster: Cluster, source: str, output: Output
) -> None:
    interrupts = [KeyboardInterrupt()]
    with Transformer(shared_cluster.bootstrap, group_id=source, source=source) as loop:

        def handle(record: Record, out: Out) -> None:
            if record.offset == 5 and interrupts:
                raise interrupts.pop()
            out.send(f"{source}.out", record.value, record.key)

        with pytest.raises(KeyboardInterrupt):
            loop.run(handle)
        running = threading.Thread(target=loop.run, args=(handle,), daemon=True)
        running.start()
        output.check(range(COUNT))
        loop.stop()
        running.join(60)
        assert not running.is_alive()


def test_without_dead_letters_a_failure_ends_it_at_that_record(
    shared_cluster: Cluster, source: str
) -> None:
    failed: list[Record] = []

    def handle(record: Record, out: Out) -> None:
        if record.offset == 7:
            failed.append(record)
            raise ValueError("no")

    with pytest.raises(HandlerFailedError, match=r"offset 7.*failed 2 times.*ValueError: no"):
        transform(
            shared_cluster.bootstrap,
            group_id=source,
            source=source,
            handle=handle,
            retries=1,
            backoff_ms=1,
        )
    last = failed[-1]
    assert committed(shared_cluster, source, source, last.partition) == 7


async def test_names_that_are_not_there_and_limits_of_the_cluster_end_it_in_one_line(
    shared_cluster: Cluster, source: str
) -> None:
    async def astray(record: Record, out: AsyncOut) -> None:
        await out.send(f"{source}.nowhere", record.value)

    async def fine(record: Record, out: AsyncOut) -> None:
        await out.send(f"{source}.out", record.value)

    for handle, options, code in (
        (astray, {"unknown_topic_timeout_ms": 100}, ErrorCode.UNKNOWN_TOPIC),
        (fine, {"source": f"{source}.nowhere"}, ErrorCode.UNKNOWN_TOPIC),
        (fine, {"dead_letter_topic": f"{source}.nowhere"}, ErrorCode.UNKNOWN_TOPIC),
        (fine, {"transaction_timeout_ms": 2**31 - 1}, ErrorCode.INVALID_REQUEST),
    ):
        given: dict[str, Any] = {"group_id": source, "source": source, **options}
        with pytest.raises(ClusterError) as ended:
            await async_transform(shared_cluster.bootstrap, handle=handle, **given)
        assert ended.value.code is code
        assert "\n" not in str(ended.value)
    assert committed(shared_cluster, source, source, 0) is None


async def test_handlers_of_the_wrong_kind_are_refused_before_anything_is_read(
    shared_cluster: Cluster, source: str
) -> None:
    given: dict[str, Any] = {"group_id": source, "source": source}
    synchronous: Any = copy_to(source)
    asynchronous: Any = async_copy(source)
    with pytest.raises(MisuseError, match="async_transform"):
        transform(shared_cluster.bootstrap, handle=asynchronous, **given)
    with pytest.raises(MisuseError, match="use transform"):
        await async_transform(shared_cluster.bootstrap, handle=synchronous, **given)

    def returns(record: Record, out: Out) -> Any:
        return async_copy(source)(record, out)  # type: ignore[arg-type]  # never begins

    with pytest.raises(MisuseError, match="async_transform"):
        await asyncio.to_thread(
            transform,
            shared_cluster.bootstrap,
            handle=returns,
            dead_letter_topic=f"{source}.out",
            **given,
        )


SIGNALLED = """
import signal, sys
from penstock.client import Transformer
bootstrap, name = sys.argv[1:]
count = 0

def handle(record, out):
    global count
    count += 1
    out.send(name + ".out", record.value, record.key).result(60)
    if count == 20:
        print("twenty", flush=True)
        sys.stdin.readline()

with Transformer(bootstrap, group_id=name, source=name, commit_interval_ms=500_000,
        transaction_timeout_ms=600_000) as loop:
    signal.signal(signal.SIGTERM, lambda *_: loop.stop())
    loop.run(handle)
print("in good order", loop.core.model.committed_records)
"""


@pytest.mark.parametrize("given", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_and_leave_nothing_open(
    shared_cluster: Cluster, source: str, output: Output, given: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SIGNALLED, shared_cluster.bootstrap, source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"twenty\n"
        process.send_signal(given)
        if given is signal.SIGTERM:  # the handler is finished first
            process.stdin.write(b"\n")
            process.stdin.flush()
        said, errors = process.communicate(timeout=300)
    done = 0
    if given is signal.SIGTERM:
        assert said.startswith(b"in good order"), errors.decode()
        done = int(said.split()[-1])
        assert 20 <= done < COUNT, "the records before the signal, and hardly more"
        assert len(output.all(done)) == done
    else:
        assert b"KeyboardInterrupt" in errors
        assert process.returncode != 0
    with Admin(shared_cluster.bootstrap) as admin:

        def none_is_open() -> bool:
            """A program that is interrupted gives its abort two seconds."""
            seen = admin.list_transactions()
            (listed,) = [one for one in seen if one.transactional_id.startswith(source)]
            return listed.open_ms is None

        wait_until(none_is_open, what="its transaction has ended")
        wait_until(lambda: not admin.describe_group(source).members, what="it has left")
    with Transformer(shared_cluster.bootstrap, group_id=source, source=source) as loop:
        for batches, out in loop:
            for batch in batches:
                out.send_columns(f"{source}.out", batch.values(), batch.keys())
            loop.commit()
            if loop.core.model.committed_records >= COUNT - done:
                loop.stop()
    output.check(range(COUNT))
