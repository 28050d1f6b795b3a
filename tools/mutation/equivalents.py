"""Mutants that behave like the code as it is, each with the reason: `equivalents.toml`.

An entry names the file, the class and function, the changed line as it was and as it is in the
mutant, and why nobody can notice. Line numbers play no part, so entries survive edits elsewhere; an
entry whose line is gone matches nothing, and `stale` finds it.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.mutation.changes import Mutant

FILE: Final = Path(__file__).with_name("equivalents.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalent:
    """An entry of the file. See `Mutant` for the first four fields."""

    path: str
    scope: str
    was: str
    now: str
    why: str


class Equivalents:
    """The entries, found by the content of a mutant."""

    def __init__(self, entries: list[Equivalent]) -> None:
        self.entries = entries
        self._why = {(one.path, one.scope, one.was, one.now): one.why for one in entries}

    @classmethod
    def load(cls, file: Path = FILE) -> "Equivalents":
        """Reads the file; a missing or unknown field raises TypeError."""
        rows = tomllib.loads(file.read_text()).get("equivalent", [])
        return cls([Equivalent(**row) for row in rows])

    def why(self, mutant: Mutant) -> str | None:
        """The reason, if it is one."""
        return self._why.get(mutant.key)

    def stale(self, root: Path) -> list[Equivalent]:
        """Entries whose line does not stand in their file any more."""
        return [one for one in self.entries if not _stands(root / one.path, one.was)]


def _stands(file: Path, was: str) -> bool:
    if not file.is_file():
        return False
    return was in " ".join(line.strip() for line in file.read_text().splitlines())
