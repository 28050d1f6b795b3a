"""The answers of a replica that does not lead, or was stopped: the leader, or the reason."""

from __future__ import annotations

from penstock.core.replication.contract import NOTHING, Event, Ready
from penstock.core.replication.contract_leader import (
    EndRequested,
    EpochQueried,
    FollowStarted,
    ProduceReply,
    ProduceRequested,
    SendRefusal,
)
from penstock.core.types import NO_LEADER, BrokerId, Offset, PartitionState
from penstock.errors import ClusterError, CurrentLeader, ErrorCode, NotLeaderError, PenstockError


def not_leader(state: PartitionState | None, why: str) -> NotLeaderError:
    """The error, with the leader according to `state`, the newest of the partition."""
    if state is None or state.leader == NO_LEADER:
        return NotLeaderError(
            f"{why}; this partition has no leader now; try again",
            ErrorCode.LEADER_NOT_AVAILABLE if state is None else ErrorCode.NOT_LEADER,
            CurrentLeader(NO_LEADER, state.leader_epoch if state is not None else 0),
        )
    return NotLeaderError(
        f"{why}; broker {state.leader} leads it in epoch {state.leader_epoch}",
        leader=CurrentLeader(state.leader, state.leader_epoch),
    )


def stopped_here(
    error: PenstockError, state: PartitionState | None, local: BrokerId
) -> PenstockError:
    """What a client is told by a replica that stopped with `error`.

    Damage to one log is no client's concern: who leads, if anybody does, or to ask again, while
    the controller does not know it yet, or another replica may lead once its broker is back. If all
    are damaged: the error.
    """
    if error.code is not ErrorCode.DATA_CORRUPTED or state is None:
        return error
    if state.leader != local:
        return not_leader(state, error.message)
    if {*state.replicas} <= {*state.damaged}:
        return error
    return ClusterError(
        f"{error.message}; ask again: another replica takes over, or it is mended",
        ErrorCode.STORAGE_FAILED,
    )


def refusal(event: Event, error: PenstockError) -> Ready:
    """The answer to the sender of `event`; `NOTHING` if it expects none."""
    match event:
        case ProduceRequested() | EndRequested():
            reply = ProduceReply(request_id=event.request_id, base_offset=Offset(-1), error=error)
            return Ready(replies=(reply,))
        case EpochQueried() | FollowStarted():
            return Ready(messages=(SendRefusal(event.follower, error),))
        case _:
            return NOTHING
