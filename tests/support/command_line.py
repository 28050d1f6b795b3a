"""Runs `penstock`, forked from a process that has imported it (`support.forked`).

Tests of how it is installed, of its imports and of terminals start a Python of their own instead.
"""

import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from support import forked

TIMEOUT_S = 300
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
    pipe = subprocess.PIPE
    process = start(*words, stdin=pipe, stdout=pipe, stderr=pipe, env=env, **options)
    try:
        out, err = process.communicate(stdin.encode(), timeout=TIMEOUT_S)
    finally:
        process.kill()
    said = [str(word) for word in words]
    return subprocess.CompletedProcess(said, process.returncode, out.decode(), err.decode())
