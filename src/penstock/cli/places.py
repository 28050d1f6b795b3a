"""Offsets as users write them: `beginning`, `end`, `1234`, `-10`, `@2013-06-01T12:00`.

Parsing is pure; `resolve` asks the cluster and answers an offset per partition.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Final

from penstock.cli.usage import WrongUsageError

if TYPE_CHECKING:
    from penstock.client import Admin
    from penstock.core.types import TopicPartition


TIME_FORMS: Final = "milliseconds since 1970, or ISO 8601 no earlier, such as 2013-06-01T12:00"


class PlaceKind(Enum):
    """BEFORE_END counts back from the end; TIME is the first record at or after a moment."""

    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    BEFORE_END = "before end"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Place:
    """`number`: the offset, how many records before the end, or ms since 1970 UTC."""

    kind: PlaceKind
    number: int = 0


def parse_place(text: str, option: str) -> Place:
    """Raises WrongUsageError that lists the possible forms."""
    if text in ("beginning", "start", "earliest"):
        return Place(PlaceKind.BEGINNING)
    if text in ("end", "latest"):
        return Place(PlaceKind.END)
    if re.fullmatch(r"[0-9]{1,18}", text):
        return Place(PlaceKind.OFFSET, int(text))
    if re.fullmatch(r"-[0-9]{1,18}", text):
        return Place(PlaceKind.BEFORE_END, -int(text))
    if text.startswith("@"):
        return Place(PlaceKind.TIME, parse_time_ms(text[1:], option))
    raise WrongUsageError(
        f"{option} is {text!r}; it must be beginning, end, an offset, -N (the last N records), "
        "or @ with a time: milliseconds or 2013-06-01T12:00"
    )


def parse_time_ms(text: str, option: str) -> int:
    """Milliseconds since 1970, or ISO 8601; without a zone it is UTC. Raises WrongUsageError."""
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    wrong = WrongUsageError(f"{option} has the time {text!r}; it must be {TIME_FORMS}")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise wrong from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    time_ms = int(moment.timestamp() * 1000)
    if time_ms < 0:
        raise wrong
    return time_ms


def resolve(
    admin: "Admin", place: Place, partitions: "Sequence[TopicPartition]"
) -> "dict[TopicPartition, int]":
    """The offset in each partition; a time after all records means the end.

    A plain offset is taken as given: the consumer reports an offset that is not in the log.
    """
    from penstock.client import EARLIEST, LATEST  # noqa: PLC0415 - grpc only when needed

    match place.kind:
        case PlaceKind.OFFSET:
            return dict.fromkeys(partitions, place.number)
        case PlaceKind.BEGINNING:
            listed = admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
            return {one: listed[one].offset for one in partitions}
    listed = admin.list_offsets(dict.fromkeys(partitions, LATEST))
    ends = {one: listed[one].offset for one in partitions}
    if place.kind is PlaceKind.BEFORE_END:
        listed = admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
        return {one: max(ends[one] - place.number, listed[one].offset) for one in partitions}
    if place.kind is PlaceKind.TIME:
        listed = admin.list_offsets(dict.fromkeys(partitions, place.number))
        return {one: seen if (seen := listed[one].offset) >= 0 else ends[one] for one in partitions}
    return ends
