"""Keys go to the same partition for ever."""

import pytest

from penstock.core.partitioner import KeyHash, murmur2, partition_for_key, partitions_for_keys
from penstock.errors import ErrorCode, MisuseError


def test_the_hash_is_crc32c() -> None:
    # The check value of CRC-32C, RFC 3720 appendix B.4 and every CRC catalogue.
    assert partition_for_key(b"123456789", 2**32) == 0xE3069283
    assert partition_for_key(b"", 7) == 0


# Kafka 4.3, UtilsTest.testMurmur2, as unsigned numbers.
@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed % 2**32
    positive = hashed & 0x7FFFFFFF
    assert partition_for_key(key, 12, KeyHash.MURMUR2) == positive % 12
    assert partitions_for_keys([key] * 2, 7, KeyHash.MURMUR2) == [positive % 7] * 2


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
