"""Runs `penstock`, forked from a process that has imported it (`support.forked`).

Tests of how it is installed, of its imports and of terminals start a Python of their own instead.
"""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from support import forked

PYTHON = ("-m", "penstock.cli")


def start(
    *words: object, python: Sequence[str] = PYTHON, **options: Any
) -> "subprocess.Popen[Any]":
    """In the background. `python`: words before; `options`: of `subprocess.Popen`."""
    return forked.Popen(forked.COMMAND_LINE, [*python, *map(str, words)], **options)


def run(
    *words: object, env: Mapping[str, str] | None = None, stdin: str = "", **options: Any
) -> "subprocess.CompletedProcess[str]":
    """To its end, whatever its exit code. `env` None: that of the tests."""
    said = [*PYTHON, *map(str, words)]
    return forked.run(forked.COMMAND_LINE, said, env=env, stdin=stdin, **options)


def heed_hangups() -> None:
    """In a new process. Whoever started these tests may ignore them, as nohup does, and programs
    inherit that."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
