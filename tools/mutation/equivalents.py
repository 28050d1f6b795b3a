"""Mutants that behave like the code as it is, each with the reason: `equivalents.toml`.

An entry names the file, the class and function, the changed line as it was and as it is in the
mutant, and why nobody can notice; `…` in a field stands for any text. Line numbers play no part, so
entries survive edits elsewhere; an entry whose line is gone matches nothing, and `stale` finds it.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.mutation.changes import Mutant

_ANY: Final = "…"
FILE: Final = Path(__file__).with_name("equivalents.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalent:
    """An entry of the file. See `Mutant` for the first four fields."""

    path: str
    scope: str
    was: str
    now: str
    why: str

    def is_about(self, mutant: Mutant) -> bool:
        """Whether this is the mutant, or one of those that are meant."""
        mine = (self.path, self.scope, self.was, self.now)
        return all(_matches(pattern, text) for pattern, text in zip(mine, mutant.key, strict=True))


class Equivalents:
    """The entries, found by the content of a mutant."""

    def __init__(self, entries: list[Equivalent]) -> None:
        self.entries = entries

    @classmethod
    def load(cls, file: Path = FILE) -> "Equivalents":
        """Reads the file; a missing or unknown field raises TypeError."""
        rows = tomllib.loads(file.read_text()).get("equivalent", [])
        return cls([Equivalent(**row) for row in rows])

    def why(self, mutant: Mutant) -> str | None:
        """The reason, if it is one."""
        return next((one.why for one in self.entries if one.is_about(mutant)), None)

    def stale(self, root: Path) -> list[Equivalent]:
        """Entries whose line does not stand in their file any more."""
        return [one for one in self.entries if not _stands(root, one)]


def _matches(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split(_ANY))), text) is not None


def _contains(text: str, pattern: str) -> bool:
    """Whether the pattern is somewhere in the text, which is a whole file: a regular expression
    would try all ends for all beginnings."""
    at = 0
    for part in pattern.split(_ANY):
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def _stands(root: Path, entry: Equivalent) -> bool:
    """Whether a file that is meant has the line."""
    return any(
        _contains(" ".join(line.strip() for line in file.read_text().splitlines()), entry.was)
        for file in root.glob(entry.path.replace(_ANY, "**/*.py"))
        if file.is_file()
    )
