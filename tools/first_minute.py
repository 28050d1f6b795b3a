"""A newcomer's first minute: the commands that `check_wheel` proves and `recording` shows.

    bare environment ─▶ install ─▶ STEPS, each through a terminal ─▶ every line, when it came

The path of the home is told as `~`: it says nothing about a newcomer's machine.
"""

import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

COLUMNS, ROWS = 100, 48
LIMIT_S: Final = 300.0
"""Of one command, on a slow machine with a slow network."""
_READ_BYTES: Final = 65_536
_UNTIL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Step:
    """`said`: what must be in its output. `ends` False: it goes on until Ctrl-C, which follows
    once that was said."""

    command: str
    said: str
    ends: bool = True


STEPS: Final = (
    Step("penstock local up --detach", "cluster local is running on"),
    Step("penstock topic create hello", "topic hello created: 3 partitions"),
    Step("echo world | penstock produce hello", ""),
    Step("penstock consume hello -e", "world"),
    Step("penstock status", "Healthy:          yes"),
    Step(
        "penstock ui --no-browser", "open in a browser (counts once): http://127.0.0.1:", ends=False
    ),
    Step("penstock local down --purge --yes --cluster local", "stopped"),
)


@dataclass(frozen=True, slots=True)
class Shell:
    """Where commands run: a home of their own, and the programs of one environment."""

    programs: Path
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        """Nothing of whoever runs this but the language."""
        return {
            "PATH": f"{self.programs}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            "TERM": "xterm-256color",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},
        }

    def play(self, step: Step) -> Iterator[tuple[float, str]]:
        """Each piece of its output with the seconds since it began; at its end, an empty one.

        Raises SystemExit if it fails, or does not say what it must.
        """
        leader, follower = pty.openpty()
        began_s = monotonic()
        os.set_blocking(leader, False)
        _size(follower)
        process = subprocess.Popen(
            ["/bin/bash", "-c", step.command], env=self.environment, cwd=self.home,
            stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
        )  # fmt: skip
        os.close(follower)
        whole = ""
        try:
            for text in _lines(leader, process):
                shown = text.replace(str(self.home), "~")
                whole += shown
                yield monotonic() - began_s, shown
                if not step.ends and step.said in whole:
                    os.killpg(process.pid, signal.SIGINT)
            process.wait(LIMIT_S)
            yield monotonic() - began_s, ""  # a quiet command takes time too
        finally:
            os.close(leader)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(LIMIT_S)
        if step.said not in whole or (step.ends and process.returncode):
            raise SystemExit(
                f"{step.command}: exit code {process.returncode}, and no {step.said!r} in:\n{whole}"
            )


def _size(terminal: int) -> None:
    import fcntl  # noqa: PLC0415 - only of systems that have terminals
    import struct  # noqa: PLC0415 - likewise
    import termios  # noqa: PLC0415 - likewise

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))


def _lines(leader: int, process: "subprocess.Popen[bytes]") -> Iterator[str]:
    """Whole lines, as the terminal gets them; what is left without an end comes last."""
    until_s = monotonic() + LIMIT_S
    rest = b""
    while True:
        ended = process.poll() is not None
        ready, _, _ = select.select([leader], [], [], 0 if ended else _UNTIL_S)
        data = b""
        if ready:
            try:
                data = os.read(leader, _READ_BYTES)
            except OSError:  # nobody has the other side open any more
                ended = True
        if data:
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace") + "\n"
        elif ended:
            break
        if monotonic() > until_s:
            raise SystemExit(f"{process.args!r} does not end within {LIMIT_S:.0f} s:\n{rest!r}")
    if rest:
        yield rest.decode(errors="replace")
