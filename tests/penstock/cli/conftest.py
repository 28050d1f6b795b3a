"""A local cluster started by `penstock local up --detach`, for the tests of the program."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import command_line, forked
from support.local import processes_of, write_manifest
from support.terminals import typing
from support.waiting import wait_until

_HOMES = ("state", "config")


@dataclass(frozen=True)
class Program:
    """Runs `penstock` as a user would, with a home of its own below `folder`."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK")}
        homes = {f"XDG_{name.upper()}_HOME": str(self.folder / name) for name in _HOMES}
        return {**clean, **homes, "COLUMNS": "200"}

    def start(
        self, *words: object, python: Sequence[str] = command_line.PYTHON, **options: Any
    ) -> "subprocess.Popen[bytes]":
        """In the background; standard input, output and error are pipes. `python`: words before."""
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return command_line.start(
            *words, python=python, env=self.environment, cwd=self.folder, **{**pipes, **options}
        )

    def run(self, *words: object, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        """To its end, whatever its exit code. No run may ever print a traceback."""
        done = command_line.run(*words, env=self.environment, stdin=stdin, cwd=self.folder)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def answer(self, text: str, *words: object) -> "subprocess.CompletedProcess[str]":
        """To its end, with a terminal where `text` is typed."""
        with typing(text) as terminal:
            process = self.start(*words, stdin=terminal)
            out, err = process.communicate(timeout=forked.RUN_TIMEOUT_S)
        return subprocess.CompletedProcess(
            process.args, process.returncode, out.decode(), err.decode()
        )

    def ok(self, *words: object, stdin: str = "") -> str:
        """Its standard output; it must succeed."""
        done = self.run(*words, stdin=stdin)
        assert done.returncode == 0, f"penstock {words}: {done.returncode}\n{done.stderr}"
        return done.stdout

    def fails(self, *words: object, stdin: str = "", code: int = 1) -> str:
        """Its one line of error; it must end with `code`: 2 is wrong usage."""
        done = self.run(*words, stdin=stdin)
        assert done.returncode == code, f"penstock {words}: {done.returncode}\n{done.stderr}"
        assert done.stderr.startswith("penstock: "), done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
        return done.stderr.removeprefix("penstock: ").rstrip("\n")


def expect_nothing_left(folder: Path) -> None:
    """All processes of the folder have ended, or do so shortly; a failed test's are killed."""
    try:
        wait_until(lambda: not processes_of(folder), what="nothing is left running")
    finally:
        for pid in processes_of(folder):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """A program whose local clusters, if any, have ended when the test has."""
    yield Program(tmp_path)
    expect_nothing_left(tmp_path)


@pytest.fixture(scope="module")
def penstock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A program beside a running local cluster of two brokers: use topics of your own."""
    folder = tmp_path_factory.mktemp("cli")
    program = Program(folder)
    manifest = write_manifest(folder, brokers=2, patient=True)
    try:
        program.ok("local", "up", "-f", manifest, "--detach", "--port", 0)
        yield program
    finally:
        program.run("local", "down", "--purge", "--yes")
        expect_nothing_left(folder)
