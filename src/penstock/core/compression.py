"""Compression of batch payloads: none, zstd (RFC 8878) and the LZ4 frame format.

The packages are an extra (`pip install 'penstock[compression]'`) and imported on first use, so
that the light client works without them. Decompression is given the expected size and never
produces, or reserves, much more: a small payload cannot make a reader run out of memory (I23).
"""

from importlib import import_module
from typing import Any, Final, assert_never

from penstock.core.batch import Codec
from penstock.core.records_wire import corrupt
from penstock.errors import MisuseError

ZSTD_LEVEL: Final = 3
ZSTD_WINDOW_BYTES: Final = 8 * 1024 * 1024
"""Largest window a reader must support (the minimum of RFC 8878)."""


def compress(codec: Codec, message: bytes) -> bytes:
    """The payload for this message: one frame, which includes the size of its content.

    Raises MisuseError if the codec's package is not installed.
    """
    match codec:
        case Codec.NONE:
            return message
        case Codec.ZSTD:
            return bytes(_zstandard().ZstdCompressor(level=ZSTD_LEVEL).compress(message))
        case Codec.LZ4:
            return bytes(_lz4_frame().compress(message, store_size=True))
        case _:
            assert_never(codec)


def decompress(codec: Codec, payload: bytes, size_bytes: int) -> bytes:
    """The message in this payload, which must have exactly `size_bytes`.

    The caller has checked `size_bytes` against its limit. Raises ClusterError(CORRUPT_BATCH) for a
    payload that is not one whole frame of that size, MisuseError if the package is missing.
    """
    match codec:
        case Codec.NONE:
            message = payload
        case Codec.ZSTD:
            message = _decompress_zstd(payload, size_bytes)
        case Codec.LZ4:
            message = _decompress_lz4(payload, size_bytes)
        case _:
            assert_never(codec)
    if len(message) != size_bytes:
        raise corrupt(
            f"{len(payload)} payload bytes contain a message of {len(message)} bytes (codec "
            f"{codec.name.lower()}), but the header says {size_bytes}"
        )
    return message


def _decompress_zstd(payload: bytes, size_bytes: int) -> bytes:
    zstandard = _zstandard()
    try:
        # A size in the frame header makes the library reserve that much: check it first.
        named = zstandard.frame_content_size(payload)
        if named > size_bytes:
            raise corrupt(
                f"zstd frame claims {named} content bytes, but the header says {size_bytes}"
            )
        reader = zstandard.ZstdDecompressor(max_window_size=max(size_bytes, ZSTD_WINDOW_BYTES))
        # One extra byte reveals a frame that is too long; 0 would mean no limit.
        return bytes(
            reader.decompress(payload, max_output_size=size_bytes + 1, allow_extra_data=False)
        )
    except zstandard.ZstdError as error:
        raise corrupt(f"zstd cannot decompress {len(payload)} bytes ({error})") from error


def _decompress_lz4(payload: bytes, size_bytes: int) -> bytes:
    reader = _lz4_frame().LZ4FrameDecompressor()
    try:
        message = bytes(reader.decompress(payload, max_length=size_bytes + 1))
    except RuntimeError as error:
        raise corrupt(f"lz4 cannot decompress {len(payload)} bytes ({error})") from error
    if not reader.eof or reader.unused_data:
        raise corrupt(
            f"{len(payload)} payload bytes are not one lz4 frame of {size_bytes} content bytes"
        )
    return message


def _zstandard() -> Any:
    return _import("zstandard", "zstd")


def _lz4_frame() -> Any:
    return _import("lz4.frame", "lz4")


def _import(module: str, codec: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MisuseError(
            f"codec {codec} needs the package {module.partition('.')[0]}, which is not installed: "
            "pip install 'penstock[compression]'"
        ) from error
