"""One worker: a copy of the tree in which mutants are tried, one after the other.

A trial writes the mutant into the copy, runs the steps until one fails, and restores the file. It
ends when its time limit does, because a mutant may wait for ever: that counts as noticed. Whatever
a test has started is found by a mark in its environment and ended with the trial.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from tools.mutation.changes import Mutant
from tools.mutation.matters import Step
from tools.mutation.quick import MODULE

MARK: Final = "PENSTOCK_MUTATION_TRIAL"
LIMIT_TIMES: Final = 5
"""A step may take this many times as long as on the tree as it is …"""
LIMIT_AT_LEAST_S: Final = 30.0
"""… and at least this long: others use the machine, too."""
UNKNOWN_S: Final = 60.0
"""What a step is taken to need before it has run without a failure."""
_GRACE_S: Final = 10.0
_POLL_S: Final = 0.1
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_SEED_FAILED: Final = re.compile(r"^seed (\d+)", re.MULTILINE)


class InterruptedTrialError(Exception):
    """Somebody asked to stop."""


class TreeFailsError(Exception):
    """Tests fail on the tree as it is: what they say about mutants means nothing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a trial ended; `by` names the test, seed or limit that noticed it, None: nobody did."""

    by: str | None
    seconds: float


class Copy:
    """A copy of the tree that one worker uses. Owns its folder and all it starts."""

    def __init__(self, root: Path, folder: Path, stop: threading.Event) -> None:
        self.folder = folder
        self._stop = stop
        self._tick = int(time.time_ns() // 1_000_000_000)
        for name in _files_of(root):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target)
        modules = root / "node_modules"
        if modules.exists():
            (folder / "node_modules").symlink_to(modules.resolve())

    def try_out(self, mutant: Mutant, steps: Sequence[Step], usual_s: dict[Step, float]) -> Verdict:
        """Runs the steps on a mutant until one fails.

        `usual_s` is filled: how long each step takes when nothing fails. A step that fails for the
        first time is run on the tree as it is, or its failure would say nothing about the mutant.

        Raises:
            InterruptedTrialError: asked to stop; the file is restored.
            TreeFailsError: a step fails without the mutant, too.
        """
        file = self.folder / mutant.path
        module = file.stem
        before = file.read_text()
        began = time.monotonic()
        for step in steps:
            limit_s = max(LIMIT_AT_LEAST_S, LIMIT_TIMES * usual_s.get(step, UNKNOWN_S))
            started = time.monotonic()
            self._write(file, mutant.text)
            try:
                by = self.run(step, limit_s, module)
            finally:
                self._write(file, before)
            seconds = time.monotonic() - began
            if by is None:
                usual_s.setdefault(step, time.monotonic() - started)
                continue
            if step not in usual_s:
                started = time.monotonic()
                if (failed := self.run(step, LIMIT_TIMES * UNKNOWN_S, module)) is not None:
                    raise TreeFailsError(f"{self.last_output()}\n{failed}")
                usual_s[step] = time.monotonic() - started
            return Verdict(by, seconds)
        return Verdict(None, time.monotonic() - began)

    def run(self, step: Step, limit_s: float, module: str = "") -> str | None:
        """What failed, or that the limit was reached; None: the step passed.

        `module`: its tests come first.

        Raises:
            InterruptedTrialError: asked to stop; everything started has ended.
        """
        log = self.folder / "trial.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                step.command(sys.executable, self.folder),
                cwd=self.folder,
                env={**self._environment(), MODULE: module},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = self._wait(process, limit_s)
            finally:
                self._end(process)
        if code is None:
            return f"{step.name}: no end within {limit_s:.0f} s"
        if code == 0:
            return None
        return f"{step.name}: {_who_failed(log.read_text(errors='replace'))}"

    def last_output(self) -> str:
        """What the last step printed."""
        return (self.folder / "trial.log").read_text(errors="replace")

    def _wait(self, process: subprocess.Popen[bytes], limit_s: float) -> int | None:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL_S)
            if self._stop.is_set():
                raise InterruptedTrialError
        return None

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Ends the step and what it started, also what left its session."""
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
        for one in self._started():
            with contextlib.suppress(psutil.Error):
                one.kill()
        process.kill()
        process.wait()

    def _started(self) -> list[psutil.Process]:
        found = []
        for one in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if one.environ().get(MARK) == str(self.folder):
                    found.append(one)
        return found

    def _environment(self) -> dict[str, str]:
        roots = ("broker_image/src", "operator/src", "src", ".", "tests", "tests/simulation")
        temporary = self.folder.parent / f"{self.folder.name}-tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        return {
            **os.environ,
            MARK: str(self.folder),
            "PYTHONPATH": os.pathsep.join(str(self.folder / root) for root in roots),
            "PYTHONHASHSEED": "0",
            "PENSTOCK_TEST_SEED": "1",
            "TMPDIR": str(temporary),
        }

    def _write(self, file: Path, text: str) -> None:
        """With a time of its own, in whole seconds: compiled modules are compared by that."""
        file.write_text(text)
        self._tick += 1
        os.utime(file, (self._tick, self._tick))


def _who_failed(output: str) -> str:
    found = _FAILED.search(output) or _SEED_FAILED.search(output)
    if found:
        return found.group(1)
    return (output.strip().splitlines() or ["failed without a word"])[-1][:120]


def _files_of(root: Path) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=root, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return [name for name in listed.stdout.splitlines() if (root / name).is_file()]
