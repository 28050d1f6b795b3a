"""Server processes for tests: started on reserved ports, ended for certain, logs kept.

Ports are reserved from before the first start until `close` (`penstock_broker.local.ports`), so
that nobody else gets one, neither before its server listens nor while it is killed.

Every process holds the reading end of a pipe whose writing end only the test process has: it
stops by itself when the tests are gone, however they went. One that ends although nobody asked it
to fails every wait at once (`support.waiting`), with the end of its log.
"""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support import forked
from support.channels import patient_channel
from support.waiting import unwatch, wait_exit, wait_until, watch

from penstock_broker.local.ports import HOST, ReservedPort

__all__ = [
    "HOST",
    "ReservedPort",
    "ServerProcess",
    "logs_of_this_test",
    "reserve_row",
    "wait_stopped",
]

_LOG_TAIL_BYTES = 6_000
_LAST_LINES = 12
_started: list["ServerProcess"] = []
"""In order of their first start."""


def logs_of_this_test() -> list[tuple[str, str]]:
    """Name and end of the log of each process the running test started, ended ones too.

    A test that started none: those that run and that a test of the same file started, as for a
    fixture of the module.
    """
    test = _running_test()
    own = [process for process in _started if process.started_by == test]
    file = test.partition("::")[0]
    shared = [
        process
        for process in _started
        if process.is_running and process.started_by.partition("::")[0] == file
    ]
    return [(process.title, process.tail()) for process in own or shared]


def reserve_row(count: int) -> list[ReservedPort]:
    """Neighbouring ports, lowest first; for the caller to close."""
    for _ in range(1_000):
        with ExitStack() as made:
            row = [made.enter_context(ReservedPort())]
            try:
                for offset in range(1, count):
                    row.append(made.enter_context(ReservedPort(row[0].port + offset)))
            except OSError:
                continue
            made.pop_all()
            return row
    raise AssertionError(f"no {count} neighbouring ports are free")


def _running_test() -> str:
    """Its node id; empty outside pytest."""
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]


def stop(pid: int) -> None:
    """SIGSTOP of a child; waits until it has stopped, as it may answer for a moment yet."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def wait_stopped(process: "subprocess.Popen[bytes]") -> None:
    """Until a child has stopped itself. AssertionError with its words if it ended instead."""

    def stopped() -> bool:
        wanted = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
        seen = os.waitid(os.P_PID, process.pid, wanted)
        if seen is not None and seen.si_code != os.CLD_STOPPED:
            raise AssertionError(f"it ended before it stopped: {process.communicate()}")
        return seen is not None

    wait_until(stopped, what="the program stops itself", timeout_s=120)


class ServerProcess:
    """One `python -m penstock_broker …` process; may be started again after it ended.

    `reserved` are the ports it listens on, the one of `address` first; `close` gives them back.
    """

    def __init__(self, name: str, arguments: list[str], log: Path, *reserved: ReservedPort) -> None:
        self.name = name
        self.arguments = arguments
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self.started_by = ""
        """The test that started it first."""
        self.launcher = ["-m", "penstock_broker.local.child"]
        self.environment: dict[str, str] = {}
        """Beside that of the tests."""
        self.forked = True
        """Whether `support.forked` starts it, which is quicker than a Python of its own."""
        self.health_address = reserved[0].address if reserved else ""
        """Where health answers in plaintext."""
        self._reserved = reserved
        self._log_began = 0

    @property
    def address(self) -> str:
        return self._reserved[0].address

    @property
    def port(self) -> int:
        return self._reserved[0].port

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was not started"
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, *extra: str, wait: bool = True, timeout_s: float = 40.0) -> None:
        """Starts; `wait`: until health says SERVING. `extra`: more command line."""
        assert not self.is_running, f"{self.name} runs already"
        words = [*self.launcher, *self.arguments, *extra]
        environment = {
            **os.environ,
            "GRPC_VERBOSITY": "NONE",
            "TMPDIR": str(self.log.parent),  # what a killed one leaves goes with the test's files
            **self.environment,
        }
        self._close_pipe()
        if self not in _started:
            self.started_by = _running_test()
            _started.append(self)
        self._log_began = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            pipe = subprocess.PIPE
            if self.forked and forked.can_fork(words, environment):
                self.process = forked.Popen(
                    forked.BROKER, words, stdin=pipe, stdout=log, stderr=log, env=environment
                )
            else:
                self.process = subprocess.Popen(
                    [sys.executable, "-X", "faulthandler", *words],
                    stdin=pipe,
                    stdout=log,
                    stderr=log,
                    env=environment,
                )
        watch(self, self.check_running)
        if wait:
            self.wait_serving(timeout_s)

    def wait_serving(self, timeout_s: float = 40.0) -> None:
        """Until health says SERVING; fails at once if this or any other process ended by itself."""
        self.check_running()
        wait_until(self.is_serving, what=f"{self.name} serves", timeout_s=timeout_s)

    def check_running(self) -> None:
        """AssertionError with the last lines of this run's log if it does not run."""
        if self.is_running:
            return
        with self.log.open("rb") as log:
            log.seek(self._log_began)
            lines = log.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
        said = "\n".join(lines) or "it logged nothing"
        raise AssertionError(
            f"{self.name} ended by itself: exit {self.returncode}; its last lines ({self.log}):\n"
            f"{said}"
        )

    def is_serving(self) -> bool:
        """Whether health says SERVING now."""
        with patient_channel(self.health_address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            try:
                answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=20.0)
            except grpc.RpcError:
                return False
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    @property
    def returncode(self) -> int | None:
        return None if self.process is None else self.process.poll()

    def kill(self) -> None:
        """kill -9, and gone."""
        self._end(signal.SIGKILL, timeout_s=20.0)

    def stop(self, timeout_s: float = 30.0) -> int:
        """SIGTERM; the exit code."""
        return self._end(signal.SIGTERM, timeout_s)

    def terminate(self) -> None:
        """SIGTERM without waiting: follow with `wait_end`."""
        unwatch(self)
        os.kill(self.pid, signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP: the process is there and does nothing, from the return of this call on."""
        stop(self.pid)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self, *extra: str, wait: bool = True) -> None:
        """Starts again; kills first if it still runs."""
        if self.is_running:
            self.kill()
        self.start(*extra, wait=wait)

    def wait_end(self, timeout_s: float = 30.0) -> int:
        """The exit code of a process that ends by itself."""
        assert self.process is not None
        unwatch(self)
        code = wait_exit(self.process, timeout_s)
        self._close_pipe()
        return code

    def _end(self, number: int, timeout_s: float) -> int:
        assert self.process is not None, f"{self.name} was not started"
        unwatch(self)
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.send_signal(signal.SIGCONT)
        try:
            code = wait_exit(self.process, timeout_s)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # it says what its threads do
            wait_exit(self.process, 20.0)
            raise AssertionError(
                f"{self.name} did not end within {timeout_s} s after signal {number}\n{self.tail()}"
            ) from None
        self._close_pipe()
        return code

    def close(self) -> None:
        """Ends it if it still runs, and gives its ports back. It cannot be started again."""
        unwatch(self)
        if self.is_running:
            self.kill()
        self._close_pipe()
        for port in self._reserved:
            port.close()

    def _close_pipe(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()

    @property
    def title(self) -> str:
        """Which process, and whether it runs."""
        state = "running" if self.is_running else f"exit {self.returncode}"
        return f"{self.name} ({state}), {self.log}"

    def log_text(self) -> str:
        """Everything it wrote."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def tail(self) -> str:
        return self.log_text()[-_LOG_TAIL_BYTES:]
