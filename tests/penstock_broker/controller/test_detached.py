"""Metrics say that the metadata store is away, whether or not there is anything to store."""

from support.journaled_controller import Scene
from support.waiting import wait_until_async

from penstock_broker.controller.metrics import ControllerMetrics


async def test_a_controller_with_nothing_to_store_says_that_its_store_is_away(
    scene: Scene,
) -> None:
    runtime = scene.process.runtime
    registry = ControllerMetrics(runtime).registry

    def says() -> float | None:
        return registry.get_sample_value("penstock_controller_detached")

    assert says() == 0
    writes = runtime.counters.writes
    scene.store.away = True
    await wait_until_async(lambda: says() == 1, what="it says so")
    assert runtime.counters.writes == writes
    scene.store.away = False
    await wait_until_async(lambda: says() == 0, what="the store is back")
    assert runtime.active
