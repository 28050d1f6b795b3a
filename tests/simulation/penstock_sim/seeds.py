"""Seeds that are always played: each failed once, and says why (`tests/simulation/seeds.txt`)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).resolve().parent.parent / "seeds.txt"


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
