"""All workers of this process: one task per Cluster, started by the first event that names it.

Events only say that something changed; the worker reads for itself what it was. So it is harmless
to lose an event or to see one twice.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

from penstock_operator.worker import Deps, Worker


class Workers:
    """Used from one event loop. `group` owns the tasks."""

    def __init__(self, deps: Deps, group: asyncio.TaskGroup) -> None:
        self._deps, self._group = deps, group
        self._workers: dict[tuple[str, str], Worker] = {}

    def wake(self, namespace: str, cluster: str, *, topics: bool = False) -> None:
        """Starts the Cluster's worker if there is none."""
        self._worker(namespace, cluster).wake(topics=topics)

    def copies_changed(self, namespace: str, cluster: str) -> None:
        """Like `wake`: copies of the Cluster's trust changed, or who asks for one."""
        self._worker(namespace, cluster).copies_changed()

    def group_changed(
        self, namespace: str, cluster: str, body: Mapping[str, Any], *, deleted: bool
    ) -> None:
        """Like `wake`, but ignores events that change nothing."""
        self._worker(namespace, cluster).group_changed(body, deleted=deleted)

    def _worker(self, namespace: str, cluster: str) -> Worker:
        key = (namespace, cluster)
        worker = self._workers.get(key)
        if worker is None:
            worker = self._workers[key] = Worker(self._deps, namespace, cluster)
            self._group.create_task(self._run(worker), name=f"cluster {namespace}/{cluster}")
        return worker

    async def _run(self, worker: Worker) -> None:
        key = (worker.namespace, worker.name)
        await worker.run()
        while worker.woken:  # a Cluster with this name was created while the worker ended
            worker = self._workers[key] = Worker(self._deps, *key)  # that one's files are gone
            await worker.run()
        if self._workers.get(key) is worker:
            del self._workers[key]
        with suppress(KeyError):
            self._deps.metrics.forget(*key)

    @property
    def oldest_pass_s(self) -> float:
        """Seconds since the worker that is furthest behind finished a pass; 0 without workers."""
        now = monotonic()
        return max((now - worker.finished_at for worker in self._workers.values()), default=0.0)

    @property
    def oldest_success_s(self) -> float:
        """The same, of passes that did not fail."""
        now = monotonic()
        return max((now - worker.succeeded_at for worker in self._workers.values()), default=0.0)

    def __len__(self) -> int:
        return len(self._workers)
