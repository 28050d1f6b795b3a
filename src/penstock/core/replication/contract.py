"""The replica machine's inputs and outputs: one machine per partition replica on a broker.

    shell: RPCs, store, clock ──event──▶ ReplicaMachine.handle(event, now_ms) ──Ready──▶ shell

The machine decides all that guarantees I1-I5, I7-I9 ask for; the shell (the broker, or the
simulator) obeys. The shell keeps this order for every `Ready`, and across the Readys of one
replica: `truncate_to`, then `append` + `checkpoint` (one atomic write, reported back as
`Persisted`), then `messages`, `feeds`, `isr_change`, then `replies`, then `high_watermark`.
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
- A broker that may have lost unsynced data says so (`intact=False` to `ReplicaMachine`, and to
  the controller, which takes its ISR seats away). Every start of a broker process gets a new
  leader epoch before that broker leads again (the controller's part).
"""

from __future__ import annotations

from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """What a partition remembers of one idempotent producer: its epoch and last five batches.

    `last_timestamp_ms` lets idle producers expire (7 days, Kafka's `producer.id.expiration.ms`
    is one; ours is as long as a transactional id's).
    """

    producer_id: ProducerId
    producer_epoch: int
    batches: tuple[SequencedBatch, ...]
    last_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Partition state that is stored beside the batches, atomically with them."""

    leader_epoch: LeaderEpoch
    high_watermark: Offset
    log_start_offset: Offset
    epochs: tuple[EpochStart, ...]


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """What the shell found on disk, at start and after each truncation.

    An emptied log ends at `checkpoint.log_start_offset`. Epochs that begin at or past the log end
    are ignored. `producers` is the state as of `log_end_offset`: the newest stored snapshot at or
    below it, brought up to date with the headers behind it.
    """

    log_end_offset: Offset
    checkpoint: Checkpoint
    producers: tuple[ProducerEntry, ...] = ()


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
class ProduceRequested:
    """A batch to append; already checked (CRC, size, codec, timestamps) by the shell.

    `request_id` comes back in exactly one `ProduceReply`. `expected_epoch` 0 = unchecked.
    `deadline_ms` is on the clock of `now_ms`.
    """

    request_id: int
    batch: Batch
    acks: Acks
    sync: Sync
    deadline_ms: int
    expected_epoch: LeaderEpoch = LeaderEpoch(0)
    append_time_ms: int = 0


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
class LogStartMoved:
    """Retention or DeleteRecords: records before `log_start_offset` may go (never past the HW).

    Only a leader listens; its followers learn the new log start with the next push. The records
    themselves are removed by the shell, below `Marks.log_start_offset`.
    """

    log_start_offset: Offset


# follower -> leader


@dataclass(frozen=True, slots=True)
class EpochQueried:
    follower: BrokerId
    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class FollowStarted:
    follower: BrokerId
    leader_epoch: LeaderEpoch
    from_offset: Offset


@dataclass(frozen=True, slots=True)
class FollowerAcked:
    follower: BrokerId
    leader_epoch: LeaderEpoch
    written_end: Offset
    synced_end: Offset


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The stream on which this replica and `peer` talk (as leader and follower) broke."""

    peer: BrokerId


@dataclass(frozen=True, slots=True)
class PeerConnected:
    """The stream to this leader is up (again): ask for divergence, then follow."""

    peer: BrokerId


# leader -> follower


@dataclass(frozen=True, slots=True)
class EpochAnswered:
    leader: BrokerId
    leader_epoch: LeaderEpoch
    epoch: LeaderEpoch
    end_offset: Offset
    log_start_offset: Offset


@dataclass(frozen=True, slots=True)
class BatchesReceived:
    """Pushed by the leader; CRCs already checked by the shell. `batches` may be empty."""

    leader: BrokerId
    leader_epoch: LeaderEpoch
    batches: tuple[Batch, ...]
    high_watermark: Offset
    log_start_offset: Offset
    sync_through: Offset


@dataclass(frozen=True, slots=True)
class PeerRefused:
    """The leader answered an error for this partition (not leader, other epoch, unknown)."""

    peer: BrokerId
    error: PenstockError


# controller -> leader


@dataclass(frozen=True, slots=True)
class IsrAnswered:
    """The controller's answer to `Ready.isr_change`, or that none came (`state` None).

    None means unknown: the change may have passed. The machine asks again, or learns by `Assigned`.
    Every `Ready.isr_change` is answered exactly once (None after a timeout); there is never a
    second one before that.
    """

    state: PartitionState | None
    error: PenstockError | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed. Sent about every 100 ms, only to leaders and to machines that asked."""


Event = (
    Assigned
    | ProduceRequested
    | Persisted
    | PersistFailed
    | Truncated
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


@dataclass(frozen=True, slots=True)
class SendEpochQuery:
    leader: BrokerId
    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class SendFollowStart:
    leader: BrokerId
    leader_epoch: LeaderEpoch
    from_offset: Offset


@dataclass(frozen=True, slots=True)
class SendFollowStop:
    leader: BrokerId


@dataclass(frozen=True, slots=True)
class SendAck:
    leader: BrokerId
    leader_epoch: LeaderEpoch
    written_end: Offset
    synced_end: Offset


@dataclass(frozen=True, slots=True)
class SendEpochAnswer:
    follower: BrokerId
    leader_epoch: LeaderEpoch
    epoch: LeaderEpoch
    end_offset: Offset
    log_start_offset: Offset


@dataclass(frozen=True, slots=True)
class SendRefusal:
    follower: BrokerId
    error: PenstockError


Message = (
    SendEpochQuery | SendFollowStart | SendFollowStop | SendAck | SendEpochAnswer | SendRefusal
)


@dataclass(frozen=True, slots=True)
class Feed:
    """Push this follower batches from `from_offset` on (None: stop feeding it).

    From then on the shell feeds on its own: whenever the written log end, the HW, the log start
    or `sync_through` moved and the follower's window has room, with what `ReplicaMachine.marks`
    says at the time of sending. Only what is written is fed: offsets below `Marks.written_end`.
    A newer Feed ends the older one: nothing read for the older is sent behind messages of the
    `Ready` that carried the newer.
    """

    follower: BrokerId
    leader_epoch: LeaderEpoch
    from_offset: Offset | None


@dataclass(frozen=True, slots=True)
class IsrProposal:
    """Ask the controller for this ISR, by compare-and-swap on `version`."""

    leader_epoch: LeaderEpoch
    version: int
    isr: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class ProduceReply:
    """The answer to one `ProduceRequested`: an error, or where the batch is.

    `acks` and `sync` say what was reached. An error whose `applied` is NO says that nothing was
    appended and never will be; after another the outcome is unknown (I8).
    """

    request_id: int
    base_offset: Offset
    error: PenstockError | None = None
    append_time_ms: int = 0
    leader_epoch: LeaderEpoch = LeaderEpoch(0)
    acks: Acks = Acks.NONE
    sync: Sync = Sync.OS
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """What the shell must do now; see the module's docstring for the order.

    `persist_id` > 0 exactly when there is something to write (`append`, `checkpoint`,
    `truncate_to`). A checkpoint whose log start lies past the log's end (with a `truncate_to` at
    the old log start) restarts an empty log there; `ReplicaMachine.producers` is stored with it, as
    what is known of producers is void. `checkpoint` is set when it must be stored with
    this write; the present one is always `ReplicaMachine.checkpoint`.
    `persist_sync` asks for fsync. `high_watermark` is set when consumers may see more.
    `role_changed`: leader, follower or offline now differs; fetches parked on this replica
    must be answered.
    """

    truncate_to: Offset | None = None
    append: tuple[Batch, ...] = ()
    checkpoint: Checkpoint | None = None
    persist_id: int = 0
    persist_sync: bool = False
    messages: tuple[Message, ...] = ()
    feeds: tuple[Feed, ...] = ()
    isr_change: IsrProposal | None = None
    replies: tuple[ProduceReply, ...] = ()
    high_watermark: Offset | None = None
    role_changed: bool = False


NOTHING = Ready()


@dataclass(frozen=True, slots=True)
class Marks:
    """A replica at a glance, for feeding followers, answering fetches, metrics.

    log_start <= high_watermark <= written_end <= log_end (I2). `epoch_start_offset`: where the
    leader's epoch begins, 0 unless it leads. A new leader knows what was committed before it only
    once its HW has reached that: until then it must not tell consumers its HW as the log's end
    (ListOffsets LATEST answers LEADER_NOT_AVAILABLE, as KIP-207 has it), or they see it fall.
    """

    is_leader: bool
    leader: BrokerId
    leader_epoch: LeaderEpoch
    log_start_offset: Offset
    high_watermark: Offset
    written_end: Offset
    log_end_offset: Offset
    sync_through: Offset
    isr: tuple[BrokerId, ...] = field(default=())
    epoch_start_offset: Offset = Offset(0)
