"""A transactional producer's machine: one transaction at a time, decided by its coordinator. Pure.

            Begin            Commit, Abort           EndAnswered
    READY ────────▶ OPEN ──────────────────▶ ENDING ────────────▶ READY, next identity
      ▲               │ BatchLost,             │ commit: the same, or Flushed(unsettled > 0)
      │               │ OffsetsLost            │
      │               ▼                        ▼
      └── Abort ◀── FAILED: abort is all that is left        FENCED: nothing is left

- **(producer id, epoch) names one transaction.** It comes from the coordinator's answer about the
  previous one; its batches start at sequence 0 in every partition. If the answer names the same
  epoch again, a late batch could join the next transaction, so the machine requests a new identity.
- **A commit is sent only when every batch is stored**, and consumers' offsets are, and never after
  one was given up (I11). Then only repetitions of the transaction's batches are in flight.
- **A batch is never carried over.** Giving one up discards all others, and so does an abort.
- **Once requested, an outcome is not changed**: after a lost answer, the same End is sent until the
  coordinator answers. Past the deadline the machine stays in ENDING, and the next Commit, Abort or
  Begin asks again. Only a producer that is fenced after a lost answer never learns the outcome.

A branch of a batch that many tasks write ends with `HandOver`, and is READY again once it is
completely stored: the program that commits the batch decides on it, and no End is sent.

A refusal of the user's call is raised and changes nothing. Next: `manager.py` carries it out.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, assert_never

from penstock.client.transaction.contract import (
    NOTHING,
    Abort,
    BatchLost,
    Begin,
    Commit,
    End,
    EndAnswered,
    EndFailed,
    Event,
    Flushed,
    HandOver,
    Identified,
    OffsetsLost,
    Ready,
    TransactionError,
)
from penstock.core.types import ProducerIdentity
from penstock.errors import (
    Applied,
    ClusterError,
    ErrorCode,
    MisuseError,
    OverloadedError,
    PenstockError,
)

VISIBLE_WAIT_MAX_MS: Final = 60_000
ANSWER_MS: Final = 1_000
"""Part of a deadline reserved for the answer to a commit with wait_visible: it says that the
transaction is committed, even if it is not visible yet."""
"""How long one EndTransaction may wait for the partitions; the protocol's limit."""
_DOUBLINGS_MAX: Final = 16


class State(Enum):
    """See the module."""

    READY = "ready"
    OPEN = "open"
    ENDING = "ending"
    FAILED = "failed"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class _Ending:
    """The requested outcome. `deadline_ms` is that of the user's current call.

    Attributes:
        sent: An EndTransaction was sent: the outcome can no longer be changed.
        unanswered: One ended without an answer whether it was decided.
        decided: The next identity, once the coordinator has answered; only partitions are waited
            for.
    """

    commit: bool
    deadline_ms: int
    wait_visible: bool = False
    sent: bool = False
    unanswered: bool = False
    decided: ProducerIdentity | None = None
    failures: int = 0


class Transactions:
    """Of one producer with a transactional id. Owned by the event loop."""

    def __init__(self, transactional_id: str, backoff_ms: int, backoff_max_ms: int) -> None:
        self._id = transactional_id
        self._backoff_ms = backoff_ms
        self._backoff_max_ms = backoff_max_ms
        self._identity: ProducerIdentity | None = None
        self._ending: _Ending | None = None
        self._failure: PenstockError | None = None
        self.state = State.READY

    @property
    def refusal(self) -> PenstockError | None:
        """Why records are refused now; None in an open transaction."""
        match self.state:
            case State.OPEN:
                return None
            case State.READY:
                return self._misuse("no transaction is open: use `with producer.transaction()`")
            case State.ENDING:
                return self._misuse("the transaction is ending: begin a new one")
            case State.FAILED | State.FENCED:
                return self._failure
            case _:
                assert_never(self.state)

    @property
    def identity(self) -> ProducerIdentity | None:
        """Names the open transaction, and no other one; None if none was begun."""
        return self._identity

    @property
    def may_abort(self) -> bool:
        """A transaction is open and its commit was not requested."""
        unsent = self._ending is not None and self._ending.commit and not self._ending.sent
        return self.state in (State.OPEN, State.FAILED) or unsent

    def handle(self, event: Event, now_ms: int) -> Ready:
        """Decides; raises MisuseError or TransactionError if the user's call is refused."""
        match event:
            case Begin(deadline_ms):
                return self._begin(deadline_ms, now_ms)
            case Identified(identity):
                self._identity = identity
                return NOTHING
            case BatchLost(error) | OffsetsLost(error):
                return self._lost(error)
            case Commit():
                return self._commit(event, now_ms)
            case Flushed(unsettled):
                return self._flushed(unsettled, now_ms)
            case HandOver(unsettled):
                return self._hand_over(unsettled)
            case Abort(deadline_ms):
                return self._abort(deadline_ms, now_ms)
            case EndAnswered():
                return self._answered(event, now_ms)
            case EndFailed(error):
                return self._end_failed(error, now_ms)
            case _:
                assert_never(event)

    # -- the user's calls --------------------------------------------------------------------

    def _begin(self, deadline_ms: int, now_ms: int) -> Ready:
        match self.state:
            case State.OPEN:
                raise self._misuse(
                    "a transaction is already open; a producer can have one at a time"
                )
            case State.ENDING:
                return self._ask_on(deadline_ms, now_ms)
            case State.FAILED:
                raise self._misuse("the last transaction has failed: abort it first")
            case State.FENCED:
                raise self._known_failure()
            case State.READY:
                pass
            case _:
                assert_never(self.state)
        if self._identity is None:
            return Ready(identify=True)
        self.state = State.OPEN
        return Ready(adopt=self._identity)

    def _ask_on(self, deadline_ms: int, now_ms: int) -> Ready:
        """An unconfirmed abort blocks it, as does a commit."""
        ending = self._ending
        assert ending is not None, "an outcome was asked for"
        if ending.commit and ending.sent:
            raise self._misuse(
                "it is unknown whether the last transaction is committed: call its commit again"
            )
        if ending.commit:
            raise self._misuse("the commit of the last transaction was interrupted: end it first")
        return self._abort(deadline_ms, now_ms)

    def _commit(self, event: Commit, now_ms: int) -> Ready:
        ending = self._ending
        if self.state is State.ENDING and ending is not None:
            if not ending.commit:
                raise self._misuse("the transaction is being aborted")
            self._ending = replace(
                ending, deadline_ms=event.deadline_ms, wait_visible=event.wait_visible, failures=0
            )
            return self._send_end(now_ms) if ending.sent else Ready(flush=True)
        self._need_transaction("commit")
        if self.state is State.FAILED:
            raise self._known_failure()
        self.state = State.ENDING
        self._ending = _Ending(True, event.deadline_ms, event.wait_visible)
        return Ready(flush=True)

    def _abort(self, deadline_ms: int, now_ms: int) -> Ready:
        ending = self._ending
        if ending is not None and not ending.commit:
            self._ending = replace(ending, deadline_ms=deadline_ms, failures=0)
            return self._send_end(now_ms)
        if ending is not None and ending.sent:
            raise self._misuse(
                "its commit was requested, and its outcome is unknown: call commit again"
            )
        if ending is None:
            self._need_transaction("abort")
        self.state = State.ENDING
        self._failure = None
        self._ending = _Ending(False, deadline_ms)
        discard = self._aborted("the transaction was aborted")
        return replace(self._send_end(now_ms), discard=discard)

    def _need_transaction(self, what: str) -> None:
        if self.state is State.FENCED:
            raise self._known_failure()
        if self.state not in (State.OPEN, State.FAILED):
            raise self._misuse(f"{what} without an open transaction")

    # -- outcomes of batches ---------------------------------------------------------------

    def _lost(self, error: PenstockError) -> Ready:
        if self.may_abort and self.state is not State.FAILED:
            return self._fail(error)
        return NOTHING  # it was discarded with the others

    def _flushed(self, unsettled: int, now_ms: int) -> Ready:
        if self.state is not State.ENDING:
            return Ready(error=self._failure)  # a batch was lost in the meantime
        return self._too_late(unsettled) if unsettled else self._send_end(now_ms)

    def _hand_over(self, unsettled: int) -> Ready:
        self._need_transaction("hand_over")
        if self.state is State.FAILED:
            raise self._known_failure()
        if unsettled:
            return self._too_late(unsettled)
        self.state = State.READY
        self._identity = None  # the next `Begin` reports it
        return NOTHING

    def _too_late(self, unsettled: int) -> Ready:
        failed = self._fail(
            TransactionError(
                f"{unsettled} batches or offsets were not delivered in time",
                ErrorCode.DELIVERY_TIMED_OUT,
            )
        )
        return replace(failed, error=self._failure)

    def _fail(self, error: PenstockError) -> Ready:
        self.state = State.FAILED
        self._ending = None
        self._failure = self._aborted(f"it can no longer be committed: {error.message}")
        self._failure.__cause__ = error
        return Ready(discard=self._failure)

    # -- the coordinator's answers -------------------------------------------------------------

    def _send_end(self, now_ms: int, pause_ms: int = 0) -> Ready:
        ending = self._ending
        assert ending is not None, "an outcome was asked for"
        assert self._identity is not None, "a transaction has an identity"
        self._ending = replace(ending, sent=True)
        left_ms = max(0, ending.deadline_ms - now_ms - pause_ms)
        wait_ms = min(left_ms - min(ANSWER_MS, left_ms // 2), VISIBLE_WAIT_MAX_MS)
        wait_ms = wait_ms if ending.wait_visible else 0
        end = End(
            identity=self._identity,
            commit=ending.commit,
            not_before_ms=now_ms + pause_ms,
            deadline_ms=ending.deadline_ms,
            wait_visible_ms=wait_ms,
        )
        return Ready(end=end)

    def _answered(self, event: EndAnswered, now_ms: int) -> Ready:
        ending = self._ending
        assert ending is not None, "nothing was asked"
        if ending.commit and event.error is None and ending.wait_visible and not event.visible:
            self._ending = replace(ending, decided=event.next, failures=0)
            pause_ms = self._pause_ms(0)
            if now_ms + pause_ms < ending.deadline_ms:
                return self._send_end(now_ms, pause_ms)
            return replace(self._ended(event.next), error=self._not_visible_yet())
        ended = self._ended(event.next)
        if ending.commit and event.error is not None:
            return replace(ended, error=self._aborted(event.error.message))
        return ended

    def _ended(self, identity: ProducerIdentity | None) -> Ready:
        self.state = State.READY
        self._ending = None
        # The same epoch again would let a late batch of this transaction into the next one.
        self._identity = None if identity == self._identity else identity
        return NOTHING

    def _end_failed(self, error: PenstockError, now_ms: int) -> Ready:
        ending = self._ending
        assert ending is not None, "nothing was asked"
        unanswered = ending.unanswered or error.applied is Applied.MAYBE
        if error.code is ErrorCode.TRANSACTION_ABORTED:
            told = self._aborted(error.message) if ending.commit else None
            return replace(self._ended(None), error=told)
        if not error.retriable and error.applied is Applied.NO:
            return self._refused(error, ending)
        pause_ms = self._pause_ms(ending.failures)
        if isinstance(error, OverloadedError):
            pause_ms = max(pause_ms, error.throttle_ms)
        self._ending = replace(ending, unanswered=unanswered, failures=ending.failures + 1)
        if now_ms + pause_ms < ending.deadline_ms:
            return self._send_end(now_ms, pause_ms)
        if ending.decided is not None:
            return replace(self._ended(ending.decided), error=self._not_visible_yet())
        if ending.commit:
            what = (
                "it is unknown whether the transaction is committed; call commit again to find out"
            )
        else:
            what = (
                "the abort is not confirmed; the transaction will be aborted at its "
                "timeout at the latest"
            )
        told = TransactionError(
            f"transactional id {self._id!r}: {what} (last error: {error.message})",
            ErrorCode.REQUEST_TIMED_OUT,
            unknown_outcome=ending.commit,
        )
        return Ready(error=told)

    def _refused(self, error: PenstockError, ending: _Ending) -> Ready:
        """The coordinator no longer accepts this producer."""
        unknown = ending.commit and ending.unanswered and ending.decided is None
        maybe = "; an earlier attempt to commit may have succeeded" if unknown else ""
        self.state = State.FENCED
        self._ending = None
        self._identity = None
        self._failure = TransactionError(
            f"transactional id {self._id!r}: {error.message}{maybe}; create a new producer "
            "to continue",
            error.code,
        )
        told = TransactionError(self._failure.message, error.code, unknown_outcome=unknown)
        return Ready(discard=self._failure, error=told)

    # -- small things --------------------------------------------------------------------------

    def _pause_ms(self, failures: int) -> int:
        return min(self._backoff_ms << min(failures, _DOUBLINGS_MAX), self._backoff_max_ms)

    def _not_visible_yet(self) -> PenstockError:
        return ClusterError(
            f"transactional id {self._id!r}: the transaction is committed, but not every "
            "partition has stored that in time; readers see the records as soon as it has",
            ErrorCode.REQUEST_TIMED_OUT,
        )

    def _known_failure(self) -> PenstockError:
        assert self._failure is not None, "a state of failure has its reason"
        return self._failure

    def _misuse(self, text: str) -> MisuseError:
        return MisuseError(f"transactional id {self._id!r}: {text}")

    def _aborted(self, text: str) -> TransactionError:
        return TransactionError(
            f"transactional id {self._id!r}: {text}", ErrorCode.TRANSACTION_ABORTED
        )
