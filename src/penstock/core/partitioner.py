"""Which partition a key belongs to: the same in every client, in every language, for ever.

    crc32c    crc32c(key) mod partition count; CRC-32C (Castagnoli, RFC 3720 appendix B.4) taken as
              an unsigned number
    murmur2   toPositive(murmur2(key)) mod partition count, as Kafka's Java clients choose: 32-bit
              MurmurHash2 (Austin Appleby) with seed 0x9747b28c, and the sign bit cleared

A topic's setting `partitioner` says which one; clients get it with the topic's metadata.
`tests/vectors/partitioner.json` has cases to check other clients against; decisions 4 and 85 give
the reasons. The producer chooses the partition of a record without a key (`penstock.client` sticks
to a partition for a batch).
"""

import struct
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final

import google_crc32c

from penstock.errors import ErrorCode, MisuseError

_MURMUR_SEED: Final = 0x9747B28C
_MURMUR_FACTOR: Final = 0x5BD1E995
_UINT32: Final = 0xFFFFFFFF
_WORD: Final = struct.Struct("<I")


class KeyHash(StrEnum):
    """How keys are spread over the partitions of a topic."""

    CRC32C = "crc32c"
    MURMUR2 = "murmur2"


def murmur2(key: bytes) -> int:
    """MurmurHash2 of a key as Kafka's `Utils.murmur2` computes it, as an unsigned 32-bit number.

    Python computes it in a loop over words of four bytes, so it takes many times as long as
    CRC-32C, which is one call into C.
    """
    length = len(key)
    mixed = _MURMUR_SEED ^ length
    whole = length & ~3
    for (word,) in _WORD.iter_unpack(key[:whole]):
        scaled = word * _MURMUR_FACTOR & _UINT32
        scaled = (scaled ^ scaled >> 24) * _MURMUR_FACTOR
        mixed = (mixed * _MURMUR_FACTOR ^ scaled) & _UINT32
    if whole < length:
        mixed = (mixed ^ int.from_bytes(key[whole:], "little")) * _MURMUR_FACTOR & _UINT32
    mixed = (mixed ^ mixed >> 13) * _MURMUR_FACTOR & _UINT32
    return mixed ^ mixed >> 15


def partition_for_key(key: bytes, partition_count: int, key_hash: KeyHash = KeyHash.CRC32C) -> int:
    """The partition of a key, 0 <= it < partition_count. b"" is a key like any other.

    Adding partitions moves keys, and so does another hash. Raises MisuseError for
    partition_count < 1.
    """
    _check_count(partition_count)
    return _HASHES[key_hash](key) % partition_count


def partitions_for_keys(
    keys: Iterable[bytes], partition_count: int, key_hash: KeyHash = KeyHash.CRC32C
) -> list[int]:
    """`partition_for_key` for many keys at once."""
    _check_count(partition_count)
    hashed = _HASHES[key_hash]
    return [hashed(key) % partition_count for key in keys]


def _murmur2_positive(key: bytes) -> int:
    return murmur2(key) & 0x7FFFFFFF


def _check_count(partition_count: int) -> None:
    if partition_count < 1:
        raise MisuseError(
            f"partition count is {partition_count}; it must be at least 1",
            ErrorCode.INVALID_PARTITIONS,
        )


_HASHES: Final[dict[KeyHash, Callable[[bytes], int]]] = {
    KeyHash.CRC32C: google_crc32c.value,
    KeyHash.MURMUR2: _murmur2_positive,
}
