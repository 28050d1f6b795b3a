"""When a status is written: at once, unless only numbers of moves have changed; those every 10 s.

A move takes hours, and a number of it changes every second. Whoever waits for a change still sees
it at once, and so does whoever waits for the end.
"""

import copy
from collections.abc import Callable, Mapping
from enum import Enum
from time import monotonic
from typing import Any, Final

from penstock_operator.progress import without_figures

PROGRESS_S: Final = 10.0
AGAIN_S: Final = 600.0
"""After which a status that was not stored as it is gets written once more."""
MOVING_REASONS: Final = frozenset({"Draining", "ProvingEmpty", "Spreading", "ChangingFactor"})
"""Their messages count what is left."""
_NUMBERS: Final = ("message", "moving", "moves", "plan")
_BROKER_NUMBERS: Final = ("leaders", "replicas", "bytes")
_DRAIN_NUMBERS: Final = ("replicas", "bytesLeft", "bytesTotal", "eta", "waitingFor")


class Due(Enum):
    """Whether a status is to be written: it says something else now, or will later, or does not."""

    NOW = "now"
    LATER = "later"
    NO = "no"


class Pace:
    """Remembers when each object's status was written. `now_s`: a clock that never goes back."""

    def __init__(self, now_s: Callable[[], float] = monotonic) -> None:
        self._now_s = now_s
        self._written_s: dict[str, float] = {}
        self._stored: dict[str, tuple[float, tuple[dict[str, Any], dict[str, Any]]]] = {}
        """By uid: when a status was written that was not stored as it is, and both."""

    def due(self, uid: str, before: Mapping[str, Any], status: Mapping[str, Any]) -> Due:
        """`before`: the live status, of which only the keys of `status` count. The caller writes
        if it is due now. None in a status stands for a key that is not there."""
        live = {key: before[key] for key in status if key in before}
        wanted = _without_none(status)
        now_s = self._now_s()
        if wanted == live or self._is_no_use(uid, (wanted, live), now_s):
            return Due.NO
        recent = {key: at for key, at in self._written_s.items() if now_s - at < PROGRESS_S}
        if uid in recent and _lasting(wanted) == _lasting(live):
            return Due.LATER
        self._written_s = {**recent, uid: now_s}
        return Due.NOW

    def wrote(self, uid: str, status: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
        """The caller has written `status`, and this is `stored` then. An older CRD drops what it
        does not know: to write the same again would not help."""
        wanted, live = _without_none(status), {key: stored[key] for key in status if key in stored}
        if wanted == live:
            self._stored.pop(uid, None)
        else:
            self._stored[uid] = (self._now_s(), (wanted, live))

    def _is_no_use(self, uid: str, both: tuple[object, object], now_s: float) -> bool:
        found = self._stored.get(uid)
        return found is not None and now_s - found[0] < AGAIN_S and found[1] == both


def _without_none(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in found.items()
        if value is not None
    }


def _lasting(status: Mapping[str, Any]) -> dict[str, Any]:
    """Without numbers of moves."""
    kept = copy.deepcopy({key: each for key, each in status.items() if key not in _NUMBERS})
    for row in kept.get("conditions") or ():
        if row.get("reason") in MOVING_REASONS:
            row.pop("message", None)
        elif "message" in row:  # the reason is another's, and the message may tell of moves, too
            row["message"] = without_figures(row["message"])
    for rows, numbers in (("brokerStatuses", _BROKER_NUMBERS), ("drains", _DRAIN_NUMBERS)):
        for row in kept.get(rows) or ():
            for number in numbers:
                row.pop(number, None)
    return kept
