"""Calls that each broker answers for itself."""

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import pytest

from penstock.client.admin.admin import AsyncAdmin
from penstock.client.admin.asking import Asking
from penstock.client.cluster.cluster import Cluster
from penstock.client.cluster.connections import Connection
from penstock.client.config import ClientConfig
from penstock.errors import ClusterError, ErrorCode, MisuseError, PenstockError, UnreachableError


class Brokers(Asking):
    """Each answers once all have been asked: with its id, or with an error."""

    def __init__(self, errors: dict[int, PenstockError]) -> None:
        super().__init__(Cluster(("h:1",), ClientConfig()))
        self._errors = errors
        self._waiting = asyncio.Barrier(3)
        self.answered: list[int] = []

    async def brokers(self, broker_ids: Iterable[int] | None = None) -> dict[int, Connection]:
        ids = [1, 2, 3] if broker_ids is None else broker_ids
        return {one: cast("Connection", _Connection(self, one)) for one in ids}

    async def answer(self, broker_id: int) -> int:
        """Of a broker."""
        await self._waiting.wait()
        self.answered.append(broker_id)
        if broker_id in self._errors:
            raise self._errors[broker_id]
        return broker_id


class _Connection:
    def __init__(self, brokers: Brokers, broker_id: int) -> None:
        self._brokers, self._id = brokers, broker_id

    async def call(self, method: Any, request: Any, timeout_s: float) -> int:
        assert (method, request) == ("method", "request")
        return await self._brokers.answer(self._id)


def ten_times(answer: int) -> int:
    if answer > 5:
        raise ClusterError("that is too much", ErrorCode.INVALID_REQUEST)
    return 10 * answer


async def test_all_are_asked_at_once_and_answers_come_by_id() -> None:
    asking = Brokers({})
    async with asyncio.timeout(10):
        found = await asking.each(lambda _: "method", "request", ten_times, [3, 1, 2])
    assert list(found.items()) == [(3, 30), (1, 10), (2, 20)]


async def test_the_first_error_is_raised_when_all_have_answered() -> None:
    asking = Brokers({2: UnreachableError("silent"), 3: UnreachableError("silent, too")})
    async with asyncio.timeout(10):
        with pytest.raises(UnreachableError, match=r"^silent$"):
            await asking.each(lambda _: "method", "request", ten_times)
    assert sorted(asking.answered) == [1, 2, 3]


async def test_what_cannot_be_taken_of_an_answer_is_an_error() -> None:
    with pytest.raises(ClusterError, match="too much"):
        async with asyncio.timeout(10):
            await Brokers({}).each(lambda _: "method", "request", ten_times, [1, 2, 7])


async def test_a_child_process_is_told_to_make_its_own_client() -> None:
    async with AsyncAdmin("127.0.0.1:1", request_timeout_ms=1_000) as admin:
        admin._asking.guard.forked()
        with pytest.raises(MisuseError, match="create it in the child"):
            await admin.plaintext_callers()
