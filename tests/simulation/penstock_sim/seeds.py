"""Which seeds to play: those that once failed (`tests/simulation/seeds.txt`), and new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

FILE: Final = Path(__file__).resolve().parent.parent / "seeds.txt"
_SEEDS_PER_MS: Final = 10
"""More than any machine plays, so that a range never overlaps the next run's."""


def kept_seeds(text: str | None = None) -> dict[int, str]:
    """Seed and reason, in the order of the file (or of `text`); raises ValueError on a bad line."""
    found: dict[int, str] = {}
    lines = (FILE.read_text(encoding="utf-8") if text is None else text).splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        seed, _, reason = line.strip().partition(" ")
        if not seed.isdigit() or not reason.strip():
            raise ValueError(
                f"seeds.txt:{number}: expected a seed and why it is kept, got {line!r}"
            )
        if int(seed) in found:
            raise ValueError(f"seeds.txt:{number}: {seed} is there already")
        found[int(seed)] = reason.strip()
    return found


@dataclass(frozen=True, slots=True)
class FreshSeeds:
    """Seeds from `first` on, for `seconds` counted from the request for the first."""

    first: int
    seconds: float
    clock: Callable[[], float] = monotonic

    def __iter__(self) -> Iterator[int]:
        seed, end_s = self.first, self.clock() + self.seconds
        while self.clock() < end_s:
            yield seed
            seed += 1


def fresh_seeds(now_ms: int, seconds: float) -> FreshSeeds:
    """A range that no run has played that began in another millisecond of the wall clock."""
    return FreshSeeds(now_ms * _SEEDS_PER_MS, seconds)
