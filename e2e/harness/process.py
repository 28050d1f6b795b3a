"""Commands on this machine, and waiting with a deadline.

Every command has a time limit; one that fails raises CommandError, whose text is one line: what was
run, how it ended and the last thing it said. Programs are looked for in the cache of compiled ones
first, then in /usr/bin: Debian's docker client fits its engine.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

A = TypeVar("A")

ROOT: Final = Path(__file__).resolve().parents[2]
CLUSTER_NAME: Final = os.environ.get("PENSTOCK_E2E_CLUSTER", "penstock-e2e")
POLL_S: Final = 0.25
LINE_CHARACTERS_MAX: Final = 300


class E2EError(Exception):
    """Something a scenario cannot go on after; the text is one line for people."""


class CommandError(E2EError):
    """A command that failed. `output` is all that it wrote to standard error."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


class NoClusterError(E2EError):
    """There is nothing to play on."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program with its arguments, `input` for its standard input and a limit in seconds."""

    args: Sequence[str]
    input: bytes | None = None
    timeout_s: float = 60.0


def cache() -> Path:
    """Where e2e/cluster keeps what it compiled, and the kubeconfig."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("PENSTOCK_KUBERNETES_CACHE") or f"{base}/penstock-kubernetes")


def environment() -> dict[str, str]:
    """This process's environment with our programs first and the cluster's kubeconfig."""
    return {
        **os.environ,
        "PATH": f"{cache() / 'bin'}:/usr/bin:{os.environ.get('PATH', '')}",
        "KUBECONFIG": str(kubeconfig()),
    }


def kubeconfig() -> Path:
    """Of the cluster; it exists only while the cluster does."""
    return cache() / f"{CLUSTER_NAME}.kubeconfig"


def run(*args: str, timeout_s: float = 60.0) -> str:
    """Runs a command and returns what it printed. Raises CommandError."""
    return run_bytes(Command(args, timeout_s=timeout_s)).decode(errors="replace")


def run_bytes(command: Command) -> bytes:
    """As `run`, with standard input, and the output as it is."""
    shown = " ".join(command.args[:6]) + (" …" if len(command.args) > 6 else "")
    try:
        ended = subprocess.run(
            command.args,
            input=command.input,
            stdin=subprocess.DEVNULL if command.input is None else None,
            capture_output=True,
            timeout=command.timeout_s,
            env=environment(),
            cwd=ROOT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{shown}: not done after {command.timeout_s:.0f} s") from error
    except FileNotFoundError as error:
        raise CommandError(f"{shown}: no program {command.args[0]}: run e2e/cluster/up") from error
    if ended.returncode != 0:
        said = ended.stderr.decode(errors="replace").strip()
        raise CommandError(f"{shown}: exit {ended.returncode}: {last_line(said)}", said)
    return ended.stdout


def stream(*args: str, timeout_s: float | None = None) -> None:
    """Runs a long command whose progress the user shall see. Raises CommandError.

    One that takes too long is ended by SIGTERM, with its process group.
    """
    with subprocess.Popen(args, env=environment(), cwd=ROOT, start_new_session=True) as running:
        try:
            code = running.wait(timeout_s)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGTERM)
            if isinstance(error, subprocess.TimeoutExpired):
                late = f"{' '.join(args[:4])}: not done after {timeout_s:.0f} s"
                raise CommandError(late) from error
            raise
    if code != 0:
        raise CommandError(f"{' '.join(args[:4])}: exit {code}")


def last_line(text: str) -> str:
    """The last line that says something, cut to a readable length."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:LINE_CHARACTERS_MAX] if lines else "no message"


def wait_until(what: str, condition: Callable[[], A], deadline_s: float = 60.0) -> A:
    """The first truthy answer; what fails meanwhile (a command, the API server) is asked again.

    Raises E2EError that says `what`, and what was seen last, after `deadline_s`.
    """
    end = time.monotonic() + deadline_s
    while True:
        try:
            answer = condition()
            seen = "" if answer is None or isinstance(answer, bool) else f" (last seen: {answer!r})"
        except CommandError as error:
            answer, seen = None, f" (last seen: {error})"
        if answer:
            return answer
        if time.monotonic() >= end:
            raise E2EError(f"{what}: not within {deadline_s:.0f} s{seen}")
        time.sleep(POLL_S)
