"""A task that is cancelled while gRPC connects a stream for it ends."""

import asyncio

import pytest

from penstock.rpc.cancelling import heeding_cancellation


class Swallowing:
    """A stream as gRPC's: reading awaits a task that connects and swallows CancelledError."""

    def __init__(self) -> None:
        self.connecting = asyncio.Event()

    async def read(self) -> str:
        async def connect() -> None:
            try:
                self.connecting.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass

        async with asyncio.TaskGroup() as tasks:
            await tasks.create_task(connect())
        raise ConnectionError("nobody listens")


async def reader(stream: Swallowing) -> None:
    for _ in range(3):
        try:
            with heeding_cancellation():
                await stream.read()
        except ConnectionError:
            stream.connecting.clear()


async def test_a_cancellation_that_a_stream_swallows_ends_the_task_all_the_same() -> None:
    stream = Swallowing()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(reader(stream))
        await stream.connecting.wait()
        task.cancel()
    assert task.cancelled()


async def test_a_time_limit_around_it_is_still_a_time_limit() -> None:
    async def impatient() -> None:
        async with asyncio.timeout(0.01):
            with heeding_cancellation():
                await Swallowing().read()

    with pytest.raises(TimeoutError):
        await impatient()


async def test_a_task_that_was_cancelled_before_may_still_read() -> None:
    read: list[str] = []

    async def goodbye() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            with heeding_cancellation():
                read.append("the last answer")

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(goodbye())
        await asyncio.sleep(0)  # polls: it waits now
        task.cancel()
    assert read == ["the last answer"]


async def test_what_the_call_raises_is_raised() -> None:
    with pytest.raises(ConnectionError, match="nobody"), heeding_cancellation():
        raise ConnectionError("nobody listens")
