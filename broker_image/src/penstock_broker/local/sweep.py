"""Ends processes of a local cluster that this process did not start.

Two callers: `up` after a supervisor was killed (its children end by themselves, but may still be
running), and `down`. Only processes whose recorded start time still matches are signalled.
"""

import signal
import time

from penstock_broker.local.processes import ProcessIdentity, is_alive, send_signal
from penstock_broker.local.state import LocalState

POLL_S = 0.05
KILL_TIMEOUT_S = 5.0


def end_leftovers(state: LocalState | None, timeout_s: float) -> None:
    """Returns when no recorded server process is alive: waits, then kills.

    Does not touch the supervisor itself; if it is alive, the caller does not hold the lock and must
    not call this.
    """
    if state is None:
        return
    left = [process.identity for process in state.processes if process.identity is not None]
    if not wait_until_gone(left, timeout_s):
        for identity in left:
            send_signal(identity, signal.SIGKILL)
        wait_until_gone(left, KILL_TIMEOUT_S)


def wait_until_gone(processes: list[ProcessIdentity], timeout_s: float) -> bool:
    """Whether all have ended within the timeout."""
    deadline = time.monotonic() + timeout_s
    while any(is_alive(process) for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
