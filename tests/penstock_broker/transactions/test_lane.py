"""Entries on their way to a broker: shared calls, one answer each, whatever happens to a call."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import pytest
from support.waiting import wait_until_async

from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_broker.clock import SystemClock
from penstock_broker.transactions import lane as lane_module
from penstock_broker.transactions.lane import Lane


class Side:
    """The other side: each call waits for its gate, then answers what it was given."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.calls: list[list[str]] = []
        self.gates: list[asyncio.Event] = []
        self.open = False
        self.answers: list[Sequence[PenstockError | None] | Exception] = []
        self.heard: dict[str, list[PenstockError | None]] = {}
        self.lane: Lane[str] = Lane("broker 7", self.call, SystemClock(), tasks.create_task)

    async def call(self, entries: Sequence[str]) -> Sequence[PenstockError | None]:
        self.calls.append(list(entries))
        self.gates.append(asyncio.Event())
        if not self.open:
            await self.gates[-1].wait()
        answer = self.answers.pop(0) if self.answers else [None] * len(entries)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def put(self, *entries: str) -> None:
        for entry in entries:
            self.lane.put(entry, partial(self._hear, entry))

    def _hear(self, entry: str, error: PenstockError | None) -> None:
        self.heard.setdefault(entry, []).append(error)

    def has_called(self, times: int) -> bool:
        return len(self.calls) == times

    async def called(self, times: int) -> None:
        await wait_until_async(lambda: len(self.calls) >= times, what=f"call {times}")

    async def all_heard(self, *entries: str) -> None:
        await wait_until_async(lambda: set(entries) <= set(self.heard), what=f"{entries} heard")


@asynccontextmanager
async def side() -> AsyncIterator[Side]:
    async with asyncio.timeout(600), asyncio.TaskGroup() as tasks:
        found = Side(tasks)
        yield found
        found.open = True
        for gate in found.gates:
            gate.set()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call is a straggler."""
    monkeypatch.setattr(lane_module, "_STRAGGLER_S", 1_000.0)


async def test_what_comes_up_during_a_call_shares_the_next(patient: None) -> None:
    async with side() as far:
        far.put("a", "b")
        await far.called(1)
        far.put("c", "d")
        far.put("e")
        far.gates[0].set()
        await far.called(2)
        assert far.calls == [["a", "b"], ["c", "d", "e"]]
        assert far.heard == {"a": [None], "b": [None]}
        far.gates[1].set()
        await far.all_heard("c", "d", "e")
        assert far.lane.idle


async def test_a_call_that_waits_at_the_other_side_does_not_hold_back_the_next() -> None:
    async with side() as far:
        far.put("parked")
        await far.called(1)
        far.put("quick")
        await far.called(2)
        far.gates[1].set()
        await far.all_heard("quick")
        assert "parked" not in far.heard
        far.gates[0].set()
        await far.all_heard("parked")


async def test_stragglers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "_STRAGGLER_S", 0.0)
    async with side() as far:
        for number in range(20):
            far.put(str(number))
            await wait_until_async(
                partial(far.has_called, min(number + 1, 16)), what="called or kept"
            )
            await wait_until_async(lambda: not far.lane._looking, what="the lane has looked")
        assert [len(call) for call in far.calls] == [1] * 16
        far.gates[3].set()
        await far.called(17)
        assert far.calls[16] == ["16", "17", "18", "19"]


async def test_an_entry_that_is_put_again_is_sent_once_and_everyone_hears(patient: None) -> None:
    async with side() as far:
        far.put("a", "a")
        await far.called(1)
        far.put("a", "b", "b")
        far.gates[0].set()
        await far.called(2)
        far.gates[1].set()
        await far.all_heard("b")
        assert far.calls == [["a"], ["b"]]
        assert far.heard == {"a": [None] * 3, "b": [None] * 2}
        far.put("a")
        await far.called(3)


async def test_every_entry_has_its_own_result(patient: None) -> None:
    async with side() as far:
        no = ClusterError("no", ErrorCode.PRODUCER_FENCED)
        far.answers = [[None, no]]
        far.open = True
        far.put("a", "b")
        await far.all_heard("a", "b")
        assert far.heard == {"a": [None], "b": [no]}


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (ClusterError("away", ErrorCode.UNREACHABLE), ErrorCode.UNREACHABLE),
        (KeyError("planted"), ErrorCode.INTERNAL),
        ([None], ErrorCode.INTERNAL),
    ],
)
async def test_a_call_that_fails_is_heard_by_all_of_it_and_the_next_goes_out(
    answer: Sequence[PenstockError | None] | Exception, code: ErrorCode, patient: None
) -> None:
    async with side() as far:
        far.answers = [answer]
        far.put("a", "b")
        await far.called(1)
        far.put("c")
        far.open = True
        far.gates[0].set()
        await far.all_heard("a", "b", "c")
        for entry in ("a", "b"):
            (error,) = far.heard[entry]
            assert error is not None
            assert error.code is code
        assert far.heard["c"] == [None]


async def test_nobody_waits_without_bound(monkeypatch: pytest.MonkeyPatch, patient: None) -> None:
    monkeypatch.setattr(lane_module, "WAITING_MAX", 3)
    async with side() as far:
        far.put("a")
        await far.called(1)
        far.put("b", "c", "d", "e")
        assert "e" not in far.heard, "never before put returns"
        await far.all_heard("e")
        (error,) = far.heard["e"]
        assert error is not None
        assert (error.code, error.retriable) == (ErrorCode.OVERLOADED, True)
        far.open = True
        far.gates[0].set()
        await far.all_heard("b", "c", "d")


async def test_a_call_takes_so_many_entries_and_leaves_the_rest_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane_module, "_ENTRIES_PER_CALL", 2)
    async with side() as far:
        far.open = True
        far.put("a", "b", "c", "d", "e")
        await far.all_heard("a", "b", "c", "d", "e")
        assert far.calls == [["a", "b"], ["c", "d"], ["e"]]
