"""The replica machine's inputs and outputs: one machine per partition replica on a broker.

    shell: RPCs, store, clock ──event──▶ ReplicaMachine.handle(event, now_ms) ──Ready──▶ shell

Here stands what every replica shares; `contract_leader` and `contract_follower` hold what only
the one or the other hears and says.

The machine decides all that guarantees I1-I5, I7-I9 ask for; the shell (the broker, or the
simulator) obeys. The shell keeps this order for every `Ready`, and across the Readys of one
replica: `truncate_to`, then `append` + `checkpoint` (one atomic write, reported back as
`Persisted`), then `messages`, `feeds`, `isr_change`, `joins`, then `replies`, then
`high_watermark` and `stable_offset`.
`messages` may leave before the write of the same Ready is done: whatever must wait for it is
only emitted by the machine when it handles `Persisted`.

What the shell further owes the machine:

- A failed write takes later ones with it: having failed a write of a replica, the shell drops
  every write of that replica that it was handed before the machine handled `PersistFailed` (one
  report, of the first, is enough). Later writes were built on the failed one.
- Streams: events of a peer come from its newest stream only, in the order they were sent. Once a
  peer opens a new stream, nothing more of the older one is handed over. A leader's shell accepts
  a follower's stream only if its hello names the incarnation that the newest image has of that
  broker, and ends streams of other incarnations before it hands over anything else of an image:
  what a former run acknowledged may be lost, and its acknowledgements may still be on their way.
- A broker that may have lost unsynced writes stores `UNPROMISED` in the checkpoint of each of its
  logs, durably, and only then tells the controller, which takes its ISR seats away. Every start of
  a broker process gets a new leader epoch before that broker leads again (the controller's part).
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
from penstock.errors import PenstockError

# ---------------------------------------------------------------- what is kept on disk


@dataclass(frozen=True, slots=True)
class EpochStart:
    """The first offset of a leader epoch in this log."""

    epoch: LeaderEpoch
    start_offset: Offset


@dataclass(frozen=True, slots=True)
class SequencedBatch:
    """One of the last appended batches of a producer: sequences [base_sequence, last_sequence]."""

    base_sequence: int
    last_sequence: int
    base_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerEntry:
    """What a partition remembers of one idempotent producer: its epoch and last five batches.

    `last_timestamp_ms` lets idle producers expire (7 days, Kafka's `producer.id.expiration.ms`
    is one; ours is as long as a transactional id's).

    Of a transactional producer also, all from headers: `open_offset`, where its transaction began
    that has no marker yet (None: none is open). `marker_offset`: its last marker (-1: none is
    known), with which `producer_epoch` is the next transaction's and `batches` are none.
    `ended_first_offset`: where the transaction had begun that this marker ended (-1: it ended
    nothing here).
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

    A `high_watermark` of -1 (`UNPROMISED`): writes of this log were lost, and it has acknowledged
    nothing since. Nobody counts on it.
    """

    leader_epoch: LeaderEpoch
    high_watermark: Offset
    log_start_offset: Offset
    epochs: tuple[EpochStart, ...]


UNPROMISED: Final = Offset(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredLog:
    """What the shell found on disk, at start and after each truncation.

    An emptied log ends at `checkpoint.log_start_offset`. Epochs that begin at or past the log end
    are ignored. `producers` is the state as of `log_end_offset`: the newest stored snapshot at or
    below it, brought up to date with the headers behind it. `swept_end`: see `MarkersSwept`; 0
    while compaction has removed none. `aborted`: the newest entries of the index of aborted
    transactions, by marker, `NEWEST_MAX` at most; the machine has no use for them.
    """

    log_end_offset: Offset
    checkpoint: Checkpoint
    producers: tuple[ProducerEntry, ...] = ()
    swept_end: Offset = Offset(0)
    aborted: tuple[AbortedTransaction, ...] = ()


# ---------------------------------------------------------------- events: shell -> machine


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """The topic settings replication needs. Times in ms."""

    min_insync_replicas: int = 2
    replica_lag_time_max_ms: int = 10_000
    max_pending_produces: int = 10_000


@dataclass(frozen=True, slots=True)
class Assigned:
    """The controller's newest word on this partition. Older versions are ignored."""

    state: PartitionState
    config: ReplicaConfig


@dataclass(frozen=True, slots=True)
class Persisted:
    """The write named `persist_id` (and all before it) is done; `synced`: fsynced too."""

    persist_id: int
    synced: bool


@dataclass(frozen=True, slots=True)
class PersistFailed:
    """The write failed (disk full): nothing of it is on disk, nor of any later one.

    A failure that leaves this open (an I/O error, a failed fsync) is not reported here: the shell
    stops the replica and recovers it from disk before it goes on.
    """

    persist_id: int
    error: PenstockError


@dataclass(frozen=True, slots=True)
class Truncated:
    """`Ready.truncate_to` was carried out; this is what the log looks like now.

    The `persist_id` of that `Ready` is reported as well, before or after this. If the truncation
    failed, only `PersistFailed` comes.
    """

    log: RecoveredLog


@dataclass(frozen=True, slots=True)
class MarkersSwept:
    """Compaction is about to remove markers of transactions below `swept_end` from this log.

    Stored, for `RecoveredLog`, and told before the first of them goes: whoever copies this log
    from then on must not wait for a marker that never comes. What they ended has no flag any more.
    """

    swept_end: Offset


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The stream on which this replica and `peer` talk (as leader and follower) broke."""

    peer: BrokerId


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed. Sent about every 100 ms, only to leaders and to machines that asked."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What the shell must do now; see the module's docstring for the order.

    `persist_id` > 0 exactly when there is something to write (`append`, `checkpoint`,
    `truncate_to`). A checkpoint that comes with a `truncate_to` and has another log start than
    `Marks` starts the log anew there, empty (`truncate_to` is the smaller of the two log starts);
    `ReplicaMachine.producers` is stored with it, as what is known of producers is void.
    `checkpoint` is set when it must be stored with
    this write; the present one is always `ReplicaMachine.checkpoint`.
    `aborted` are the transactions whose ABORT markers are in `append`: they go into the same write.
    `swept_end`: what is copied next may lack markers below it; it is stored with this write, for
    `RecoveredLog`, as the one of `MarkersSwept` is.
    `persist_sync` asks for fsync. `high_watermark` is set when consumers may see more, and
    `stable_offset`, the last stable offset, when those may who read committed records only.
    `role_changed`: leader, follower or offline now differs; fetches parked on this replica
    must be answered. `stopped`: this event stopped the machine, for good (`core.defect`); the
    shell ends all feeds of this replica and writes nothing more of it, also not what it was
    handed before and has not begun.
    """

    truncate_to: Offset | None = None
    append: tuple[Batch, ...] = ()
    aborted: tuple[AbortedTransaction, ...] = ()
    swept_end: Offset | None = None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """A replica at a glance, for feeding followers, answering fetches, metrics.

    log_start <= last_stable_offset <= high_watermark <= written_end <= log_end (I2).
    `last_stable_offset`: readers of committed transactions stop there (exclusive; `stable`).

    `epoch_start_offset`: where the leader's epoch begins, 0 unless it leads. A new leader knows
    what was committed before it only once its HW has reached that: until then it must not tell
    consumers its HW as the log's end (ListOffsets LATEST answers LEADER_NOT_AVAILABLE, as KIP-207
    has it), or they see it fall.
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
