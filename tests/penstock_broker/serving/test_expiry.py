"""Attack 12, at its source: what is done for a caller ends a minute after their credentials."""

import asyncio
from collections.abc import Callable

import pytest

from penstock.errors import ClusterError, ErrorCode
from penstock_broker.serving import expiry
from penstock_broker.serving.callers import LEEWAY_S, NOBODY, Caller, Role
from penstock_broker.serving.expiry import bounded_by_credentials

EXPIRES_S = 1_000_000.0
USER = Caller(Role.USER, "serviceaccount:etl/spark", expires_s=EXPIRES_S)


def clock_at(start_s: float) -> Callable[[], float]:
    """A wall clock that shows `start_s` now, and goes."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    return lambda: start_s + loop.time() - began_s


async def serve(who: Caller, now_s: float, work: asyncio.Event) -> str:
    try:
        with bounded_by_credentials(who, clock_at(now_s)):
            await work.wait()
    except ClusterError as error:
        return error.code.name
    return "done"


async def test_a_stream_ends_a_minute_after_its_credentials() -> None:
    left_s = 0.05
    async with asyncio.timeout(30):
        outcome = await serve(USER, EXPIRES_S + LEEWAY_S - left_s, asyncio.Event())
    assert outcome == "CREDENTIALS_EXPIRED"


async def test_after_that_the_task_goes_on_as_if_nothing_had_happened() -> None:
    async with asyncio.timeout(30):
        await serve(USER, EXPIRES_S + LEEWAY_S, asyncio.Event())
        await asyncio.sleep(0)  # polls nothing: a turn of the loop
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()


@pytest.mark.parametrize("who", [NOBODY, USER])
async def test_a_stream_that_ends_by_itself_is_left_alone(who: Caller) -> None:
    work = asyncio.Event()
    work.set()
    assert await serve(who, EXPIRES_S, work) == "done"


async def test_whoever_cancels_a_stream_is_heard() -> None:
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(serve(USER, EXPIRES_S, asyncio.Event()))
        await asyncio.sleep(0)  # polls nothing: a turn of the loop
        serving.cancel()
    assert serving.cancelled()


async def test_tasks_of_the_stream_end_with_it() -> None:
    ended = asyncio.Event()

    async def part() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def stream() -> None:
        with bounded_by_credentials(USER, clock_at(EXPIRES_S + LEEWAY_S - 0.05)):
            async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
                tasks.create_task(part())
                tasks.create_task(part())

    with pytest.raises(ClusterError, match="serviceaccount:etl/spark") as raised:
        await stream()
    assert raised.value.code is ErrorCode.CREDENTIALS_EXPIRED
    assert ended.is_set()


async def test_a_clock_that_is_set_moves_the_end_of_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was an hour behind when the stream began, then a moment ahead, and is right at last."""
    monkeypatch.setattr(expiry, "LOOK_EVERY_S", 0.001)
    end_s = EXPIRES_S + LEEWAY_S
    shown_s = iter((end_s - 3_600, end_s - 3_600, end_s - 0.001, end_s - 5, end_s))
    async with asyncio.timeout(30):
        with pytest.raises(ClusterError), bounded_by_credentials(USER, lambda: next(shown_s)):
            await asyncio.Event().wait()
    assert not list(shown_s)
