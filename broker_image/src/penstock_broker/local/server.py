"""One server process of a local cluster, as a child of this process.

    start ──▶ child.py (watches the pipe on its standard input) ──▶ SERVING ──▶ stop | crash
      stderr: logs/<name>.log, appended, one earlier file kept

A `ServerProcess` outlives its child: it can be started again on the same ports and data. It decides
nothing; `LocalCluster` calls it. Methods may be called from several threads.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import (
    health_pb2,
    health_pb2_grpc,
)

from penstock.errors import ClusterError, ErrorCode
from penstock.rpc.channel import open_channel
from penstock_broker.local.ports import HOST, Ports
from penstock_broker.local.processes import ProcessIdentity, identify, signals_deferred
from penstock_broker.local.state import UMASK, RecordedProcess, private

LOG_BYTES_MAX = 16 * 1024 * 1024
"""A log larger than this when its process starts becomes `<name>.log.1`."""
LAST_WORDS_BYTES = 4096
HEALTH_TIMEOUT_S = 1.0
_STATUS = health_pb2.HealthCheckResponse.ServingStatus


class ServerProcess:
    """A controller or broker process. `name` is `controller` or `broker-<id>`."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        ports: Ports,
        log_file: Path,
        environment: Mapping[str, str],
    ) -> None:
        """`environment`: variables beside this process's."""
        self._environment = environment
        self.name = name
        self.ports = ports
        self.log_file = log_file
        self.restarts = 0
        self._arguments = list(arguments)
        self._child: subprocess.Popen[bytes] | None = None
        self._identity: ProcessIdentity | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.ports.serve}"

    @property
    def health_address(self) -> str:
        """Where its gRPC health service is asked."""
        return f"{HOST}:{self.ports.health or self.ports.serve}"

    @property
    def pid(self) -> int | None:
        """None while it is not running."""
        return self._child.pid if self.is_running and self._child is not None else None

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Of the last run; negative = ended by that signal; None = running or never started."""
        return self._child.poll() if self._child is not None else None

    def record(self) -> RecordedProcess:
        identity = self._identity if self.is_running else None
        metrics = f"{HOST}:{self.ports.metrics}"
        shown = f"{HOST}:{self.ports.certificate}" if self.ports.certificate else ""
        return RecordedProcess(self.name, identity, self.address, metrics, self.restarts, shown)

    def start(self) -> None:
        """Starts the process; it is not yet ready (see `is_serving`)."""
        assert not self.is_running, f"{self.name} is running"
        self._release()
        if self.log_file.exists() and self.log_file.stat().st_size > LOG_BYTES_MAX:
            self.log_file.replace(self.log_file.with_suffix(".log.1"))
        command = [sys.executable, "-m", "penstock_broker.local.child", *self._arguments]
        # gRPC's C core would write lines of its own between the JSON lines.
        environment = {"GRPC_VERBOSITY": "NONE", **os.environ, **self._environment}
        with open(self.log_file, "ab", opener=private) as log, signals_deferred():
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # closes with this process, which tells the child to end
                stdout=log,
                stderr=log,
                env=environment,
                process_group=0,  # Ctrl-C in the terminal reaches the supervisor only
                umask=UMASK,
            )
            self._identity = identify(self._child.pid)

    def is_serving(self) -> bool:
        """Whether its gRPC health service says SERVING now (asks, at most a second)."""
        with open_channel(self.health_address) as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=HEALTH_TIMEOUT_S
                )
            except grpc.RpcError:
                return False
            return bool(answer.status == _STATUS.Value("SERVING"))

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal if it is running. A pid that was not waited for yet is never reused."""
        if self._child is not None:
            self._child.send_signal(number)

    def wait(self, timeout_s: float) -> bool:
        """Waits; whether it ended within the timeout."""
        if self._child is None:
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout_s)
        return not self.is_running

    def stop(self, timeout_s: float) -> None:
        """SIGTERM, then SIGKILL after the timeout. It has ended when this returns."""
        self.signal(signal.SIGTERM)
        if not self.wait(timeout_s):
            self.signal(signal.SIGKILL)
            assert self._child is not None
            self._child.wait()
        self._release()

    def failure(self) -> ClusterError:
        """Why it exited: exit code and the last line it logged."""
        code = self.exit_code
        how = f"was ended by signal {-code}" if code is not None and code < 0 else f"exited {code}"
        return ClusterError(
            f"{self.name} {how}: {self.last_words() or 'it logged nothing'} "
            f"(its log: {self.log_file})",
            ErrorCode.INTERNAL,
        )

    def last_words(self) -> str:
        """The last line of its log; empty if there is none."""
        try:
            with self.log_file.open("rb") as log:
                log.seek(max(0, self.log_file.stat().st_size - LAST_WORDS_BYTES))
                lines = log.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""

    def _release(self) -> None:
        if self._child is not None and self._child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()
