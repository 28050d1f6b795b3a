"""Keys go to the same partition for ever."""

import pytest

from penstock.core.partitioner import partition_for_key, partitions_for_keys
from penstock.errors import ErrorCode, MisuseError


def test_the_hash_is_crc32c() -> None:
    # The check value of CRC-32C, RFC 3720 appendix B.4 and every CRC catalogue.
    assert partition_for_key(b"123456789", 2**32) == 0xE3069283
    assert partition_for_key(b"", 7) == 0


def test_many_keys_at_once_go_where_each_goes_alone() -> None:
    keys = [b"", b"a", b"carrier-UA", bytes(range(256))]
    for count in (1, 2, 12, 1000):
        assert partitions_for_keys(keys, count) == [partition_for_key(key, count) for key in keys]
    assert partitions_for_keys(iter(keys), 1) == [0] * 4


@pytest.mark.parametrize("count", [3, 6, 12, 16, 64])
@pytest.mark.parametrize("pattern", ["%d", "user-%08d", "%032x"])
def test_numbered_keys_spread_evenly(pattern: str, count: int) -> None:
    seen = [0] * count
    total = 40_000
    for partition in partitions_for_keys([(pattern % i).encode() for i in range(total)], count):
        seen[partition] += 1
    assert max(seen) < 1.15 * total / count
    assert min(seen) > 0.85 * total / count


@pytest.mark.parametrize("count", [0, -1])
def test_a_topic_without_partitions_is_misuse(count: int) -> None:
    for call in (lambda: partition_for_key(b"a", count), lambda: partitions_for_keys([], count)):
        with pytest.raises(MisuseError, match=f"partition count is {count}") as raised:
            call()
        assert raised.value.code is ErrorCode.INVALID_PARTITIONS
