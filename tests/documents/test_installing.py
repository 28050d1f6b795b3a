"""`pip install 'penstock[…]'` of README.md and docs/*.md, docs/tutorials/*.md, as it stands there.

pip installs the wheel of this tree. What the wheel asks for must be there already: the environment
has what the lock pins, except Penstock, and pip may ask no index. `make wheel` does the same with
an index, into environments that have nothing.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.documents import ROOT

from tools.snippets.page import How, Snippet, documents, read_page
from tools.snippets.shell import script

HERE = "tests/documents/test_installing.py"
SNIPPETS = [
    snippet
    for page in documents(ROOT)
    for snippet in read_page(ROOT, page)
    if snippet.how is How.ELSEWHERE and snippet.detail == HERE
]


class Fresh:
    """An environment with everything but Penstock, and the folder where pip finds its wheel."""

    def __init__(self, folder: Path) -> None:
        self._home, self._wheels = folder, folder / "wheels"
        build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir")
        subprocess.run([*build, self._wheels, ROOT], check=True, capture_output=True)
        venv.create(folder / "environment", with_pip=False)
        self.programs = folder / "environment" / "bin"
        (packages,) = (folder / "environment" / "lib").glob("python3*/site-packages")
        there = Path(sysconfig.get_path("purelib"))
        for part in there.iterdir():
            if not part.name.lower().startswith(("penstock", "_penstock", "pyspark_penstock")):
                (packages / part.name).symlink_to(part)
        pip = self.programs / "pip"
        pip.write_text(f'#!/bin/sh\nexec "{self.programs}/python" -m pip "$@"\n')
        pip.chmod(0o755)

    def run(self, *words: str) -> str:
        """What it said. Raises AssertionError if it fails."""
        here = {
            "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self._home),
            "PIP_NO_COMPILE": "1",  # of 800 modules, the programs here import some
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self._wheels),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        done = subprocess.run(
            words,
            env=here, cwd=self._home, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.stdout}"
        return done.stdout


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    return Fresh(tmp_path_factory.mktemp("installing"))


@pytest.fixture(autouse=True)
def without_penstock(fresh: Fresh) -> Iterator[None]:
    yield
    fresh.run("pip", "uninstall", "--yes", "penstock")


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda one: one.page)
def test_what_a_page_says_to_install_is_installed_and_runs(fresh: Fresh, snippet: Snippet) -> None:
    said = fresh.run("bash", "-euc", script(snippet.language, snippet.text))
    assert "Successfully installed penstock-" in said
    assert "does not provide the extra" not in said
    found = fresh.run(
        "python", "-c", "import penstock.client, sys; print(penstock.__file__, sys.prefix)"
    )
    place, prefix = found.split()
    assert place.startswith(prefix), "the wheel's, not the tree's"
    assert "Version:" in fresh.run("penstock", "version")
