"""A delivery is known to whoever waits for it, in any thread or loop, and waits for nobody."""

import asyncio
import threading

import pytest

from penstock.client.model import DeliveryReport
from penstock.client.producer.delivery import ColumnsDelivery, Delivery, DeliveryError, Outcome
from penstock.core.types import Acks, Sync
from penstock.errors import ErrorCode, MisuseError

REPORT = DeliveryReport("t", 2, 100, 10, Acks.ALL, Sync.OS)
FAILURE = DeliveryError(
    "gone", ErrorCode.DELIVERY_TIMED_OUT, topic="t", partition=2, unknown_outcome=True
)


def test_a_record_learns_its_own_offset_from_the_batch() -> None:
    outcome = Outcome(None)
    delivery = Delivery(outcome, 7)
    assert not delivery.done()
    outcome.resolve(REPORT)
    assert delivery.done()
    assert (delivery.result().offset, delivery.result().record_count) == (107, 1)
    first = Delivery(outcome, 0).result()
    assert (first.offset, first.record_count) == (100, 1)


def test_an_unknown_offset_stays_unknown() -> None:
    outcome = Outcome(None)
    outcome.resolve(DeliveryReport("t", 2, -1, 10, Acks.NONE, Sync.OS))
    assert Delivery(outcome, 7).result().offset == -1


def test_a_failure_is_raised_every_time_it_is_asked_for() -> None:
    outcome = Outcome(None)
    outcome.fail(FAILURE)
    for _ in range(2):
        with pytest.raises(DeliveryError, match="gone") as raised:
            Delivery(outcome, 0).result()
        assert raised.value.unknown_outcome


def test_a_thread_waits_until_the_outcome_is_there() -> None:
    outcome = Outcome(None)
    seen: list[int] = []
    waiting = threading.Thread(target=lambda: seen.append(Delivery(outcome, 1).result(120).offset))
    waiting.start()
    outcome.resolve(REPORT)
    waiting.join(120)
    assert seen == [101]


def test_a_wait_that_takes_too_long_says_so_and_harms_nothing() -> None:
    outcome = Outcome(None)
    with pytest.raises(TimeoutError, match=r"0\.01 s"):
        Delivery(outcome, 1).result(0.01)
    outcome.resolve(REPORT)
    assert Delivery(outcome, 1).result(0).offset == 101


async def test_many_tasks_wait_and_one_that_is_cancelled_does_not_disturb_the_others() -> None:
    outcome = Outcome(asyncio.get_running_loop())
    deliveries = [Delivery(outcome, index) for index in range(3)]

    async def wait(delivery: Delivery) -> int:
        return (await delivery).offset

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(wait(delivery)) for delivery in deliveries]
        await asyncio.sleep(0)  # polls nothing: lets the tasks begin to wait
        tasks[0].cancel()
        threading.Thread(target=outcome.resolve, args=(REPORT,)).start()
    assert tasks[0].cancelled()
    assert [task.result() for task in tasks[1:]] == [101, 102]


async def test_a_task_in_the_loop_of_another_thread_learns_of_it() -> None:
    outcome = Outcome(asyncio.get_running_loop())
    seen: list[int] = []
    waits = threading.Event()

    async def wait() -> None:
        asyncio.get_running_loop().call_soon(waits.set)
        async with asyncio.timeout(120):
            seen.append((await Delivery(outcome, 1)).offset)

    thread = threading.Thread(target=lambda: asyncio.run(wait()))
    thread.start()
    assert waits.wait(120)
    outcome.resolve(REPORT)
    thread.join(120)
    assert seen == [101]


async def test_a_task_in_the_same_loop_learns_of_it_in_the_next_turn() -> None:
    outcome = Outcome(asyncio.get_running_loop())
    order: list[object] = []

    async def wait() -> None:
        order.append((await Delivery(outcome, 1)).offset)

    async with asyncio.TaskGroup() as group:
        group.create_task(wait())
        await asyncio.sleep(0)  # polls nothing: lets the task begin to wait
        outcome.resolve(REPORT)
        asyncio.get_running_loop().call_soon(order.append, "the next callback")
    assert order == [101, "the next callback"]


async def test_blocking_in_the_producers_own_loop_is_refused_instead_of_hanging() -> None:
    outcome = Outcome(asyncio.get_running_loop())
    with pytest.raises(MisuseError, match="await"):
        Delivery(outcome, 0).result()
    outcome.resolve(REPORT)
    assert Delivery(outcome, 0).result().offset == 100, "a known outcome does not block"


async def test_columns_report_on_every_batch_and_raise_the_first_failure() -> None:
    first, second = Outcome(None), Outcome(None)
    delivery = ColumnsDelivery([(first, 10), (second, 5)])
    first.resolve(REPORT)
    assert not delivery.done()
    with pytest.raises(TimeoutError):
        delivery.result(0.01)
    second.resolve(DeliveryReport("t", 0, 7, 5, Acks.ALL, Sync.OS))
    assert [(r.partition, r.base_offset, r.record_count) for r in await delivery] == [
        (2, 100, 10), (0, 7, 5),
    ]  # fmt: skip
    third = Outcome(None)
    third.fail(FAILURE)
    with pytest.raises(DeliveryError):
        await ColumnsDelivery([(first, 10), (third, 5)])
