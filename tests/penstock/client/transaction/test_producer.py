"""Producers of transactions over real gRPC: what is committed is there whole, the rest never."""

import asyncio
import itertools
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from threading import Thread
from typing import Any

import grpc
import pytest
from support.transaction_double import MAX_TIMEOUT_MS, TransactionDouble, serving
from support.transaction_model import refused
from support.transport_handlers import one_turn
from support.waiting import wait_until_async

from penstock.client import (
    Acks,
    AsyncProducer,
    AsyncTransaction,
    Delivery,
    DeliveryError,
    Producer,
    Transaction,
    TransactionError,
    pod_id,
)
from penstock.client.clock import now_ms
from penstock.client.cluster import coordinator as any_coordinator
from penstock.client.transaction import coordinator, manager
from penstock.errors import ClusterError, ErrorCode, MisuseError, PenstockError, ThrottledError

FENCED = refused(ErrorCode.PRODUCER_FENCED)
FOR_EVER_S = 600.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is late: a call that a stalled machine repeats would be counted twice."""
    for module in (any_coordinator, coordinator):
        monkeypatch.setattr(module, "PATIENCE_S", FOR_EVER_S)


class Clock:
    """Goes on by itself, and jumps when the test says so."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return now_ms() + self.ahead_ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """By which the calls of a transaction are late."""
    made = Clock()
    monkeypatch.setattr(manager, "now_ms", made)
    return made


def until_late(clock: Clock, order: PenstockError | str) -> Iterator[PenstockError | str]:
    """The same for every call; the time of whoever asks is up at the third."""
    for number in itertools.count(1):
        if number == 3:
            clock.ahead_ms += int(FOR_EVER_S * 1000)
        yield order


@pytest.fixture
async def double() -> AsyncIterator[TransactionDouble]:
    async with serving() as made:
        yield made


@asynccontextmanager
async def producing(double: TransactionDouble, **more: Any) -> AsyncIterator[AsyncProducer]:
    backoff = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 2}
    settings = {"linger_ms": 0, "delivery_timeout_ms": 20_000, **backoff, **more}
    async with AsyncProducer(double.address, transactional_id="billing-0", **settings) as producer:
        yield producer


async def send(tx: AsyncTransaction, *values: bytes) -> None:
    """To both partitions in turn, without waiting for deliveries."""
    for index, value in enumerate(values):
        await tx.send("t", value, partition=index % 2)


async def within(
    producer: AsyncProducer, work: Callable[[AsyncTransaction], Awaitable[None]]
) -> None:
    """Does `work` in a transaction of its own."""
    async with producer.transaction() as tx:
        await work(tx)


async def test_transactions_follow_each_other_and_each_is_seen_as_a_whole(
    double: TransactionDouble,
) -> None:
    async with producing(double) as producer:
        for number in range(3):
            async with producer.transaction() as tx:
                await send(tx, b"%d.a" % number, b"%d.b" % number, b"%d.c" % number)
    assert double.visible() == [b"%d.%c" % (n, c) for n in range(3) for c in b"abc"]
    assert [end.commit for end in double.asked] == [True] * 3
    epochs = [end.producer_epoch for end in double.asked]
    assert epochs == [epochs[0] + number for number in range(3)]
    assert [init.transactional_id for init in double.inits] == ["billing-0"]


async def test_an_error_aborts_and_the_next_transaction_has_nothing_of_it(
    double: TransactionDouble,
) -> None:
    async with producing(double, linger_ms=60_000) as producer:
        waiting: list[Delivery] = []

        async def broken(tx: AsyncTransaction) -> None:
            await send(tx, b"stored")
            await producer.flush()
            waiting.append(await tx.send("t", b"never sent"))
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await within(producer, broken)
        with pytest.raises(DeliveryError, match="aborted") as dropped:
            await waiting[0]
        assert dropped.value.code is ErrorCode.TRANSACTION_ABORTED
        async with producer.transaction() as tx:
            await send(tx, b"next")
        assert await producer.close() == 0, "what was aborted on purpose is not undelivered"
    assert double.visible() == [b"next"]
    assert [end.commit for end in double.asked] == [False, True]


@pytest.mark.parametrize("script", [["lost before"], ["lost after"], ["lost after"] * 3])
async def test_a_lost_answer_is_asked_for_until_it_comes(
    double: TransactionDouble, script: list[str]
) -> None:
    double.ends = iter(script)
    async with producing(double) as producer, producer.transaction() as tx:
        await send(tx, b"a", b"b")
    assert double.visible() == [b"a", b"b"]
    assert len(double.asked) == len(script) + 1
    assert len({end.producer_epoch for end in double.asked}) == 1


async def test_a_coordinator_that_moved_is_looked_for_again(double: TransactionDouble) -> None:
    double.ends = iter([refused(ErrorCode.NOT_COORDINATOR), refused(ErrorCode.COORDINATOR_LOADING)])
    async with producing(double) as producer, producer.transaction() as tx:
        await send(tx, b"a")
    assert double.visible() == [b"a"]
    found, moved, loading = double.finds_before_end
    assert found < moved == loading, "one that is loading is the right one"


async def test_a_commit_without_an_answer_in_time_is_unknown_and_can_be_asked_again(
    double: TransactionDouble, clock: Clock
) -> None:
    loading = until_late(clock, refused(ErrorCode.COORDINATOR_LOADING))
    double.ends = itertools.chain(["lost after"], loading)
    async with producing(double) as producer:
        tx = producer.transaction()
        await tx.begin()
        await send(tx, b"a")
        await producer.flush()
        with pytest.raises(TransactionError, match="unknown") as unknown:
            await tx.commit(timeout_s=60.0)
        assert unknown.value.unknown_outcome
        with pytest.raises(MisuseError, match="commit again"):
            await producer.transaction().begin()
        double.ends = iter(())
        await tx.commit()
        assert double.visible() == [b"a"]
        with pytest.raises(MisuseError, match="after the end"):
            await tx.commit()


async def test_commit_waits_for_every_batch(double: TransactionDouble) -> None:
    double.produces = iter(["late"])
    async with producing(double) as producer, asyncio.TaskGroup() as group:
        tx = producer.transaction()
        await tx.begin()
        await send(tx, b"slow")
        committing = group.create_task(tx.commit())
        await wait_until_async(lambda: double.produced, what="the batch has arrived")
        assert not double.asked, "nothing is decided while a batch is not stored"
        with pytest.raises(MisuseError, match="in progress"):
            await tx.commit()
        with pytest.raises(MisuseError, match="is ending"):
            await send(tx, b"too late")
        double.go_on.set()
        await committing
        assert double.visible() == [b"slow"]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OUT_OF_ORDER_SEQUENCE,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_ABORTED,
        ErrorCode.RECORD_TOO_LARGE,
    ],
)
async def test_a_refused_batch_fails_the_transaction_and_the_producer_goes_on(
    double: TransactionDouble, code: ErrorCode
) -> None:
    async with producing(double) as producer:
        double.produces = iter([None, refused(code)])

        async def refused_in_the_end(tx: AsyncTransaction) -> None:
            await send(tx, b"stored")
            await producer.flush()
            await send(tx, b"refused")

        with pytest.raises(TransactionError, match=code.name) as aborted:
            await within(producer, refused_in_the_end)
        assert aborted.value.code is ErrorCode.TRANSACTION_ABORTED
        assert not aborted.value.unknown_outcome
        assert [end.commit for end in double.asked] == [False]
        async with producer.transaction() as tx:
            await send(tx, b"next")
    assert double.visible() == [b"next"]


async def test_a_failed_transaction_takes_no_records_and_its_other_batches_end(
    double: TransactionDouble,
) -> None:
    async with producing(double, linger_ms=60_000) as producer:
        tx = producer.transaction()
        await tx.begin()
        double.produces = iter([refused(ErrorCode.RECORD_TOO_LARGE)])
        lost = await tx.send("t", b"refused", partition=0)
        await producer.flush()
        with pytest.raises(DeliveryError):
            await lost
        with pytest.raises(TransactionError, match="can no longer be committed"):
            await tx.send("t", b"more")
        with pytest.raises(TransactionError, match="can no longer be committed"):
            await tx.commit()
        await tx.abort()
    assert double.visible() == []


async def test_a_batch_whose_time_is_up_is_not_sent_in_the_next_transaction(
    double: TransactionDouble,
) -> None:
    double.produces = iter(["silent"] * 2)
    async with producing(double, delivery_timeout_ms=2_000) as producer:
        with pytest.raises(TransactionError):
            await within(producer, lambda tx: send(tx, b"given up"))
        double.produces = iter(())

        async def next_one() -> bool:
            begun_s = time.monotonic()
            try:
                await within(producer, lambda tx: send(tx, b"next"))
            except TransactionError:  # where a machine that stalls has taken its time, too
                assert time.monotonic() - begun_s > 1
                return False
            return True

        await wait_until_async(next_one, what="the next transaction is committed")
    assert double.visible() == [b"next"]
    stored = [value for each in double.partitions for some in each.log.values() for value in some]
    assert b"given up" not in stored


async def test_a_timeout_is_told_and_the_producer_goes_on(double: TransactionDouble) -> None:
    async with producing(double) as producer:

        async def too_slow(tx: AsyncTransaction) -> None:
            await send(tx, b"a")
            await producer.flush()
            double.branch.decide(commit=False, reason="timeout")

        with pytest.raises(TransactionError) as aborted:
            await within(producer, too_slow)
        assert aborted.value.code is ErrorCode.TRANSACTION_ABORTED
        async with producer.transaction() as tx:
            await send(tx, b"next")
    assert double.visible() == [b"next"]


@pytest.mark.parametrize("form", ["calls", "block"])
async def test_an_abort_after_the_coordinators_own_is_a_success(
    double: TransactionDouble, form: str
) -> None:
    """`except: abort()` is what people write, and there is nothing left to do."""

    async def commit_or_abort(tx: AsyncTransaction) -> None:
        await send(tx, b"a")
        await producer.flush()
        double.branch.decide(commit=False, reason="timeout")
        with pytest.raises(TransactionError) as aborted:
            await tx.commit()
        assert aborted.value.code is ErrorCode.TRANSACTION_ABORTED
        await tx.abort()
        await tx.abort()

    async with producing(double) as producer:
        if form == "block":
            await within(producer, commit_or_abort)
        else:
            tx = producer.transaction()
            await tx.begin()
            await commit_or_abort(tx)
            with pytest.raises(MisuseError, match="which is aborted"):
                await tx.commit()
        asked = len(double.asked)
        async with producer.transaction() as tx:
            await send(tx, b"next")
        assert len(double.asked) == asked + 1
        with pytest.raises(MisuseError, match="which is committed"):
            await tx.abort()
    assert double.visible() == [b"next"]


async def test_an_abort_after_a_commit_that_nobody_sees_yet_is_refused(
    double: TransactionDouble, clock: Clock
) -> None:
    double.ends = until_late(clock, "invisible")
    async with producing(double) as producer:
        tx = producer.transaction()
        await tx.begin()
        await send(tx, b"a")
        with pytest.raises(ClusterError, match="is committed, but"):
            await tx.commit(wait_visible=True, timeout_s=60.0)
        with pytest.raises(MisuseError, match="which is committed"):
            await tx.abort()


async def test_an_abort_of_one_that_was_aborted_meanwhile_leaves_the_next_one_alone(
    double: TransactionDouble,
) -> None:
    double.ends = iter([refused(ErrorCode.COORDINATOR_LOADING)] * 10_000)
    async with producing(double) as producer:
        old = producer.transaction()
        await old.begin()
        await send(old, b"old")
        with pytest.raises(TransactionError, match="is not confirmed"):
            await old.abort(timeout_s=0.2)
        double.ends = iter(())
        async with producer.transaction() as tx:  # asks on, and begins
            await send(tx, b"next")
            await old.abort()
            with pytest.raises(MisuseError, match="which is aborted"):
                await old.commit()
    assert double.visible() == [b"next"]


async def test_who_comes_later_fences_who_was_there(double: TransactionDouble) -> None:
    async with producing(double) as first, producing(double) as second:
        old = first.transaction()
        await old.begin()
        await send(old, b"old")
        await first.flush()
        async with second.transaction() as tx:
            await send(tx, b"new")
        with pytest.raises(TransactionError, match="new producer") as fenced:
            await old.commit()
        assert fenced.value.code is ErrorCode.PRODUCER_FENCED
        assert not fenced.value.unknown_outcome
        with pytest.raises(TransactionError, match="new producer"):
            await old.abort()
        with pytest.raises(TransactionError, match="new producer"):
            await first.transaction().begin()
    assert double.visible() == [b"new"]
    assert len({init.instance_id for init in double.inits}) == 2


async def test_an_epoch_that_was_used_is_given_up_for_a_new_one(
    double: TransactionDouble,
) -> None:
    double.ends = iter(["same epoch"])
    async with producing(double) as producer:
        async with producer.transaction():
            pass
        async with producer.transaction() as tx:
            await send(tx, b"a")
    assert double.visible() == [b"a"]
    assert len({init.instance_id for init in double.inits}) == 2, "or it would get the same epoch"


async def test_a_commit_can_wait_until_readers_see_it(
    double: TransactionDouble, clock: Clock
) -> None:
    double.ends = iter(["invisible"] * 3)
    async with producing(double) as producer:
        tx = producer.transaction()
        await tx.begin()
        await send(tx, b"a")
        await tx.commit(wait_visible=True)
        assert len(double.asked) == 4
        assert all(end.wait_visible_ms > 0 for end in double.asked)
        double.ends = until_late(clock, "invisible")
        tx = producer.transaction()
        await tx.begin()
        await send(tx, b"b")
        await producer.flush()
        with pytest.raises(ClusterError, match="is committed, but") as late:
            await tx.commit(wait_visible=True, timeout_s=60.0)
        assert not isinstance(late.value, TransactionError)
        double.ends = iter(())
        double.hear()
        async with producer.transaction() as tx:
            await send(tx, b"c")
        assert double.visible() == [b"a", b"b", b"c"]


async def test_closing_a_producer_aborts_what_is_open(double: TransactionDouble) -> None:
    async with producing(double) as producer:
        tx = producer.transaction()
        await tx.begin()
        await send(tx, b"a")
        await producer.flush()
    assert [end.commit for end in double.asked] == [False]


async def test_closing_in_a_hurry_gives_up_what_a_commit_waits_for(
    double: TransactionDouble,
) -> None:
    double.produces = itertools.repeat("silent")
    producer = AsyncProducer(double.address, transactional_id="billing-0", linger_ms=0)
    tx = producer.transaction()
    await tx.begin()
    deliveries = [await tx.send("t", b"v", partition=number) for number in (0, 1)]
    await wait_until_async(lambda: double.produced > 0, what="batches are on their way")

    async def commit() -> None:
        with pytest.raises(TransactionError, match="can no longer be committed"):
            await tx.commit()

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(commit())
        await one_turn()
        assert await producer.close(0.05) > 0
        for delivery in deliveries:
            with pytest.raises(DeliveryError):
                await delivery


async def test_a_cancelled_block_aborts(double: TransactionDouble) -> None:
    async with producing(double) as producer:
        inside = asyncio.Event()

        async def block() -> None:
            async with producer.transaction() as tx:
                await send(tx, b"a")
                inside.set()
                await asyncio.Event().wait()

        async with asyncio.TaskGroup() as group:
            working = group.create_task(block())
            await inside.wait()
            working.cancel()
        assert [end.commit for end in double.asked] == [False]
        async with producer.transaction() as tx:
            await send(tx, b"next")
    assert double.visible() == [b"next"]


async def test_a_block_that_is_cancelled_before_its_commit_is_sent_aborts(
    double: TransactionDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushing = asyncio.Event()

    async def flushed(_: manager.TransactionManager, deadline_ms: int) -> int:
        flushing.set()
        await asyncio.Event().wait()
        return 0

    async with producing(double) as producer:

        async def block() -> None:
            async with producer.transaction() as tx:
                await send(tx, b"a")
                monkeypatch.setattr(manager.TransactionManager, "_flushed", flushed)

        async with asyncio.TaskGroup() as group:
            working = group.create_task(block())
            await flushing.wait()
            working.cancel()
        monkeypatch.undo()
        assert [end.commit for end in double.asked] == [False]
        async with producer.transaction() as tx:
            await send(tx, b"next")
    assert double.visible() == [b"next"]


async def test_closing_waits_for_an_abort_that_is_on_its_way(
    double: TransactionDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in a sync `with` does not wait for the block's task before it closes the producer."""
    flushing, ending, goes_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
    end, rests = coordinator.TransactionCalls.end, manager.TransactionManager.rests

    async def flushed(_: manager.TransactionManager, deadline_ms: int) -> int:
        flushing.set()
        await asyncio.Event().wait()
        return 0

    async def slowly(calls: coordinator.TransactionCalls, *asked: Any) -> Any:
        ending.set()
        await goes_on.wait()
        return await end(calls, *asked)

    async def resting(transactions: manager.TransactionManager, timeout_s: float) -> None:
        goes_on.set()
        await rests(transactions, timeout_s)

    monkeypatch.setattr(coordinator.TransactionCalls, "end", slowly)
    monkeypatch.setattr(manager.TransactionManager, "rests", resting)
    async with producing(double) as producer, asyncio.TaskGroup() as group:

        async def block() -> None:
            async with producer.transaction() as tx:
                await send(tx, b"a")
                monkeypatch.setattr(manager.TransactionManager, "_flushed", flushed)

        working = group.create_task(block())
        await flushing.wait()
        working.cancel()
        await ending.wait()
        await producer.close(60)
        assert [end.commit for end in double.asked] == [False]


# -- misuse ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"transactional_id": ""},
        {"transactional_id": "x" * 250},
        {"transactional_id": "ü" * 125},
        {"transactional_id": "tab\there"},
        {"transactional_id": 7},
        {"transactional_id": "a", "acks": Acks.LEADER},
        {"transactional_id": "a", "idempotent": False},
        {"transaction_timeout_ms": 0},
        {"transaction_timeout_ms": 2**31},
    ],
)
def test_settings_that_make_no_sense_are_refused_by_the_constructor(
    settings: dict[str, Any],
) -> None:
    with pytest.raises(MisuseError, match=r"transaction(al_id|_timeout_ms)"):
        AsyncProducer("127.0.0.1:1", **settings)
    assert AsyncProducer("127.0.0.1:1", transactional_id="ü" * 124).config.acks is Acks.ALL


async def test_a_timeout_above_the_clusters_is_refused_by_the_first_transaction(
    double: TransactionDouble,
) -> None:
    async with producing(double, transaction_timeout_ms=MAX_TIMEOUT_MS + 1) as producer:
        with pytest.raises(ClusterError) as refusal:
            await producer.transaction().begin()
        assert refusal.value.code is ErrorCode.INVALID_REQUEST
        assert len(double.inits) == 1, "it is not asked for again"


async def test_calls_out_of_turn_are_refused_and_do_no_harm(double: TransactionDouble) -> None:
    async with producing(double) as producer:
        with pytest.raises(MisuseError, match="no transaction is open"):
            await producer.send("t", b"outside")
        with pytest.raises(MisuseError, match="no transaction is open"):
            await producer.send_columns("t", [b"outside"])
        tx = producer.transaction()
        for early in (tx.commit(), tx.abort(), tx.send("t", b"early")):
            with pytest.raises(MisuseError, match="before begin"):
                await early
        async with tx:
            with pytest.raises(MisuseError, match="already open"):
                await producer.transaction().begin()
            with pytest.raises(MisuseError, match="already begun"):
                await tx.begin()
            await send(tx, b"a")
            with pytest.raises(MisuseError, match=r"tx\.send"):
                await producer.send("t", b"beside it")
        with pytest.raises(MisuseError, match="after the end"):
            await tx.send("t", b"late")
        with pytest.raises(MisuseError, match="no transaction is open"):
            await producer.send("t", b"outside")
    async with AsyncProducer(double.address) as plain:
        with pytest.raises(MisuseError, match="no transactional_id"):
            plain.transaction()
    assert double.visible() == [b"a"]


async def test_a_cluster_without_transactions_says_so_and_gets_no_records() -> None:
    async with serving(transactions=False) as double, producing(double) as producer:
        with pytest.raises(ClusterError, match="older than this client"):
            await producer.transaction().begin()
        assert double.produced == 0


async def test_transactions_end_on_one_stream() -> None:
    async with serving() as double, producing(double) as producer:
        for value in (b"a", b"b", b"c"):
            async with producer.transaction() as tx:
                await send(tx, value)
        assert double.streams_of_ends == 1
        assert double.visible() == [b"a", b"b", b"c"]


async def test_a_throttled_end_waits_and_stays_on_streams() -> None:
    async with serving() as double, producing(double) as producer:
        double.ends = iter([ThrottledError("above a quota", throttle_ms=1)])
        async with producer.transaction() as tx:
            await send(tx, b"a")
        assert len(double.asked) == double.streams_of_ends == 2
        assert double.visible() == [b"a"]


@pytest.mark.parametrize(
    "why",
    [
        pytest.param(grpc.StatusCode.UNIMPLEMENTED, id="an earlier release"),
        pytest.param(grpc.StatusCode.RESOURCE_EXHAUSTED, id="too many streams"),
    ],
)
async def test_a_broker_that_takes_no_stream_is_asked_by_calls(why: grpc.StatusCode) -> None:
    async with serving() as double, producing(double) as producer:
        double.no_streams = why
        for value in (b"a", b"b"):
            async with producer.transaction() as tx:
                await send(tx, value)
        assert double.streams_of_ends == 1, "it is tried once"
        assert double.visible() == [b"a", b"b"]
        assert len(double.asked) == 2


# -- the sync facade, pods -----------------------------------------------------------------------


def fail_within(producer: Producer) -> None:
    with producer.transaction() as tx:
        tx.send("t", b"dropped")
        raise ZeroDivisionError


async def test_the_sync_producer_does_the_same(double: TransactionDouble) -> None:
    def work() -> None:
        with Producer(double.address, transactional_id="billing-0", linger_ms=0) as producer:
            with producer.transaction() as tx:
                tx.send("t", b"a", partition=0)
                tx.send_columns("t", [b"b"], partition=1)
            with pytest.raises(ZeroDivisionError):
                fail_within(producer)
            with pytest.raises(MisuseError, match="no transaction is open"):
                producer.send("t", b"outside")
            manual = producer.transaction()
            manual.begin()
            manual.send("t", b"c")
            manual.commit(wait_visible=True)
            with pytest.raises(MisuseError, match="after the end"):
                manual.send("t", b"late")
            manual = producer.transaction()
            manual.begin()
            manual.abort()

    await asyncio.to_thread(work)
    assert double.visible() == [b"a", b"b", b"c"]
    assert [end.commit for end in double.asked] == [True, False, True, False]


async def test_what_a_thread_sends_is_in_the_transaction_it_was_sent_in_or_refused(
    double: TransactionDouble,
) -> None:
    def work() -> None:
        current: list[Transaction] = []
        accepted: dict[Transaction, list[bytes]] = {}
        stop = threading.Event()

        def keep_sending(name: bytes) -> None:
            count = itertools.count()
            while not stop.is_set():
                tx, value = current[0], b"%s.%d" % (name, next(count))
                try:
                    tx.send("t", value, partition=0)
                except PenstockError:
                    continue  # it has ended, or is ending
                accepted[tx].append(value)

        committed: set[Transaction] = set()
        with Producer(double.address, transactional_id="billing-0", linger_ms=0) as producer:
            current.append(producer.transaction())
            accepted[current[0]] = []
            current[0].begin()
            threads = [Thread(target=keep_sending, args=(name,)) for name in (b"a", b"b", b"c")]
            for thread in threads:
                thread.start()
            for number in range(40):
                before = current[0]
                if number % 3:
                    before.commit()
                    committed.add(before)
                else:
                    before.abort()
                following = producer.transaction()
                accepted[following] = []
                following.begin()  # while threads still send in the one before
                current[0] = following
            stop.set()
            for thread in threads:
                thread.join(120)
            current[0].abort()
        expected = sorted(value for tx in committed for value in accepted[tx])
        assert expected, "the threads got something through"
        assert double.visible() == expected

    await asyncio.to_thread(work)


@pytest.mark.parametrize(("host", "ordinal"), [("app-0", 0), ("billing-app-12", 12), ("a-7.b", 7)])
def test_a_pod_of_a_stateful_set_has_its_ordinal_in_its_id(
    host: str, ordinal: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    assert pod_id("billing") == f"billing-{ordinal}"


@pytest.mark.parametrize(
    "host", ["laptop", "app-", "-1", "app-01", "app-x", "app-54321", "app-7d4b9c8f6-24678"]
)
def test_a_host_without_an_ordinal_has_no_id(host: str) -> None:
    with pytest.raises(MisuseError, match="StatefulSet"):
        pod_id("billing", host=host)
