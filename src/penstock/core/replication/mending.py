"""What may be done about a damaged replica: which brokers to ask, and when to give up its log.

    few batches, intact headers ─▶ mended: the same bytes from any other replica
    anything else ───────────────▶ rebuilt: the log is dropped and copied from the leader, once the
                                   controller has taken the seat away (I33)

No permission is needed to mend: bytes with the same header and CRC are the same bytes. Dropping a
log does: until the stored state says that this replica is damaged and has no seat, what is left of
its log may be the only copy of a committed record (I7).
"""

from collections.abc import Container, Sequence
from typing import Final

from penstock.core.batch import BatchFlags, BatchHeader
from penstock.core.replication.follower import BrokenLogError, UnreadableLogError
from penstock.core.types import NO_LEADER, BrokerId, PartitionState
from penstock.errors import PenstockError

MENDED_MAX: Final = 8
"""A log with more damaged batches than this is copied again: do not trust the rest of it."""


def is_mendable(damaged: Sequence[BatchHeader]) -> bool:
    """Whether batches with these headers can be replaced one by one.

    Each replica compacts its own log, so nobody else is sure to have the same compacted batch.
    """
    compacted = any(header.flags & BatchFlags.COMPACTED for header in damaged)
    return len(damaged) <= MENDED_MAX and not compacted


def donors(
    state: PartitionState, local: BrokerId, live: Container[BrokerId]
) -> tuple[BrokerId, ...]:
    """The brokers to ask for a batch, the leader first."""
    known = (state.leader, *state.replicas, *state.adding, *state.dropping)
    others = (one for one in known if one not in {NO_LEADER, local} and one in live)
    return tuple(dict.fromkeys(others))


def may_rebuild(state: PartitionState, local: BrokerId, live: Container[BrokerId]) -> bool:
    """Whether nobody relies on the log here, and somebody sound leads, from whom it can be copied.

    A mark that is stored keeps the replica from a new seat in ISR or ELR for as long as it is
    there. Whether it still has one in the ELR, no image shows: ask the controller first, whose
    answer does. Who only copies is not marked: it may be switched to before it learns that. The
    controller has its copy deleted, and begun again.
    """
    sound_leader = state.leader in live and state.leader not in {local, *state.damaged}
    return sound_leader and local in state.damaged and local not in state.isr


def may_open_again(
    stopped: PenstockError | None, state: PartitionState, local: BrokerId, *, before: bool
) -> bool:
    """Whether a replica that stopped for this reason may go on without a restart.

    `before`: it was opened again once after a defect. A log that contradicts the leader's is for a
    person to compare. A defect may have come by chance, but not twice; and who led when it stopped
    cannot lead in that epoch again.
    """
    if stopped is None or isinstance(stopped, UnreadableLogError):
        return True
    if isinstance(stopped, BrokenLogError):
        return False
    return not before and state.leader != local
