"""`scrub.json` of a data directory: how far the scrub of each log is.

A restart continues where the former run was, about a minute earlier at most. Nothing depends on the
file: without it, or if it is damaged, every log counts as never read, and is read once more.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.core.replication.scrub import ScrubProgress, Urgency
from penstock.core.types import Offset, ReplicaKey, TopicId
from penstock_broker.datadir import SmallFile
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


class _Content(msgspec.Struct):
    format: int
    logs: list[_Entry]


def load(file: SmallFile) -> dict[ReplicaKey, ScrubProgress]:
    """Blocks. Empty if there is no file, or none that can be used."""
    try:
        content = file.read()
        if content is None:
            return {}
        found = msgspec.json.decode(content, type=_Content)
    except (OSError, msgspec.DecodeError) as error:
        _events.warning("record of the scrub unusable: begins again", reason=str(error))
        return {}
    if found.format != _FORMAT:
        _events.warning("record of the scrub is of another release", format=found.format)
        return {}
    return {
        ReplicaKey(TopicId(one.topic_id), one.partition): ScrubProgress(
            one.since_ms, one.urgency, one.began_ms, Offset(one.next_offset)
        )
        for one in found.logs
    }


def save(file: SmallFile, logs: Mapping[ReplicaKey, ScrubProgress]) -> None:
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
        for key, one in logs.items()
    ]
    try:
        file.replace(msgspec.json.encode(_Content(_FORMAT, entries)))
    except OSError as error:
        _events.warning("record of the scrub not stored", reason=str(error))
