"""A member of one of a ring's loops: a consumer of the group, and a transactional producer.

    poll ─▶ took … ─▶ send ──┐  polls again, until its time is over or a partition leaves
     ▲                       ▼
     ├── committed ◀── offsets and output together
     └── back to what is committed ◀── aborted: now and then, or because something failed

Unlike `Transformer`, built from `Consumer`, `Producer` and `commit_offsets`. A transaction spans
several polls, so that it could read what others made of its own output if that became visible too
early: with one poll each, the order of polls would also order the transactions, and no cycle would
be possible. Therefore it is committed in `on_revoked`, before a partition leaves.
"""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from penstock.client import (
    ConsumedBatch,
    Consumer,
    Producer,
    TopicPartition,
    Transaction,
    TransactionError,
)
from penstock.client.config import ClientOptions
from penstock.errors import MisuseError, PenstockError
from penstock.verify.recording import lines_of
from penstock.verify.records import build_values
from penstock.verify.transactional import TIMEOUT_MS

HOPS_MAX: Final = 4
OPEN_S: Final = 0.1
"""How long a transaction stays open."""
POLL_S: Final = 0.05
ABORT_SHARE: Final = 0.05
TIMEOUT_S: Final = TIMEOUT_MS / 1000

RING_BODY: Final = ("w", "h")
"""Transaction that wrote it; how many have passed it on."""

Tell = Callable[[dict[str, object]], None]
"""Records an event and its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingConfig:
    """`members` of each loop. `churn_s` 0: they stay. `settle_s` bounds how long the end waits for
    progress. `tag` is the run's."""

    bootstrap: str
    topic: str
    tag: int
    record_bytes: int
    members: int
    churn_s: float
    settle_s: float
    options: ClientOptions = field(default_factory=ClientOptions)


@dataclass(frozen=True, slots=True)
class Loop:
    """A group that passes on what is in `sources` to `target`."""

    name: str
    group: str
    sources: tuple[str, ...]
    target: str


class RingMember:
    """One member; its successor has the same transactional id."""

    def __init__(self, config: RingConfig, loop: Loop, name: str, tell: Tell) -> None:
        """`name`: number of the member and of the successor, with a dot in between"""
        self._config = config
        self._loop = loop
        self._name = name
        self._tell = tell
        self._random = random.SystemRandom()
        transactional_id = f"verify-{config.tag:x}-{name.partition('.')[0]}"
        self._consumer = Consumer(
            config.bootstrap,
            group_id=loop.group,
            client_id=name,
            enable_auto_commit=False,
            auto_offset_reset="error",
            session_timeout_ms=TIMEOUT_MS,  # a leave is not noticed while all brokers are down
            transactional_id=transactional_id,
            **config.options,
        )
        self._producer = Producer(
            config.bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=TIMEOUT_MS,
            max_block_ms=TIMEOUT_MS,
            client_id=name,
            **config.options,
        )
        self._transaction: Transaction | None = None
        self._number = 0
        """Of the transaction whose end is not recorded yet."""
        self._due_s = 0.0
        self._doomed = False
        self._unknown: PenstockError | None = None
        self._leaving = False
        self._settled: dict[TopicPartition, int] = {}
        """Committed positions."""

    def live(self, stays: Callable[[], bool], numbers: Iterator[int]) -> None:
        """Passes records on, in transactions with these numbers.

        Raises MisuseError for the workload's own mistakes, other PenstockErrors if another member
        has to continue.
        """
        with self._producer, self._consumer:
            try:
                self._consumer.subscribe(self._loop.sources, listener=self)
                while stays():
                    self._turn(numbers)
                self._leave()
            finally:
                self._leaving = (
                    True  # the open transaction is aborted when its partitions have left
                )
                self._ended("aborted")

    # ------------------------------------------------------------ called by the group, inside polls

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """They start at the committed offsets."""

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """The next owner starts after what is committed here."""
        if self._transaction is not None and not self._doomed and not self._leaving:
            self._commit()
        self._forget(partitions)

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """The open transaction must no longer count."""
        self._doomed |= self._transaction is not None
        self._forget(partitions)

    # ------------------------------------------------------------ inside

    def _turn(self, numbers: Iterator[int]) -> None:
        batches = self._consumer.poll(POLL_S)
        if self._doomed:
            self._go_back()
            return
        # Positions also move past records that readers do not get; at the end, that is committed
        # too.
        idle = not batches and self._transaction is None
        if batches or (idle and self._positions() != self._settled):
            self._begin(numbers)
        try:
            for batch in batches:
                self._pass_on(batch)
        except MisuseError:
            raise
        except PenstockError:
            self._go_back()
            return
        if self._transaction is not None and time.monotonic() >= self._due_s:
            self._end()

    def _begin(self, numbers: Iterator[int]) -> None:
        if self._transaction is None:
            transaction = self._producer.transaction()
            transaction.begin()
            self._transaction = transaction
            self._number = next(numbers)
            self._due_s = time.monotonic() + OPEN_S

    def _pass_on(self, batch: ConsumedBatch) -> None:
        config, keys = self._config, batch.keys()
        body = () if batch.topic == config.topic else RING_BODY
        at = {"r": self._name, "p": batch.partition}
        out_values: list[bytes] = []
        out_keys: list[bytes | None] = []
        for line in lines_of(batch, config.tag, config.record_bytes, kind="took", body=body):
            if line["e"] != "took":
                self._tell({**line, **at})
                continue
            took = {"w": 0, "h": 0, **line}
            self._tell({**took, **at, "x": self._number})
            if took["h"] < HOPS_MAX:
                says = (self._number, took["h"] + 1)
                size, count, row = config.record_bytes, took["n"], took["o"] - batch.first_offset
                data = build_values(config.tag, took["s"], took["q"], count, size, body=says)
                out_values += [data[lo : lo + size] for lo in range(0, len(data), size)]
                out_keys += keys[row : row + count]
        if out_values:
            assert self._transaction is not None, "it was begun"
            self._transaction.send_columns(self._loop.target, out_values, out_keys)

    def _end(self) -> None:
        if self._random.random() >= ABORT_SHARE:
            self._commit()
        else:
            self._doomed = True
        if self._doomed:
            self._go_back()

    def _commit(self) -> None:
        """Raises only MisuseError, because it is also called inside polls."""
        assert self._transaction is not None, "it was begun"
        try:
            settled = self._positions()
            self._transaction.commit_offsets(self._consumer)
            self._transaction.commit(timeout_s=TIMEOUT_S)
        except MisuseError:
            raise
        except PenstockError as error:
            unknown = isinstance(error, TransactionError) and error.unknown_outcome
            self._ended("unknown" if unknown else "aborted")
            self._unknown = error if unknown else None
            self._doomed = True
        else:
            self._ended("committed")
            self._settled = settled
            self._transaction = None

    def _go_back(self) -> None:
        """Aborts, and reads again; if the outcome is unknown, another member has to continue."""
        if self._unknown is not None:
            raise self._unknown
        self._ended("aborted")
        self._doomed = False
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.abort(timeout_s=TIMEOUT_S)
        self._consumer.seek_to_committed()

    def _leave(self) -> None:
        """Cleanly, or with an open transaction that will never be committed."""
        if self._transaction is not None and self._random.random() < 0.5:
            self._commit()

    def _positions(self) -> dict[TopicPartition, int]:
        return {at: self._consumer.position(at) for at in self._consumer.assignment()}

    def _forget(self, partitions: frozenset[TopicPartition]) -> None:
        self._settled = {at: to for at, to in self._settled.items() if at not in partitions}

    def _ended(self, how: str) -> None:
        """Recorded once for each transaction; one without a commit request is aborted."""
        if self._number:
            self._tell({"e": "ended-ring", "r": self._name, "x": self._number, "how": how})
            self._number = 0
