"""A consume-transform-produce loop in the recorded workload, and the reader of its output.

    member threads: Transformer ──▶ each record of the topic to the target      (churn: they go)
    watcher thread: the group's committed offsets at the ends of the topic ──▶ all stop
    at the end: the target, read_committed ──▶ piped, piped, …

The target must have each record of the topic once, in order per key, while members come and go. A
member leaves cleanly, or in the middle of a transaction, which is aborted. Nothing is checked here;
`check_pipe.py` does that.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from penstock.client import ConsumedBatch, TopicPartition, Transformer
from penstock.client.config import ClientOptions
from penstock.errors import ErrorCode, PenstockError, UnreachableError
from penstock.verify.probe import PAUSE_S, ClusterProbe

PIPE_READER: Final = "pipe"
NOT_YET: Final = ErrorCode.LEADER_NOT_AVAILABLE
"""Of a broker that has just started."""

Record = Callable[[str, str, ConsumedBatch], None]
"""(reader, kind of event, batch): writes down what a batch held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeConfig:
    """`churn_s` 0: members stay. `settle_s` bounds how long the end waits for progress."""

    bootstrap: str
    source: str
    target: str
    group: str
    members: int
    churn_s: float
    settle_s: float
    options: ClientOptions = field(default_factory=ClientOptions)


class _LeavesInTheMiddleError(Exception):
    """Churn: a member's open transaction is aborted."""


class Pipe:
    """All members of one pipe. `work` is for threads."""

    def __init__(self, config: PipeConfig, record: Record) -> None:
        self._config = config
        self._record = record
        self._cluster = ClusterProbe(config.bootstrap, config.options, config.settle_s)
        self._lock = threading.Lock()
        self._live: set[Transformer] = set()
        self._ends: Mapping[TopicPartition, int] | None = None
        self._begins: dict[TopicPartition, int] = {}
        self._finished = threading.Event()

    def begin(self, starts: Mapping[TopicPartition, int]) -> None:
        """The group starts at these offsets of the source; the target is read from its end now."""
        self._cluster.reset(self._config.group, starts)
        self._begins = self._cluster.ends(self._config.target)

    def end_at(self, ends: Mapping[TopicPartition, int]) -> None:
        """Members stop when all of them together have committed these."""
        self._ends = ends

    def abandon(self) -> None:
        """Ends everything now, finished or not."""
        self._finished.set()
        with self._lock:
            for member in self._live:
                member.stop()

    def work(self) -> dict[str, Callable[[], None]]:
        """The members' and the watcher's, by name."""
        names = [f"pipe-{seat}" for seat in range(self._config.members)]
        return {
            **{name: partial(self._run_member, name) for name in names},
            "pipe watcher": self._watch,
        }

    def read_back(self) -> None:
        """Records everything that readers see of the target.

        Raises PenstockError if a transaction on it stays open.
        """
        for batch in self._cluster.read_committed(self._begins):
            self._record(PIPE_READER, "piped", batch)

    # ------------------------------------------------------------ inside

    def _run_member(self, name: str) -> None:
        """A member, and its successors while there is churn."""
        life = 0
        while not self._finished.is_set():
            try:
                self._live_once(f"{name}.{life}")
            except PenstockError as error:
                # It started while every broker was down, or had not heard from a controller yet.
                if not isinstance(error, UnreachableError) and error.code is not NOT_YET:
                    raise
                self._finished.wait(PAUSE_S)
            life += 1

    def _watch(self) -> None:
        """Ends everything when the ends are committed; raises if there is no more progress."""
        known: dict[TopicPartition, int] = {}
        progressed = time.monotonic()
        try:
            while not self._finished.wait(PAUSE_S):
                offsets = self._cluster.committed(self._config.group)
                if offsets != known or self._ends is None:
                    progressed = time.monotonic()
                known = offsets or known
                ends = self._ends
                if ends is not None and all(known.get(at, -1) >= end for at, end in ends.items()):
                    return
                if time.monotonic() - progressed > self._config.settle_s:
                    raise PenstockError(
                        f"the pipe committed nothing for {self._config.settle_s:.0f} s short of "
                        f"the end: {known}, not {ends}",
                        ErrorCode.REQUEST_TIMED_OUT,
                    )
        finally:
            self.abandon()

    def _live_once(self, name: str) -> None:
        config, chance = self._config, random.SystemRandom()
        dies_at = time.monotonic() + config.churn_s * (0.5 + chance.random())
        try:
            with Transformer(
                config.bootstrap,
                group_id=config.group,
                source=config.source,
                client_id=name,
                **config.options,
            ) as member:
                self._register(member)
                try:
                    for batches, out in member:
                        for batch in batches:
                            records = list(batch.records())
                            out.send_columns(
                                config.target,
                                [record.value for record in records],
                                [record.key for record in records],
                            )
                        if config.churn_s and self._ends is None and time.monotonic() > dies_at:
                            if chance.random() < 0.5:
                                raise _LeavesInTheMiddleError
                            member.stop()
                finally:
                    self._deregister(member)
        except _LeavesInTheMiddleError:
            pass

    def _register(self, member: Transformer) -> None:
        with self._lock:
            self._live.add(member)
            if self._finished.is_set():
                member.stop()

    def _deregister(self, member: Transformer) -> None:
        with self._lock:
            self._live.discard(member)


def target_of(topic: str) -> str:
    """The topic to which a pipe copies."""
    return f"{topic}-piped"
