"""A finding: one thing that is wrong or waited for, and the words for ages and lists of names."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

NAMES_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong or waited for.

    `subject` and `what` make a sentence; `code` is for programs; `since` as `5m`; `do`: what the
    user can do, None = only wait.
    """

    subject: str
    code: str
    what: str
    since: str | None = None
    evidence: tuple[str, ...] = ()
    do: str | None = None


def count_age(seconds: float) -> str:
    """`12s`, `5m`, `3h`, `9d`: as kubectl counts; a clock that went back shows as 0s."""
    whole = max(0, int(seconds))
    for size, letter in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if whole >= 2 * size:
            return f"{whole // size}{letter}"
    return f"{whole}s"


def some(names: Sequence[str]) -> str:
    """The first names and how many more."""
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
