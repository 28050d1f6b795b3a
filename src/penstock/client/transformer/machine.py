"""When a consume-transform-produce loop commits, gives up, and retries. Pure.

             polled: records            committed
      IDLE ───────────────────▶ OPEN ──────────────▶ IDLE
       ▲                         │ failed, handler_failed, lost
       │ recovered               ▼
       └───────────────────── DOOMED: abort, back to what is committed, a pause

- **Source records count in the transaction that contains their output, or not at all** (I15). So
  everything returned since a transaction was opened is committed, or done again, with it: a failure
  anywhere dooms the whole transaction.
- **A partition is revoked after a commit**, inside the poll that revokes it: its next owner reads
  from that commit. A *lost* partition already belongs to others, who will produce its output: the
  transaction is doomed, even if the member is valid again by then.
- **Failures are counted per record**, until a transaction with this record commits. A record that
  has failed before waits for the next transaction, so that another failure does not repeat other
  records; one that failed too often becomes a dead letter instead.
- **What failed for its size is not repeated at that size.** After a transaction with too many
  partitions, or one that was open for longer than its timeout, the next one has half as many
  records.

Methods are events; `step` says what the shell does next (`transformer.py`). Times are ms of one
monotonic clock. During a poll, the shell reports what the group revokes, and follows `step` only
when the poll has ended.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from penstock.client.dead_letters import (
    HandlerFailedError,
    handler_failed,
    letter_headers,
    letter_too_large,
    without_text,
)
from penstock.client.model import Record
from penstock.client.transformer.config import RECORDS_PER_COMMIT, TransformConfig
from penstock.core.columns import Header
from penstock.core.types import TopicPartition
from penstock.errors import PenstockError

POLL_MAX_MS: Final = 200
PASS_MAX_MS: Final = 1_000
"""How long a pass continues after its poll; then there is a new poll, because revoked partitions
wait for one."""
_DOUBLINGS_MAX: Final = 16
_FAST: Final = 4
"""A transaction that took no more than this part of its timeout may have twice as many records."""


class State(Enum):
    """See the module."""

    IDLE = "idle"
    OPEN = "open"
    DOOMED = "doomed"


class Step(Enum):
    """What the shell does next."""

    POLL = "poll"
    """And return the records, in a transaction."""
    COMMIT = "commit"
    RECOVER = "recover"
    """Abort, seek to the committed offsets, pause for `pause_ms`; then `recovered` or `failed`."""
    END = "end"


class Letter(NamedTuple):
    """What is sent to the dead-letter topic instead of calling the handler."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: tuple[Header, ...]


@dataclass(slots=True)
class _Failures:
    """Of one record. `settled`: it was handled in the transaction that is open."""

    count: int = 0
    cause: str = ""
    settled: bool = False


class TransformModel:
    """Of one transformer. One thread at a time."""

    def __init__(self, config: TransformConfig) -> None:
        self._config = config
        self.state = State.IDLE
        self.stopping = False
        self._opened_ms = 0
        self._polled_ms = 0
        self._records = 0
        self._records_max = RECORDS_PER_COMMIT
        self._slow = False
        self._due = False
        self._setbacks = 0
        self._failed: dict[tuple[TopicPartition, int], _Failures] = {}
        self._letters = 0
        self.committed_records = 0
        """Records done in committed transactions, including dead letters."""
        self.committed_letters = 0
        self.commits = 0
        self.aborts = 0

    def step(self, now_ms: int) -> Step:
        """Called whenever nothing is in progress and the returned records are done."""
        if self.state is State.OPEN and (self.stopping or self._is_due(now_ms)):
            return Step.COMMIT
        if self.stopping:
            return Step.END
        return Step.RECOVER if self.state is State.DOOMED else Step.POLL

    def wait_ms(self, now_ms: int) -> int:
        """How long a poll may wait for records; events during the poll are handled after that at
        the latest."""
        if self.state is not State.OPEN:
            return POLL_MAX_MS
        left_ms = self._opened_ms + self._config.commit_interval_ms - now_ms
        return min(max(0, left_ms), POLL_MAX_MS)

    @property
    def room(self) -> int:
        """How many records the next poll may return, at least 1."""
        return max(1, min(self._config.max_records, self._records_max - self.open_records))

    @property
    def pause_ms(self) -> int:
        """The pause before the next attempt, after this many failures in a row."""
        doublings = min(max(self._setbacks - 1, 0), _DOUBLINGS_MAX)
        return min(self._config.backoff_ms << doublings, self._config.backoff_max_ms)

    # -- what was read -------------------------------------------------------------------------

    def polled(self, records: int, now_ms: int, *, passed_over: bool = False) -> bool:
        """A poll has ended. True: return its records, in the transaction that is open now; False:
        drop them.

        Args:
            records: How many it has returned.
            now_ms: The time.
            passed_over: Positions have moved past the committed offsets, over offsets without
                records. They are committed too, because otherwise lag would remain.
        """
        self._polled_ms = now_ms
        if self.state is State.DOOMED:
            return False
        if self.state is State.IDLE and (records or passed_over):
            self._open(now_ms)
            self._due = not records
        return records > 0

    def done(self, records: int) -> None:
        """This many of the returned records are finished."""
        self._records += records

    def goes_on(self, now_ms: int) -> bool:
        """In the middle of a pass, after a commit: opens the next transaction for the rest of the
        pass."""
        if self.state is not State.IDLE or self.stopping:
            return False
        if now_ms - self._polled_ms >= PASS_MAX_MS:
            return False
        self._open(now_ms)
        return True

    @property
    def open_records(self) -> int:
        """Records done in the open transaction."""
        return self._records if self.state is State.OPEN else 0

    def stop(self) -> None:
        """Commits finished records, and ends."""
        self.stopping = True

    # -- one record after the other --------------------------------------------------------------

    def waits(self, record: Record) -> bool:
        """It has failed before, and other records are in this transaction, which commits without
        it."""
        if not self._failed or not self._records or _place(record) not in self._failed:
            return False
        self._due = True
        return True

    def letter(self, record: Record) -> Letter | None:
        """What to send instead of calling the handler, if the handler has failed too often."""
        failures = self._failed.get(_place(record)) if self._failed else None
        if failures is None or failures.count <= self._config.retries:
            return None
        headers = letter_headers(record, failures.cause, failures.count)
        return Letter(self._config.dead_letter_topic, record.value, record.key, headers)

    def handled(self, record: Record, now_ms: int, *, as_letter: bool = False) -> bool:
        """The handler has returned, or the letter is sent. True: stop here, `step` knows why."""
        self._records += 1
        if self._failed:
            failures = self._failed.get(_place(record))
            if failures is not None:
                failures.settled = True
                self._letters += as_letter
        return self.state is not State.OPEN or self.stopping or self._is_due(now_ms)

    def handler_failed(self, record: Record, cause: str) -> HandlerFailedError | None:
        """The handler has raised. Returns an error if that was the last time, and the program
        stops."""
        failures = self._failed.setdefault(_place(record), _Failures())
        failures.count += 1
        failures.cause = cause
        self.failed()
        if failures.count <= self._config.retries or self._config.dead_letter_topic:
            return None
        return handler_failed(record, cause, failures.count)

    def letter_too_large(self, record: Record, refusal: PenstockError) -> HandlerFailedError | None:
        """Its dead-letter topic has refused the letter for its size: the next one says less.
        Returns an error if this one already did, and the program stops."""
        failures = self._failed[_place(record)]
        short, topic = without_text(failures.cause), self._config.dead_letter_topic
        if failures.cause == short:
            return letter_too_large(record, short, failures.count, topic, refusal)
        failures.cause = short
        self.failed()
        return None

    # -- outcomes of transactions ------------------------------------------------------------

    def committed(self, now_ms: int) -> None:
        """The transaction is committed."""
        assert self.state is State.OPEN, f"committed while {self.state}"
        self.state = State.IDLE
        self._setbacks = 0
        self._grow(now_ms - self._opened_ms)
        self.commits += 1
        self.committed_records += self._records
        self.committed_letters += self._letters
        self._failed = {at: each for at, each in self._failed.items() if not each.settled}

    def failed(self) -> None:
        """A part of the transaction, or of the attempt to recover, has failed."""
        self.aborts += self.state is State.OPEN
        self.state = State.DOOMED
        self._setbacks += 1
        for failures in self._failed.values():
            failures.settled = False

    def too_large(self, in_hand: int = 0) -> bool:
        """The transaction had too many partitions: the next one has half as many records, and those
        after it one more each. `in_hand`: records of it that are not done. False: it had only one
        record, so a repetition would fail again.
        """
        records = self._records + in_hand
        self._records_max = max(1, records // 2)
        self._slow = False
        return records > 1

    def too_slow(self, now_ms: int) -> bool:
        """It is about to fail. True: it was open for longer than its timeout, after which the
        cluster aborts it. The next one has half as many records, and those after it more, once as
        many are fast.
        """
        if self.state is not State.OPEN or now_ms - self._opened_ms < self._timeout_ms:
            return False
        self._records_max = max(1, self._records // 2)
        self._slow = True
        return True

    def recovered(self) -> None:
        """Aborted, and back at the committed offsets."""
        assert self.state is State.DOOMED, f"recovered while {self.state}"
        self.state = State.IDLE

    # -- events from the group
    # ------------------------------------------------------------------------

    def leaves(self, partitions: Iterable[TopicPartition]) -> None:
        """They are given up, after a commit if one was needed: their new owners count failures."""
        gone = set(partitions)
        self._failed = {at: each for at, each in self._failed.items() if at[0] not in gone}

    def lost(self, partitions: Iterable[TopicPartition]) -> None:
        """Others already have them, and read the records of the open transaction again."""
        if self.state is State.OPEN:
            self.failed()
        self.leaves(partitions)

    # -- inside ----------------------------------------------------------------------------------

    def _open(self, now_ms: int) -> None:
        self.state = State.OPEN
        self._opened_ms = now_ms
        self._records = self._letters = 0
        self._due = False

    @property
    def _timeout_ms(self) -> int:
        return self._config.transaction_timeout_ms

    def _grow(self, took_ms: int) -> None:
        if not self._slow:
            self._records_max = min(self._records_max + 1, RECORDS_PER_COMMIT)
        elif took_ms * _FAST <= self._timeout_ms:
            self._records_max = max(self._records_max, min(2 * self._records, RECORDS_PER_COMMIT))

    def _is_due(self, now_ms: int) -> bool:
        interval_ms = self._config.commit_interval_ms
        full = self._records >= self._records_max
        return self._due or full or now_ms - self._opened_ms >= interval_ms


def _place(record: Record) -> tuple[TopicPartition, int]:
    return TopicPartition(record.topic, record.partition), record.offset
