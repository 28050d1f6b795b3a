"""The problems of a manifest, as the user reads them.

A problem says where (`Topic/flights: spec.replicas`), what was seen, the limit and what to do.
All problems of a manifest are collected, never only the first.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

_SHOWN_MAX: Final = 20
"""Names up to this number are all shown: the fields of a Cluster are fewer."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: where (`Topic/flights: spec.replicas`) and what to do about it."""

    subject: str
    path: str
    text: str

    def __str__(self) -> str:
        sentence = f"{self.path} {self.text}" if self.path else self.text
        return f"{self.subject}: {sentence}" if self.subject else sentence


class Report:
    """Collects the problems of one object. `subject` is its name for the user: `Topic/flights`."""

    __slots__ = ("problems", "subject")

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.problems: list[Problem] = []

    def add(self, path: str, text: str) -> None:
        self.problems.append(Problem(self.subject, path, text))


def describe(value: object) -> str:
    """A value as a message shows it: short, with its kind if that is the mistake."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the string {_shorten(value)!r}"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return f"{_shorten(str(value))} ({type(value).__name__})"


def quote_hint(value: object) -> str:
    """YAML reads some strings as something else unless they are quoted."""
    return " (put it in quotes)" if isinstance(value, int | float) else ""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`; did you mean x?`, or else the known names, or nothing if there are many."""
    names = sorted(known)
    folded = {name.lower(): name for name in names}
    close = difflib.get_close_matches(given.lower(), folded, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {folded[close[0]]}?"
    return f"; known here: {', '.join(names)}" if names and len(names) <= _SHOWN_MAX else ""


def _shorten(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
