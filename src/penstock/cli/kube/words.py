"""The events that support a finding: shared by `why` and `pods`. Pure."""

from collections.abc import Sequence
from typing import Final

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


def _is(seen: str, name: str, *, prefix: bool) -> bool:
    return seen == name or (prefix and seen.startswith(f"{name}-"))
