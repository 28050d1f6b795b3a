"""Runs the snippets of a page in their order, as a reader in a checkout would.

    page ──tools.snippets──▶ snippets ──▶ bash, or the page's one Python ──▶ what they print
                                              │                                  │
              a cluster: the one that the page starts (`penstock local up`),   compared with what
              else three brokers that are there                                the page shows

A page says localhost:9092, or means it by saying nothing, and its cluster listens elsewhere here:
addresses are put in place before a snippet runs, and taken back in what it prints. A workload that
a page runs for many seconds runs for a few. Nothing of the reader's is touched: the home is a
directory of the test, and what is left running ends with it.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, Self

from support.cluster import Cluster
from support.waiting import wait_until

from tools.snippets.output import matches
from tools.snippets.page import SHELL, How, Snippet
from tools.snippets.shell import sessions

ROOT: Final = Path(__file__).resolve().parents[2]
_INTERPRETER: Final = Path(__file__).with_name("document_python.py")
TIMEOUT_S: Final = 120.0
FIRST_PORT: Final = 9092
"""Of the cluster that pages write about; broker i has the i-th after it."""
_UP: Final = re.compile(r"\bpenstock local up\b(?!.* --port)")
_DURATION: Final = re.compile(r"(\bpenstock verify run\b.* --duration )\d+")
_DURATION_S: Final = 4
"""What a workload without a rate takes of both cores, all that is tested beside it lacks."""
_EXAMPLE: Final = re.compile(r"\bpython -m examples\.[\w.]+")
_ADDRESS: Final = re.compile(r"\b(?:localhost|127\.0\.0\.1):9092\b")
_NEEDED: Final = ("jq", "openssl")
_NOT_LINKED: Final = (".git", ".venv", "build")
"""Commands of pages name files of a checkout, and write beside them."""


def _left(test: str) -> tuple[How, str]:
    return How.ELSEWHERE, test


def is_run(snippet: Snippet) -> bool:
    return snippet.how in (How.RUN, How.GIVEN)


class Python(Protocol):
    """What runs the programs of a page, all in one namespace."""

    def run(self, text: str, place: str, until: str) -> str:
        """What the program prints; it must end, or print `until` and be interrupted."""

    def close(self) -> None:
        """After the last one."""


def until(snippet: Snippet) -> str:
    """After what text it is interrupted; "" if it ends by itself."""
    return snippet.detail if snippet.how is How.RUN else ""


def starts_a_cluster(snippets: Sequence[Snippet]) -> bool:
    return any(is_run(one) and _UP.search(one.text) for one in snippets)


def missing_programs(snippets: Sequence[Snippet]) -> list[str]:
    """Those that a page runs, that no shell has by itself, and that this machine lacks."""
    text = "".join(one.text for one in snippets if is_run(one) and one.language in SHELL)
    return [name for name in _NEEDED if f"{name} " in text and shutil.which(name) is None]


class PageRun:
    """One page."""

    def __init__(self, folder: Path, cluster: Cluster | None, python: Python | None = None) -> None:
        """`folder` is its own. `cluster` None: the page starts one. `python` None: a process."""
        self._folder = folder
        self._work = folder / "work"
        self._work.mkdir(parents=True)
        for shown in ROOT.iterdir():
            if shown.name not in _NOT_LINKED:
                (self._work / shown.name).symlink_to(shown)
        (self._work / ".venv").symlink_to(sys.prefix)
        program = folder / "bin" / "penstock"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m penstock.cli "$@"\n')
        program.chmod(0o755)
        self._cluster = cluster
        self._addresses: list[str] = [] if cluster is None else cluster.bootstrap.split(",")
        """Of the brokers that run; empty if it must be asked."""
        self._python = python
        self._shells: list[subprocess.Popen[bytes]] = []
        self._printed: str | None = None
        """By the last snippet; None if it was not run."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._python is not None:
            self._python.close()
        try:
            if self._cluster is None:
                self._bash("penstock local down --purge --yes >/dev/null 2>&1 || true", "end", "")
        finally:
            for pid in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for shell in self._shells:
                shell.wait(30)
            wait_until(lambda: not self.processes(), what="nothing of the page is left running")

    def processes(self) -> list[int]:
        """All that the page has started, its cluster too: they have its home."""
        home = f"HOME={self._folder}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):  # it ended while we looked, or is another user's
                if entry.name.isdecimal() and home in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def run(self, snippets: Sequence[Snippet], left_to: str = "") -> None:
        """All that run here, or that the page leaves to the test `left_to`.

        Raises AssertionError with the place of the first that fails.
        """
        for snippet in snippets:
            if snippet.how is How.OUTPUT:
                if self._printed is not None:
                    self._compare(snippet.place, snippet.text, self._printed)
            elif not (is_run(snippet) or (snippet.how, snippet.detail) == _left(left_to)):
                self._printed = None
            elif snippet.language == "python":
                text = self._here(snippet.text)
                self._printed = self._interpreter().run(text, snippet.place, until(snippet))
            elif snippet.language == "console":
                self._console(snippet)
            elif snippet.language in SHELL:
                self._printed = self._bash(snippet.text, snippet.place, until(snippet))

    def _console(self, snippet: Snippet) -> None:
        printed = ""
        for session in sessions(snippet.text):
            one = self._bash(session.command, snippet.place, until(snippet))
            if session.shown:
                self._compare(f"{snippet.place}: {session.command}", session.shown, one)
            printed += one
        self._printed = printed

    def _compare(self, place: str, shown: str, printed: str) -> None:
        printed = self._as_shown(printed)
        assert matches(shown, printed), f"{place} shows\n{shown}\nbut this was printed:\n{printed}"

    def _bash(self, text: str, place: str, until: str) -> str:
        """What it prints on both outputs; it must succeed, or print `until` and be interrupted."""
        text = self._here(text)
        if _UP.search(text):
            self._addresses = []
            text = _UP.sub(r"\g<0> --port 0", text)
        text = _DURATION.sub(rf"\g<1>{_DURATION_S}", text)
        if _EXAMPLE.search(text):
            text = _EXAMPLE.sub(rf"\g<0> --bootstrap {self._broker()}", text)
        output = self._folder / f"output-{len(self._shells)}"
        with output.open("wb") as file:
            shell = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", text],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self._work,
                env=self._environment(),
                process_group=0,
            )
        self._shells.append(shell)

        def ended() -> bool:
            return shell.poll() is not None or bool(
                until and until in output.read_text(errors="replace")
            )

        wait_until(ended, what=f"{place} ends", timeout_s=TIMEOUT_S)
        if until and shell.poll() is None:
            os.killpg(shell.pid, signal.SIGINT)
            wait_until(lambda: shell.poll() is not None, what=f"{place} ends by Ctrl-C")
        printed = output.read_text(errors="replace")
        if until:
            assert until in printed, f"{place} did not print {until!r}, but:\n{printed}"
        else:
            assert shell.returncode == 0, f"{place}: exit code {shell.returncode}\n{printed}"
        return printed

    def _here(self, text: str) -> str:
        """With the addresses of the page's cluster."""
        return _ADDRESS.sub(self._broker(), text) if _ADDRESS.search(text) else text

    def _broker(self) -> str:
        """The first one."""
        brokers = self._brokers()
        assert brokers, "the page talks to a cluster, but none is running"
        return brokers[0]

    def _as_shown(self, printed: str) -> str:
        """With the addresses that a page writes."""
        for at, address in enumerate(self._brokers()):
            printed = re.sub(rf"\b{re.escape(address)}\b", f"127.0.0.1:{FIRST_PORT + at}", printed)
        return printed

    def _brokers(self) -> list[str]:
        if not self._addresses:
            said = self._bash("penstock local status -o json 2>/dev/null || true", "status", "")
            self._addresses = json.loads(said or "{}").get("bootstrap", "").split(",")
        return [one for one in self._addresses if one]

    def _interpreter(self) -> Python:
        if self._python is None:
            self._python = _Process(self._folder, self._work, self._environment())
        return self._python

    def _environment(self) -> dict[str, str]:
        clean = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PENSTOCK", "XDG_", "PYTEST"))
        }
        given = self._cluster is not None
        own = {"PENSTOCK_BOOTSTRAP": ",".join(self._addresses)} if given else {}
        return {
            **clean,
            **own,
            "PATH": f"{self._folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(self._work), *(each for each in sys.path if each)]),
            "HOME": str(self._folder),
            "KUBECONFIG": os.devnull,
            "BROWSER": "true",
            "COLUMNS": "120",
        }


class _Process:
    """The Python of a page, which keeps its names from program to program."""

    def __init__(self, folder: Path, work: Path, environment: Mapping[str, str]) -> None:
        self._output = folder / "output-python"
        answers, theirs = os.pipe()
        with self._output.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-u", str(_INTERPRETER), str(theirs)],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=work,
                env={**environment, "PENSTOCK_PAGE": str(folder)},
                pass_fds=(theirs,),
            )
        os.close(theirs)
        os.set_blocking(answers, False)
        self._answers = os.fdopen(answers, "rb", buffering=0)

    def run(self, text: str, place: str, until: str) -> str:
        """What it prints; it must end, or print `until` and be interrupted."""
        assert self._process.stdin is not None
        began = self._output.stat().st_size
        program = {"text": text, "place": place}
        self._process.stdin.write(json.dumps(program).encode() + b"\n")
        self._process.stdin.flush()
        answer = b""

        def printed() -> str:
            return self._output.read_bytes()[began:].decode(errors="replace")

        def answered() -> bool:
            nonlocal answer
            answer += self._answers.read() or b""
            assert self._process.poll() is None, f"{place} ended Python:\n{printed()}"
            return answer.endswith(b"\n")

        def done() -> bool:
            return answered() or bool(until and until in printed())

        wait_until(done, what=f"{place} ends", timeout_s=TIMEOUT_S)
        if not answer:
            self._process.send_signal(signal.SIGINT)
            wait_until(answered, what=f"{place} ends by Ctrl-C")
        wanted = "interrupted" if until else "done"
        assert answer.decode().strip() == wanted, f"{place}: {answer.decode()}{printed()}"
        return printed()

    def close(self) -> None:
        self._process.kill()
        self._process.wait(30)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._answers.close()
