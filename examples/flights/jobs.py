"""Processes beside the demo's own: the transformer and Spark, killed and started again.

A job is one command. Each start is a process group of its own, so that what it started itself
(Spark's JVM) is killed with it. What it prints as JSON, one object per line, is its report.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.errors import ClusterError

ROOT = Path(__file__).parent.parent.parent
STOP_SECONDS = 10.0
Report = dict[str, Any]


class Job:
    """`hear` is called with each report, in a thread of the job's. `ready`: it works as soon as it
    is started; others know when."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: list[str],
        results: Path,
        hear: Callable[[Report], None] = lambda _: None,
    ) -> None:
        self.name = name
        self.ready = True
        self._command = [sys.executable, "-m", module, *arguments]
        self._results, self._hear = results, hear
        self._log = results / f"{module.rpartition('.')[2]}.log"
        self._process: subprocess.Popen[str] | None = None
        self._listener: threading.Thread | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.pid

    def start(self) -> None:
        """The log goes on where an earlier process of the job left it."""
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                cwd=ROOT,
                # What Spark leaves in temporary directories when it is killed goes with the rest.
                env={
                    **os.environ,
                    "TMPDIR": str(self._results),
                    "SPARK_LOCAL_DIRS": str(self._results),
                },
            )
        self._listener = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
        self._listener.start()

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for text in lines:
                with contextlib.suppress(ValueError):
                    report = json.loads(text)
                    if isinstance(report, dict):
                        self._hear(report)

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def check(self) -> None:
        """Raises ClusterError if it ended by itself."""
        if not self.alive():
            raise ClusterError(f"{self.name} ended: {self.complaint()}")

    def kill(self) -> None:
        """SIGKILL to the process and what it started; it has ended when this returns."""
        assert self._process is not None, "it was started"
        self._signal_group(signal.SIGKILL)
        self._process.wait()

    def freeze(self) -> None:
        """Until `thaw`, or `kill`."""
        self._signal_group(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_group(signal.SIGCONT)

    def stop(self) -> None:
        """Ends it, cleanly if that takes no longer than ten seconds. May be called any time."""
        if self._process is None:
            return
        if self.alive():
            self._process.terminate()
            self.thaw()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=STOP_SECONDS)
        self._signal_group(signal.SIGKILL)
        self._process.wait()
        if self._listener is not None:
            self._listener.join(timeout=STOP_SECONDS)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def complaint(self) -> str:
        """The line of its log that says what went wrong."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        errors = r"(pyspark|penstock|Penstock|py4j|: org\.apache)\S*(Error|Exception)"
        telling = [text for text in lines if re.match(errors, text)]
        said = [text for text in lines if text.strip()]
        return (telling or said or ["it wrote nothing"])[-1][:300]


def transformer(bootstrap: str, results: Path, source: str, target: str) -> Job:
    arguments = ["--bootstrap", bootstrap, "--source", source, "--target", target]
    return Job("the transformer", "examples.flights.enrich", arguments, results)


class SparkJob(Job):
    """The Spark driver, with its JVM. `ready`: this driver's query runs. `doing`: says Spark."""

    def __init__(self, bootstrap: str, results: Path, source: str, target: str) -> None:
        arguments = ["--bootstrap", bootstrap, "--source", source, "--target", target]
        arguments += ["--checkpoint", str(results / "checkpoint")]
        super().__init__(
            "the Spark driver", "examples.flights.spark_job", arguments, results, self._note
        )
        self.ready = False
        self.doing = ""
        self._late = 0
        self._late_before = 0

    @property
    def late(self) -> int:
        """Flights dropped behind the watermark, by all drivers so far."""
        return self._late_before + self._late

    def start(self) -> None:
        self.ready = False
        self._late_before += self._late
        self._late = 0
        super().start()

    def _note(self, report: Report) -> None:
        self.ready = self.ready or bool(report.get("ready"))
        self._late = report.get("late", self._late)
        self.doing = report.get("doing", self.doing)
