"""Self-describing records: a value tells which record it is and whether it was changed.

A value is a row of 64-bit little-endian words:

    run tag | stream | sequence | body, if any | mix(stream, sequence, body) repeated to the end

A stream is one key of one producer; its sequences count from 0. The body is for workloads whose
records have a content (`bank.py`, `ring.py`). NumPy builds and checks whole batches, so that
verifying costs less than reading.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

WORD_BYTES: Final = 8
HEAD_WORDS: Final = 3
RECORD_BYTES_MIN: Final = (HEAD_WORDS + 1) * WORD_BYTES
_WORD_MASK: Final = (1 << 64) - 1
_ODD: Final = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: spreads consecutive integers
_ODD2: Final = 0xC2B2AE3D27D4EB4F

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Run:
    """Records with consecutive offsets and consecutive sequences of one stream, and one body."""

    offset: int
    stream: int
    sequence: int
    count: int
    body: tuple[int, ...] = ()


def build_values(
    tag: int, stream: int, first: int, count: int, record_bytes: int, *, body: Sequence[int] = ()
) -> bytes:
    """`count` values end to end, sequences [first, first + count), all with the same body.

    `record_bytes` is a multiple of 8, at least `RECORD_BYTES_MIN` and a word per word of the body.
    Words of the body are signed.
    """
    words = record_bytes // WORD_BYTES
    rows = np.empty((count, words), dtype="<u8")
    sequences = np.arange(first, first + count, dtype=np.uint64)
    rows[:, 0] = tag
    rows[:, 1] = stream
    rows[:, 2] = sequences
    mixed = _mix(np.uint64(stream), sequences)
    for at, word in enumerate(body, HEAD_WORDS):
        rows[:, at] = np.uint64(word & _WORD_MASK)
        mixed = _mix(mixed, rows[:, at])
    rows[:, HEAD_WORDS + len(body) :] = mixed[:, None]
    return rows.tobytes()


def parse_values(
    tag: int, data: bytes | memoryview, record_bytes: int, base_offset: int, body_words: int = 0
) -> tuple[list[Run], list[int]]:
    """The runs in these values, and the offsets whose bytes are not what any producer sent.

    `data` holds whole values of `record_bytes` each; the first has `base_offset`.
    """
    rows = np.frombuffer(data, dtype="<u8").reshape(-1, record_bytes // WORD_BYTES)
    streams, sequences = rows[:, 1], rows[:, 2]
    intact = rows[:, 0] == np.uint64(tag)
    mixed = _mix(streams, sequences)
    for at in range(HEAD_WORDS, HEAD_WORDS + body_words):
        mixed = _mix(mixed, rows[:, at])
    intact &= (rows[:, HEAD_WORDS + body_words :] == mixed[:, None]).all(axis=1)
    changed = [base_offset + int(row) for row in np.flatnonzero(~intact)]
    breaks = (streams[1:] != streams[:-1]) | (sequences[1:] != sequences[:-1] + np.uint64(1))
    breaks |= intact[1:] != intact[:-1]
    bodies = rows[:, HEAD_WORDS : HEAD_WORDS + body_words].view("<i8")
    breaks |= (bodies[1:] != bodies[:-1]).any(axis=1)
    starts = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(rows)]
    runs = [
        Run(
            base_offset + lo,
            int(streams[lo]),
            int(sequences[lo]),
            hi - lo,
            tuple(bodies[lo].tolist()),
        )
        for lo, hi in pairwise(starts)
        if hi > lo and intact[lo]
    ]
    return runs, changed


def _mix(stream: "np.uint64 | Words", sequences: Words) -> Words:
    with np.errstate(over="ignore"):
        mixed = (sequences + np.uint64(1)) * np.uint64(_ODD)
        # Both factors are odd, so that flipping any bit of either word changes the product.
        mixed = mixed ^ ((np.asarray(stream, dtype=np.uint64) + np.uint64(1)) * np.uint64(_ODD2))
        mixed = mixed ^ (mixed >> np.uint64(29))
        return np.asarray(mixed, dtype=np.uint64)
