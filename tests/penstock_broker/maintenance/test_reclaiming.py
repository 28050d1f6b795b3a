"""Space of what was removed: asked for until it is given back."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from support.waiting import wait_until_async

from penstock.errors import ClusterError, ErrorCode
from penstock_broker.maintenance import retention
from penstock_broker.maintenance.retention import Retention


class Replicas:
    """Something was removed."""

    by_key: dict[Any, Any] = {}  # noqa: RUF012 - never changed
    removals = 1


class Store:
    """Has no space for it the first time."""

    def __init__(self) -> None:
        self.calls = 0

    def reclaim(self) -> None:
        self.calls += 1
        if self.calls == 1:
            raise ClusterError("full", ErrorCode.DISK_FULL)


async def test_a_reclaim_that_failed_is_tried_again_and_one_that_did_not_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention, "_RECLAIM_INTERVAL_S", 0.0)
    store = Store()
    with ThreadPoolExecutor(1) as executor:
        made = Retention(cast("Any", Replicas()), cast("Any", store), executor, interval_s=0.001)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(made.run())
            await wait_until_async(lambda: made._removals_reclaimed == 1, what="it is done")
            running.cancel()
        assert store.calls == 2
    await made._reclaim()
    assert store.calls == 2
