"""Inputs and outputs of leaders only; `contract` has the order in which to carry them out.

    clients ── ProduceRequested ──▶ ┌────────┐ ──▶ ProduceReply
    transactions' EndRequested ───▶ │        │ ──▶ ProduceReply
    coordinators  Joined ─────────▶ │        │ ──▶ JoinRequest
    followers ─ EpochQueried ─────▶ │ leader │ ──▶ SendEpochAnswer, SendRefusal
                FollowStarted ────▶ │        │ ──▶ Feed
                FollowerAcked ────▶ │        │
    controller  IsrAnswered ──────▶ │        │ ──▶ IsrProposal
    retention ─ LogStartMoved ────▶ └────────┘

Events of a follower name the epoch it follows in: what it reports of another leadership never
counts in this one (I5).
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.batch import Batch
from penstock.core.types import (
    Acks,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionState,
    ProducerId,
    Sync,
)
from penstock.core.value import value
from penstock.errors import PenstockError

# ---------------------------------------------------------------- heard


@value(frozen=True, slots=True, kw_only=True)
class ProduceRequested:
    """A batch to append; already checked (CRC, codec) by the shell.

    `refusal`: why the topic's settings do not allow it now (size, timestamps, keys). It is the
    answer unless the batch was appended before, when they did: a retry is told so (I8).
    `request_id` comes back in exactly one `ProduceReply`. `expected_epoch` 0 = unchecked.
    `deadline_ms` is on the clock of `now_ms`. `transactional_id` is set exactly when the batch is
    TRANSACTIONAL; it then has a producer id of a coordinator, and acks=ALL.
    """

    request_id: int
    batch: Batch
    acks: Acks
    sync: Sync
    deadline_ms: int
    expected_epoch: LeaderEpoch = LeaderEpoch(0)
    append_time_ms: int = 0
    transactional_id: str = ""
    refusal: PenstockError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRequested:
    """A coordinator has decided: append the marker of this transaction.

    Answered by one `ProduceReply` with the marker's offset (`duplicate`: it was there before; -1:
    at an offset no longer known), once the marker is committed, and synced everywhere with
    sync=DISK. May be repeated, also to another leader: a second marker changes nothing. After an
    error it must be. `timestamp_ms` is now, ms since 1970 UTC. The rest as in `ProduceRequested`.
    """

    request_id: int
    producer_id: ProducerId
    producer_epoch: int
    commit: bool
    timestamp_ms: int
    deadline_ms: int
    sync: Sync = Sync.OS
    expected_epoch: LeaderEpoch = LeaderEpoch(0)


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to the `JoinRequest` of this `number`: the partition has joined, or was refused.

    None: this partition is in the transaction, on all in-sync replicas of the coordinator. With an
    error nothing is appended, and the waiting requests get it. Answers that nothing waits for any
    more are ignored: they may come late, twice, or never.
    """

    number: int
    error: PenstockError | None = None


@dataclass(frozen=True, slots=True)
class LogStartMoved:
    """Retention or DeleteRecords: records before `log_start_offset` may go (never past the LSO).

    Only a leader acts; its followers learn the new log start with the next push. The records
    themselves are removed by the shell, below `Marks.log_start_offset`.
    """

    log_start_offset: Offset


@dataclass(frozen=True, slots=True)
class EpochQueried:
    """Asks where `last_epoch`, the newest epoch in the follower's log, ends in the leader's.

    `last_epoch` -1: the follower's log has no epoch. Answered by a `SendEpochAnswer` or a
    `SendRefusal`.
    """

    follower: BrokerId
    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class FollowStarted:
    """The follower's log ends at `from_offset`, and below it agrees with the leader's: feed it.

    `version`: of the newest state of the partition that it knows; 0 = an older release, which does
    not say.
    """

    follower: BrokerId
    leader_epoch: LeaderEpoch
    from_offset: Offset
    version: int = 0


@value(frozen=True, slots=True)
class FollowerAcked:
    """The follower has written, and fsynced, its log up to these offsets (exclusive)."""

    follower: BrokerId
    leader_epoch: LeaderEpoch
    written_end: Offset
    synced_end: Offset


@dataclass(frozen=True, slots=True)
class IsrAnswered:
    """The controller's answer to `Ready.isr_change`, or no answer (`state` None).

    None means unknown: the change may have been stored. The machine asks again, or learns by
    `Assigned`. With an `error` MOVE_WAITS, only those in `adding` were left out.
    Every `Ready.isr_change` is answered exactly once (None after a timeout); there is never a
    second one before that.
    """

    state: PartitionState | None
    error: PenstockError | None = None


# ---------------------------------------------------------------- said


@dataclass(frozen=True, slots=True, kw_only=True)
class SendEpochAnswer:
    """Answers `EpochQueried`; the fields are those of `contract_follower.EpochAnswered`."""

    follower: BrokerId
    leader_epoch: LeaderEpoch
    epoch: LeaderEpoch
    end_offset: Offset
    log_start_offset: Offset
    swept_end: Offset = Offset(0)


@dataclass(frozen=True, slots=True)
class SendRefusal:
    """This replica cannot give the follower what it asked for: it looks up again later."""

    follower: BrokerId
    error: PenstockError


@dataclass(frozen=True, slots=True)
class Feed:
    """Push this follower batches from `from_offset` on (None: stop feeding it).

    From then on the shell feeds by itself: whenever the written log end, the HW, the log start or
    `sync_through` moved and the follower's window has space, with the values of
    `ReplicaMachine.marks` at the time of sending. Only written data is fed: offsets below
    `Marks.written_end`. A newer Feed ends the older one: nothing read for the older one is sent
    after messages of the `Ready` with the newer one.
    """

    follower: BrokerId
    leader_epoch: LeaderEpoch
    from_offset: Offset | None


@dataclass(frozen=True, slots=True)
class IsrProposal:
    """Asks the controller for this ISR, by compare-and-swap on `version`.

    With all of the state's `adding` in it: they have everything that a replica needs.
    """

    leader_epoch: LeaderEpoch
    version: int
    isr: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Asks the coordinator of `transactional_id` to add this partition to the transaction.

    The shell finds the coordinator, retries if possible, and answers with `Joined`.
    """

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: int
    number: int


@value(frozen=True, slots=True, kw_only=True)
class ProduceReply:
    """The answer to one `ProduceRequested` or `EndRequested`: an error, or where the batch is.

    `acks` and `sync` say what was achieved. An error whose `applied` is NO means that nothing was
    appended and never will be; after any other error the outcome is unknown (I8).
    """

    request_id: int
    base_offset: Offset
    error: PenstockError | None = None
    append_time_ms: int = 0
    leader_epoch: LeaderEpoch = LeaderEpoch(0)
    acks: Acks = Acks.NONE
    sync: Sync = Sync.OS
    duplicate: bool = False
