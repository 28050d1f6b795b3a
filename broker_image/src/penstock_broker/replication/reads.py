"""Reading batches: the newest from memory, older ones from the store in a bounded executor.

Followers and consumers at the log's end are served without touching the disk; a reader far behind
uses a thread for one store read at a time, and never delays other readers' reads from memory.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

from penstock.core.batch import Batch, BatchHeader
from penstock.core.isolation import NONE_ABORTED, Aborted, Isolation, may_hide, named
from penstock.core.types import Offset
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_broker.replication.replica import Replica
from penstock_broker.store.interface import LogStore

_READ_TIMEOUT_S: Final = 30.0
_HEADERS_MAX: Final = 256
"""Take about 3 ms."""
_T = TypeVar("_T")


@contextmanager
def waiting_for_others(replica: Replica) -> Iterator[None]:
    """A client reads a leader's log: where that is damaged, others in sync have the records.

    Soon one of them leads, or the batch is mended: the client asks again, as in any change of
    leader. What nobody else has in sync and sound is an error for whoever reads it, which names the
    offset.
    """
    try:
        yield
    except ClusterError as error:
        if error.code is not ErrorCode.DATA_CORRUPTED or not replica.machine.others_are_sound:
            raise
        raise ClusterError(
            f"the leader of {replica} cannot read all of its log now ({error.message}); ask again: "
            "another replica takes over, or gives it the batch",
            ErrorCode.LEADER_NOT_AVAILABLE,
        ) from error


class LogReader:
    """Reads the logs of a broker's replicas."""

    def __init__(
        self,
        store: LogStore,
        executor: Executor,
        on_error: Callable[[Replica, PenstockError], None] = lambda _replica, _error: None,
    ) -> None:
        """`on_error` is called when a read fails, before that is raised."""
        self._store = store
        self._executor = executor
        self._on_error = on_error
        self._bulk_turn = asyncio.Lock()

    async def read_for(
        self, replica: Replica, offset: Offset, max_bytes: int, end: Offset, isolation: Isolation
    ) -> tuple[list[Batch], Aborted | None]:
        """As `read`, and the aborted transactions by which `isolation.visible` filters the batches.

        None: all of them are visible to such a reader; that is the usual case, and costs nothing.
        """
        batches = await self.read(replica, offset, max_bytes, end)
        if not may_hide(batches, isolation):
            return batches, None
        if isolation is Isolation.UNCOMMITTED:
            return batches, NONE_ABORTED
        answer_end = batches[-1].next_offset
        # Memory keeps what compaction removes from the store, so it can be asked afterwards.
        known = replica.aborted.between(offset, answer_end)
        if known is not None:
            return batches, named(known)

        def blocking() -> tuple[list[Batch], Aborted]:
            # Compaction removes entries and flags together: batches read after the entries are
            # filtered by them; batches read before could wrongly look committed.
            for entries_end in (answer_end, end):
                entries = self._store.aborted(replica.slot, offset, entries_end)
                again = self._store.read(replica.slot, offset, max_bytes, end)
                if not again or again[-1].next_offset <= entries_end:
                    break  # Otherwise more fits by now: compaction made it smaller.
            return again, named(entries)

        return await self._in_thread(replica, offset, blocking)

    @staticmethod
    def read_recent(
        replica: Replica, offset: Offset, max_bytes: int, end: Offset
    ) -> list[Batch] | None:
        """Batches at `offset`, below `end`; None if they are not in memory (then `read`)."""
        return [] if offset >= end else replica.recent.read(offset, max_bytes, end)

    async def read(
        self, replica: Replica, offset: Offset, max_bytes: int, end: Offset
    ) -> list[Batch]:
        """Batches from the one with `offset` on, below `end`: at least one if there is one.

        The replica may have changed meanwhile: check it again before you use the result.
        Raises ClusterError(DATA_CORRUPTED, STORAGE_FAILED).
        """
        recent = self.read_recent(replica, offset, max_bytes, end)
        if recent is not None:
            return recent
        return await self.read_stored(replica, offset, max_bytes, end)

    async def read_stored(
        self, replica: Replica, offset: Offset, max_bytes: int, end: Offset
    ) -> list[Batch]:
        """As `read`, but never from memory: to learn whether the disk has what it should."""
        return await self._in_thread(
            replica, offset, partial(self._store.read, replica.slot, offset, max_bytes, end)
        )

    async def stored_header(self, replica: Replica, offset: Offset) -> BatchHeader | None:
        """The header of the batch with `offset`, or of the next one: see `LogStore.header`."""
        return await self._in_thread(
            replica, offset, partial(self._store.header, replica.slot, offset)
        )

    async def stored_headers(
        self, replica: Replica, offset: Offset, end: Offset
    ) -> list[BatchHeader]:
        """The next headers of batches that begin below `end`: `LogStore.next_headers`.

        As few as a thread reads without holding up others; who reads so waits as in `read_bulk`.
        """
        async with self._bulk_turn:
            return await self._in_thread(
                replica,
                offset,
                partial(self._store.next_headers, replica.slot, offset, end, _HEADERS_MAX),
            )

    async def read_bulk(
        self, replica: Replica, offset: Offset, max_bytes: int, end: Offset
    ) -> list[Batch]:
        """As `read`, with at most one thread for all who read this way: they wait for each other,
        and leave the other threads to clients and live followers."""
        recent = self.read_recent(replica, offset, max_bytes, end)
        if recent is not None:
            return recent
        async with self._bulk_turn:
            return await self.read(replica, offset, max_bytes, end)

    async def _in_thread(self, replica: Replica, offset: Offset, blocking: Callable[[], _T]) -> _T:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_READ_TIMEOUT_S):
                return await loop.run_in_executor(self._executor, blocking)
        except TimeoutError:
            raise ClusterError(
                f"reading {replica} at offset {offset} took longer than {_READ_TIMEOUT_S:.0f} s: "
                "the disk is overloaded or failing",
                ErrorCode.STORAGE_FAILED,
            ) from None
        except PenstockError as error:
            self._on_error(replica, error)
            raise
        except Exception as error:
            raise ClusterError(
                f"reading {replica} at offset {offset} failed: {error}", ErrorCode.STORAGE_FAILED
            ) from error
