"""What a broker's data directory has beside its log: the production's, its files in memory.

It outlives the processes. Nothing of it is lost with the power: every change is durable when it
returns.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
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
        self._file = JournalFile(path / "journal.json", kept)

    @property
    def journal_file(self) -> JournalFile:
        return self._file

    def _store(self, meta: Meta) -> None:
        self._meta = meta

    def acknowledge_loss(self) -> None:
        super().acknowledge_loss()
        self._accepted()

    def set_intact(self, intact: bool) -> None:
        """What the next run finds: the power went, or not."""
        self._store(replace(self._meta, data_lost=not intact))
