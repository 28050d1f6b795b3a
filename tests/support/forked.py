"""Starts Python programs from a process that has imported them already: `support.forkserver`.

To import a broker costs 0.6 s of a core, a command 0.4 s, and tests start hundreds. A forked one
is a process like any other: with a pid, files, an environment, a command line and an exit code of
its own, and this process is its parent. Only its memory is shared with the fork server's, as long
as neither changes it: a test of memory starts its servers plainly.
"""

import atexit
import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from support.forkserver import REQUEST_BYTES_MAX, Start

Imported = tuple[str, ...]
"""Modules, by which a fork server is known."""
BROKER: Imported = ("penstock_broker.__main__",)
"""What to import for brokers and controllers."""
OPERATOR: Imported = ("penstock_operator.__main__",)
COMMAND_LINE: Imported = (
    "penstock.cli.main",
    # What commands import once they run: a command would else spend most of its time on that.
    "penstock.client.exported",
    "penstock.kubernetes.connect",
    "penstock_broker.local.foreground",
    "typer._adapters",
)
RUN_TIMEOUT_S = 300
_PROGRAM = Path(__file__).with_name("forkserver.py")
_COMMAND_BYTES_MAX = 16 * 1024
_PR_SET_CHILD_SUBREAPER = 36
_prctl: Callable[..., int] = ctypes.CDLL(None, use_errno=True).prctl
_servers: dict[Imported, "_ForkServer"] = {}
_one_at_a_time = Lock()


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Which of the variables only a new Python reads."""
    return {name: text for name, text in environment.items() if name.startswith("PYTHON")}


_read_by_servers = _read_at_start(os.environ)


def can_fork(words: list[str], environment: Mapping[str, str]) -> bool:
    """Whether a fork would do the same as `python` with these words and variables."""
    return words[0] in {"-m", "-P"} and _read_at_start(environment) == _read_by_servers


class Popen(subprocess.Popen[Any]):
    """As `subprocess.Popen` of `python …`, forked from a process that has imported `imported`."""

    def __init__(self, imported: Imported, words: list[str], **options: Any) -> None:
        """`words`: see `can_fork`. `options`: of `subprocess.Popen`."""
        self._imported = imported
        super().__init__(words, **options)

    def _execute_child(
        self,
        args: list[str],
        executable: None,
        preexec_fn: None,
        close_fds: bool,
        pass_fds: tuple[int, ...],
        cwd: str | os.PathLike[str] | None,
        env: Mapping[str, str] | None,
        startupinfo: None,
        creationflags: int,
        shell: bool,
        *pipes_and_more: Any,
    ) -> None:
        """What `subprocess.Popen` calls to start the child."""
        pipes, more = pipes_and_more[:6], pipes_and_more[6:]
        stdin, _, _, stdout, _, stderr = pipes
        # Not what has another default than None, -1 or False: to restore signals.
        assert not any(one for one in more[1:] if one != -1), "an option that forking does not know"
        files = [ours if one == -1 else one for ours, one in enumerate((stdin, stdout, stderr))]
        environment = dict(os.environ if env is None else env)
        assert can_fork(args, environment), f"to be started plainly: {args}"
        start = Start(args, environment, os.fspath(cwd or Path.cwd()))
        try:
            with _one_at_a_time:
                self.pid = _server(self._imported).fork(start, files)
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]  # as the method it replaces
        self._child_created = True


def run(
    imported: Imported,
    words: list[str],
    *,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    **options: Any,
) -> "subprocess.CompletedProcess[str]":
    """To its end, whatever its exit code. See `Popen`; `env` None: that of the tests."""
    pipe = subprocess.PIPE
    process = Popen(imported, words, stdin=pipe, stdout=pipe, stderr=pipe, env=env, **options)
    try:
        out, err = process.communicate(stdin.encode(), timeout=RUN_TIMEOUT_S)
    finally:
        process.kill()
    return subprocess.CompletedProcess(words, process.returncode, out.decode(), err.decode())


class _ForkServer:
    """One process; ends with this one."""

    def __init__(self, imported: Imported) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_PROGRAM), *imported, " " * _COMMAND_BYTES_MAX],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                # gRPC reads it when it is imported. Commands and servers set it before that.
                env={**os.environ, "GRPC_VERBOSITY": "NONE"},
            )
        atexit.register(self._end)

    def fork(self, start: Start, files: list[int]) -> int:
        """The pid of a child of this process; `files` become its standard ones."""
        content = start.encode()
        assert len(content) <= REQUEST_BYTES_MAX, f"{len(content)} bytes of words and environment"
        _adopt_orphans(True)
        try:
            socket.send_fds(self._socket, [content], files)
            answer = self._socket.recv(64)
        finally:
            _adopt_orphans(False)
        assert answer, "the fork server ended; it said why on standard error"
        return int(answer)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()


def _server(imported: Imported) -> _ForkServer:
    if imported not in _servers:
        _servers[imported] = _ForkServer(imported)
    return _servers[imported]


def _adopt_orphans(yes: bool) -> None:
    if _prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this process cannot become a child subreaper")
