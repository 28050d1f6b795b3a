"""Clients do not survive a fork: threads, event loops and gRPC channels stay with the parent.

A client that is used in a child process raises an error instead of hanging. A child can create its
own clients if the parent had not used gRPC before it forked. If it had, start children with
`spawn`: gRPC cannot restart in such a child, and its fork handlers crash about one child in six
that never touches gRPC at all, unless GRPC_ENABLE_FORK_SUPPORT=0 is set before gRPC is imported
(measured with grpcio 1.85; the program must set it, not a library).
"""

import os
from collections.abc import Callable
from typing import Final
from weakref import WeakSet

from penstock.errors import ErrorCode, MisuseError


class ProcessGuard:
    """Checks whether this is still the process in which a client was created.

    `on_fork` is called in a child right after the fork, with the error to raise from now on.
    """

    def __init__(self, what: str, on_fork: Callable[[MisuseError], None] | None = None) -> None:
        self._what = what
        self._pid = os.getpid()
        self._on_fork = on_fork
        self._error: MisuseError | None = None
        _guards.add(self)

    def check(self) -> None:
        """Raises MisuseError in another process."""
        if self._error is not None:
            raise self._error

    def forked(self) -> None:
        """This process is now a child."""
        self._error = used_in_child(self._what, self._pid)
        if self._on_fork is not None:
            self._on_fork(self._error)


def used_in_child(what: str, pid: int) -> MisuseError:
    """The error for what was created in the parent process `pid`."""
    return MisuseError(
        f"this {what} was created in process {pid} and is used in its child process "
        f"{os.getpid()}; create it in the child, and start child processes with 'spawn'",
        ErrorCode.CLOSED,
    )


_guards: Final["WeakSet[ProcessGuard]"] = WeakSet()


def _forked() -> None:
    for guard in list(_guards):
        guard.forked()


os.register_at_fork(after_in_child=_forked)
