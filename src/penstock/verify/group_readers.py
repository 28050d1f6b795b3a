"""Members of a consumer group in the recorded workload, and the watcher of their commits.

    member threads ──poll──▶ cluster       owns, got, leaves
    watcher thread ──describe the group──▶ stored

Members commit automatically, as most programs do. With `churn_s`, each one closes after a while, in
the middle of its work, and another one replaces it, so that partitions keep moving. All end when
together they have reached the ends of the logs. Nothing is checked here; `check_groups.py` does
that.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.client import Admin, ConsumedBatch, Consumer, TopicPartition
from penstock.client.config import ClientOptions
from penstock.errors import ErrorCode, PenstockError
from penstock.verify.history import HistoryWriter

POLL_S: Final = 0.2
WATCH_S: Final = 0.2
AUTO_COMMIT_MS: Final = 200

LAST_WORDS: Final = 5
"""The last records that a member takes, in the middle of what it has fetched."""

Record = Callable[[str, str, ConsumedBatch], None]
"""(reader, kind of event, batch): records the content of a batch."""


@dataclass(frozen=True, slots=True)
class GroupReadersConfig:
    """`churn_s` 0: members stay. `settle_s` bounds how long the end waits for progress."""

    bootstrap: str
    topic: str
    group: str
    members: int
    churn_s: float
    settle_s: float
    options: ClientOptions = field(default_factory=ClientOptions)


class GroupReaders:
    """All members of one group. `run_member` and `watch` are threads' work."""

    def __init__(
        self,
        config: GroupReadersConfig,
        history: HistoryWriter,
        record: Record,
        now_ms: Callable[[], float],
    ) -> None:
        self._config = config
        self._history = history
        self._record = record
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._reached: dict[TopicPartition, int] = {}
        self._ends: Mapping[TopicPartition, int] | None = None
        self._progressed = time.monotonic()
        self._finished = threading.Event()

    def begin(self, starts: Mapping[TopicPartition, int]) -> None:
        """Makes the group start at these offsets; raises GROUP_NOT_EMPTY if it is in use."""
        with self._admin() as admin:
            admin.reset_offsets(self._config.group, starts, reason="penstock verify")
        self._reached.update(starts)
        for where, offset in starts.items():
            self._stored(where, offset, first=True)

    def end_at(self, ends: Mapping[TopicPartition, int]) -> None:
        """Members stop when all of them together have reached these."""
        with self._lock:
            self._ends = ends
            self._progressed = time.monotonic()
        self._look()

    def abandon(self) -> None:
        """Ends everything now, finished or not."""
        self._finished.set()

    def run_member(self, name: str) -> None:
        """A member, and its successors while there is churn."""
        life = 0
        while not self._finished.is_set():
            self._live(f"{name}.{life}")
            life += 1

    def watch(self) -> None:
        """Records how the committed offsets move, until the end, and once more after it."""
        known: dict[TopicPartition, int] = {}
        with self._admin() as admin:
            while True:
                last = self._finished.is_set()
                try:
                    offsets = admin.describe_group(self._config.group).offsets
                except PenstockError as error:
                    if last or not error.retriable:
                        raise
                    offsets = {}
                for where, offset in offsets.items():
                    if where.topic == self._config.topic and known.get(where) != offset.offset:
                        known[where] = offset.offset
                        self._stored(where, offset.offset)
                if last:
                    return
                self._finished.wait(WATCH_S)

    def _live(self, name: str) -> None:
        config = self._config
        dies_at = time.monotonic() + config.churn_s * (0.5 + random.SystemRandom().random())
        with Consumer(
            config.bootstrap,
            group_id=config.group,
            client_id=name,
            auto_offset_reset="error",
            auto_commit_interval_ms=AUTO_COMMIT_MS,
            **config.options,
        ) as consumer:
            consumer.subscribe(config.topic, listener=_Listener(self._moved, name))
            while not self._finished.is_set():
                if config.churn_s and self._ends is None and time.monotonic() > dies_at:
                    self._take(consumer, name, LAST_WORDS)
                    return  # without a commit: the last few records go to the next owner again
                self._take(consumer, name)
                self._look()
            consumer.commit()

    def _take(self, consumer: Consumer, name: str, max_records: int | None = None) -> None:
        for batch in consumer.poll(POLL_S, max_records):
            self._record(name, "got", batch)
            self._advance(batch.topic_partition, batch.next_offset)

    def _advance(self, where: TopicPartition, offset: int) -> None:
        with self._lock:
            if offset > self._reached.get(where, -1):
                self._reached[where] = offset
                self._progressed = time.monotonic()

    def _look(self) -> None:
        """Ends everything when the ends are reached; raises if there is no more progress."""
        with self._lock:
            ends = self._ends
            if ends is None:
                return
            missing = [f"{at} to {end}" for at, end in ends.items() if self._reached[at] < end]
            idle_s = time.monotonic() - self._progressed
        if not missing or idle_s > self._config.settle_s:
            self._finished.set()
        if missing and idle_s > self._config.settle_s:
            raise PenstockError(
                f"the group got nothing for {idle_s:.0f} s short of the end: {', '.join(missing)}",
                ErrorCode.REQUEST_TIMED_OUT,
            )

    def _moved(self, kind: str, name: str, partitions: frozenset[TopicPartition], how: str) -> None:
        for where in sorted(partitions):
            event = {"e": kind, "r": name, "p": where.partition, "t": self._now_ms()}
            self._history.write({**event, "how": how} if how else event)

    def _stored(self, where: TopicPartition, offset: int, *, first: bool = False) -> None:
        event = {"e": "stored", "p": where.partition, "o": offset, "t": self._now_ms()}
        self._history.write({**event, "first": 1} if first else event)

    def _admin(self) -> Admin:
        return Admin(self._config.bootstrap, **self._config.options)


class _Listener:
    """Records which partitions come and go."""

    def __init__(
        self, moved: Callable[[str, str, frozenset[TopicPartition], str], None], name: str
    ) -> None:
        self._moved = moved
        self._name = name

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._moved("owns", self._name, partitions, "")

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self._moved("leaves", self._name, partitions, "revoked")

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self._moved("leaves", self._name, partitions, "lost")
