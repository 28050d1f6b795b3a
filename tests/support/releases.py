"""Former releases of this project, as trees that processes run from.

releases.txt ─▶ commit ─▶ git archive ─▶ a folder ─▶ PYTHONPATH of a server process
"""

import subprocess
import tarfile
from pathlib import Path
from typing import Final

from support.missing import cannot_run
from support.processes import ServerProcess

ROOT: Final = Path(__file__).resolve().parents[2]
_FILE: Final = ROOT / "tests/support/releases.txt"
_PACKAGES: Final = ("src", "broker_image/src")


def commits() -> dict[str, str]:
    """The commit of each former release, by its name: N-2, N-1."""
    lines = [line.split("#")[0].split() for line in _FILE.read_text().splitlines()]
    return {line[0]: line[1] for line in lines if line}


class Releases:
    """Their trees, taken from the history into a folder."""

    def __init__(self, folder: Path) -> None:
        self._trees = {name: _extract(commit, folder / name) for name, commit in commits().items()}

    def use(self, process: ServerProcess, name: str) -> None:
        """From its next start on; "N": this release."""
        paths = [] if name == "N" else [str(self._trees[name] / one) for one in _PACKAGES]
        process.environment.pop("PYTHONPATH", None)
        if paths:
            process.environment["PYTHONPATH"] = ":".join(paths)


def _extract(commit: str, folder: Path) -> Path:
    """Where the history lacks the commit, in a shallow clone, the test is skipped; in CI it fails,
    because nobody would miss it there."""
    folder.mkdir(parents=True)
    archive = folder / "tree.tar"
    with archive.open("wb") as file:
        made = subprocess.run(
            ["git", "-C", str(ROOT), "archive", commit, *_PACKAGES],
            stdout=file,
            stderr=subprocess.PIPE,
            check=False,
        )
    if made.returncode:
        cannot_run(f"this clone has no commit {commit}: {made.stderr.decode().strip()}")
    with tarfile.open(archive) as tree:
        tree.extractall(folder, filter="data")
    archive.unlink()
    return folder
