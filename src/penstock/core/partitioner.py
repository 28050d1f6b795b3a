"""Which partition a key belongs to: the same in every client, in every language, for ever.

`partition = crc32c(key) mod partition count`, CRC-32C (Castagnoli, RFC 3720 appendix B.4) taken
as an unsigned number. `tests/vectors/partitioner.json` has cases to check other clients against;
`docs/decisions/0004-key-hash.md` gives the reasons for this hash. The producer chooses the
partition of a record without a key (`penstock.client` sticks to a partition for a batch).
"""

from collections.abc import Iterable

import google_crc32c

from penstock.errors import ErrorCode, MisuseError


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition of a key, 0 <= it < partition_count. b"" is a key like any other.

    Adding partitions moves keys. Raises MisuseError for partition_count < 1.
    """
    _check_count(partition_count)
    return int(google_crc32c.value(key)) % partition_count


def partitions_for_keys(keys: Iterable[bytes], partition_count: int) -> list[int]:
    """`partition_for_key` for many keys at once."""
    _check_count(partition_count)
    crc32c = google_crc32c.value
    return [crc32c(key) % partition_count for key in keys]


def _check_count(partition_count: int) -> None:
    if partition_count < 1:
        raise MisuseError(
            f"partition count is {partition_count}; it must be at least 1",
            ErrorCode.INVALID_PARTITIONS,
        )
