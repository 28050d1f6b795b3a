"""A node's event loop in virtual time: what asyncio promises holds, and a killed node is silent."""

import asyncio
import contextlib
from asyncio import sleep
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock_sim.node_loop import NodeLoop, SimExecutor
from penstock_sim.scheduler import Scheduler

LONG_MS = 60_000


def play(
    main: Callable[[NodeLoop], Coroutine[Any, Any, None]], seed: int = 1, *, shuffled: bool = False
) -> int:
    """Runs `main` on a node; the fingerprint of its history. Errors of `main` are raised here."""
    scheduler = Scheduler(seed)
    loop = NodeLoop.of(scheduler, "n1", shuffled=shuffled)
    task = loop.start(main(loop))
    scheduler.run_until(LONG_MS)
    assert task.done()
    task.result()
    return scheduler.fingerprint


def test_time_passes_by_sleeping_alone() -> None:
    async def main(loop: NodeLoop) -> None:
        began = loop.time()
        await sleep(20)
        assert 20 <= loop.time() - began < 21

    play(main)


def test_tasks_of_a_group_run_side_by_side_and_end_together() -> None:
    async def main(loop: NodeLoop) -> None:
        began, ended = loop.time(), list[int]()

        async def one(seconds: int) -> None:
            await sleep(seconds)
            ended.append(seconds)

        async with asyncio.TaskGroup() as tasks:
            for seconds in (3, 1, 2):
                tasks.create_task(one(seconds))
        assert ended == [1, 2, 3]
        assert loop.time() - began < 4

    play(main)


def test_a_timeout_cancels_what_takes_longer() -> None:
    async def main(loop: NodeLoop) -> None:
        began = loop.time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await asyncio.Event().wait()
        assert 0.5 <= loop.time() - began < 1

    play(main)


def test_an_executor_runs_so_many_calls_at_a_time_and_hands_over_what_they_raise() -> None:
    async def main(loop: NodeLoop) -> None:
        executor, began = SimExecutor(loop, lambda: 100), loop.time()

        def fail() -> None:
            raise OSError("no space")

        first = loop.run_in_executor(executor, int, "7")
        second = loop.run_in_executor(executor, fail)
        assert await first == 7
        assert 0.1 <= loop.time() - began < 0.2
        with pytest.raises(OSError, match="no space"):
            await second
        assert 0.2 <= loop.time() - began < 0.3

    play(main)


def test_nothing_of_a_killed_node_runs_not_even_finally() -> None:
    scheduler, seen = Scheduler(1), list[str]()
    loop = NodeLoop.of(scheduler, "n1")

    async def main() -> None:
        try:
            seen.append("began")
            await sleep(1)
            seen.append("went on")
        finally:
            seen.append("finally")

    task = loop.start(main())
    scheduler.run_until(500)
    loop.kill()
    scheduler.run_until(LONG_MS)
    assert seen == ["began"]
    assert not task.done()


def test_a_write_under_way_when_a_node_is_killed_happens_or_not() -> None:
    outcomes = set[int]()
    for seed in range(20):
        scheduler, disk = Scheduler(seed), list[int]()
        loop = NodeLoop.of(scheduler, "n1")
        executor = SimExecutor(loop, lambda: 100)
        loop.run(lambda: loop.run_in_executor(executor, disk.append, 1))  # noqa: B023
        scheduler.run_until(50)
        loop.kill()
        scheduler.run_until(LONG_MS)
        outcomes.add(len(disk))
    assert outcomes == {0, 1}


def test_an_error_that_nobody_awaits_ends_the_history() -> None:
    scheduler = Scheduler(1)
    loop = NodeLoop.of(scheduler, "n1")

    def fail() -> None:
        raise ValueError("a defect")

    loop.call_soon(fail)
    with pytest.raises(ValueError, match="a defect"):
        scheduler.run_until(10)


async def _mixed(loop: NodeLoop) -> None:
    """Iterates over sets of futures and tasks, in the order of their hashes."""
    order: list[str] = []

    async def one(name: str) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await sleep(loop.chance.random())
        order.append(name)

    tasks = {loop.create_task(one(str(number))) for number in range(30)}
    done, pending = await asyncio.wait(tasks, timeout=0.5)
    for task in pending:
        task.cancel()
    await asyncio.wait(pending)
    loop.scheduler.fingerprint ^= hash(tuple(int(name) for name in order)) & 0xFFFF
    assert len(done) + len(pending) == 30


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_seed_is_a_history(shuffled: bool) -> None:
    prints = [play(_mixed, seed, shuffled=shuffled) for seed in (5, 5, 6)]
    assert prints[0] == prints[1] != prints[2]


def test_a_paused_node_does_nothing_and_goes_on_where_it_was() -> None:
    scheduler = Scheduler(1)
    loop = NodeLoop.of(scheduler, "n1")
    thread, began = SimExecutor(loop, lambda: 2.0), loop.time()
    done: list[tuple[str, float]] = []

    def note(what: str) -> None:
        done.append((what, round(loop.time() - began, 3)))

    async def main() -> None:
        loop.call_later(0.01, note, "timer")
        await loop.run_in_executor(thread, note, "thread")
        note("answer")

    loop.start(main())
    scheduler.run_until(1)
    loop.pause(50)
    loop.pause(5)
    loop.when_running(lambda: note("from outside"))
    scheduler.run_until(50)
    assert done == []
    scheduler.run_until(60)
    assert [what for what, _ in done] == ["from outside", "thread", "timer", "answer"]
    assert all(0.051 <= seconds < 0.06 for _, seconds in done)
    loop.when_running(lambda: note("at once"))
    assert done[-1][0] == "at once"


def test_a_node_that_is_killed_while_it_is_paused_never_goes_on() -> None:
    scheduler = Scheduler(1)
    loop = NodeLoop.of(scheduler, "n1")
    done: list[str] = []
    loop.call_later(0.01, done.append, "timer")
    loop.pause(50)
    loop.when_running(lambda: done.append("from outside"))
    loop.kill()
    loop.resume()
    scheduler.run_until(100)
    assert done == []
