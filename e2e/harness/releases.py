"""Former releases of this project that it works beside: their commits, and what they were made of.

e2e/releases.txt ─▶ commit ─▶ git archive ─▶ a folder: sources, Dockerfiles, chart with CRDs
"""

import shutil
import tarfile
from pathlib import Path
from typing import Final

from e2e.harness.process import ROOT, CommandError, E2EError, cache, run

FILE: Final = ROOT / "e2e/releases.txt"


def commits() -> dict[str, str]:
    """The commit of each former release, by its name: N-2, N-1."""
    lines = [line.split("#")[0].split() for line in FILE.read_text().splitlines()]
    return {line[0]: line[1] for line in lines if line}


def extract(commit: str, folder: Path, *paths: str) -> None:
    """Puts these files and folders of a commit into a new folder; all of them if none is named.

    Raises E2EError if this clone lacks the commit, as a shallow one does.
    """
    folder.mkdir(parents=True)
    archive = folder / "tree.tar"
    try:
        run("git", "archive", f"--output={archive}", commit, *paths)
    except CommandError as error:
        raise E2EError(
            f"this clone has no commit {commit} (git fetch --unshallow): {error}"
        ) from error
    with tarfile.open(archive) as tree:
        tree.extractall(folder, filter="data")
    archive.unlink()


def tree(release: str) -> Path:
    """All of a release, kept for the next time. Raises E2EError."""
    commit = commits()[release]
    folder = cache() / "releases" / commit
    if not folder.exists():
        part = folder.with_name(f"{commit}.part")
        shutil.rmtree(part, ignore_errors=True)
        extract(commit, part)
        part.rename(folder)
    return folder
