"""The replica machine's inputs and outputs: one machine per partition replica on a broker.

    shell: RPCs, store, clock ──event──▶ ReplicaMachine.handle(event, now_ms) ──Ready──▶ shell

This module has what all replicas share; `contract_leader` and `contract_follower` have inputs and
outputs of one role only.

The machine decides everything required by guarantees I1-I5, I7-I9; the shell (of the broker or the
simulator) carries it out. The shell keeps this order for every `Ready`, and across the Readys of
one replica: `truncate_to`, then `append` + `checkpoint` (one atomic write, reported as
`Persisted`), then `messages`, `feeds`, `isr_change`, `joins`, then `replies`, then `high_watermark`
and `stable_offset`.
`messages` may be sent before the write of the same Ready is done: the machine emits those that must
wait for it only when it handles `Persisted`.

What else the shell must do:

- A failed write invalidates later ones: having failed a write of a replica, the shell drops every
  write of that replica that it received before the machine handled `PersistFailed` (one report, of
  the first, is enough). Later writes were built on the failed one.
- Streams: events of a peer come only from its newest stream, in the order in which they were sent.
  Once a peer opens a new stream, nothing more of the older one is passed on. A leader's shell
  accepts a follower's stream only if its hello has the incarnation that the newest image has for
  that broker, and ends streams of other incarnations before it passes on anything else of an image:
  data that a former run acknowledged may be lost, and its acknowledgements may still be in flight.
- A broker that may have lost unsynced writes stores `UNPROMISED` in the checkpoint of each of its
  logs, durably, and only then reports it to the controller, which removes it from all ISRs. Every
  start of a broker process gets a new leader epoch before that broker leads again (the controller's
  part).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.core.aborted import AbortedTransaction
from penstock.core.batch import Batch
from penstock.core.replication.contract_follower import (
    BatchesReceived,
    EpochAnswered,
    PeerConnected,
    PeerRefused,
    SendAck,
    SendEpochQuery,
    SendFollowStart,
    SendFollowStop,
)
from penstock.core.replication.contract_leader import (
    EndRequested,
    EpochQueried,
    Feed,
    FollowerAcked,
    FollowStarted,
    IsrAnswered,
    IsrProposal,
    Joined,
    JoinRequest,
    LogStartMoved,
    ProduceReply,
    ProduceRequested,
    SendEpochAnswer,
    SendRefusal,
)
from penstock.core.types import BrokerId, LeaderEpoch, Offset, PartitionState, ProducerId
from penstock.core.value import value
from penstock.errors import PenstockError

# ---------------------------------------------------------------- what is kept on disk


@dataclass(frozen=True, slots=True)
class EpochStart:
    """The first offset of a leader epoch in this log."""

    epoch: LeaderEpoch
    start_offset: Offset


@value(frozen=True, slots=True)
class SequencedBatch:
    """One of the last appended batches of a producer: sequences [base_sequence, last_sequence]."""

    base_sequence: int
    last_sequence: int
    base_offset: Offset


@value(frozen=True, slots=True, kw_only=True)
class ProducerEntry:
    """A partition's state of one idempotent producer: its epoch and last five batches.

    `last_timestamp_ms` is that of its last batch.

    Also, for a transactional producer, all from headers: `open_offset`, where its transaction
    without a marker began (None: none is open). `marker_offset`: its last marker (-1: unknown);
    then `producer_epoch` is the next transaction's and `batches` is empty. `ended_first_offset`:
    where the transaction had begun that this marker ended (-1: it ended nothing here).
    """

    producer_id: ProducerId
    producer_epoch: int
    batches: tuple[SequencedBatch, ...]
    last_timestamp_ms: int
    open_offset: Offset | None = None
    marker_offset: Offset = Offset(-1)
    ended_first_offset: Offset = Offset(-1)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Partition state that is stored beside the batches, atomically with them.

    A `high_watermark` of -1 (`UNPROMISED`) or -2 (`MISSING`): writes of this log were lost, and it
    has acknowledged nothing since. No other replica relies on it.
    """

    leader_epoch: LeaderEpoch
    high_watermark: Offset
    log_start_offset: Offset
    epochs: tuple[EpochStart, ...]


UNPROMISED: Final = Offset(-1)
MISSING: Final = Offset(-2)
"""`UNPROMISED`, and when the log was last opened, nothing of it was there, although something must
have been."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredLog:
    """What the shell found on disk, at start and after each truncation.

    An emptied log ends at `checkpoint.log_start_offset`. Epochs that begin at or after the log end
    are ignored. `producers` is the state as of `log_end_offset`: the newest stored snapshot at or
    below it, updated with the headers after it. `swept_end`: see `MarkersSwept`; 0 while compaction
    has removed none. `compacted_end`: committed records below it may have superseded others, which
    compaction has removed, here or where this log was copied from. `aborted`: the newest entries of
    the index of aborted transactions, by marker, at most `NEWEST_MAX`; the machine does not use
    them.
    """

    log_end_offset: Offset
    checkpoint: Checkpoint
    producers: tuple[ProducerEntry, ...] = ()
    swept_end: Offset = Offset(0)
    compacted_end: Offset = Offset(0)
    aborted: tuple[AbortedTransaction, ...] = ()


# ---------------------------------------------------------------- events: shell -> machine


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """The topic settings replication needs. Times in ms.

    `min_insync_replicas` is the setting itself, whatever the number of replicas: the machine
    limits it to those of the newest state that it knows, which may be newer than any image.
    `follows_unclean`: who leads may lack committed records; what it lacks is given up here, too.
    """

    min_insync_replicas: int = 2
    replica_lag_time_max_ms: int = 10_000
    max_pending_produces: int = 10_000
    follows_unclean: bool = False


@dataclass(frozen=True, slots=True)
class Assigned:
    """The controller's newest state of this partition. Older versions are ignored."""

    state: PartitionState
    config: ReplicaConfig


@value(frozen=True, slots=True)
class Persisted:
    """The write `persist_id` (and all before it) is done; `synced`: fsynced too."""

    persist_id: int
    synced: bool


@dataclass(frozen=True, slots=True)
class PersistFailed:
    """The write failed (disk full): nothing of it is on disk, nor of any later one.

    A failure that leaves this open (an I/O error, a failed fsync) is not reported here: the shell
    stops the replica and recovers it from disk before it continues.
    """

    persist_id: int
    error: PenstockError


@dataclass(frozen=True, slots=True)
class Truncated:
    """`Ready.truncate_to` was carried out; this is the state of the log now.

    The `persist_id` of that `Ready` is reported as well, before or after this. If the truncation
    failed, only `PersistFailed` comes.
    """

    log: RecoveredLog


@dataclass(frozen=True, slots=True)
class MarkersSwept:
    """Compaction is about to remove markers of transactions below `swept_end` from this log.

    Stored, for `RecoveredLog`, and reported before the first of them is removed: a replica that
    copies this log from then on must not wait for a marker that never comes. Data of these
    transactions no longer has a flag.
    """

    swept_end: Offset


@dataclass(frozen=True, slots=True)
class LogDamaged:
    """A stored batch of this log cannot be read; `error` says which.

    A leader leads on until the controller has another: nobody else may have the rest. A follower
    stops, so that it takes no seat and no leadership (I33). `unopened`: nothing is known of the
    log, so whoever it is of stops at once.
    """

    error: PenstockError
    unopened: bool = False


@dataclass(frozen=True, slots=True)
class LogMended:
    """All of this log can be read again, and was. A replica that has stopped is opened again
    instead."""


@dataclass(frozen=True, slots=True)
class ProducersExpired:
    """Producers that did not write for `expiry_ms` are to be forgotten, and the longest idle until
    `limit` are left (`ProducerTable.forget_idle`)."""

    expiry_ms: int
    limit: int


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The stream between this replica and `peer` (as leader and follower) broke."""

    peer: BrokerId


@value(frozen=True, slots=True)
class Tick:
    """Time passed. Sent about every 100 ms, only to leaders and to machines that want it."""


Event = (
    Assigned
    | ProduceRequested
    | EndRequested
    | Joined
    | Persisted
    | PersistFailed
    | Truncated
    | MarkersSwept
    | LogStartMoved
    | LogDamaged
    | LogMended
    | ProducersExpired
    | EpochQueried
    | FollowStarted
    | FollowerAcked
    | PeerLost
    | PeerConnected
    | EpochAnswered
    | BatchesReceived
    | PeerRefused
    | IsrAnswered
    | Tick
)

# ---------------------------------------------------------------- outputs: machine -> shell


Message = (
    SendEpochQuery | SendFollowStart | SendFollowStop | SendAck | SendEpochAnswer | SendRefusal
)


@value(frozen=True, slots=True, kw_only=True)
class Ready:
    """What the shell must do now; see the module's docstring for the order.

    `persist_id` > 0 exactly when there is something to write (`append`, `checkpoint`,
    `truncate_to`). A checkpoint that comes with a `truncate_to` and has a different log start than
    `Marks` restarts the log there, empty (`truncate_to` is the smaller of the two log starts);
    `ReplicaMachine.producers` is stored with it, because known producers are void. `checkpoint` is
    set when it must be stored with this write; the current one is always
    `ReplicaMachine.checkpoint`.
    `aborted` are the transactions whose ABORT markers are in `append`: they go into the same write.
    `swept_end`: what is copied next may lack markers below it, and no others. It is stored with
    this write, for `RecoveredLog`, in place of what was known past the log's end. `compacted_end`:
    what `append` lacks may be superseded up to there; stored with it, in the same way. 0: nothing
    is copied any more, so that it is the log's end at most.
    `persist_sync` requests an fsync. `high_watermark` is set when consumers may see more, and
    `stable_offset`, the last stable offset, when readers of committed records may.
    `role_changed`: leader, follower or offline has changed; fetches waiting on this replica must be
    answered. `stopped`: this event stopped the machine, for good (`core.defect`); the shell ends
    all feeds of this replica and writes nothing more of it, not even writes that it received before
    and has not begun.
    """

    truncate_to: Offset | None = None
    append: tuple[Batch, ...] = ()
    aborted: tuple[AbortedTransaction, ...] = ()
    swept_end: Offset | None = None
    compacted_end: Offset | None = None
    checkpoint: Checkpoint | None = None
    persist_id: int = 0
    persist_sync: bool = False
    messages: tuple[Message, ...] = ()
    feeds: tuple[Feed, ...] = ()
    isr_change: IsrProposal | None = None
    joins: tuple[JoinRequest, ...] = ()
    replies: tuple[ProduceReply, ...] = ()
    high_watermark: Offset | None = None
    stable_offset: Offset | None = None
    role_changed: bool = False
    stopped: PenstockError | None = None


NOTHING = Ready()


@value(frozen=True, slots=True, kw_only=True)
class Marks:
    """A replica's marks, for feeding followers, answering fetches, metrics.

    log_start <= last_stable_offset <= high_watermark <= written_end <= log_end (I2).
    `last_stable_offset`: readers of committed transactions stop there (exclusive; `stable`).

    `epoch_start_offset`: where the leader's epoch begins, 0 unless it leads. A new leader knows
    what was committed before it only once its HW has reached that: until then it must not report
    its HW to consumers as the log's end (ListOffsets LATEST answers LEADER_NOT_AVAILABLE, as in
    KIP-207), or they would see it fall.
    """

    is_leader: bool
    leader: BrokerId
    leader_epoch: LeaderEpoch
    log_start_offset: Offset
    last_stable_offset: Offset
    high_watermark: Offset
    written_end: Offset
    log_end_offset: Offset
    sync_through: Offset
    isr: tuple[BrokerId, ...] = field(default=())
    epoch_start_offset: Offset = Offset(0)
