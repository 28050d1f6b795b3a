"""Server processes for tests: started on free ports, ended for certain, logs kept.

Every process holds the reading end of a pipe whose writing end only the test process has: it
stops by itself when the tests are gone, however they went.
"""

import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.waiting import wait_until

from penstock.rpc.channel import open_channel

HOST = "127.0.0.1"
_LOG_TAIL_BYTES = 6_000
_PORTS = range(15_000, 30_000)  # below the kernel's ephemeral range: see `free_port`
_given: set[int] = set()


def free_port() -> int:
    """A port nobody listens on, that no outgoing connection takes while its server is down."""
    for _ in range(1_000):
        port = random.SystemRandom().choice(_PORTS)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        _given.add(port)
        return port
    raise AssertionError("no free port found")


def free_ports_in_a_row(count: int) -> int:
    """The first of `count` neighbouring ports that nobody listens on."""
    for _ in range(1_000):
        base = free_port()
        wanted = range(base + 1, base + count)
        if all(port not in _given and _is_free(port) for port in wanted):
            _given.update(wanted)
            return base
    raise RuntimeError(f"no {count} free ports in a row")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


class ServerProcess:
    """One `python -m penstock_broker …` process; may be started again after it ended."""

    def __init__(self, name: str, arguments: list[str], port: int, log: Path) -> None:
        self.name = name
        self.arguments = arguments
        self.port = port
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

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
        command = [sys.executable, "-m", "penstock_broker.local.child", *self.arguments, *extra]
        environment = {**os.environ, "GRPC_VERBOSITY": "NONE"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
            )
        if wait:
            self.wait_serving(timeout_s)

    def wait_serving(self, timeout_s: float = 40.0) -> None:
        """Until health says SERVING; fails at once if the process ended."""

        def ready() -> bool:
            assert self.is_running, f"{self.name} ended: exit {self.returncode}\n{self.tail()}"
            return self.is_serving()

        wait_until(ready, what=f"{self.name} serves", timeout_s=timeout_s)

    def is_serving(self) -> bool:
        """Whether health says SERVING now."""
        with open_channel(self.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            try:
                answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=1.0)
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

    def pause(self) -> None:
        """SIGSTOP: the process is there and does nothing."""
        os.kill(self.pid, signal.SIGSTOP)

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
        code = self.process.wait(timeout_s)
        self._close_pipe()
        return code

    def _end(self, number: int, timeout_s: float) -> int:
        assert self.process is not None, f"{self.name} was not started"
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.send_signal(signal.SIGCONT)
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(20.0)
            raise AssertionError(
                f"{self.name} did not end within {timeout_s} s after signal {number}\n{self.tail()}"
            ) from None
        self._close_pipe()
        return code

    def close(self) -> None:
        """Ends it if it still runs."""
        if self.is_running:
            self.kill()
        self._close_pipe()

    def _close_pipe(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()

    def log_text(self) -> str:
        """Everything it wrote."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def tail(self) -> str:
        return self.log_text()[-_LOG_TAIL_BYTES:]
