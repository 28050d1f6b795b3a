"""Commands of a page, run as they stand there."""

import os
import subprocess
import sys
from pathlib import Path

from support.cluster import Cluster
from support.documents import ROOT
from support.terminals import typing

from tools.snippets.page import read_page


def commands_with(page: str, words: str) -> list[str]:
    """The lines of the only snippet of a page that has these words."""
    (snippet,) = (one for one in read_page(ROOT, page) if words in one.text)
    return snippet.text.splitlines()


def told(cluster: Cluster, command: str, *, code: int = 0) -> str:
    """What a command says to somebody who agrees; it must end with `code`."""
    here = os.environ | {
        "PENSTOCK_BOOTSTRAP": cluster.bootstrap,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "200",
    }
    with typing("y\n") as answer:
        done = subprocess.run(
            ["bash", "-euc", command],
            stdin=answer, env=here, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout
