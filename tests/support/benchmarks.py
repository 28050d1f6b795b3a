"""A benchmark in a process of its own, as a terminal starts it, and nothing of it afterwards."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.descendants import descendants_of, still_running
from support.waiting import wait_exit, wait_until

ROOT = Path(__file__).parents[2]


@contextmanager
def running(
    command: Sequence[str], folder: Path, seen: dict[int, str]
) -> Iterator["subprocess.Popen[bytes]"]:
    """Its words go to `out` and `err` in `folder`, its files to `tmp` there.

    Of what it has started, and of `seen`, nothing runs afterwards.
    """
    scratch = folder / "tmp"
    scratch.mkdir()
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "TMPDIR": str(scratch)},
            stdin=subprocess.DEVNULL, stdout=out, stderr=err, process_group=0,
        )  # fmt: skip
    try:
        yield process
    finally:
        left = seen | descendants_of(process.pid)
        process.kill()
        process.wait()
        for pid in still_running(left):
            os.kill(pid, signal.SIGKILL)


def check_nothing_is_left(
    command: Sequence[str], folder: Path, how: signal.Signals, *, busy: str, servers: Sequence[str]
) -> None:
    """Ends it by `how` while a process with `busy` in its command runs; nothing it started stays.

    `servers`: what else has to be among that. SIGINT goes to all of them, as from a terminal.
    """
    started: dict[int, str] = {}

    def is_busy() -> bool:
        assert process.poll() is None, (folder / "err").read_text()
        started.update(descendants_of(process.pid))
        return any(busy in one for one in started.values())

    with running(command, folder, started) as process:
        wait_until(is_busy, what=f"{busy} runs", timeout_s=90)
        for server in servers:
            assert any(server in one for one in started.values())
        os.killpg(process.pid, how) if how is signal.SIGINT else process.send_signal(how)
        wait_exit(process, 60)
        wait_until(lambda: not still_running(started), what="everything has ended", timeout_s=40)
