"""The coordinator's inputs and outputs: one machine per offsets partition that a broker leads.

    shell: streams, log, clock ──event──▶ GroupCoordinator.handle(event, now_ms) ──Ready──▶ shell

Requests that change nothing, and their answers, are in `contract_views`; which topics there are, in
`catalog`.

The machine changes its state when it returns the records of a `Ready`; outputs are sent when the
records are committed. What the shell must do:

- `Ready.records` are appended as one batch, or with those of later Readys in one batch; Readys keep
  their order in the log. `outputs` are sent, in order, once the high watermark has passed every
  append returned up to then, including those of this Ready: also answers that only read, so that
  nothing is reported that a failover could undo (I16).
- An append that fails, or a leadership that ends, ends the machine: its state may be ahead of the
  log. The next leader feeds a new machine every record below the high watermark of its own leader
  epoch, in order (`load`), then `start`. The shell refuses unanswered requests and ends streams
  with a retriable error.
- A stream has an id that is never reused. Events of a stream come in order; after `StreamBroken`,
  or once an `EndStream` was carried out, there are no more.
- `TopicsChanged` whenever names, ids or partition counts change. `Tick` at `next_wake_ms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.groups.catalog import NO_PARTS, Catalog, NamedPartition, Parts, Subscription
from penstock.core.groups.contract_views import (
    Described,
    DescribeRequested,
    Fetched,
    FetchRequested,
    Listed,
    ListRequested,
)
from penstock.core.types import NO_PRODUCER, ProducerId, TopicId
from penstock.core.value import value
from penstock.errors import PenstockError

# ---------------------------------------------------------------- events: shell -> machine


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJoined:
    """A hello. Times in ms, 0 = the default. `member_epoch` 0 = joins as new, else rejoins."""

    stream_id: int
    group_id: str
    member_id: str
    subscription: Subscription
    instance_id: str = ""
    client_id: str = ""
    client_host: str = ""
    rack: str = ""
    assignor: str = ""
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = 0
    member_epoch: int = 0
    owned: Parts = NO_PARTS
    transactional_id: str = ""


@dataclass(frozen=True, slots=True)
class Owned:
    """What a member owns after applying assignment `number` (0: none yet)."""

    parts: Parts
    number: int


@dataclass(frozen=True, slots=True)
class MemberHeard:
    """A heartbeat; None: no change."""

    stream_id: int
    owned: Owned | None = None
    subscription: Subscription | None = None


@dataclass(frozen=True, slots=True)
class MemberLeft:
    stream_id: int
    keep_seat: bool = False


@dataclass(frozen=True, slots=True)
class StreamBroken:
    stream_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOffset:
    """An offset to commit (>= 0) or to reset to (-1: delete). `leader_epoch` -1 = not known.

    `rewind_epoch`: see `OffsetRecord`; 0 = not known.
    """

    where: NamedPartition
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    rewind_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequested:
    """`member_id` "" with epoch -1: a consumer without membership.

    With a `transactional_id` the offsets count once (producer id, epoch) commits.
    """

    request_id: int
    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str
    offsets: tuple[NewOffset, ...]
    transactional_id: str = ""
    producer_id: ProducerId = NO_PRODUCER
    producer_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRequested:
    request_id: int
    group_id: str
    offsets: tuple[NewOffset, ...]
    reset_id: str = ""
    reason: str = ""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class DeleteRequested:
    request_id: int
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnded:
    """The coordinator of a transaction reports how it ended; answered with `EndStored`."""

    request_id: int
    group_id: str
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: int
    commit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionJoined:
    """The answer to `SendJoin` with this number; None: the group has joined."""

    group_id: str
    transactional_id: str
    producer_id: ProducerId
    number: int
    error: PenstockError | None = None


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    catalog: Catalog


@value(frozen=True, slots=True)
class Tick:
    """`next_wake_ms` has come."""


Request = (
    CommitRequested
    | FetchRequested
    | ResetRequested
    | DeleteRequested
    | ListRequested
    | DescribeRequested
    | TransactionEnded
)
Event = (
    MemberJoined
    | MemberHeard
    | MemberLeft
    | StreamBroken
    | Request
    | TransactionJoined
    | TopicsChanged
    | Tick
)

# ---------------------------------------------------------------- outputs: machine -> shell


@dataclass(frozen=True, slots=True, kw_only=True)
class SendJoined:
    stream_id: int
    member_epoch: int
    heartbeat_interval_ms: int
    session_timeout_ms: int
    rebalance_timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAssignment:
    """Everything the member may own. `names`: of every topic in `parts`."""

    stream_id: int
    member_epoch: int
    number: int
    parts: Parts
    names: Mapping[TopicId, str]


@dataclass(frozen=True, slots=True)
class EndStream:
    """None: no error (the member left)."""

    stream_id: int
    error: PenstockError | None


@dataclass(frozen=True, slots=True)
class Committed:
    """An error or None per offset, in order."""

    errors: tuple[PenstockError | None, ...]


@dataclass(frozen=True, slots=True)
class ResetLine:
    """-1: nothing committed."""

    old_offset: int
    new_offset: int
    error: PenstockError | None = None


@dataclass(frozen=True, slots=True)
class ResetDone:
    lines: tuple[ResetLine, ...]
    applied: bool = False
    already_applied: bool = False


@dataclass(frozen=True, slots=True)
class Deleted:
    pass


@dataclass(frozen=True, slots=True)
class EndStored:
    """What the transaction did to the group's offsets is stored, or was before."""


Answer = Committed | Fetched | ResetDone | Deleted | Listed | Described | EndStored


@dataclass(frozen=True, slots=True)
class Reply:
    """The one answer to a request, or why there is none."""

    request_id: int
    answer: Answer | PenstockError


@dataclass(frozen=True, slots=True, kw_only=True)
class SendJoin:
    """Ask the coordinator of the transactional id to add this group as a participant.

    Every answer, or that none came, comes back as `TransactionJoined`.
    """

    number: int
    group_id: str
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class SendAbort:
    """Ask the coordinator of the transactional id to abort: its producer has gone.

    Best effort; the transaction's timeout does the same later.
    """

    transactional_id: str
    reason: str


Output = SendJoined | SendAssignment | EndStream | Reply | SendJoin | SendAbort


@dataclass(frozen=True, slots=True)
class Decision:
    """For the log: what was decided, with the numbers behind it."""

    event: str
    fields: Mapping[str, object]


@value(frozen=True, slots=True, kw_only=True)
class Ready:
    """See the module. `records` are (key, value); value None removes the key.

    `commits`, `rebalances`: how many offsets were committed, targets computed, for metrics.
    `stopped`: a defect ended the machine with this event (`core.defect`). What was returned before
    counts as an append that failed; the `outputs` of this Ready are sent at once.
    """

    records: tuple[tuple[bytes, bytes | None], ...] = ()
    outputs: tuple[Output, ...] = ()
    decisions: tuple[Decision, ...] = ()
    commits: int = 0
    rebalances: int = 0
    stopped: PenstockError | None = None


NOTHING = Ready()
