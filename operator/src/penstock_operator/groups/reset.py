"""An offset reset as in the spec: its target in the log, its description, its record in the status.

Pure. The record is written twice: as `pendingReset` before the coordinator is asked, as `lastReset`
after it answered. If an operator dies in between, the first record and the reset's id in the
coordinator remain: so the old offsets are known to whichever operator writes the second.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from penstock.core.manifest.objects import OffsetReset
from penstock.core.manifest.status import OFFSETS_SHOWN_MAX, RESET_IDS_MAX
from penstock.core.offset_reset import ResetKind, ResetTo, parse_duration_ms
from penstock.core.types import TopicPartition
from penstock.errors import ErrorCode, MisuseError
from penstock_operator.model import Object

_REQUEST_MAX: Final = 400
_EVENT_OFFSETS: Final = 5


def reset_to(reset: OffsetReset) -> ResetTo:
    """Raises MisuseError for a day that does not exist, such as 2030-02-30."""
    kind = reset.to
    match kind:
        case ResetKind.EARLIEST | ResetKind.LATEST:
            return ResetTo(kind)
        case ResetKind.OFFSET | ResetKind.SHIFT:
            return ResetTo(kind, int(reset.value))
        case ResetKind.DURATION:
            return ResetTo(kind, parse_duration_ms(reset.value))
        case ResetKind.DATETIME:
            return ResetTo(kind, _time_ms(reset.value))


def _time_ms(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise MisuseError(
            f"spec.offsetReset.value is {text!r}, which is not a time ({error}); write one such "
            "as 2030-01-31T12:00:00Z",
            ErrorCode.INVALID_REQUEST,
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000)


def in_words(reset: OffsetReset) -> str:
    """`to earliest`, `to offset 7 in flights, weather`."""
    to = f"by {reset.value} records" if reset.to.value == "shift" else f"to {reset.to.value}"
    if reset.value and reset.to.value != "shift":
        to += f" {reset.value}"
    text = f"{to} in {', '.join(reset.topics)}" if reset.topics else to
    return text if len(text) <= _REQUEST_MAX else f"{text[: _REQUEST_MAX - 1]}…"


def record_of(
    reset: OffsetReset, offsets: Mapping[TopicPartition, tuple[int, int]], time: str
) -> Object:
    """The record in the status. `offsets`: old (-1 = none was committed) and new, per partition."""
    moved = [(old, new) for old, new in offsets.values() if old >= 0]
    again = sum(max(0, old - new) for old, new in moved)
    skipped = sum(max(0, new - old) for old, new in moved)
    count = "1 partition" if len(offsets) == 1 else f"{len(offsets)} partitions"
    verb = "would be set" if reset.dry_run else "set"
    text = f"{count} {verb} {in_words(reset)}: {again} offsets back, {skipped} offsets forward"
    shown = sorted(offsets.items(), key=lambda each: (each[0].topic, each[0].partition))
    return {
        "id": reset.id,
        "time": time,
        "request": in_words(reset),
        "message": text,
        "partitions": len(offsets),
        "offsetsBack": again,
        "offsetsForward": skipped,
        "offsets": [
            {"partition": str(where), "old": old, "new": new}
            for where, (old, new) in shown[:OFFSETS_SHOWN_MAX]
        ],
    }


def found_done(reset: OffsetReset, time_ms: int) -> Object:
    """The record of a reset that was applied at that time, for a resource that no longer exists."""
    text = "the coordinator had already applied it; the old offsets are not known here"
    time = datetime.fromtimestamp(time_ms // 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"id": reset.id, "time": time, "request": in_words(reset), "message": text}


def done(record: Object, status: Mapping[str, Any]) -> Object:
    """The part of a status that says that a reset was applied."""
    known = [each for each in status.get("resetIds") or () if each != record["id"]]
    ids = [*known, record["id"]][-RESET_IDS_MAX:]
    return {"lastReset": record, "pendingReset": None, "resetIds": ids}


def told(record: Mapping[str, Any]) -> str:
    """A record, as text for an Event."""
    offsets = record.get("offsets") or ()
    parts = [
        f"{each['partition']} {each['old'] if each['old'] >= 0 else 'none'} → {each['new']}"
        for each in offsets[:_EVENT_OFFSETS]
    ]
    more = record.get("partitions", 0) - len(parts)
    if parts and more > 0:
        parts.append(f"{more} more")
    return f"{record['id']}: {record['message']}" + (f" ({', '.join(parts)})" if parts else "")
