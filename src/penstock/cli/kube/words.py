"""The events that support a finding: shared by `why` and `pods`. Pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from penstock.cli.kube.snapshot import event_time, parse_time
from penstock.kubernetes.resources import Json

WARNINGS_SHOWN: Final = 3


def warnings_about(
    events: Sequence[Json], kind: str, name: str, *, prefix: bool = False
) -> tuple[str, ...]:
    """The latest warnings about an object, each once, the newest last."""
    found = dict.fromkeys(
        f"{event.get('reason')}: {' '.join(str(event.get('message') or '').split())}"
        for event in events
        if event.get("type") == "Warning"
        and event["involvedObject"].get("kind") == kind
        and _is(str(event["involvedObject"].get("name", "")), name, prefix=prefix)
    )
    return tuple(found)[-WARNINGS_SHOWN:]


def last_told(
    events: Sequence[Json], kind: str, name: str, reason: str, after: datetime
) -> Json | None:
    """The newest Event with this reason about an object, if it is that new. `events`: oldest
    first."""
    for event in reversed(events):
        about, at = event["involvedObject"], parse_time(event_time(event))
        told = event.get("reason"), about.get("kind"), about.get("name")
        if told == (reason, kind, name) and at is not None and at >= after:
            return event
    return None


def _is(seen: str, name: str, *, prefix: bool) -> bool:
    return seen == name or (prefix and seen.startswith(f"{name}-"))
