"""A benchmark in a process of its own, as a terminal starts it, and nothing of it afterwards."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.descendants import descendants_of, still_running

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
            stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        left = seen | descendants_of(process.pid)
        process.kill()
        process.wait()
        for pid in still_running(left):
            os.kill(pid, signal.SIGKILL)
