"""A controller whose process, or whose machine, stood still for longer than its lease."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from threading import Event
from typing import Final

from support.controller_seams import seams_on
from support.waiting import wait_until_async

from penstock.core.control import ControlConfig
from penstock_broker.clock import SystemClock
from penstock_broker.controller.metadata_store.memory import MemoryMetadataStore, SharedDocuments
from penstock_broker.controller.runtime import ControllerRuntime

LONG_S: Final = 100.0


class Jumping(SystemClock):
    """Time that passed while nobody looked."""

    skipped_s = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + int(self.skipped_s * 1000)

    def now_s(self) -> float:
        return super().now_s() + self.skipped_s


class SlowLease(MemoryMetadataStore):
    """Answers about the lease come while `open` is set."""

    def __init__(self, documents: SharedDocuments) -> None:
        super().__init__(documents)
        self.open = Event()
        self.asked = 0

    def acquire_lease(self, holder: str, duration_ms: int) -> bool:
        self.asked += 1
        self.open.wait(40.0)
        return super().acquire_lease(holder, duration_ms)


@asynccontextmanager
async def running(store: SlowLease, clock: Jumping) -> AsyncIterator[ControllerRuntime]:
    with seams_on(store, clock) as seams:
        runtime = ControllerRuntime(ControlConfig(), seams)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(runtime.run())
            try:
                yield runtime
            finally:
                store.open.set()
                task.cancel()
        await runtime.release()


async def test_it_decides_on_until_the_store_says_who_is_active(documents: SharedDocuments) -> None:
    store, clock = SlowLease(documents), Jumping()
    async with running(store, clock) as controller:
        store.open.set()
        await controller.wait_active(40.0)
        store.open.clear()
        asked = store.asked
        await wait_until_async(lambda: store.asked > asked, what="a renewal is under way")
        clock.skipped_s += LONG_S
        ticks = controller.counters.events
        await wait_until_async(
            lambda: not controller.active or controller.counters.events > ticks + 2,
            what="it has noticed",
        )
        assert controller.active


async def test_a_lease_that_was_granted_before_it_stood_still_counts_no_more(
    documents: SharedDocuments,
) -> None:
    store, clock = SlowLease(documents), Jumping()
    async with running(store, clock) as controller:
        await wait_until_async(lambda: store.asked == 1, what="it asks for the lease")
        clock.skipped_s += LONG_S
        store.open.set()
        await controller.wait_active(40.0)
        assert store.asked > 1
