"""What a broker's data directory has beside its log: the production's, its files in memory.

It outlives the processes. Nothing of it is lost with the power: every change is durable when it
returns.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from penstock.core.control.journal.contract import Journal
from penstock.core.control.journal.holder import JournalHolder
from penstock.core.types import BrokerId
from penstock_broker.datadir import FORMAT, DataDirectory, Meta


class JournalFile:
    """A `SmallFile` that says what is kept in it."""

    def __init__(self, path: Path, kept: Callable[[Journal], None]) -> None:
        self.path = path
        self._kept = kept
        self._content: bytes | None = None
        self._journal: Journal | None = None

    def read(self) -> bytes | None:
        return self._content

    def replace(self, content: bytes) -> None:
        self._content = content
        journal = msgspec.json.decode(content, type=JournalHolder).journal
        if journal != self._journal:
            self._journal = journal
            self._kept(journal)

    def put_back(self, content: bytes | None) -> None:
        """As it was; nobody has kept anything."""
        self._content = content


@dataclass(frozen=True, slots=True)
class DirectoryCopy:
    """What a copy of the folder has, beside the log."""

    meta: Meta
    generations: tuple[str, ...]
    journal: bytes | None


class SimDirectory(DataDirectory):
    """See the module. New: its first run has lost all that it never had."""

    def __init__(
        self,
        broker_id: BrokerId,
        accepted: Callable[[], None],
        kept: Callable[[Journal], None],
        disk: int = 1,
    ) -> None:
        """`accepted`: a controller knows of a run. `kept`: a journal is on disk. `disk`: counts
        those of the broker."""
        path = Path(f"/simulated/{broker_id}")
        name = f"directory-{broker_id}" + ("" if disk == 1 else f".{disk}")
        meta = Meta(FORMAT, "", broker_id, name, "boot")
        super().__init__(path, meta, io.StringIO(), fresh=False)
        self._accepted = accepted
        self._named = 0
        self._file = JournalFile(path / "journal.json", kept)

    @property
    def journal_file(self) -> JournalFile:
        return self._file

    def _store(self, meta: Meta) -> None:
        self._meta = meta

    def registration_accepted(self) -> None:
        super().registration_accepted()
        self._accepted()

    def set_intact(self, intact: bool) -> None:
        """What the next run finds: the power went, or not."""
        self._store(replace(self._meta, data_lost=not intact))

    def opened(self) -> None:
        """By a new run, as `DataDirectory.open`."""
        self._begin_run()

    def _new_generation(self) -> str:
        """The same in each play of a history."""
        self._named += 1
        return f"{self.directory_id} {self._named}"

    def _store_generations(self, names: tuple[str, ...]) -> None:
        self._generations = names

    def copy(self) -> DirectoryCopy:
        """As it is now."""
        return DirectoryCopy(self._meta, self._generations, self._file.read())

    def restore(self, copy: DirectoryCopy) -> None:
        """As it was then."""
        self._store(copy.meta)
        self._store_generations(copy.generations)
        self._file.put_back(copy.journal)
