"""The coordinator's inputs and outputs: one machine per led partition of `__transactions`.

    shell: calls, log, clock ──event──▶ machine.handle(event, now_ms) ──Ready──▶ shell

Requests that change nothing, and their answers, are in `contract_views`.

The machine changes its state when it returns the records of a `Ready`; outputs are sent when the
records are committed. What the shell must do:

- `Ready.records` are appended as one batch, or with those of later Readys in one batch; Readys keep
  their order in the log. `outputs` are sent, in order, once the high watermark has passed every
  append returned up to then, including those of this Ready: also answers that only read, so that
  nothing is reported that a failover could undo (I16).
- An append that fails, or a leadership that ends, ends the machine: its state may be ahead of the
  log. The next leader feeds a new machine every record below the high watermark of its own leader
  epoch, in order (`load`), then `start`. The shell refuses unanswered requests with a retriable
  error.
- A refusal that would end a client, or call a transaction unknown, comes with a record that changes
  nothing: a deposed coordinator that does not know it cannot get that committed, so it never sends
  such an answer from its old state.
- A request has an id that is never reused, and one answer; joins may be answered late (parked), and
  ends whose caller waits until they are visible.
- `SendEnds` may be lost: the machine repeats each End until `FinishedHeard`. A participant that
  refuses or does not answer is simply not reported.
- `ImageChanged` after the start and whenever leaders or topics change, `TopicsGone` for all topics
  that are known to be deleted, also after a start. `Tick` at `next_wake_ms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.transactions.contract_views import (
    Described,
    DescribeRequested,
    FindRequested,
    Found,
    Ledgers,
    LedgersRequested,
    Listed,
    ListRequested,
)
from penstock.core.transactions.records import (
    Attempt,
    EndReason,
    Participant,
)
from penstock.core.types import NO_PRODUCER, ProducerId, TopicId
from penstock.core.value import value
from penstock.errors import PenstockError

# ---------------------------------------------------------------- events: shell -> machine


@dataclass(frozen=True, slots=True, kw_only=True)
class InitRequested:
    """A producer takes the id. `timeout_ms` 0 = the default.

    `instance_id`: a UUID per producer object; repeating it changes nothing ("": never equal).
    `fresh_producer_id`: one that was never used, for a new id or owner (bit 62 set).
    """

    request_id: int
    transactional_id: str
    instance_id: str
    fresh_producer_id: ProducerId
    timeout_ms: int = 0
    client_id: str = ""
    client_host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequested:
    """A partition's leader or a group's coordinator is about to store data of it."""

    request_id: int
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: int
    participant: Participant


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRequested:
    """The producer decides. `wait_visible_ms`: wait until every participant has stored it."""

    request_id: int
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: int
    commit: bool
    wait_visible_ms: int = 0


@dataclass(frozen=True, slots=True)
class FinishedHeard:
    """The participant has stored how (producer id, epoch) ended."""

    participant: Participant
    producer_id: ProducerId
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginBranchRequested:
    """An attempt of a task begins to write. `fresh_producer_id`: for a new branch."""

    request_id: int
    application_id: str
    checkpoint: str
    attempt: Attempt
    fresh_producer_id: ProducerId
    timeout_ms: int = 0
    client_id: str = ""
    client_host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitBatchRequested:
    """`branches`: (branch, epoch) of those that commit; none: the batch is empty. `digest`: of the
    rows, 64 bits; 0 = unknown."""

    request_id: int
    application_id: str
    checkpoint: str
    run: str
    batch: int
    rows: int
    branches: tuple[tuple[int, int], ...]
    wait_visible_ms: int = 0
    digest: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortBatchRequested:
    request_id: int
    application_id: str
    checkpoint: str
    run: str
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortRequested:
    """Aborts the open transaction. `producer_epoch` -1: of any epoch. `comment` is for the log."""

    request_id: int
    transactional_id: str
    producer_epoch: int = -1
    reason: EndReason = EndReason.OPERATOR
    comment: str = ""


@dataclass(frozen=True, slots=True)
class ForgetLedgerRequested:
    request_id: int
    application_id: str


@dataclass(frozen=True, slots=True)
class ImageChanged:
    """A full image: `topic_ids` are all that exist. Ends are sent again at once."""

    topic_ids: frozenset[TopicId]


@dataclass(frozen=True, slots=True)
class TopicsGone:
    """All topics that are known to be deleted: their partitions get no more Ends."""

    topic_ids: frozenset[TopicId]


@value(frozen=True, slots=True)
class Tick:
    """`next_wake_ms` has come."""


Request = (
    InitRequested
    | JoinRequested
    | EndRequested
    | BeginBranchRequested
    | CommitBatchRequested
    | AbortBatchRequested
    | ListRequested
    | DescribeRequested
    | AbortRequested
    | FindRequested
    | LedgersRequested
    | ForgetLedgerRequested
)
Event = Request | FinishedHeard | ImageChanged | TopicsGone | Tick

# ---------------------------------------------------------------- outputs: machine -> shell


@dataclass(frozen=True, slots=True)
class ProducerInitialized:
    producer_id: ProducerId
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Joined:
    pass


@dataclass(frozen=True, slots=True)
class Ended:
    """Decided; the next transaction is (producer_id, producer_epoch), (-1, -1) for branches: the
    next attempt there gets its own.

    visible: every participant has stored it. error: TRANSACTION_ABORTED, if it was aborted
    otherwise before: the producer nevertheless continues with the next one.
    """

    producer_id: ProducerId
    producer_epoch: int
    visible: bool = False
    error: PenstockError | None = None


@dataclass(frozen=True, slots=True)
class BranchBegun:
    """With `already_committed` there is nothing to write, and no branch (producer id -1)."""

    already_committed: bool
    branch: int = 0
    producer_id: ProducerId = NO_PRODUCER
    producer_epoch: int = -1


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    """`rows_then`, with `already_committed`: the rows recorded then; 0 = the batch was empty; -1 =
    no longer stored. `digest_then`: of them, 0 = unknown, or rows may differ: a driver that died
    right after the commit computes the newest batch again (`replays`)."""

    already_committed: bool
    rows_then: int = -1
    visible: bool = False
    digest_then: int = 0


@dataclass(frozen=True, slots=True)
class BatchAborted:
    """With `already_committed` nothing was done."""

    already_committed: bool


@dataclass(frozen=True, slots=True)
class Aborted:
    """How many transactions were aborted."""

    count: int


@dataclass(frozen=True, slots=True)
class LedgerForgotten:
    """False: there was no ledger."""

    forgotten: bool


Answer = (
    ProducerInitialized
    | Joined
    | Ended
    | BranchBegun
    | BatchCommitted
    | BatchAborted
    | Listed
    | Described
    | Aborted
    | Found
    | Ledgers
    | LedgerForgotten
)


@dataclass(frozen=True, slots=True)
class Reply:
    """The one answer to a request, or why there is none."""

    request_id: int
    answer: Answer | PenstockError


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Tells the participant how (producer id, epoch) ended."""

    participant: Participant
    producer_id: ProducerId
    producer_epoch: int
    commit: bool
    transactional_id: str


@dataclass(frozen=True, slots=True)
class SendEnds:
    entries: tuple[End, ...]


Output = Reply | SendEnds


@dataclass(frozen=True, slots=True)
class Decision:
    """For the log: what was decided, with the numbers behind it."""

    event: str
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One decided transaction; `open_ms`: how long it had been open."""

    commit: bool
    reason: EndReason
    open_ms: int


@value(frozen=True, slots=True, kw_only=True)
class Ready:
    """See the module. `records` are (key, value); value None removes the key.

    For metrics: `ended` transactions; `visible_ms`: for each branch whose participants have all
    stored the end, how long that took. `stopped`: a defect ended the machine with this event
    (`core.defect`). What was returned before counts as an append that failed; the `outputs` of this
    Ready are sent at once.
    """

    records: tuple[tuple[bytes, bytes | None], ...] = ()
    outputs: tuple[Output, ...] = ()
    decisions: tuple[Decision, ...] = ()
    ended: tuple[Outcome, ...] = ()
    visible_ms: tuple[int, ...] = ()
    stopped: PenstockError | None = None


NOTHING = Ready()
