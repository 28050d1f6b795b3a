"""Answers that are kept: how often the cluster is asked, and what errors become."""

import asyncio

from support.wire import now_ms

from penstock.errors import MisuseError
from penstock.ui.memo import KEPT_MAX, TTL_MAX_S, TTL_S, Memo
from penstock.views.answers import Answer


class Cluster:
    """Counts questions, and takes `takes_s` of its own clock to answer one."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.takes_s = 0.0
        self.asked = 0
        self.at_once = 0
        self.at_once_max = 0
        self.memo = Memo(lambda: self.now_s, at_once=2)

    async def ask(self) -> int:
        self.asked += 1
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        await asyncio.sleep(0)  # polls: others get their turn
        self.at_once -= 1
        self.now_s += self.takes_s
        return self.asked


async def test_a_hundred_ask_as_often_as_one() -> None:
    cluster = Cluster()
    async with asyncio.TaskGroup() as tabs:
        answers = [tabs.create_task(cluster.memo.answer("x", cluster.ask)) for _ in range(100)]
    assert {one.result().value for one in answers} == {1}


async def test_an_answer_is_kept_for_a_moment_and_longer_if_it_took_long() -> None:
    cluster = Cluster()
    await cluster.memo.answer("x", cluster.ask)
    cluster.now_s += TTL_S
    cluster.takes_s = 1.0
    assert (await cluster.memo.answer("x", cluster.ask)).value == 2
    cluster.now_s += 9.9
    assert (await cluster.memo.answer("x", cluster.ask)).value == 2
    cluster.takes_s = 1_000.0
    cluster.now_s += 0.2
    assert (await cluster.memo.answer("x", cluster.ask)).value == 3
    cluster.now_s += TTL_MAX_S
    assert (await cluster.memo.answer("x", cluster.ask)).value == 4


async def test_few_questions_are_asked_at_once() -> None:
    cluster = Cluster()
    async with asyncio.TaskGroup() as tabs:
        for number in range(20):
            tabs.create_task(cluster.memo.answer(number, cluster.ask))
    assert cluster.asked == 20
    assert cluster.at_once_max == 2


async def test_an_error_is_an_answer_and_kept_as_long() -> None:
    cluster = Cluster()

    async def fail() -> int:
        await cluster.ask()
        raise MisuseError("nobody answers")

    assert await cluster.memo.answer("x", fail) == Answer(None, "nobody answers")
    assert await cluster.memo.answer("x", fail) == Answer(None, "nobody answers")
    assert cluster.asked == 1


async def test_old_answers_are_forgotten() -> None:
    cluster = Cluster()
    for number in range(KEPT_MAX + 50):
        await cluster.memo.answer(number, cluster.ask)
        cluster.now_s += TTL_S
    assert len(cluster.memo._kept) <= KEPT_MAX + 1


async def test_a_kept_answer_says_when_it_was_asked() -> None:
    cluster = Cluster()
    before_ms = now_ms()
    first = await cluster.memo.answer("x", cluster.ask)
    assert first.asked_ms is not None
    assert before_ms <= first.asked_ms <= now_ms()
    assert (await cluster.memo.answer("x", cluster.ask)).asked_ms == first.asked_ms
