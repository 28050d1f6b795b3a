"""A client of `latency.py` in a process of its own: the handle to it.

    ClientProcess ──stdin: "go"──▶ python -m benchmarks.latency_client JOB
          ▲──stdout: ready, done, sample, as JSON lines──┘

The process ends with its standard input. It is the only one of its process group: Ctrl-C does not
reach it.
"""

import json
import os
import queue
import subprocess
import sys
import threading
from dataclasses import asdict
from typing import IO, Any

from benchmarks.latency_figures import Sample
from benchmarks.latency_job import TIMEOUT_S, Job


class ClientProcess:
    """Started at once; `kill` it in the end."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.latency_client", json.dumps(asdict(job))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
            env={**os.environ, "GRPC_VERBOSITY": "NONE"},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._reader = threading.Thread(target=self._read, args=(self._stdout,), daemon=True)
        self._reader.start()

    def await_event(self, event: str) -> dict[str, Any]:
        """The next thing it says, which must be this. Raises SystemExit if it ends before, or says
        nothing for as long as its work and `TIMEOUT_S` take."""
        limit_s = self._job.seconds + self._job.settle_s + 2 * TIMEOUT_S
        who = f"the client {self._job.side}/{self._job.role}"
        try:
            said = self._said.get(timeout=limit_s)
        except queue.Empty:
            raise SystemExit(f"{who} was not {event} within {limit_s:.0f} s") from None
        if said is None:
            raise SystemExit(f"{who} ended before it was {event}: exit {self._process.wait()}")
        assert said["event"] == event, f"{who} said {said}, not {event}"
        return said

    def go(self) -> None:
        self._stdin.write("go\n")
        self._stdin.flush()

    def sample(self) -> Sample:
        """Its answer, after "done"."""
        return Sample(**self.await_event("sample")["sample"])

    def kill(self) -> None:
        """kill -9, and gone."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._stdin.close()
        self._stdout.close()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            self._said.put(json.loads(line))
        self._said.put(None)
