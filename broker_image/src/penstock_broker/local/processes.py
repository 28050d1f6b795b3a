"""Identifies processes so that a reused pid is never mistaken for one, and signals them safely.

A pid alone is not enough: after its process ended, the kernel reuses the number. Pid and start time
together identify one process for ever (until a reboot, so the boot id is part of the start time).
Signals go through a pidfd: it is opened first, then the start time is compared, then the signal is
sent to the process of the pidfd; a pid that is reused in between cannot be hit. Needs Linux
(`/proc`, pidfd since 5.3).
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
    """Signals exactly this process. False: it has ended (its pid may be reused by now)."""
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
    """Inside the block, signals that request a stop are deferred; they are handled at its end.

    For starting a child: a KeyboardInterrupt between its start and the line that records it would
    leave an unknown process. Only needed in the main thread, since Python runs signal handlers only
    there.
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
    """Fields of /proc/<pid>/stat from the third on: the second, the name, can contain anything."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 1 :].split()
