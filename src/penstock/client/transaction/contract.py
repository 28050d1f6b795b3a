"""Events and effects of a transactional producer's machine; `machine.py` decides.

    Event ──▶ Transactions.handle ──▶ Ready, whose fields are obeyed in their order

Events come from the user's calls, from the sender (a batch was given up) and from the coordinator's
answers. Everything here is plain data. Times are ms of one monotonic clock.
"""

from dataclasses import dataclass

from penstock.core.types import ProducerIdentity
from penstock.errors import ClusterError, ErrorCode, PenstockError


class TransactionError(ClusterError):
    """The transaction was not committed, or its outcome is unknown.

    `unknown_outcome` False: its records are not and will never be visible to read_committed
    readers. True: its commit was requested, but the answer never came; call `commit` again. Code
    PRODUCER_FENCED: another producer has taken over the transactional id, and this one can no
    longer be used; after TRANSACTION_ABORTED, the next transaction can begin.
    """

    def __init__(self, message: str, code: ErrorCode, *, unknown_outcome: bool = False) -> None:
        super().__init__(message, code)
        self.unknown_outcome = unknown_outcome


@dataclass(frozen=True, slots=True)
class Begin:
    """The user begins a transaction. `deadline_ms`: for an abort that is not answered yet."""

    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Identified:
    """InitProducer was answered."""

    identity: ProducerIdentity


@dataclass(frozen=True, slots=True)
class BatchLost:
    """A batch was refused for good, or its delivery timeout has passed."""

    error: PenstockError


@dataclass(frozen=True, slots=True)
class OffsetsLost:
    """Offsets of a consumer were refused, or their outcome is unknown: the transaction must not
    commit without them."""

    error: PenstockError


@dataclass(frozen=True, slots=True)
class Commit:
    """The user commits, or asks again for the outcome. `wait_visible`: answered only when every
    partition has stored it."""

    deadline_ms: int
    wait_visible: bool = False


@dataclass(frozen=True, slots=True)
class Flushed:
    """What was sent is settled, except this many batches and offsets, which timed out."""

    unsettled: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """What was sent is settled, except this many batches; another program may commit it."""

    unsettled: int


@dataclass(frozen=True, slots=True)
class Abort:
    """The user aborts, or an error ends the block."""

    deadline_ms: int


@dataclass(frozen=True, slots=True)
class EndAnswered:
    """The coordinator's answer to EndTransaction.

    Attributes:
        next: The next transaction's identity.
        error: TRANSACTION_ABORTED if it had already been aborted by others.
        visible: Every partition has stored the outcome.
    """

    next: ProducerIdentity
    error: PenstockError | None
    visible: bool


@dataclass(frozen=True, slots=True)
class EndFailed:
    """An attempt at EndTransaction ended with an error, or without an answer."""

    error: PenstockError


Event = (
    Begin
    | Identified
    | BatchLost
    | OffsetsLost
    | Commit
    | Flushed
    | HandOver
    | Abort
    | EndAnswered
    | EndFailed
)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """An EndTransaction to send, no earlier than `not_before_ms`; give up waiting for its answer at
    `deadline_ms`. `wait_visible_ms` 0 = do not wait."""

    identity: ProducerIdentity
    commit: bool
    not_before_ms: int
    deadline_ms: int
    wait_visible_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What the shell does, in the order of the fields.

    Attributes:
        discard: Give up every batch of the transaction with this error, sent or not, and ignore
            later answers about it.
        adopt: The lanes' identity from now on; their windows are empty.
        identify: InitProducer with a new instance id, then `Identified`, and `Begin` again.
        flush: Send lingering records, wait until everything is settled, then `Flushed`.
        end: Send it, then `EndAnswered` or `EndFailed`; after a `Begin` then `Begin` again.
        error: The user's call ends with this error.
    """

    discard: PenstockError | None = None
    adopt: ProducerIdentity | None = None
    identify: bool = False
    flush: bool = False
    end: End | None = None
    error: PenstockError | None = None


NOTHING = Ready()
