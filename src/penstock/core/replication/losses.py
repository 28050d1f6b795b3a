"""Batches that nobody has any more, and what takes their place once a person accepts the loss.

    header in the index ─▶ `emptied`: the same offsets, producer, transaction and times, no record

The batch that takes a lost one's place follows from its header alone. So every replica that lacks
the batch makes the same one, however often and in whatever order the leaders of the partition are
told to, and one replica can ask another whether the loss was accepted there: by the header that the
emptied batch must have. What is known from headers stays as it was: which sequence numbers a
producer has used (I9), where a transaction begins and how it ended (I10), what time a batch has.
"""

from collections.abc import Sequence
from dataclasses import replace

from penstock.core.batch import Batch, BatchFlags, BatchHeader, compute_crc
from penstock.core.columns import Columns
from penstock.core.records import build_batch
from penstock.core.types import BrokerId, Offset, PartitionState
from penstock.errors import ClusterError, ErrorCode


def without_payload(header: BatchHeader) -> Batch | None:
    """The batch itself, if it has no payload, as markers: then its header is all that it was."""
    return Batch(header, b"") if compute_crc(header, b"") == header.crc else None


def emptied(header: BatchHeader) -> Batch:
    """What takes the place of the batch with this header: readers pass it, copies are like it."""
    empty = build_batch(Columns(0, 0, covered_offsets=header.record_count))
    sealed = replace(
        header,
        first_timestamp_ms=header.max_timestamp_ms,  # a batch without records has one time
        uncompressed_bytes=empty.header.uncompressed_bytes,
        codec=empty.header.codec,
        flags=header.flags | BatchFlags.COMPACTED,
    )
    return Batch(replace(sealed, crc=compute_crc(sealed, empty.payload)), empty.payload)


def span(header: BatchHeader) -> str:
    """Its offsets as commands take them: both ends included."""
    return f"{header.base_offset}-{header.next_offset - 1}"


def chosen(lost: Sequence[BatchHeader], first: Offset, last: Offset) -> tuple[BatchHeader, ...]:
    """Those of the lost batches that lie in first..last, both included; () if none does.

    Raises ClusterError(INVALID_REQUEST) if one lies in it only in part: no part of it is left.
    """
    met = [one for one in lost if one.base_offset <= last and first < one.next_offset]
    for one in met:
        if one.base_offset < first or last < one.next_offset - 1:
            raise ClusterError(
                f"offsets {first}-{last} are a part of the lost batch {span(one)}, which can only "
                f"be given up as a whole: --offsets {span(one)}",
                ErrorCode.INVALID_REQUEST,
            )
    return tuple(met)


def holders(state: PartitionState, local: BrokerId) -> tuple[BrokerId, ...]:
    """All other brokers that may have stored the batch, whether they are in sync, or alive."""
    known = (*state.replicas, *state.adding, *state.dropping)
    return tuple(dict.fromkeys(one for one in known if one != local))


def check_nobody_sound_may_lead(state: PartitionState, local: BrokerId) -> None:
    """Raises ClusterError unless `local`, a damaged leader, leads as nobody sound can (I33)."""
    if state.leader != local:
        raise ClusterError(
            f"broker {state.leader} leads the partition by now; ask it", ErrorCode.NOT_LEADER
        )
    sound = [one for one in state.isr if one not in {local, *state.damaged}]
    if sound:
        raise ClusterError(
            f"broker {sound[0]} has a replica that is not known as damaged: nothing is lost before "
            "its log has been read, so wait until it leads, or has been scrubbed",
            ErrorCode.INVALID_REQUEST,
        )


def says_it_lacks(state: PartitionState, holder: BrokerId, said: ErrorCode) -> bool:
    """Whether this answer to a request for exactly the batch means that its records are not there.

    Each replica compacts for itself: one whose log has been neither read nor found damaged may have
    the records and not the batch.
    """
    if said is ErrorCode.DATA_CORRUPTED:
        return holder in state.damaged
    return said is ErrorCode.OFFSET_OUT_OF_RANGE
