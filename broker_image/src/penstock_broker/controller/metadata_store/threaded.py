"""A blocking store behind the seam: its calls run in two threads, so that the lease never waits."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

from penstock_broker.controller.metadata_store.interface import BlockingStore, Change, StoredText


class ThreadedStore:
    """See the seam. Changes are only in the store: without it, nothing is decided.

    A running call continues when its caller is cancelled, and the next one waits for it.
    """

    detached = False
    journaling = False

    def __init__(self, store: BlockingStore, documents: Executor, lease: Executor) -> None:
        """The executors have one thread each. All three belong to the caller."""
        self._store = store
        self._documents = documents
        self._lease = lease

    async def read_all(self, *, take_over: bool = False) -> dict[str, StoredText]:  # noqa: ARG002
        """See the seam."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._documents, self._store.read_all)

    async def write(self, stages: Sequence[Sequence[Change]]) -> Mapping[str, str]:
        """See the seam."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._documents, self._store.write, stages)

    async def acquire_lease(self, holder: str, duration_ms: int) -> bool:
        """See the seam."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._lease, self._store.acquire_lease, holder, duration_ms
        )

    async def hold(self) -> bool:
        """Never: without the lease, nothing is decided."""
        return False

    async def release_lease(self, holder: str) -> None:
        """See the seam."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._lease, self._store.release_lease, holder)
