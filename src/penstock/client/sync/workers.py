"""The sync worker pool: its async namesake, driven from the loop thread; handlers run in threads.

`run` blocks the calling thread; it is ended by `stop` in another one, or by Ctrl-C. If that is a
daemon thread, the end of the program ends it, as Ctrl-C does.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Self

from penstock.client.config import AddressResolver
from penstock.client.documented import facade
from penstock.client.loop_thread import shared_loop
from penstock.client.model import Record
from penstock.client.workers.config import WorkerConfig
from penstock.client.workers.pool import AsyncWorkerPool


@facade(AsyncWorkerPool)
class WorkerPool:
    """Handles a group's records by a function, many at a time, in threads."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        topics: str | Sequence[str],
        group_id: str,
        handler: Callable[[Record], None],
        config: WorkerConfig | None = None,
        *,
        resolve_address: AddressResolver | None = None,
    ) -> None:
        self._loop = shared_loop()
        self.core = AsyncWorkerPool(
            bootstrap, topics, group_id, handler, config, resolve_address=resolve_address
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def run(self) -> None:
        """Handles records until `stop` is called from another thread, or Ctrl-C; once per pool. At
        Ctrl-C it commits what is done, leaves the group, and gives running handlers up.

        Raises HandlerFailedError, UNKNOWN_TOPIC for a topic that does not exist (also the
        dead-letter topic), or an error that stops the consumer or the sending of a dead letter.
        """
        self._loop.adopt(self)
        try:
            self._loop.run(self.core.run())
        except BaseException:
            if self.core.exiting and threading.current_thread().daemon:
                return  # it would only be a traceback of a thread that ends anyway
            # Ctrl-C reaches this thread alone: the program must not end before the pool has left
            # its group, or nobody would read its partitions for a session timeout.
            self._loop.run(self.core.ended())
            raise
        finally:
            self._loop.release(self)

    def stop(self) -> None:
        """Takes no more records; `run` returns when the taken ones are handled and committed."""
        self._loop.loop.call_soon_threadsafe(self.core.stop)

    def close_at_exit(self) -> None:
        """Internal: the process ends while a daemon thread is in `run`."""
        self._loop.loop.call_soon_threadsafe(self.core.give_up)
        self._loop.run(self.core.ended())
