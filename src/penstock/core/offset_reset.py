"""Where an offset reset moves a group: a user's request, as an offset per partition.

    ResetTo + what is committed + the log's ends (+ the offset at a time) ──▶ Move

Used by the command line and the ConsumerGroup resource. Offsets outside of the log are refused, so
that a reset never does anything else than requested; `clamp` takes the nearest offset in the log,
and the move records that.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.core.types import TopicPartition
from penstock.errors import ErrorCode, MisuseError, OffsetRange

_UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}
_DURATION: Final = re.compile(
    "P?(?:(?P<d>[0-9]{1,9})D)?T?(?:(?P<h>[0-9]{1,9})H)?(?:(?P<m>[0-9]{1,9})M)?"
    "(?:(?P<s>[0-9]{1,9})S)?",
    re.IGNORECASE,
)


class ResetKind(Enum):
    """Names as in `spec.offsetReset.to` of a ConsumerGroup."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    DATETIME = "datetime"
    DURATION = "duration"
    SHIFT = "shift"


@dataclass(frozen=True, slots=True)
class ResetTo:
    """`number`: the offset, ms since 1970 UTC, ms back from now, or records (negative = back)."""

    kind: ResetKind
    number: int = 0

    def time_ms(self, now_ms: int) -> int | None:
        """The time whose offsets `move` needs; None = it needs none."""
        match self.kind:
            case ResetKind.DATETIME:
                return self.number
            case ResetKind.DURATION:
                return max(0, now_ms - self.number)
            case _:
                return None


@dataclass(frozen=True, slots=True)
class Move:
    """`wanted`: the requested offset, if it was outside of the log and `clamp` moved it."""

    offset: int
    wanted: int | None = None


def parse_duration_ms(text: str) -> int:
    """`PT1H30M`, `P1D`, or without P and T: `1h30m`, `90s`.

    Raises MisuseError.
    """
    found = _DURATION.fullmatch(text)
    parts = {} if found is None else {k: v for k, v in found.groupdict().items() if v}
    if not parts:
        raise MisuseError(
            f"{text!r} is not a duration; write one such as 90s, 1h30m, 2d or PT1H30M",
            ErrorCode.INVALID_REQUEST,
        )
    return sum(int(number) * _UNITS_MS[unit] for unit, number in parts.items())


def move(
    to: ResetTo,
    where: TopicPartition,
    committed: int,
    log: OffsetRange,
    at_time: int,
    *,
    clamp: bool = False,
) -> Move:
    """One partition's new offset.

    Args:
        to: The request.
        where: For messages.
        committed: -1 = none; then a shift is refused.
        log: Where the partition begins and ends.
        at_time: The first offset at `to.time_ms`; -1 = no record is that new: the end.
        clamp: Take the nearest offset in the log instead of refusing.

    Raises MisuseError for an offset outside of the log.
    """
    match to.kind:
        case ResetKind.EARLIEST:
            return Move(log.log_start_offset)
        case ResetKind.LATEST:
            return Move(log.high_watermark)
        case ResetKind.DATETIME | ResetKind.DURATION:
            return Move(at_time if at_time >= 0 else log.high_watermark)
        case ResetKind.OFFSET:
            wanted = to.number
        case ResetKind.SHIFT:
            if committed < 0:
                raise MisuseError(
                    f"{where}: no offset is committed, so none can be shifted; use another kind "
                    "of reset, or other partitions",
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                )
            wanted = committed + to.number
    nearest = min(max(wanted, log.log_start_offset), log.high_watermark)
    if nearest == wanted:
        return Move(wanted)
    if not clamp:
        raise MisuseError(
            f"{where}: offset {wanted} is not in the log, which has {log.log_start_offset} to "
            f"{log.high_watermark}; choose another offset, or use the nearest one (--clamp)",
            ErrorCode.OFFSET_OUT_OF_RANGE,
        )
    return Move(nearest, wanted)
