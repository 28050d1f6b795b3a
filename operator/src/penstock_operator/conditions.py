"""Conditions, as kstatus means them: `kubectl wait`, Helm and Argo CD read them. Pure.

`Ready` is True when it works as specified, `Reconciling` True while steps follow by themselves,
`Stalled` True when a person has to act. A condition's `lastTransitionTime` says since when; it
stays while its status stays, so that a status that has not changed is equal to the live one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock_operator.model import Object, Severity, Wait

READY: Final = "Ready"
RECONCILING: Final = "Reconciling"
STALLED: Final = "Stalled"
HIBERNATED: Final = "Hibernated"
"""Reason of what waits for a Cluster to wake, which does not happen by itself."""
MESSAGE_MAX: Final = 1_000
_AS_DESIRED: Final = ("AsDesired", "everything is as it should be")
_USABLE: Final = ("Usable", "it can be used; Reconciling and Stalled say what is not done yet")


def conditions(
    ready: Wait | None,
    waits: Sequence[Wait],
    generation: int,
    before: Sequence[Mapping[str, Any]],
    now: str,
) -> list[Object]:
    """The three conditions. `ready` None: it is Ready; otherwise why not. `now`: RFC 3339."""
    blocked = [wait for wait in waits if wait.severity is Severity.BLOCKED]
    moving = [
        wait for wait in waits if wait.severity is Severity.PROGRESS and wait.reason != HIBERNATED
    ]
    usable = _USABLE if blocked or moving else _AS_DESIRED
    rows = [
        (READY, "True", *usable)
        if ready is None
        else (READY, "False", ready.reason, ready.message),
        (RECONCILING, "True", moving[0].reason, _all(moving))
        if moving
        else (RECONCILING, "False", "NothingToDo", ""),
        (STALLED, "True", blocked[0].reason, _all(blocked))
        if blocked
        else (STALLED, "False", "NotStalled", ""),
    ]
    known = {each["type"]: each for each in before}
    return [condition(row, generation, known.get(row[0]), now) for row in rows]


def condition(
    row: tuple[str, str, str, str], generation: int, before: Mapping[str, Any] | None, now: str
) -> Object:
    """`row`: type, status, reason, message. `before`: the condition of this type as it is now."""
    kind, status, reason, message = row
    same = before is not None and before.get("status") == status
    since = before["lastTransitionTime"] if same and before is not None else now
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message[:MESSAGE_MAX],
        "observedGeneration": generation,
        "lastTransitionTime": since,
    }


def _all(waits: Sequence[Wait]) -> str:
    return "; ".join(dict.fromkeys(wait.message for wait in waits))
