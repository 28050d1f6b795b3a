"""What somebody changes of an object while we apply it: a mutating webhook, as one that rewrites
images to a mirror.

    apply ─▶ the answer has other values than we sent ─▶ told, and remembered
    plan  ─▶ the live object differs from ours in just that ─▶ it stays: another apply is no use
                             differs in anything else       ─▶ applied again

Tried again every `AGAIN_S`: the webhook may be gone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Final, NamedTuple

AGAIN_S: Final = 600.0
_SHOWN: Final = 3
_VALUE_MAX: Final = 120
Key = tuple[str, str]
"""Kind and name of an object."""


class Difference(NamedTuple):
    """`path`: as `spec.template.spec.containers[broker].image`. Values as JSON."""

    path: str
    live: str
    wanted: str


@dataclass(frozen=True, slots=True)
class Overruled:
    """`applied`: the fingerprint of what was applied. `differences`: of the answer, in order."""

    applied: str
    differences: tuple[Difference, ...]

    @property
    def in_words(self) -> str:
        shown = [
            f"{one.path} is {one.live[:_VALUE_MAX]}, not {one.wanted[:_VALUE_MAX]}"
            for one in self.differences[:_SHOWN]
        ]
        more = len(self.differences) - len(shown)
        return "; ".join(shown) + (f"; and {more} more" if more else "")


class Overrulings:
    """Of the objects of one Cluster. `now_s`: a clock that never goes back."""

    def __init__(self, now_s: Callable[[], float] = monotonic) -> None:
        self._now_s = now_s
        self._known: dict[Key, tuple[float, Overruled]] = {}

    def note(self, key: Key, found: Overruled) -> None:
        """What came of applying an object; nothing if there are no differences."""
        if found.differences:
            self._known[key] = (self._now_s(), found)
        else:
            self._known.pop(key, None)

    @property
    def known(self) -> Mapping[Key, Overruled]:
        """Those that are not to be tried again yet."""
        now_s = self._now_s()
        return {key: found for key, (at, found) in self._known.items() if now_s - at < AGAIN_S}
