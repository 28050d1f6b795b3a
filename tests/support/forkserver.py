"""A process that has imported a program once, and forks a copy of itself for each of its starts.

    python -P forkserver.py penstock_broker.__main__ … ␣␣␣…    (standard input: a socket)

    tests ──words, environment, three files──▶ fork server ──fork──▶ middle ──fork──▶ the program
      ▲                                             │                   └ ends at once
      └───────────────────── its pid ───────────────┘ waits for the middle's end

The middle ends so that the program becomes a child of the tests, which are a "child subreaper" for
that moment (`support.forked`): they signal it, wait for it and get its exit code as of any other.
The fork server only imports. It runs no thread and opens no gRPC channel: neither would survive a
fork. It ends when the tests do. Its last word is room for the command lines that the programs show.
"""

import ctypes
import faulthandler
import gc
import importlib
import json
import os
import runpy
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

REQUEST_BYTES_MAX = 128 * 1024
"""Less than the kernel takes as one message."""


@dataclass(frozen=True, slots=True)
class Start:
    """What to run: `words` as after `python`, either `-m module …` or `-P file …`."""

    words: list[str]
    environment: dict[str, str]
    directory: str

    def encode(self) -> bytes:
        return json.dumps([self.words, self.environment, self.directory]).encode()

    @classmethod
    def decode(cls, content: bytes) -> "Start":
        return cls(*json.loads(content))


def serve() -> Start | None:
    """Forks until the tests have ended (None). In a forked program: what it shall run."""
    with socket.socket(fileno=0) as tests:
        while True:
            try:
                content, files, _, _ = socket.recv_fds(tests, REQUEST_BYTES_MAX, 3)
            except KeyboardInterrupt:  # a terminal's Ctrl-C reaches all of its processes
                return None
            if not content:
                return None
            if (pid := _fork()) == 0:
                tests.detach()
                for number, file in enumerate(files):
                    os.dup2(file, number)
                    os.close(file)
                return Start.decode(content)
            for file in files:
                os.close(file)
            tests.send(str(pid).encode())


def _fork() -> int:
    """The program's pid; 0 in the program."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{threads} threads run: only one would be there after a fork"
    reading, writing = os.pipe()
    middle = os.fork()
    if middle == 0:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            os.write(writing, str(pid).encode())
            os._exit(0)
        os.close(reading)
        os.close(writing)
        while os.getppid() == parent:  # it ends now: what the program sees is its parent for good
            os.sched_yield()
        return 0
    os.close(writing)
    os.waitpid(middle, 0)
    with os.fdopen(reading, "rb") as answer:
        return int(answer.read())


def _show_command(words: list[str]) -> None:
    """Makes /proc/self/cmdline these words, by which tests and people find a process.

    The kernel reads it from where it put the fork server's own, between two addresses. Those are
    fields 48 and 49 of /proc/self/stat (man 5 proc).
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    command = os.fsencode("\0".join([sys.executable, *words]))[: end - begin - 1]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, command, len(command))


def run(start: Start) -> None:
    """As `python` does with these words."""
    _show_command(start.words)
    os.environ.clear()
    os.environ.update(start.environment)
    os.chdir(start.directory)
    faulthandler.enable()  # what a program that hangs does is asked for with SIGABRT
    how, what, *rest = start.words
    sys.argv = [what, *rest]
    if how == "-m":
        sys.path.insert(0, start.directory)
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(what, run_name="__main__")


if __name__ == "__main__":
    for name in sys.argv[1:-1]:
        importlib.import_module(name)
    gc.freeze()  # what all forked programs share is not searched, so its pages stay shared
    wanted = serve()
    if wanted is not None:
        run(wanted)
