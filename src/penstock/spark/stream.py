"""The stream reader: what Spark asks a source, trigger by trigger.

    initialOffset()           the user's words, constant: Spark asks again and again, never
                              stores it, and replays batch 0 against it
    latestOffset(start, …)    look at the cluster, decide where the batch ends   (admission)
    partitions(start, end)    check for losses, plan tasks                       (plan_read)
    read(task)                in executors: only what is in the task              (ranges)

One instance lives in the driver process of a query, called serially; state on `self` is fine
there and does not survive a restart, so nothing that decides *which* records are read may
depend on it. What must survive is in the offsets: positions, where new partitions began
(`from`), topic ids. A replay of any batch reads exactly its records or raises DataLossError.

Everything is on the trigger's critical path and has a deadline (penstock.request.timeout.ms).
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from penstock.core.types import TopicPartition
from penstock.errors import PenstockError
from penstock.spark.admission import Limit, Pacer, Positions, admit, backlog
from penstock.spark.boundary import AtOffsets
from penstock.spark.data_loss import Known, LogView, Loss, find_losses, raise_losses
from penstock.spark.edge import at_edge
from penstock.spark.group import GroupProgress
from penstock.spark.lookup import (
    OffsetsClient,
    no_longer_selected,
    require_selected,
    require_still_selected,
    resolve,
    selects,
    starts,
)
from penstock.spark.offsets import Concrete, Symbolic, decode, encode
from penstock.spark.options import SourceOptions
from penstock.spark.plan_read import checked_tasks, client_of, read_task

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)
SIZES_PAUSE_S: Final = 60.0
"""After a failure, mean sizes are not asked for within this time: a trigger waits for them."""
Marks = dict[TopicPartition, int]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the selected partitions for ever, batch by batch."""

    def __init__(
        self,
        options: SourceOptions,
        connect: Callable[[SourceOptions], OffsetsClient] = client_of,
    ) -> None:
        self._options = options
        self._connect = connect
        self._starting = options.stream_starting
        self._progress = GroupProgress(options.group_id)
        self._pacer = Pacer(options.min_offsets_per_trigger, options.max_trigger_delay_ms)
        self._target: LogView | None = None
        self._view: LogView | None = None
        self._out_of_sight: set[TopicPartition] = set()
        self._resolved: dict[TopicPartition, int] | None = None
        self._sizes: dict[TopicPartition, float] = {}
        self._sizes_again_s = 0.0
        self._sizes_warned = False

    # Spark's names from here on.

    @at_edge
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where the user wants to start, unresolved."""
        return encode(Symbolic(self._starting))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Spark has no composite limit: one limit of ours represents all that are set."""
        o = self._options
        if o.max_offsets_per_trigger is not None:
            return ReadMaxRows(o.max_offsets_per_trigger)
        if o.max_bytes_per_trigger is not None:
            return ReadMaxBytes(o.max_bytes_per_trigger)
        if o.min_offsets_per_trigger is not None:
            return ReadMinRows(o.min_offsets_per_trigger)
        return ReadAllAvailable()

    @at_edge
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fixes the end of the whole run."""
        self._target = self._client().view()

    @at_edge
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends; `start` itself (the same text) if there is none.

        Always concrete: Spark logs the answer as the end of the batch, and a symbolic one would
        mean something else after a restart.
        """
        offset = decode(start)
        if isinstance(offset, Symbolic):
            current, begins = self._first(offset)
        else:
            current, begins = self._next(offset)
            # Not those that were lost: an offset in a topic means nothing in its successor.
            read = {
                tp: at
                for tp, at in offset.positions.items()
                if current.get(tp) == at and tp not in self._out_of_sight
            }
            self._progress.tell(self._client, read)
        assert self._view is not None
        ends, all_there_is = self._view.ends, isinstance(limit, ReadAllAvailable)
        if isinstance(offset, Concrete) and not begins and not all_there_is:
            rows = sum(backlog(current, ends).values())
            if self._target is None and self._pacer.holds_back(rows, _now_ms()):
                return start
        new = admit(current, ends, *self._limits(all_there_is))
        if isinstance(offset, Concrete) and new == offset.positions and not begins:
            return start
        topics = {tp.topic for tp in new}
        before = offset.topic_ids if isinstance(offset, Concrete) else {}
        ids = {**before, **self._view.topic_ids}
        ids = {name: topic_id for name, topic_id in ids.items() if name in topics}
        return encode(Concrete(new, begins, ids))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The ends last seen, for progress reports (`progress.offsets_behind_latest`)."""
        if self._view is None:
            return None
        return encode(Concrete(self._view.ends, {}, {}))

    @at_edge
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Tasks that read exactly what lies between two offsets."""
        first, last = decode(start), decode(end)
        assert isinstance(last, Concrete), "the end of a batch is never symbolic"
        before = first.positions if isinstance(first, Concrete) else {}
        begin = {**before, **last.begins}
        if self._options.fail_on_data_loss:
            require_still_selected(self._options.selection, last.positions)
        view = self._view_of_batch(begin, last)
        existing = [tp for tp in last.positions if tp in view.ends]
        view = replace(view, starts=starts(self._client(), existing))
        return checked_tasks(begin, last.positions, last.topic_ids, view, self._options)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Executor side."""
        return read_task(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the checkpoint is the truth, and the group already has the progress
        (`group`)."""

    # Ours.

    def _first(self, offset: Symbolic) -> tuple[Marks, Marks]:
        """Where batch 0 begins, twice: the user's words, resolved once per process."""
        view = self._bounded(self._client().view(), {})
        require_selected(self._options.selection, view)
        if self._resolved is None:
            client = self._client()
            self._resolved = resolve(client, offset.start, view.ends, "startingOffsets")
            if isinstance(offset.start, AtOffsets):
                self._check_given(self._resolved, view)
        begins = {tp: at for tp, at in self._resolved.items() if tp in view.ends}
        begins |= starts(self._client(), view.ends.keys() - begins.keys())
        self._view = view
        return dict(begins), begins

    def _check_given(self, given: Marks, view: LogView) -> None:
        """Offsets given by the user may be past the log end: refuse, or start at the end."""
        losses = find_losses(Known(given), view)
        if losses and self._options.fail_on_data_loss:
            raise_losses(losses)
        for loss in losses:
            logger.warning("startingOffsets moved: %s", loss.message)
            given[loss.partition] = view.ends[loss.partition]

    def _next(self, offset: Concrete) -> tuple[Marks, Marks]:
        """Where this batch begins, and the part of it that the previous batch does not contain.

        That part: partitions that are new (they begin at their log start) and partitions moved
        after a loss (failOnDataLoss=false). Raises DataLossError otherwise.

        Partitions out of sight keep their position, and their topic its id: the query goes on from
        there if it sees the same topic again.
        """
        if self._options.fail_on_data_loss:
            require_still_selected(self._options.selection, offset.positions)
        unseen_before = self._out_of_sight
        view = self._settled(Known(offset.positions, offset.topic_ids))
        bounded = self._bounded(view, offset.positions)
        new = bounded.ends.keys() - offset.positions.keys()
        # Records of a new partition that have already been deleted are a loss like any other.
        known = Known({**offset.positions, **dict.fromkeys(new, 0)}, offset.topic_ids)
        losses = find_losses(known, view)
        if new or not all(loss.out_of_sight for loss in losses):
            view = replace(view, starts=starts(self._client(), view.ends))
            losses = find_losses(known, view)
        elif self._skips_lost_offsets():
            waiting = backlog(offset.positions, bounded.ends)
            view = replace(view, starts=starts(self._client(), waiting))
            losses = find_losses(known, view)
        self._view = bounded
        if self._options.fail_on_data_loss:
            raise_losses(losses)
            require_selected(self._options.selection, view)
        current = dict(known.positions)
        begins = {tp: view.starts[tp] for tp in new}
        for loss in losses:
            if loss.out_of_sight:
                if loss.partition not in unseen_before:
                    self._warn_of_absence(loss)
                continue
            logger.warning("records are lost, continuing: %s", loss.message)
            if loss.resume_at is None:
                del current[loss.partition]
            else:
                begins[loss.partition] = loss.resume_at
        return current | begins, begins

    def _skips_lost_offsets(self) -> bool:
        """Whether to look for deleted records before a batch is admitted: the limit is for records
        that are left. Otherwise, `partitions` finds them."""
        o = self._options
        limited = o.max_offsets_per_trigger is not None or o.max_bytes_per_trigger is not None
        return limited and not o.fail_on_data_loss

    def _warn_of_absence(self, loss: Loss) -> None:
        selection, why = self._options.selection, loss.message
        if not selects(selection, loss.partition):
            why = no_longer_selected(selection, loss.partition)
        logger.warning("continuing without a partition: %s", why)

    def _settled(self, known: Known) -> LogView:
        """A lookup of the cluster, repeated before records count as lost.

        A leader that was just elected may not know yet that its whole log is committed, and a
        broker may not have learned of a topic. What was out of sight before, or is not selected, is
        not waited for.
        """
        selection = self._options.selection
        absent = {tp for tp in known.positions if not selects(selection, tp)} | self._out_of_sight
        # A topic that is out of sight is asked for by name once: it is listed if it comes back.
        read_before = {tp.topic for tp in known.positions.keys() - self._out_of_sight}
        view = self._client().view(read_before)
        for _ in range(self._options.offset_retries):
            losses = find_losses(known, view)
            if all(loss.out_of_sight and loss.partition in absent for loss in losses):
                break
            time.sleep(self._options.offset_retry_interval_ms / 1000)
            view = self._client().view(read_before)
        self._out_of_sight = known.positions.keys() - view.ends.keys()
        return view

    def _bounded(self, view: LogView, positions: Positions) -> LogView:
        """AvailableNow: no further than the target, whatever arrived since.

        Nor before the positions, which may be past the target, but never past what exists: after
        a loss, the log may end before both. What was read before, and the look that fixed the
        target missed, ends where it is first seen: one broker may have been behind.
        """
        if self._target is None:
            return view
        late = {tp: view.ends[tp] for tp in positions if tp in view.ends}
        self._target = replace(self._target, ends={**late, **self._target.ends})
        target = self._target.ends
        ends = {
            tp: min(end, max(target[tp], positions.get(tp, 0)))
            for tp, end in view.ends.items()
            if tp in target
        }
        return replace(view, ends=ends)

    def _limits(self, all_there_is: bool) -> tuple[Limit, dict[TopicPartition, float]]:
        if all_there_is or self._view is None:
            return Limit(), {}
        o = self._options
        limit = Limit(o.max_offsets_per_trigger, o.max_bytes_per_trigger)
        return limit, {} if limit.max_bytes is None else self._row_bytes(self._view.ends)

    def _row_bytes(self, ends: Positions) -> dict[TopicPartition, float]:
        """The mean sizes, or those last known: a query never fails for what is an average.

        The user may lack the permission to describe brokers, or one broker does not answer.
        """
        now_s = time.monotonic()
        if now_s < self._sizes_again_s:
            return self._sizes
        try:
            self._sizes = self._client().row_bytes(ends)
        except PenstockError as problem:
            self._sizes_again_s = now_s + SIZES_PAUSE_S
            level = logging.DEBUG if self._sizes_warned else logging.WARNING
            self._sizes_warned = True
            logger.log(
                level,
                "maxBytesPerTrigger: the sizes of records are unknown, so those last seen are "
                "used, or 1 KiB each: %s",
                problem,
            )
        return self._sizes

    def _view_of_batch(self, begin: Positions, end: Concrete) -> LogView:
        """The lookup that decided this batch, or (in a replay after a restart) new ones."""
        seen = self._view
        if seen is not None and all(
            seen.ends[tp] >= at if tp in seen.ends else begin[tp] == at
            for tp, at in end.positions.items()
        ):
            return seen
        return self._settled(Known(end.positions, end.topic_ids))

    def _client(self) -> OffsetsClient:
        return self._connect(self._options)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
