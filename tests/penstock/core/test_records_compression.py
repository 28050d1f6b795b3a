"""Compressed payloads: exact, whole, bounded; and what is said when a package is missing."""

import struct
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial

import lz4.frame
import pytest
import zstandard

from penstock.core.batch import Codec
from penstock.core.compression import ZSTD_WINDOW_BYTES, compress, decompress
from penstock.errors import ClusterError, ErrorCode, MisuseError

MIB = 1 << 20
MESSAGE = bytes(range(256)) * 40
COMPRESSED = pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.LZ4])


def zstd_stream(message: bytes) -> bytes:
    """A frame that does not name its size, as streaming writers make it."""
    writer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return writer.compress(message) + writer.flush()


def lz4_stream(message: bytes) -> bytes:
    return bytes(lz4.frame.compress(message, store_size=False, content_checksum=True))


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("message", [b"", b"a", MESSAGE], ids=len)
def test_a_message_comes_back(codec: Codec, message: bytes) -> None:
    assert decompress(codec, compress(codec, message), len(message)) == message


@pytest.mark.parametrize(("codec", "stream"), [(Codec.ZSTD, zstd_stream), (Codec.LZ4, lz4_stream)])
def test_frames_need_not_name_their_size(codec: Codec, stream: Callable[[bytes], bytes]) -> None:
    frame = stream(MESSAGE)
    assert decompress(codec, frame, len(MESSAGE)) == MESSAGE
    for wrong in (0, 1, len(MESSAGE) - 1, len(MESSAGE) + 1):
        with pytest.raises(ClusterError) as raised:
            decompress(codec, frame, wrong)
        assert raised.value.code is ErrorCode.CORRUPT_BATCH


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("off", [-1, 1])
def test_a_size_that_is_not_the_real_one_is_refused(codec: Codec, off: int) -> None:
    with pytest.raises(ClusterError, match=f"{len(MESSAGE) + off}") as raised:
        decompress(codec, compress(codec, MESSAGE), len(MESSAGE) + off)
    assert raised.value.code is ErrorCode.CORRUPT_BATCH


@COMPRESSED
def test_what_is_not_one_whole_frame_is_refused(codec: Codec) -> None:
    frame = compress(codec, MESSAGE)
    broken = [frame[:cut] for cut in range(0, len(frame), 7)]
    broken += [frame + b"x", frame + frame, b"x" + frame, b"garbage", frame[:-1]]
    for payload in broken:
        with pytest.raises(ClusterError) as raised:
            decompress(codec, payload, len(MESSAGE))
        assert raised.value.code is ErrorCode.CORRUPT_BATCH


@pytest.mark.parametrize(
    "frame",
    [
        compress(Codec.ZSTD, bytes(64 * MIB)),
        zstd_stream(bytes(64 * MIB)),
    ],
    ids=["size named", "size not named"],
)
def test_a_zstd_bomb_takes_no_more_than_the_size_in_the_header(frame: bytes) -> None:
    assert_bounded(Codec.ZSTD, frame)


@pytest.mark.parametrize("make", [lz4.frame.compress, lz4_stream])
def test_an_lz4_bomb_takes_no_more_than_the_size_in_the_header(
    make: Callable[[bytes], bytes],
) -> None:
    assert_bounded(Codec.LZ4, make(bytes(64 * MIB)))


def test_a_frame_that_names_a_huge_size_reserves_nothing() -> None:
    lying = bytearray(lz4.frame.compress(b"small", store_size=True))
    lying[6:14] = struct.pack("<Q", 1 << 50)
    assert_bounded(Codec.LZ4, bytes(lying))
    # Magic number, descriptor: 8-byte content size and window of 128 MiB, then an RLE block.
    header = struct.pack("<IBBQ", 0xFD2FB528, 0xC0, 17 << 3, 1 << 50)
    assert_bounded(Codec.ZSTD, header + b"\x03\x00\x00x")


def test_a_zstd_window_over_the_limit_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=0)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    payload = writer.compress(MESSAGE) + writer.flush()
    assert ZSTD_WINDOW_BYTES < 1 << 27
    with pytest.raises(ClusterError, match="zstd cannot decompress"):
        decompress(Codec.ZSTD, payload, len(MESSAGE))


def assert_bounded(codec: Codec, frame: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ClusterError) as raised:
            decompress(codec, frame, MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert raised.value.code is ErrorCode.CORRUPT_BATCH
    assert peak < 4 * MIB


@pytest.mark.parametrize(
    ("codec", "module", "package"),
    [(Codec.ZSTD, "zstandard", "zstandard"), (Codec.LZ4, "lz4.frame", "lz4")],
)
def test_a_missing_package_is_named_with_its_extra(
    codec: Codec, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = compress(codec, b"a")
    monkeypatch.setitem(sys.modules, module, None)
    for call in (partial(compress, codec, b"a"), partial(decompress, codec, frame, 1)):
        with pytest.raises(MisuseError, match=rf"{package}, .*penstock\[compression\]"):
            call()


def test_a_codec_that_does_not_exist_is_a_programming_error() -> None:
    with pytest.raises(AssertionError):
        compress(9, b"")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(AssertionError):
        decompress(9, b"", 0)  # type: ignore[arg-type]  # on purpose
