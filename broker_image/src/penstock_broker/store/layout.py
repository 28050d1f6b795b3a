"""The layout of a broker's database: keys, key spaces, and the index entry.

One RocksDB database, two column families, all integers big-endian so that bytes sort as numbers:

    column family "default": the batches; values of 512 bytes and more go to blob files
        slot u32 │ base offset u64                  → stored batch (penstock.core.batch)

    column family "state": everything else; never in blob files, or one idle partition's
    checkpoint would pin a blob file of others' batches for ever
        'a' │ slot u32 │ marker offset u64          → aborted transaction   (state.py)
        'c' │ slot u32                              → checkpoint            (state.py)
        'i' │ slot u32 │ base offset u64            → index entry           (below)
        'h' │ slot u32                              → compacted end u64; absent: 0
        'k' │ slot u32                              → compaction's progress (state.py)
        'p' │ slot u32 │ as-of offset u64           → producer snapshot     (state.py)
        'r' │ topic id UTF-8 │ '/' │ partition u32  → slot u32
        'n'                                         → next free slot u32; slots are never reused
        'v'                                         → layout version u32

    index entry, one per batch, 96 bytes:
         0          8       12               20        24                   96
         ┌──────────┬───────┬────────────────┬─────────┬────────────────────┐
         │ position │ size  │ running max    │ records │ the batch's header │
         │ i64      │ u32   │ timestamp i64  │ u32     │ (72 bytes)         │
         └──────────┴───────┴────────────────┴─────────┴────────────────────┘

`position` counts the bytes of the slot's batches before this one, `running max` is the largest
effective timestamp up to and including it. Both only grow with the offset, so binary search
finds a size or a time; recovery, retention and `read`'s choice of batches never touch a payload.
A running max can come from a batch that has been removed: its users check the header. Compaction
leaves the bytes saved by a batch as a hole before its position. (A few tiny batches may grow:
positions near the first batch ever written can be negative.)
"""

from struct import Struct
from typing import Final

from penstock.core.batch import HEADER_BYTES, Batch, BatchHeader, pack_header, unpack_header
from penstock.core.types import Offset, ReplicaKey, TopicId
from penstock.core.value import value
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.store.interface import Slot

LAYOUT_VERSION: Final = 1
STATE_FAMILY: Final = "state"
MAX_OFFSET: Final = Offset(2**63 - 1)
NO_TIMESTAMP_MS: Final = -(2**63)

NEXT_SLOT_KEY: Final = b"n"
VERSION_KEY: Final = b"v"
REPLICA_PREFIX: Final = b"r"

_BATCH_KEY: Final = Struct(">IQ")
_SLOT_KEY: Final = Struct(">cI")
_OFFSET_KEY: Final = Struct(">cIQ")
_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")
_ENTRY: Final = Struct(">qIqI")
_SPACE_ABORTED: Final = b"a"
_SPACE_CHECKPOINT: Final = b"c"
_SPACE_COMPACTED: Final = b"h"
_SPACE_INDEX: Final = b"i"
_SPACE_CLEANED: Final = b"k"
_SPACE_PRODUCERS: Final = b"p"


def batch_key(slot: Slot, base_offset: int) -> bytes:
    return _BATCH_KEY.pack(slot, base_offset)


def aborted_key(slot: Slot, marker_offset: int) -> bytes:
    return _OFFSET_KEY.pack(_SPACE_ABORTED, slot, marker_offset)


def aborted_prefix(slot: Slot) -> bytes:
    return _SLOT_KEY.pack(_SPACE_ABORTED, slot)


def checkpoint_key(slot: Slot) -> bytes:
    return _SLOT_KEY.pack(_SPACE_CHECKPOINT, slot)


def cleaned_key(slot: Slot) -> bytes:
    return _SLOT_KEY.pack(_SPACE_CLEANED, slot)


def compacted_key(slot: Slot) -> bytes:
    return _SLOT_KEY.pack(_SPACE_COMPACTED, slot)


def index_key(slot: Slot, base_offset: int) -> bytes:
    return _OFFSET_KEY.pack(_SPACE_INDEX, slot, base_offset)


def index_prefix(slot: Slot) -> bytes:
    return _SLOT_KEY.pack(_SPACE_INDEX, slot)


def producers_key(slot: Slot, as_of: int) -> bytes:
    return _OFFSET_KEY.pack(_SPACE_PRODUCERS, slot, as_of)


def producers_prefix(slot: Slot) -> bytes:
    return _SLOT_KEY.pack(_SPACE_PRODUCERS, slot)


def offset_of(key: bytes) -> Offset:
    """The offset at the end of an aborted, index or producers key."""
    return Offset(int.from_bytes(key[-8:], "big"))


def replica_key(key: ReplicaKey) -> bytes:
    return REPLICA_PREFIX + key.topic_id.encode() + b"/" + _U32.pack(key.partition)


def replica_of(key: bytes) -> ReplicaKey:
    return ReplicaKey(TopicId(key[1:-5].decode()), _U32.unpack(key[-4:])[0])


def pack_u32(value: int) -> bytes:
    return _U32.pack(value)


def pack_u64(value: int) -> bytes:
    return _U64.pack(value)


def unpack_u64(stored: bytes) -> int:
    return int(_U64.unpack(stored)[0])


def unpack_u32(stored: bytes) -> int:
    return int(_U32.unpack(stored)[0])


@value(frozen=True, slots=True)
class IndexEntry:
    """What the index stores about one batch. Sizes and positions in stored bytes.

    The header stays packed, because unpacking takes 6 µs and is rarely needed.
    """

    base_offset: Offset
    record_count: int
    position: int
    size: int
    running_max_ms: int
    packed_header: bytes

    @property
    def header(self) -> BatchHeader:
        """Unpacked on each call; raises ClusterError(DATA_CORRUPTED)."""
        return unpack_header(self.packed_header)

    @property
    def next_offset(self) -> Offset:
        return Offset(self.base_offset + self.record_count)

    @property
    def next_position(self) -> int:
        return self.position + self.size


def next_entry(batch: Batch, position: int, running_max_ms: int) -> IndexEntry:
    """The entry of a batch appended after `position` bytes, and the running maximum so far."""
    header = batch.header
    return IndexEntry(
        header.base_offset,
        header.record_count,
        position,
        batch.size_bytes,
        max(running_max_ms, header.effective_max_timestamp_ms),
        pack_header(header),
    )


def pack_entry(entry: IndexEntry) -> bytes:
    numbers = _ENTRY.pack(entry.position, entry.size, entry.running_max_ms, entry.record_count)
    return numbers + entry.packed_header


def unpack_entry(key: bytes, stored: bytes) -> IndexEntry:
    """Raises ClusterError(DATA_CORRUPTED) if it cannot be an index entry."""
    if len(stored) != _ENTRY.size + HEADER_BYTES:
        raise ClusterError(
            f"index entry {key.hex()} has {len(stored)} bytes, expected "
            f"{_ENTRY.size + HEADER_BYTES}; rebuild this replica from another one",
            ErrorCode.DATA_CORRUPTED,
        )
    position, size, running_max_ms, count = _ENTRY.unpack_from(stored)
    return IndexEntry(offset_of(key), count, position, size, running_max_ms, stored[_ENTRY.size :])
