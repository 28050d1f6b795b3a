"""`scrub.json` of a data directory: how far the scrub of each log is, and which logs differ.

A restart continues where the former run was, about a minute earlier at most. Nothing depends on the
file: without it, or if it is damaged, every log counts as never read, and is read once more.
What differs is found again then. An older release reads the rest, and leaves that out.
"""

from dataclasses import dataclass, field
from typing import Final

import msgspec

from penstock.core.replication.digests import LogDigest, OffsetRange
from penstock.core.replication.scrub import ScrubProgress, Urgency
from penstock.core.types import BrokerId, Offset, ReplicaKey, TopicId
from penstock_broker.durable_files import SmallFile
from penstock_broker.maintenance.comparing import Differences, LogDifference
from penstock_broker.observability import EventLog

_FORMAT: Final = 1
_events = EventLog("scrub")


class _Entry(msgspec.Struct):
    topic_id: str
    partition: int
    since_ms: int
    urgency: Urgency
    began_ms: int = 0
    next_offset: int = 0


class _Difference(msgspec.Struct):
    topic_id: str
    partition: int
    start: int
    end: int
    leader: int
    own: tuple[int, int]
    leaders: tuple[int, int]
    found_ms: int


class _Content(msgspec.Struct):
    format: int
    logs: list[_Entry]
    differences: list[_Difference] = []


@dataclass(frozen=True, slots=True)
class Record:
    """What the file has."""

    logs: dict[ReplicaKey, ScrubProgress] = field(default_factory=dict)
    differences: Differences = field(default_factory=dict)


def load(file: SmallFile) -> Record:
    """Blocks. Empty if there is no file, or none that can be used."""
    try:
        content = file.read()
        if content is None:
            return Record()
        found = msgspec.json.decode(content, type=_Content)
    except (OSError, msgspec.DecodeError) as error:
        _events.warning("record of the scrub unusable: begins again", reason=str(error))
        return Record()
    if found.format != _FORMAT:
        _events.warning("record of the scrub is of another release", format=found.format)
        return Record()
    logs = {
        ReplicaKey(TopicId(one.topic_id), one.partition): ScrubProgress(
            one.since_ms, one.urgency, one.began_ms, Offset(one.next_offset)
        )
        for one in found.logs
    }
    differences: Differences = {}
    for one in found.differences:
        within = OffsetRange(Offset(one.start), Offset(one.end))
        key = ReplicaKey(TopicId(one.topic_id), one.partition)
        differences.setdefault(key, {})[within.number] = LogDifference(
            within,
            BrokerId(one.leader),
            LogDigest(*one.own),
            LogDigest(*one.leaders),
            one.found_ms,
        )
    return Record(logs, differences)


def save(file: SmallFile, record: Record) -> None:
    """Blocks. Failing to is no reason to stop: it costs a log that is read once more."""
    entries = [
        _Entry(
            key.topic_id,
            key.partition,
            one.since_ms,
            one.urgency,
            one.began_ms,
            one.next_offset,
        )
        for key, one in record.logs.items()
    ]
    differences = [
        _Difference(
            key.topic_id,
            key.partition,
            one.within.start,
            one.within.end,
            one.leader,
            (one.own.batches, one.own.crc),
            (one.leaders.batches, one.leaders.crc),
            one.found_ms,
        )
        for key, found in record.differences.items()
        for one in found.values()
    ]
    try:
        file.replace(msgspec.json.encode(_Content(_FORMAT, entries, differences)))
    except OSError as error:
        _events.warning("record of the scrub not stored", reason=str(error))
