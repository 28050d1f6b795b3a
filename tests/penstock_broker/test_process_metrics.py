"""What a process says of its event loop."""

import asyncio
import threading

from prometheus_client import CollectorRegistry
from support.waiting import wait_until_async

from penstock_broker.process_metrics import EVERY_S, ProcessMetrics

LATE_S = 0.3


async def test_a_loop_that_is_blocked_is_late_by_as_much() -> None:
    registry = CollectorRegistry()
    metrics = ProcessMetrics(registry, "broker")

    def value(suffix: str) -> float:
        return registry.get_sample_value(f"penstock_event_loop_lag_seconds_{suffix}") or 0.0

    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(metrics.run())
        began = asyncio.Event()
        tasks.create_task(_set(began))
        await began.wait()  # tasks begin in order: it has looked at the clock
        threading.Event().wait(EVERY_S + LATE_S)
        await wait_until_async(lambda: value("count") >= 1, what="the loop was looked at")
        watching.cancel()
    assert value("sum") >= LATE_S


async def _set(event: asyncio.Event) -> None:
    event.set()
