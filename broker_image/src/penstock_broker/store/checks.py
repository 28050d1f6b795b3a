"""Checks what was read: only undamaged batches that the index names are served (I22)."""

from penstock.core.batch import HEADER_BYTES, Batch, unpack_batch
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.store.interface import Slot
from penstock_broker.store.layout import IndexEntry


def fits(chosen: list[IndexEntry], stored: list[bytes]) -> bool:
    """Whether each value is the batch that the index names."""
    pairs = zip(chosen, stored, strict=True)
    return all(value.startswith(entry.packed_header) for entry, value in pairs)


def verified(slot: Slot, chosen: list[IndexEntry], stored: list[bytes]) -> list[Batch]:
    """Unpacks and checks; still returns the good batches before a damaged one."""
    batches: list[Batch] = []
    for entry, value in zip(chosen, stored, strict=True):
        try:
            batch = _unpacked(entry, value)
        except ClusterError as error:
            if batches:
                return batches
            raise ClusterError(
                f"slot {slot} offset {entry.base_offset}: {error.message}; the batch is not "
                "served; rebuild this replica from another one",
                ErrorCode.DATA_CORRUPTED,
            ) from error
        batches.append(batch)
    return batches


def _unpacked(entry: IndexEntry, stored: bytes) -> Batch:
    batch = unpack_batch(stored)
    if stored[:HEADER_BYTES] != entry.packed_header:
        raise ClusterError(  # an undamaged batch, but an old or misplaced one
            f"stored header {batch.header} differs from the index's {entry.header}",
            ErrorCode.DATA_CORRUPTED,
        )
    return batch
