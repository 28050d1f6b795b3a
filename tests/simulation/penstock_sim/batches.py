"""Batches whose payload nobody opens: brokers look at header and CRC alone."""

from __future__ import annotations

from dataclasses import replace

from penstock.core.batch import Batch, BatchHeader, compute_crc


def sealed(header: BatchHeader, payload: bytes) -> Batch:
    """With the CRC that followers and the store check."""
    return Batch(replace(header, crc=compute_crc(header, payload)), payload)
