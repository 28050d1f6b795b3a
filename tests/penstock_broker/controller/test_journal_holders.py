"""A controller asks brokers about its journal, over real gRPC: who decides, and who is late."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from support.journal_servers import JOURNAL, Servers, asking
from support.waiting import wait_until_async

from penstock.core.control.journal.contract import AskKeep, AskPromises, Holders, Journal, Kept
from penstock.core.types import BrokerId, ControllerEpoch
from penstock_broker.controller.metadata_store import journal_holders


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    async with AsyncExitStack() as stack:
        yield Servers(tmp_path, stack)


def only_last(holders: Holders) -> Holders:
    return replace(holders, brokers=holders.brokers[-1:])


async def test_a_majority_is_enough_and_who_is_late_hears_of_it_all_the_same(
    servers: Servers,
) -> None:
    await servers.add()
    await servers.add()
    late = await servers.add_hanging()
    async with asking() as calls, asyncio.timeout(300):  # the calls' own limit is far
        ask = AskKeep(servers.holders(), JOURNAL)
        assert await calls.keep(ask) == Kept(2)
        async with asyncio.TaskGroup() as tasks:
            again = tasks.create_task(calls.keep(AskKeep(only_last(ask.holders), JOURNAL)))
            await wait_until_async(lambda: late.asked == 2, what="it is asked again")
            late.answers.set()
        assert again.result() == Kept(1)
        await wait_until_async(lambda: late.answered + late.cancelled == 2, what="both are over")
        assert not late.cancelled
    assert len(servers.peers) == 3, "over the connections that there were"


async def test_closing_ends_calls_that_nobody_waits_for(servers: Servers) -> None:
    late = await servers.add_hanging()
    async with asyncio.timeout(300), asking() as calls, asyncio.TaskGroup() as tasks:
        asks = tasks.create_task(calls.keep(AskKeep(servers.holders(), JOURNAL)))
        await wait_until_async(lambda: late.asked, what="the broker is asked")
        asks.cancel()
    assert asks.cancelled()
    await wait_until_async(lambda: late.cancelled, what="its call ends")


async def test_a_broker_that_does_not_answer_costs_the_time_limit_and_no_more(
    servers: Servers,
) -> None:
    await servers.add()
    late = await servers.add_hanging()
    async with asking(timeout_s=0.3) as calls, asyncio.timeout(300):
        ask = AskKeep(servers.holders(), JOURNAL)

        async def decided_without_it() -> bool:
            """The other one may be late too, on a crowded machine."""
            kept = await calls.keep(ask)
            return bool(late.asked) and kept == Kept(1)

        await wait_until_async(decided_without_it, what="the other one's answer counts")
        late.answers.set()
    async with asking() as calls:
        assert await calls.keep(ask) == Kept(2)


async def test_a_refusal_decides_at_once(servers: Servers) -> None:
    await servers.add()
    for _ in range(2):
        await servers.add_hanging()
    async with asking() as calls, asyncio.timeout(300):
        holders = servers.holders()
        newer = Journal(ControllerEpoch(5))
        first = replace(holders, brokers=holders.brokers[:1])
        assert await calls.keep(AskKeep(first, newer)) == Kept(1)
        assert await calls.keep(AskKeep(holders, JOURNAL)) == Kept(0, refused=True)


async def test_a_broker_that_knows_no_journals_does_not_end_the_wait_for_those_that_do(
    servers: Servers,
) -> None:
    await servers.add_server(None)
    late = await servers.add_hanging()
    await servers.add()
    async with asking() as calls, asyncio.TaskGroup() as tasks:
        asks = tasks.create_task(calls.keep(AskKeep(servers.holders(), JOURNAL)))
        await wait_until_async(lambda: late.asked and servers.told, what="the others have answered")
        late.answers.set()
        assert await asks == Kept(2)


async def test_a_broker_that_has_registered_anew_is_looked_up_anew(servers: Servers) -> None:
    """Its name may stand for another address, which a channel that was idle finds out late."""
    await servers.add()
    first = servers.holders()
    again = replace(first, brokers=tuple(replace(one, incarnation="2") for one in first.brokers))
    async with asking() as calls:
        for holders in (first, first, again, again):
            assert await calls.keep(AskKeep(holders, JOURNAL)) == Kept(1)
    assert len(servers.peers) == 2, servers.peers


async def test_a_question_under_way_does_without_a_broker_that_another_looks_up_anew(
    servers: Servers,
) -> None:
    """`hold` asks beside what is done with documents, which may know of the new run first."""
    await servers.add()
    anew = await servers.add_hanging()
    late = await servers.add_hanging()
    holders = servers.holders()
    other = replace(holders, brokers=(replace(holders.brokers[1], incarnation="2"),))
    async with asking() as calls, asyncio.TaskGroup() as tasks:
        asks = tasks.create_task(calls.keep(AskKeep(holders, JOURNAL)))
        await wait_until_async(lambda: anew.asked and late.asked, what="a question is under way")
        another = tasks.create_task(calls.keep(AskKeep(other, JOURNAL)))
        await wait_until_async(lambda: anew.asked == 2, what="so is another")
        another.cancel()
        await wait_until_async(lambda: anew.cancelled, what="the first has lost that broker")
        late.answers.set()
        assert await asks == Kept(2)


async def test_a_broker_that_was_not_reached_is_asked_again_for_its_promise(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A majority decides without it. Not told, it would stay with the former controller until that
    one gives up, and the new one would declare it dead before."""
    monkeypatch.setattr(journal_holders, "_ASK_AGAIN_S", 600.0)
    for _ in range(2):
        await servers.add()
    away = await servers.add_failing()
    async with asking() as calls, asyncio.timeout(300):
        promises = await calls.promise(AskPromises(servers.holders(), ControllerEpoch(2)))
        assert set(promises.journals) == {BrokerId(0), BrokerId(1)}
        await wait_until_async(lambda: away.asked > 1, what="it is asked again")
        away.answers.set()
        await wait_until_async(lambda: away.promised == [2], what="it promises")
    assert servers.told == [2, 2], "the others were asked once"


async def test_only_the_newest_round_asks_again_and_only_until_the_end(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_holders, "_ASK_AGAIN_S", 600.0)
    away = await servers.add_failing()
    async with asyncio.timeout(300), asking() as calls:
        for epoch in (2, 3):
            await calls.promise(AskPromises(servers.holders(), ControllerEpoch(epoch)))
            away.asked = 0
            await wait_until_async(lambda: away.asked > 1, what="it is asked again")
        await wait_until_async(lambda: asking_tasks() == 1, what="the first round has ended")
    assert asking_tasks() == 0


def asking_tasks() -> int:
    return sum(task.get_name() == "a broker's journal" for task in asyncio.all_tasks())
