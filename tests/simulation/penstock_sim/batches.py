"""Batches whose payload is never decoded: brokers check only header and CRC."""

from __future__ import annotations

from dataclasses import replace

from penstock.core.batch import Batch, BatchHeader, compute_crc


def sealed(header: BatchHeader, payload: bytes) -> Batch:
    """A batch with the CRC that followers and the store check."""
    return Batch(replace(header, crc=compute_crc(header, payload)), payload)
