"""The status of a ConsumerGroup, and when it is worth a write.

Pure. Figures change all the time, and the API server is not the place for a time series (metrics
are): at most one write per group in `WRITE_EVERY_MS`, and

- state, members, conditions, replicas: as soon as they changed;
- lag: when it becomes known or unknown, or when it differs by a tenth from the written value (in
  records, so also when it changes to or from 0; in seconds, by at least 10). If records differ by
  less, `SETTLE_MS` after the last write, so that the written value is exact at rest;
- answers to a person's change: at once (a new generation, a reset).

So a group at rest costs no writes, and a stuck one fewer and fewer: its lag in seconds has to grow
by a tenth.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock_operator.conditions import conditions
from penstock_operator.groups.model import GroupResource, Lag, ScaleFacts, Seen
from penstock_operator.model import Object, Wait

WRITE_EVERY_MS: Final = 10_000
SETTLE_MS: Final = 60_000
_SECONDS_NOISE: Final = 10
_URGENT: Final = ("observedGeneration", "lastReset", "dryRun", "pendingReset", "resetIds")
_MESSAGE_MAX: Final = 1_000


def group_status(
    resource: GroupResource, seen: Seen, waits: Sequence[Wait], note: str, now: str
) -> Object:
    """What was observed and what the group is waiting for; records of resets are not part of it.

    While brokers do not answer, state and members are the last known ones, and lag is unknown.
    """
    before, facts = resource.status, seen.facts
    ready = waits[0] if waits else None
    text = ready.message if ready is not None else note
    return {
        "observedGeneration": resource.generation,
        "conditions": conditions(
            ready, waits, resource.generation, before.get("conditions") or (), now
        ),
        "message": text[:_MESSAGE_MAX],
        "state": facts.state if facts else before.get("state", ""),
        "members": facts.members if facts else before.get("members", 0),
        "lag": _lag(facts.lag if facts else None),
    }


def scale_status(seen: Seen, note: str) -> Object:
    """`note`: why the replicas stay as they are."""
    if not isinstance(seen.scale, ScaleFacts):
        return {"scale": None}
    return {"scale": {"replicas": seen.scale.replicas, "message": note[:_MESSAGE_MAX]}}


def _lag(lag: Lag | None) -> Object | None:
    return None if lag is None else {"records": lag.records, "seconds": lag.seconds}


def worth_writing(before: Mapping[str, Any], after: Object, since_ms: int | None) -> bool:
    """Whether `after`, some keys of a status, should replace `before`.

    `since_ms`: time since the last write; None = no write is remembered.
    """
    changed = {key for key in after if after[key] != before.get(key)}
    if not changed:
        return False
    if changed & set(_URGENT) or since_ms is None:
        return True
    if since_ms < WRITE_EVERY_MS:
        return False
    return changed != {"lag"} or _lag_moved(before.get("lag"), after["lag"], since_ms)


def _lag_moved(
    before: Mapping[str, int] | None, after: Mapping[str, int] | None, since_ms: int
) -> bool:
    if not before or not after:
        return True
    old, new = before["records"], after["records"]
    if old != new and (since_ms >= SETTLE_MS or _apart(old, new)):
        return True
    old, new = before["seconds"], after["seconds"]
    return _apart(old, new) and abs(old - new) >= _SECONDS_NOISE


def _apart(old: int, new: int) -> bool:
    return abs(old - new) * 10 >= max(old, new, 1)
