"""Ctrl-C at any moment of the demo: everything it started ends, nothing is left on disk."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.descendants import descendants_of, still_running
from support.waiting import wait_until

ROOT = Path(__file__).parents[2]
PATIENCE_S = 180


@contextmanager
def running_demo(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The demo in a process group of its own, as a terminal starts it; output in demo.log."""
    scratch = folder / "tmp"
    scratch.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)}
    with (folder / "demo.log").open("wb") as log:
        demo = subprocess.Popen(
            [sys.executable, "-m", "examples.flights.demo"],
            cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            process_group=0,
        )  # fmt: skip
    seen: dict[int, str] = {}
    try:
        yield demo
    finally:
        seen |= descendants_of(demo.pid)
        demo.kill()
        demo.wait()
        for pid in still_running(seen):
            os.kill(pid, signal.SIGKILL)


def brokers(commands: dict[int, str]) -> int:
    return sum("penstock_broker" in command for command in commands.values())


MOMENTS = ["brokers start", "Spark starts", "flights are produced", "a process was killed"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_leaves_nothing(tmp_path: Path, moment: str) -> None:
    def has_come() -> bool:
        assert demo.poll() is None, (tmp_path / "demo.log").read_text()
        running = descendants_of(demo.pid)
        if moment == "brokers start":
            return brokers(running) >= 2
        if moment == "Spark starts":
            return any("java" in command for command in running.values())
        said = "kill -9" if moment == "a process was killed" else "producing with acks=all"
        return said in (tmp_path / "demo.log").read_text()

    with running_demo(tmp_path) as demo:
        wait_until(has_come, what=moment, timeout_s=PATIENCE_S)
        started = descendants_of(demo.pid)
        assert started, "it has begun"
        os.killpg(demo.pid, signal.SIGINT)
        demo.wait(PATIENCE_S)
        output = (tmp_path / "demo.log").read_text()
        assert demo.returncode == 130, output
        assert "Traceback" not in output
        assert output.rstrip().endswith("interrupted: everything was stopped")
        wait_until(lambda: not still_running(started), what="all of it has ended")
        scratch = tmp_path / "tmp"
        # A process that was started just before the interruption is not among these.
        wait_until(lambda: not list(scratch.iterdir()), what="nothing is left on disk")
