"""A controller asked for promises and lost its lease: brokers must not be left without any."""

import pytest
from support.journaled_controller import Scene
from support.waiting import wait_until_async

from penstock.core.control.journal.checks import EPOCH_JUMP_MAX


@pytest.mark.parametrize("promised", [(2,), (0, 1, 2)])
async def test_the_controller_takes_over_at_the_epoch_that_brokers_have_promised(
    scene: Scene, promised: tuple[int, ...]
) -> None:
    await scene.promise(*promised, epoch=2)
    await scene.all_serve(2)
    assert scene.process.runtime.active


async def test_a_controller_for_which_brokers_keep_changes_goes_on_until_the_store_is_back(
    scene: Scene,
) -> None:
    runtime = scene.process.runtime
    scene.store.away = True
    await scene.create("t")
    assert runtime.detached
    await scene.promise(2, epoch=2)
    events = runtime.counters.events
    await wait_until_async(lambda: runtime.counters.events > events + 100, what="it was refused")
    assert runtime.detached
    assert [broker.serves(1) for broker in scene.brokers] == [True, True, False]
    scene.store.away = False
    await scene.all_serve(2)


async def test_a_forged_promise_ends_nobody_elses_session(scene: Scene) -> None:
    runtime = scene.process.runtime
    await scene.promise(2, epoch=EPOCH_JUMP_MAX)
    events = runtime.counters.events
    await wait_until_async(lambda: runtime.counters.events > events + 100, what="it was refused")
    assert runtime.active
    assert [broker.serves(1) for broker in scene.brokers] == [True, True, False]
