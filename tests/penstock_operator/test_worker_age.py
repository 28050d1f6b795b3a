"""How old the last pass of a worker is: one that fails has finished, and has done nothing."""

import asyncio
from contextlib import ExitStack
from typing import cast

import pytest

from penstock_operator import worker as worker_module
from penstock_operator import workers as workers_module
from penstock_operator.events import Events
from penstock_operator.kube import Kube
from penstock_operator.metrics import Metrics
from penstock_operator.objects import Installation
from penstock_operator.worker import Deps, Outcome, Worker
from penstock_operator.workers import Workers

NEVER_ASKED = cast("Kube", None)
DEPS = Deps(NEVER_ASKED, Events(NEVER_ASKED, "test"), Metrics(), Installation("penstock:test"))


class Scripted(Worker):
    """Its passes end as `outcomes` says, and then the Cluster is gone."""

    def __init__(self, *outcomes: Outcome) -> None:
        super().__init__(DEPS, "streams", "flights")
        self.outcomes = list(outcomes)
        self.ages: list[tuple[float, float]] = []
        """Before each pass: when one finished, and when one succeeded."""

    async def _pass(self) -> Outcome:
        self.ages.append((self.finished_at, self.succeeded_at))
        return self.outcomes.pop(0) if self.outcomes else Outcome.GONE


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_BACKOFF_S", (0.001,))
    monkeypatch.setattr(worker_module, "_COALESCE_S", 0.001)
    monkeypatch.setattr(worker_module, "_PAUSE_S", {Outcome.IDLE: 0.001, Outcome.BUSY: 0.001})


@pytest.mark.usefixtures("patience")
async def test_a_pass_that_fails_ages_the_last_one_that_did_not() -> None:
    worker = Scripted(Outcome.BUSY, Outcome.FAILED, Outcome.FAILED, Outcome.IDLE)
    with ExitStack() as stack:
        stack.callback(worker._credentials.close)
        await worker._run()
    finished, succeeded = zip(*worker.ages, strict=True)
    assert list(finished) == sorted(set(finished)), "each pass counts"
    assert succeeded[1] == finished[1]
    assert succeeded[2] == succeeded[3] == succeeded[1]
    assert succeeded[4] == finished[4]


async def test_the_cluster_that_is_furthest_behind_counts() -> None:
    async with asyncio.TaskGroup() as group:
        workers = Workers(DEPS, group)
        assert (workers.oldest_pass_s, workers.oldest_success_s) == (0, 0)
        late, fresh = Scripted(), Scripted()
        late.succeeded_at -= 100
        late.finished_at -= 10
        workers._workers = {("streams", "late"): late, ("streams", "fresh"): fresh}
        assert 100 <= workers.oldest_success_s < 110
        assert 10 <= workers.oldest_pass_s < 20
    for each in (late, fresh):
        each._credentials.close()


@pytest.mark.usefixtures("patience")
async def test_a_cluster_that_is_made_again_while_its_worker_ends_gets_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Scripted] = []
    had_files: list[bool] = []

    class Ending(Scripted):
        """While the first one ends, its Cluster is made again."""

        def __init__(self, *_: object) -> None:
            super().__init__()
            made.append(self)
            self.closes = self._groups.close
            self._groups.close = self._close  # type: ignore[method-assign]

        async def _pass(self) -> Outcome:
            had_files.append(self._credentials._files.ca.parent.exists())
            return await super()._pass()

        async def _close(self) -> None:
            if len(had_files) == 1:
                workers.wake("streams", "flights")
            await self.closes()

    monkeypatch.setattr(workers_module, "Worker", Ending)
    async with asyncio.TaskGroup() as group:
        workers = Workers(DEPS, group)
        workers.wake("streams", "flights")
    assert len(made) == 2
    assert had_files == [True, True]
    assert len(workers) == 0
