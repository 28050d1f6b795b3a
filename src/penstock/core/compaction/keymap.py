"""Keys: every record must have one, and the newest offset of each, in bounded memory (I23).

A key is stored as its own bytes if it is shorter than 16, else as a hash of 16 bytes: with 10
million keys in one pass, two of them share a hash with a probability of 10**-25. When the map is
full, the pass ends at the batch that filled it, and the next pass continues there.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from penstock.core.batch import Batch
from penstock.core.columns import NULL, Columns
from penstock.core.records import decode_batch
from penstock.errors import ClusterError, ErrorCode

DIGEST_BYTES: Final = 16
ENTRY_BYTES: Final = 200
"""Memory of a key in Python: a hash, an offset, an entry in a dict; measured at 170 to 210."""


def check_keys(batch: Batch, where: str) -> None:
    """Whether a compacted topic may accept this batch; `where` names the partition.

    The batch is decoded: what compaction could not read would stay for ever.
    Raises ClusterError: INVALID_RECORD for a record without a key, or what `decode_batch` raises.
    """
    columns = decode_batch(batch)
    lengths = columns.key_lengths
    listed = [NULL] if lengths is None else lengths.tolist()
    if NULL in listed:
        raise ClusterError(
            f"record {listed.index(NULL)} of {columns.record_count} in the batch for {where} has "
            "no key (null); the topic has cleanup.policy=compact, which keeps the newest record "
            "of each key, so every record needs a key",
            ErrorCode.INVALID_RECORD,
        )


class KeyMap:
    """Filled batch by batch in log order, then only read."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: about how much memory it may take; the last batch may exceed it."""
        self._most = max(1, max_bytes // ENTRY_BYTES)
        self._newest: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._newest)

    @property
    def is_full(self) -> bool:
        """No further batch should be added."""
        return len(self._newest) >= self._most

    def add(self, columns: Columns) -> None:
        """Adds a batch; ignores records without a key."""
        newest = self._newest
        for offset, key in zip(columns.offsets(), columns.keys(), strict=True):
            if key is not None:
                newest[_short(key)] = offset

    def superseded(self, offsets: Iterable[int], keys: Iterable[bytes | None]) -> list[bool]:
        """For each record, whether a newer one with its key was added."""
        get = self._newest.get
        return [
            key is not None and get(_short(key), -1) > offset
            for offset, key in zip(offsets, keys, strict=True)
        ]


def _short(key: bytes) -> bytes:
    return key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()
