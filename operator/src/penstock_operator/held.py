"""What the API server has refused is tried again later and later: a policy may stay for days.

Without this, a Cluster with one object that is denied would ask a dozen times each second.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from penstock.kubernetes.errors import KubernetesError
from penstock_operator.model import Action, Wait

FIRST_S: Final = 1.0
MOST_S: Final = 15.0
_NO_REFUSALS: Final = frozenset({401, 404, 408, 409, 429})
"""HTTP statuses from 400 to 499 that say nothing of what was asked for."""


@dataclass(frozen=True, slots=True)
class _Refused:
    action: Action
    wait: Wait
    pause_s: float
    until_s: float


def is_refusal(error: KubernetesError) -> bool:
    """Whether the same request would fail again, until somebody changes something."""
    return 400 <= error.status < 500 and error.status not in _NO_REFUSALS


class Held:
    """Of one Cluster. `now_s`: a clock that never goes back."""

    def __init__(self, now_s: Callable[[], float] = monotonic) -> None:
        self._now_s = now_s
        self._refused: list[_Refused] = []

    def only(self, actions: tuple[Action, ...]) -> None:
        """Forgets what is no longer planned."""
        self._refused = [one for one in self._refused if one.action in actions]

    def why(self, action: Action) -> Wait | None:
        """Why it is not to be tried now; None: it is."""
        found = self._find(action)
        return None if found is None or found.until_s <= self._now_s() else found.wait

    def failed(self, action: Action, wait: Wait, error: KubernetesError) -> None:
        """It was tried. Nothing is held that fails for another reason than what it asks for."""
        before = self._find(action)
        self._refused = [one for one in self._refused if one is not before]
        if is_refusal(error):
            pause_s = FIRST_S if before is None else min(2 * before.pause_s, MOST_S)
            self._refused.append(_Refused(action, wait, pause_s, self._now_s() + pause_s))

    def _find(self, action: Action) -> _Refused | None:
        return next((one for one in self._refused if one.action == action), None)
