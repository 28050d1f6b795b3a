"""Inputs and outputs of followers only; `contract` has the order in which to carry them out.

    PeerConnected ──▶ ┌──────────┐ ──▶ SendEpochQuery     where do our logs diverge?
    EpochAnswered ──▶ │ follower │ ──▶ SendFollowStart    copy from here on
    BatchesReceived ▶ │          │ ──▶ SendAck            written and synced so far
    PeerRefused ────▶ └──────────┘ ──▶ SendFollowStop

`leader_epoch` is always the leadership in which leader and follower communicate. Messages with a
different one than the follower's are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.batch import Batch
from penstock.core.types import BrokerId, LeaderEpoch, Offset
from penstock.core.value import value
from penstock.errors import PenstockError

# ---------------------------------------------------------------- heard


@dataclass(frozen=True, slots=True)
class PeerConnected:
    """The stream to this leader is up (again): ask for divergence, then follow."""

    peer: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochAnswered:
    """The leader's answer to `SendEpochQuery`.

    `epoch`: the largest epoch in the leader's log at or below the requested one, -1 if there is
    none (while `leader_epoch` is the leadership in which it answers). `end_offset`: where `epoch`
    ends in the leader's log, exclusive; for -1, where its first epoch begins. `log_start_offset`:
    the first offset that the leader still has. `swept_end`: below it, compaction may have removed
    markers of transactions there; 0 = none.
    """

    leader: BrokerId
    leader_epoch: LeaderEpoch
    epoch: LeaderEpoch
    end_offset: Offset
    log_start_offset: Offset
    swept_end: Offset = Offset(0)


@value(frozen=True, slots=True, kw_only=True)
class BatchesReceived:
    """Pushed by the leader; CRCs already checked by the shell. `batches` may be empty.

    `high_watermark` and `log_start_offset` are the leader's. `sync_through`: the leader waits for
    this follower's fsync up to there (exclusive); 0 = it does not.
    """

    leader: BrokerId
    leader_epoch: LeaderEpoch
    batches: tuple[Batch, ...]
    high_watermark: Offset
    log_start_offset: Offset
    sync_through: Offset


@dataclass(frozen=True, slots=True)
class PeerRefused:
    """The leader answered with an error for this partition (not leader, other epoch, unknown)."""

    peer: BrokerId
    error: PenstockError


# ---------------------------------------------------------------- said


@dataclass(frozen=True, slots=True)
class SendEpochQuery:
    """Asks where `last_epoch`, the newest of this log (-1: none), ends in the leader's log."""

    leader: BrokerId
    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class SendFollowStart:
    """The logs agree below `from_offset`, this log's end: feed from there.

    `version`: of the newest state of the partition known here.
    """

    leader: BrokerId
    leader_epoch: LeaderEpoch
    from_offset: Offset
    version: int


@dataclass(frozen=True, slots=True)
class SendFollowStop:
    """Stop feeding this replica: nothing more of the current feed is accepted."""

    leader: BrokerId


@value(frozen=True, slots=True)
class SendAck:
    """This log is written, and fsynced, up to these offsets (exclusive)."""

    leader: BrokerId
    leader_epoch: LeaderEpoch
    written_end: Offset
    synced_end: Offset
