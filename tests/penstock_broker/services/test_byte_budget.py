"""Bytes in flight: a limit for all, and half of it for one user."""

import asyncio

import pytest

from penstock.errors import OverloadedError
from penstock_broker.services.limits import ByteBudget
from penstock_broker.serving.callers import NOBODY, Caller, Role

ADA, BOB = Caller(Role.USER, "cert:ada"), Caller(Role.USER, "cert:bob")


def test_a_user_gets_half_and_leaves_the_other_half_to_others() -> None:
    budget = ByteBudget(1_000, "produce")
    ada, bob = budget.of(ADA), budget.of(BOB)
    ada.take(300)
    ada.take(200)
    assert ada.free_bytes == 0
    with pytest.raises(OverloadedError, match=r"500 bytes of cert:ada .* share of 500"):
        ada.take(1)
    bob.take(500)
    assert budget.taken_bytes == 1_000
    assert budget.free_bytes == bob.free_bytes == 0


def test_a_share_is_of_a_user_not_of_a_request() -> None:
    budget = ByteBudget(1_000, "produce")
    budget.of(ADA).take(400)
    with pytest.raises(OverloadedError):
        budget.of(ADA).take(101)
    budget.of(ADA).give(400)
    assert budget.taken_by == {}, "nothing is remembered of who has nothing in flight"
    budget.of(ADA).take(500)


def test_what_is_refused_takes_nothing() -> None:
    budget = ByteBudget(1_000, "produce")
    budget.of(NOBODY).take(900)
    with pytest.raises(OverloadedError, match="exceed the limit of 1000"):
        budget.of(ADA).take(200)
    assert (budget.taken_bytes, budget.taken_by) == (900, {})


def test_those_whom_nobody_asked_and_servers_have_the_whole_budget() -> None:
    budget = ByteBudget(1_000, "produce")
    for who in (NOBODY, Caller(Role.BROKER, "spiffe://penstock/c/broker/1", broker_id=1)):
        share = budget.of(who)
        share.take(1_000)
        share.give(1_000)
    assert budget.taken_bytes == 0


def test_one_larger_request_passes_alone() -> None:
    budget = ByteBudget(1_000, "produce")
    budget.of(ADA).take(5_000)
    with pytest.raises(OverloadedError):
        budget.of(ADA).take(1)
    budget.of(ADA).give(5_000)
    assert budget.taken_bytes == 0


async def test_who_waits_for_room_waits_for_their_own_bytes_only() -> None:
    budget = ByteBudget(1_000, "consume")
    ada = budget.of(ADA)
    ada.take(500)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(ada.room(200))
        await budget.of(BOB).room(500)
        assert not waiting.done()
        ada.give(300)
    assert ada.free_bytes == 300
