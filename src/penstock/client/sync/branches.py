"""The sync facade of `transaction.branches`, driven from the loop thread."""

from collections.abc import Callable, Sequence
from typing import Any

from penstock.client.documented import facade
from penstock.client.loop_thread import LoopThread
from penstock.client.producer.delivery import ColumnsDelivery
from penstock.client.transaction.branch_model import BatchOutcome, BatchRun, Branch
from penstock.client.transaction.branches import AsyncBranches
from penstock.core.columns import Header


@facade(AsyncBranches)
class Branches:
    """A task's part of a batch that many tasks write, and the driver's decision about it."""

    def __init__(
        self, send_columns: Callable[..., ColumnsDelivery], loop: LoopThread, core: AsyncBranches
    ) -> None:
        """Made by `Producer.branches`, with its own `send_columns`."""
        self._send_columns = send_columns
        self._loop = loop
        self._core = core

    def begin(self, run: BatchRun, task: int, attempt: int) -> Branch | None:
        """Opens a branch for this attempt; None = the batch is committed, write nothing."""
        return self._loop.run(self._core.begin(run, task, attempt))

    def send_columns(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        *,
        timestamps_ms: Any = None,
        partition: int | None = None,
        headers: Sequence[Sequence[Header] | None] | None = None,
    ) -> ColumnsDelivery:
        """Like `Producer.send_columns`, within the branch."""
        with self._core.sending():
            return self._send_columns(
                topic,
                values,
                keys,
                timestamps_ms=timestamps_ms,
                partition=partition,
                headers=headers,
            )

    def hand_over(self, timeout_s: float | None = None) -> None:
        """Blocks until everything sent is stored; after that, its batch may commit it."""
        self._loop.run(self._core.hand_over(timeout_s))

    def abort(self, timeout_s: float | None = None) -> None:
        """Gives up the branch."""
        self._loop.run(self._core.abort(timeout_s))

    def commit_batch(
        self,
        run: BatchRun,
        rows: int,
        branches: Sequence[Branch],
        *,
        digest: int = 0,
        wait_visible_ms: int = 0,
        timeout_s: float | None = None,
    ) -> BatchOutcome:
        """One decision: these branches commit, all others abort, and the batch is committed."""
        return self._loop.run(
            self._core.commit_batch(
                run,
                rows,
                branches,
                digest=digest,
                wait_visible_ms=wait_visible_ms,
                timeout_s=timeout_s,
            )
        )

    def abort_batch(self, run: BatchRun, *, timeout_s: float | None = None) -> bool:
        """Aborts the open branches of the run; False = the batch is committed, and nothing was
        done."""
        return self._loop.run(self._core.abort_batch(run, timeout_s=timeout_s))
