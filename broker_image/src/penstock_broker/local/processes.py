"""Naming a process so that a recycled pid is never mistaken for it, and signalling it safely.

A pid alone says little: after its process ended, the kernel gives the number to another one. Pid
and start time together name one process for ever (until a reboot, so the boot id is part of the
start time). Signals go through a pidfd: it is opened first, then the start time is compared,
then the signal is sent to whatever the pidfd holds; a pid recycled in between cannot be hit.
Needs Linux (`/proc`, pidfd since 5.3).
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_START_TIME_FIELD = 22  # of /proc/<pid>/stat, counted from 1 as in proc(5)
_STATE_FIELD = 3


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of this machine. `started` compares equal only for the same process."""

    pid: int
    started: str


def identify(pid: int) -> ProcessIdentity | None:
    """The running process that has this pid now; None if there is none, or only its zombie."""
    fields = _stat_fields(pid)
    if fields is None or fields[_STATE_FIELD - 3] in ("Z", "X"):
        return None
    ticks = fields[_START_TIME_FIELD - 3]
    return ProcessIdentity(pid, f"{_BOOT_ID.read_text().strip()}:{ticks}")


def identify_self() -> ProcessIdentity:
    identity = identify(os.getpid())
    assert identity is not None, "a process sees itself"
    return identity


def is_alive(identity: ProcessIdentity) -> bool:
    return identify(identity.pid) == identity


def send_signal(identity: ProcessIdentity, number: signal.Signals) -> bool:
    """Signals exactly this process. False: it is gone (the pid may be another's by now)."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(identity):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Inside the block, signals that ask to stop wait; they are handled when it ends.

    For starting a child: a KeyboardInterrupt between its start and the line that remembers it
    would leave a process nobody knows. In other threads than the main one nothing is needed,
    since Python runs signal handlers in the main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []
    before = {
        number: signal.signal(number, lambda received, _: seen.append(received))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        for received in seen:
            signal.raise_signal(received)


def _stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/<pid>/stat from the third on: the second, the name, may hold anything."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 1 :].split()
