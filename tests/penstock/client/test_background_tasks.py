"""Tasks of a client that begin while it closes."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from support.transport_handlers import for_ever, one_turn

from penstock.client.tasks import BackgroundTasks

pytestmark = pytest.mark.filterwarnings("error")  # a coroutine that nobody awaits is one


async def begun(seen: list[BaseException] | None = None) -> BackgroundTasks:
    tasks = BackgroundTasks("test", (seen if seen is not None else []).append)
    await tasks.start()
    return tasks


def spawning_at_its_end(
    tasks: BackgroundTasks, answers: list[object], turns: int = 0
) -> Coroutine[Any, Any, None]:
    async def work() -> None:
        try:
            await for_ever()
        finally:
            for _ in range(turns):
                await one_turn()
            answers.append(tasks.spawn(for_ever(), "late"))

    return work()


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_a_task_that_begins_while_others_end_does_not_hold_up_the_close(turns: int) -> None:
    tasks = await begun()
    answers: list[object] = []
    tasks.spawn(spawning_at_its_end(tasks, answers, turns), "one")
    await one_turn()
    async with asyncio.timeout(10):
        await tasks.aclose()
    assert answers == [None]


@pytest.mark.parametrize("turns", range(4))
async def test_at_no_moment_of_the_end_is_a_task_refused_with_an_error(turns: int) -> None:
    """Also between the end of the last task and that of their owner, as at the end of
    `asyncio.run`, which cancels all."""
    seen: list[BaseException] = []
    tasks = await begun(seen)
    task = tasks.spawn(for_ever(), "one")
    await one_turn()
    assert task is not None
    assert tasks._owner is not None
    tasks._owner.cancel()
    for _ in range(turns):
        await one_turn()
    assert tasks.spawn(for_ever(), "late") is None
    await asyncio.wait([tasks._owner])
    assert len(seen) == 1


async def test_none_begins_once_a_task_has_crashed() -> None:
    seen: list[BaseException] = []
    tasks = await begun(seen)
    answers: list[object] = []

    async def crash() -> None:
        raise ValueError("a defect")

    tasks.spawn(spawning_at_its_end(tasks, answers), "one")
    await one_turn()
    tasks.spawn(crash(), "two")
    assert tasks._owner is not None
    async with asyncio.timeout(10):
        await asyncio.wait([tasks._owner])
    assert answers == [None]
    assert [type(one) for one in seen] == [ValueError]


def test_the_end_of_a_program_in_the_middle_of_work_is_silent() -> None:
    """A call of the user that is cancelled begins background work in its `finally`."""
    answers: list[object] = []

    async def main() -> None:
        tasks = await begun()
        tasks.spawn(for_ever(), "one")

        async def call() -> None:
            try:
                await for_ever()
            finally:
                answers.append(tasks.spawn(for_ever(), "late"))

        calling = asyncio.create_task(call())  # noqa: TID251 - a careless user's
        await one_turn()
        answers.append(calling.done())

    asyncio.run(main())
    assert answers == [False, None]
